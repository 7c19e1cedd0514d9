"""What a path does to memory, in order."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from tree_sitter import Node

from patcher.machine.terms import Term
from patcher.source.unit import Function, Unit


class Scope(IntEnum):
    """Scopes of the PTX memory model (PTX ISA, "Scope"), narrowest first."""

    NONE = 0
    CTA = 1
    CLUSTER = 2
    GPU = 3
    SYS = 4

    @property
    def word(self) -> str:
        """The name as PTX writes it."""
        return {0: "no", 1: "cta", 2: "cluster", 3: "gpu", 4: "sys"}[int(self)]


@dataclass(frozen=True, eq=False, repr=False)
class Site:
    """One code location of an event within one activation of a function."""

    function: Function
    node: Node
    env: dict[Term, Term]
    names: dict[str, Term]

    @property
    def unit(self) -> Unit:
        """The unit that holds the node."""
        return self.function.unit


@dataclass(frozen=True, eq=False, repr=False)
class Event:
    """Something with an effect; ``sites`` run from the function that was run inwards to the place itself."""

    sites: tuple[Site, ...]

    @property
    def outer(self) -> Site:
        """Where the function that was run does it, or calls what does it."""
        return self.sites[0]

    @property
    def inner(self) -> Site:
        """Where it happens."""
        return self.sites[-1]


@dataclass(frozen=True, eq=False, repr=False)
class Fence(Event):
    """A memory fence.  ``proxy`` is set for ``fence.proxy.*``."""

    scope: Scope
    proxy: bool = False


@dataclass(frozen=True, eq=False, repr=False)
class Barrier(Event):
    """An execution barrier (``__syncwarp``, ``__syncthreads``, ``bar.sync``)."""

    name: str


@dataclass(frozen=True, eq=False, repr=False)
class Rmw(Event):
    """A read-modify-write: ``kind`` is cas, max, add, exch, ...; ``operands`` without the address."""

    kind: str
    place: Term
    operands: tuple[Term, ...]
    scope: Scope
    result: Term
    release: bool = False


@dataclass(frozen=True, eq=False, repr=False)
class Store(Event):
    """A store to memory that is not a local variable."""

    place: Term
    value: Term
    scope: Scope
    release: bool


@dataclass(frozen=True, eq=False, repr=False)
class Load(Event):
    """A load with an explicit scope or cache operator, or a volatile one."""

    place: Term
    scope: Scope


@dataclass(frozen=True, eq=False, repr=False)
class Opaque(Event):
    """Inline assembly that is not understood, with its operands."""

    text: str
    operands: tuple[Term, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Call(Event):
    """A call of a function whose definition is not in sight."""

    name: str
    arguments: tuple[Term, ...]
