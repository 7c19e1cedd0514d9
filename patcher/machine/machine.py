"""Run a function symbolically, path by path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from patcher.machine.events import Event
from patcher.machine.interpreter import Interpreter, NotUnderstood
from patcher.machine.state import Choices, Dead, State
from patcher.machine.terms import Term
from patcher.source.unit import Function, Unit

MAX_PATHS = 1000
Resolver = Callable[[str, Unit], tuple[Function, ...]]


class TooComplex(Exception):
    """A function has more paths than are followed, or a construct that is not understood.

    ``line`` is where, in ``path``.
    """

    def __init__(self, path: str, line: int, what: str) -> None:
        super().__init__(f"{path}:{line}: {what}")
        self.path, self.line, self.what = path, line, what


class Path(NamedTuple):
    """One way through a function: what was decided, what it did, what it returned."""

    known: Mapping[Term, bool]
    events: tuple[Event, ...]
    result: Term | None


class Run(NamedTuple):
    """The paths of a function and what they were read from: they hold wherever that is the same."""

    paths: tuple[Path, ...]
    entered: tuple[Function, ...]
    unknown: frozenset[tuple[str, str]]


class Machine:
    """Runs functions; ``resolve(name, unit)`` gives the definitions that a call in ``unit`` can mean.

    ``shared`` holds runs of other readings of the same files (other releases of NVSHMEM): where all text that a
    run went through is the same here, it is taken over.
    """

    def __init__(self, resolve: Resolver, units: Callable[[str], Unit], shared: dict[tuple[str, int], list[Run]]) -> None:
        self._resolve = resolve
        self._units = units
        self._shared = shared
        self._memo: dict[int, tuple[Path, ...]] = {}
        self._macros: dict[tuple[int, int], list[bytes]] = {}

    def paths(self, function: Function, limit: int = MAX_PATHS) -> tuple[Path, ...]:
        """Every path through ``function``, loops followed once; ``limit`` bounds how many.

        Raises :class:`TooComplex`.
        """
        key = id(function)
        if key not in self._memo:
            runs = self._shared.setdefault((function.unit.path, function.node.start_byte), [])
            run = next((r for r in runs if self._fits(r)), None)
            if run is None:
                run = self._run(function, limit)
                runs.append(run)
            self._memo[key] = run.paths
        return self._memo[key]

    def _fits(self, run: Run) -> bool:
        for function in run.entered:
            there, here = function.unit, self._units(function.unit.path)
            start, end = function.node.start_byte, function.node.end_byte
            if here is there:
                continue
            text = here.text[start:end]
            if text != there.text[start:end] or any(m in text for m in self._differing(here, there)):
                return False
        return not any(self._resolve(name, self._units(path)) for name, path in run.unknown)

    def _differing(self, one: Unit, other: Unit) -> list[bytes]:
        """Names of the macros that two readings of a file define differently, and of macros that use them."""
        key = (id(one), id(other))
        if key not in self._macros:
            names = {n for n in one.macros.keys() | other.macros.keys() if one.macros.get(n) != other.macros.get(n)}
            while more := {n for n, m in one.macros.items() if n not in names and any(x in m.body for x in names)}:
                names |= more
            self._macros[key] = [n.encode() for n in names]
        return self._macros[key]

    def _run(self, function: Function, limit: int) -> Run:
        choices = Choices()
        found: list[Path] = []
        entered: set[Function] = set()
        unknown: set[tuple[str, str]] = set()
        for count in choices.runs(limit):
            if count == limit:
                raise TooComplex(function.unit.path, function.line, f"`{function.name}` has more than {limit} paths")
            state = State(choices)
            interpreter = Interpreter(state, self._resolve)
            try:
                result = interpreter.enter(function)
            except Dead:
                continue
            except NotUnderstood as error:
                raise TooComplex(error.path, error.line, error.what) from error
            finally:
                entered |= interpreter.entered
                unknown |= interpreter.unknown
            found.append(Path(dict(state.known), tuple(state.events), result))
        return Run(tuple(found), tuple(entered), frozenset(unknown))
