"""Activations of functions, and how events are placed in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from tree_sitter import Node

from patcher.machine.events import Event, Site
from patcher.machine.state import State, is_local
from patcher.machine.terms import Term
from patcher.source.unit import Function, Unit

Resolver = Callable[[str, Unit], tuple[Function, ...]]
MAX_DEPTH = 12


class NotUnderstood(Exception):
    """A construct that the interpreter does not follow."""

    def __init__(self, path: str, line: int, what: str) -> None:
        super().__init__(what)
        self.path, self.line, self.what = path, line, what


class Frame:
    """The function that is being run, and what its names mean."""

    def __init__(self, state: State, resolve: Resolver) -> None:
        self.state = state
        self.resolve = resolve
        self.function: Function | None = None
        self.frame = 0
        self.pin: Node | None = None  # the invocation, while the body of a macro runs
        self.lambdas: dict[Term, Node] = {}
        self.entered: set[Function] = set()
        self.unknown: set[tuple[str, str]] = set()  # names of calls that had no definition, and the file of the call
        self.references: dict[Term, tuple[Term, str]] = {}  # cuda::atomic_ref objects: place, type text

    @property
    def unit(self) -> Unit:
        """The unit of the running function."""
        assert self.function is not None
        return self.function.unit

    def fail(self, node: Node, what: str) -> NoReturn:
        """Stop the path: ``node`` is not understood."""
        at = self.pin or node
        raise NotUnderstood(self.unit.path, self.unit.line(at.start_byte), what)

    def site(self, node: Node) -> Site:
        """Where ``node`` is, with what is known there."""
        assert self.function is not None
        return Site(self.function, self.pin or node, dict(self.state.env), dict(self.state.names))

    def emit(self, node: Node, build: Callable[[tuple[Site, ...]], Event]) -> None:
        """Add an event at ``node``."""
        self.state.events.append(build((*self.state.stack, self.site(node))))

    def local(self, name: str) -> Term:
        """A new local variable."""
        place = ("var", name, self.frame)
        self.state.names[name] = place
        return place

    def write(self, place: Term, value: Term) -> bool:
        """Set a local; False where ``place`` is memory."""
        if not is_local(place):
            return False
        state = self.state
        for held in [p for p in state.env if p[0] == "field" and p != place and _inside(p, place)]:
            del state.env[held]
        state.env[place] = value
        return True


def _inside(place: Term, outer: Term) -> bool:
    while place[0] == "field":
        place = place[1]
        if place == outer:
            return True
    return False
