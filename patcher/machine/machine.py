"""Run a function symbolically, path by path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

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


@dataclass(frozen=True, eq=False)
class Path:
    """One way through a function: what was decided, what it did, what it returned."""

    known: Mapping[Term, bool]
    events: tuple[Event, ...]
    result: Term | None


class Machine:
    """Runs functions; ``resolve(name, unit)`` gives the definitions that a call in ``unit`` can mean."""

    def __init__(self, resolve: Resolver) -> None:
        self._resolve = resolve
        self._memo: dict[int, tuple[Path, ...]] = {}

    def paths(self, function: Function, limit: int = MAX_PATHS) -> tuple[Path, ...]:
        """Every path through ``function``, loops followed once; ``limit`` bounds how many.

        Raises :class:`TooComplex`.
        """
        key = id(function)
        if key not in self._memo:
            self._memo[key] = self._run(function, limit)
        return self._memo[key]

    def _run(self, function: Function, limit: int) -> tuple[Path, ...]:
        choices = Choices()
        found: list[Path] = []
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
            found.append(Path(dict(state.known), tuple(state.events), result))
        return tuple(found)
