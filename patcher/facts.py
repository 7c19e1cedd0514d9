"""Facts of a checkout for one release of NVSHMEM: units, functions by role, their paths.

A role is found by what a function does: who waits by CAS on a queue of the QP submits, who waits for
the completion queue to reach a frontier drains it, who gives an element of ``rcs`` looks a QP up.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from patcher import protocol
from patcher.machine import Machine, Path, Rmw, Store, TooComplex
from patcher.machine.machine import MAX_PATHS, Run
from patcher.machine.terms import Term, number, operation, place_path, value_path, walk
from patcher.protocol import Version
from patcher.source.conditions import Macro
from patcher.source.preprocess import preprocess
from patcher.source.unit import Function, Unit, without_specifiers
from patcher.tree import FileTree

_DEVICE = {"__CUDA_ARCH__": Macro("900"), "__CUDACC__": Macro("1"), "__cplusplus": Macro("201703")}
_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*["<]([^">]+)[">]', re.M)
_QUEUE = re.compile(rb"tx_wq|\brcs\b")
_CAS = re.compile(rb"atomicCAS|compare_exchange|\bcas\b|\.cas\.")
_NAME_CALLED = re.compile(rb"\b([A-Za-z_]\w*)\s*(?:<[^;{}()]*>)?\s*\(")
_RCS = re.compile(rb"\brcs\b\s*[\[+)]")
_POLLS = re.compile(rb"wqe_counter")
_ORDERS = re.compile(rb"ready_head|prod_idx")
_TOUCHES = re.compile(
    rb"tx_wq|mvars|rcs\b|wqe_counter|prod_idx|cons_idx|use_async|nic_buf|device_state|atomic(?:CAS|Max|Min|Add|Sub|Exch|Or|And|Xor)|atomic_ref"
    rb"|__threadfence|thread_fence|fence|membar|\b(?:st|ld|atom|red)\.|volatile\s*\*|__sync|trap|_ONCE\b|\*\s*\w+\s*=[^=]"
)
_MAX_CALLER_BODY = 4000
_MAX_UP = 4
_TRIED_PATHS = 150


class Problem(NamedTuple):
    """A place that could not be followed, and why."""

    path: str
    line: int
    what: str


class Sources:
    """Units by path and release; a file whose conditionals don't ask for the release has one unit.

    What ``before`` read of files that are the same is taken over.
    """

    def __init__(self, tree: FileTree, before: Sources | None = None) -> None:
        self.tree = tree
        self._fixed: dict[str, Unit] = {}
        self._varying: dict[tuple[str, Version], Unit] = {}
        self._plain: dict[str, bytes] = {}
        self._open: set[str] = set()
        self._includes: dict[str, tuple[str, ...]] = {}
        self.runs: dict[tuple[str, int], list[Run]] = {}
        self.calls: dict[bytes, frozenset[str]] = before.calls if before is not None else {}
        if before is not None:
            same = {p for p in before._fixed if tree.read(p) is before._fixed[p].data}
            self._fixed = {p: u for p, u in before._fixed.items() if p in same and set(before.included(p)) <= same}

    def unit(self, path: str, version: Version) -> Unit:
        """The unit of ``path`` as compiled against ``version``."""
        found = self._fixed.get(path) or self._varying.get((path, version))
        if found is None:
            data = self.tree.read(path)
            if path not in self._plain:
                self._plain[path] = without_specifiers(data)
            given, varies = self._given(path, version)
            found = Unit(path, data, preprocess(self._plain[path], given))
            if varies or found.pre.asked & protocol.VERSION_MACROS:
                same = next((u for (p, _), u in self._varying.items() if p == path and u.pre.text == found.pre.text), None)
                found = same or found
                self._varying[path, version] = found
            else:
                self._fixed[path] = found
        return found

    def _given(self, path: str, version: Version) -> tuple[dict[str, Macro], bool]:
        """The macros that a file starts with, those of the tree's headers that it includes among them.

        True where these differ between releases.
        """
        macros, varies = {**_DEVICE, **version.macros()}, False
        self._open.add(path)
        for name in self._direct(path):
            if name not in self._open:
                macros.update((n, m) for n, m in self.unit(name, version).macros.items() if n not in protocol.VERSION_MACROS)
                varies |= (name, version) in self._varying
        self._open.discard(path)
        return macros, varies

    def _direct(self, path: str) -> list[str]:
        found = (self._locate(path, m.decode("utf-8", "replace")) for m in _INCLUDE.findall(self.tree.read(path)))
        return [f for f in found if f is not None]

    @cached_property
    def candidates(self) -> tuple[str, ...]:
        """Files of device code that touch a send queue of a QP."""
        return tuple(p for p in self.tree.paths() if _QUEUE.search(data := self.tree.read(p)) and _is_device(p, data))

    def included(self, path: str) -> tuple[str, ...]:
        """Files of the tree that ``path`` includes, directly or not, nearest first."""
        if path not in self._includes:
            order: list[str] = []
            queue = [path]
            while queue:
                at = queue.pop(0)
                for found in _INCLUDE.findall(self.tree.read(at)):
                    target = self._locate(at, found.decode("utf-8", "replace"))
                    if target is not None and target not in order and target != path:
                        order.append(target)
                        queue.append(target)
            self._includes[path] = tuple(order)
        return self._includes[path]

    def _locate(self, path: str, name: str) -> str | None:
        near = posixpath.normpath(posixpath.join(posixpath.dirname(path), name))
        known = self._known
        if near in known:
            return near
        return next((p for p in self.tree.paths() if p.endswith("/" + name)), None)

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self.tree.paths())


def _is_device(path: str, data: bytes) -> bool:
    return path.endswith((".cuh", ".cu")) or b"__device__" in data


@dataclass(eq=False, repr=False)
class Facts:
    """What the code does when compiled against the releases in ``versions`` (the same for each)."""

    sources: Sources
    versions: tuple[Version, ...]
    units: tuple[Unit, ...]
    problems: list[Problem] = field(default_factory=list)
    tried: list[Problem] = field(default_factory=list)
    _tries: int = 0

    @cached_property
    def machine(self) -> Machine:
        """Runs functions of these units."""
        return Machine(self._worth_running, self.unit, self.sources.runs)

    def unit(self, path: str) -> Unit:
        """The unit of any file of the tree."""
        return self.sources.unit(path, self.versions[0])

    def resolve(self, name: str, unit: Unit) -> tuple[Function, ...]:
        """Definitions that ``name`` can mean in ``unit``: its own, then those of what it includes, then of its users."""
        key = (name, unit.path)
        if key not in self._resolved:
            self._resolved[key] = self._resolve(name, unit)
        return self._resolved[key]

    @cached_property
    def _resolved(self) -> dict[tuple[str, str], tuple[Function, ...]]:
        return {}

    def _resolve(self, name: str, unit: Unit) -> tuple[Function, ...]:
        if name in unit.functions:
            return unit.functions[name]
        needle = name.encode("utf-8", "surrogateescape")
        for path in (*self.sources.included(unit.path), *self.sources.candidates):
            if needle in self.sources.tree.read(path):
                found = self.unit(path).functions.get(name)
                if found:
                    return found
        return ()

    def _worth_running(self, name: str, unit: Unit) -> tuple[Function, ...]:
        """``resolve`` without helpers that can't matter: they touch no memory and only multiply paths."""
        return tuple(f for f in self.resolve(name, unit) if self._matters(f, 4))

    def _matters(self, function: Function, depth: int) -> bool:
        key = id(function)
        if key not in self._relevant:
            self._relevant[key] = False
            body = self._body(function)
            statements = [c for c in function.body.named_children if c.type != "comment"]
            self._relevant[key] = (
                _TOUCHES.search(body) is not None
                or (len(statements) == 1 and statements[0].type == "return_statement")
                or (depth > 0 and any(self._matters(f, depth - 1) for n in self._called(function) for f in self.resolve(n, function.unit)))
            )
        return self._relevant[key]

    @cached_property
    def _relevant(self) -> dict[int, bool]:
        return {}

    def _called(self, function: Function) -> frozenset[str]:
        body = self._body(function)
        found = self.sources.calls.get(body)
        if found is None:
            names = {m.decode() for m in _NAME_CALLED.findall(body)} - {"if", "while", "for", "switch", "return", "sizeof"}
            found = self.sources.calls[body] = frozenset(names)
        return found

    def paths(self, function: Function) -> tuple[Path, ...]:
        """The paths through a function; where they can't be followed, none and a problem."""
        try:
            return self.machine.paths(function, _TRIED_PATHS if self._tries else MAX_PATHS)
        except TooComplex as error:
            problem = Problem(error.path, error.line, error.what)
            if problem not in self.problems:
                self.problems.append(problem)
            return ()

    def functions(self) -> Iterable[Function]:
        """All functions of the candidate files."""
        for unit in self.units:
            for group in unit.functions.values():
                yield from group

    def callers(self, name: str) -> tuple[Function, ...]:
        """Functions of the candidate files that call ``name``."""
        return tuple(f for f in self.functions() if f.name != name and name in self._called(f))

    def _body(self, function: Function) -> bytes:
        """The text of a function, and that of the macros of its file that it uses."""
        key = id(function)
        if key not in self._bodies:
            body = function.unit.text[function.body.start_byte : function.body.end_byte]
            used = (m.body.encode() for n, m in function.unit.macros.items() if m.parameters is not None and n.encode() + b"(" in body)
            self._bodies[key] = b" ".join([body, *used])
        return self._bodies[key]

    @cached_property
    def _bodies(self) -> dict[int, bytes]:
        return {}

    @cached_property
    def submit(self) -> tuple[Function, ...]:
        """Functions that order submitters by CAS and post what they submit."""
        found: list[Function] = []
        for function in self.functions():
            if _CAS.search(self._body(function)) and self._may_order(function):
                found.extend(f for f in self._climb(function, self._submits, _CAS, _MAX_UP) if f not in found)
        return tuple(found)

    def _may_order(self, function: Function) -> bool:
        """Whether a function with a CAS, or who calls it, has to do with a queue that orders submitters."""
        return self._supplies(function, _CAS) or any(self._supplies(c, _CAS) for c in self.callers(function.name))

    @cached_property
    def quiet(self) -> tuple[Function, ...]:
        """Functions that wait until the completion queue reaches a frontier of the QP."""
        found: list[Function] = []
        for function in self.functions():
            if _POLLS.search(self._body(function)):
                found.extend(f for f in self._climb(function, self._drains, _POLLS, _MAX_UP) if f not in found)
        return tuple(found)

    @cached_property
    def lookup(self) -> tuple[tuple[Function, Function], ...]:
        """Functions that give an RC QP of ``globalmem.rcs``, each with the function that takes it out of the array."""
        found: list[tuple[Function, Function]] = []
        for function in self.functions():
            if _RCS.search(self._body(function)) and self._looks_up(function):
                with self._speculating():
                    above = [c for c in self.callers(function.name) if len(self._body(c)) < _MAX_CALLER_BODY and self._looks_up(c)]
                found.extend((judged, function) for judged in above or [function])
        return tuple(found)

    def _looks_up(self, function: Function) -> bool:
        return not function.returns_nothing and any(rc_index(p.result) is not None for p in self.paths(function))

    def _climb(self, function: Function, test: Callable[[Function], bool | None], via: re.Pattern[bytes], levels: int) -> list[Function]:
        """``function`` where it passes, else the nearest callers that do; None from the test ends the climb.

        A caller is only tried where it can supply what is missing: a queue of the QP, not by way of
        another function that matches ``via`` (that one is a candidate of its own).
        """
        outcome = test(function)
        if outcome or outcome is None or levels == 0:
            return [function] if outcome else []
        found: list[Function] = []
        for caller in self.callers(function.name):
            waits_here = via is _CAS and _ORDERS.search(self._body(function)) is not None
            if len(self._body(caller)) < _MAX_CALLER_BODY and (waits_here or self._supplies(caller, via)):
                with self._speculating():
                    found.extend(f for f in self._climb(caller, test, via, levels - 1) if f not in found)
        return found

    def _supplies(self, function: Function, via: re.Pattern[bytes]) -> bool:
        if _ORDERS.search(self._body(function)):
            return True
        helpers = (f for n in self._called(function) for f in self.resolve(n, function.unit))
        return any(_ORDERS.search(self._body(h)) and not via.search(self._body(h)) for h in helpers)

    @contextmanager
    def _speculating(self) -> Iterator[None]:
        """What is only tried is no problem where it can't be followed."""
        before = list(self.problems)
        self._tries += 1
        yield
        self._tries -= 1
        self.tried.extend(p for p in self.problems if p not in before and p not in self.tried)
        self.problems[:] = before

    def _submits(self, function: Function) -> bool | None:
        waits = posts = foreign = False
        for path in self.paths(function):
            for event in path.events:
                if isinstance(event, Rmw) and event.kind == "cas":
                    place = protocol.member(event.place)
                    waits |= place in protocol.ORDER_QUEUES
                    foreign |= place not in protocol.ORDER_QUEUES and bool(place_path(event.place))
                if isinstance(event, (Rmw, Store)) and protocol.member(event.place) in (protocol.DOORBELL, protocol.DOORBELL_RECORD):
                    posts = True
        if waits and (posts or not any(True for _ in self.callers(function.name))):
            return True
        with self._speculating():
            above = waits and any(self._posts_above(c) for c in self.callers(function.name))
        if waits and not above:
            return True
        return None if foreign and not waits else False

    def _posts_above(self, function: Function) -> bool:
        if len(self._body(function)) > _MAX_CALLER_BODY:
            return False
        return any(
            isinstance(e, (Rmw, Store)) and protocol.member(e.place) in (protocol.DOORBELL, protocol.DOORBELL_RECORD)
            for p in self.paths(function)
            for e in p.events
        )

    def _drains(self, function: Function) -> bool | None:
        return any(awaited_frontiers(path.known) for path in self.paths(function))


def awaited_frontiers(known: Mapping[Term, bool]) -> frozenset[str]:
    """The QP members that a wait on the completion queue's ``wqe_counter`` compares with."""
    found: set[str] = set()
    for condition in known:
        terms = list(walk(condition))
        if any(t[0] == "field" and t[2] == "wqe_counter" for t in terms):
            found |= {protocol.member_read(t) for t in terms} & protocol.FRONTIERS
    return frozenset(found)


def rc_index(result: Term | None) -> Term | None:
    """The index of a QP in ``globalmem.rcs``, or None where ``result`` is no such QP."""
    if result is None:
        return None
    parts = list(result[2:]) if result[:2] == ("op", "+") else [result]
    bases = [p for p in parts if value_path(p).split(".")[-1] == "rcs"]
    if len(bases) != 1:
        return None
    parts.remove(bases[0])
    return operation("+", *parts) if len(parts) > 1 else (parts[0] if parts else number(0))


def read(sources: Sources, versions: tuple[Version, ...]) -> tuple[Facts, ...]:
    """Facts for each set of releases that compile the same text."""
    groups: dict[tuple[int, ...], tuple[list[Version], tuple[Unit, ...]]] = {}
    for version in versions:
        units = tuple(sources.unit(path, version) for path in sources.candidates)
        groups.setdefault(tuple(id(u) for u in units), ([], units))[0].append(version)
    return tuple(Facts(sources, tuple(found), units) for found, units in groups.values())
