"""What the fixes of the submit path share: reading the ordering CAS and what follows it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tree_sitter import Node

from patcher import protocol
from patcher.facts import Facts
from patcher.machine import Call, Event, Fence, Opaque, Path, Rmw, Scope, Site, Store
from patcher.machine.state import atom
from patcher.machine.terms import Term, deref, operation
from patcher.model import Evidence, Judgement, Verdict
from patcher.protocol import Version
from patcher.rewrite import common_statement, contains, own_statement, qp_pointer
from patcher.source.unit import Function


class Turn(NamedTuple):
    """One path of a submit function, seen from its ordering CAS.

    ``won`` tells whether the path goes on only after the CAS succeeded; ``mode`` is the value of
    ``use_async_postsend`` on the path, None where the code does not ask.
    """

    function: Function
    path: Path
    cas: Rmw
    before: tuple[Event, ...]
    after: tuple[Event, ...]
    won: bool
    mode: bool | None
    nic_on_gpu: bool | None
    shared: bool

    @property
    def queue(self) -> str:
        """The queue that orders submitters here."""
        return protocol.member(self.cas.place)

    @property
    def new_index(self) -> Term:
        """The producer index after this submission."""
        return self.cas.operands[-1]

    def could_be(self, asynchronous: bool) -> bool:
        """Whether the path is taken in a mode."""
        return self.mode is None or self.mode == asynchronous


def flag_value(path: Path, name: str) -> bool | None:
    """The value of a member of the device state on a path."""
    return next((value for condition, value in path.known.items() if protocol.flag(condition, name)), None)


def possible(path: Path, version: Version) -> bool:
    """Whether a path can be taken with a release (compile-time tests of the device state's type)."""
    return all(
        protocol.state_type_holds(c, version) in (None, value)
        for c, value in path.known.items()
        if c[0] == "call" or (c[0] == "val" and c[1][0] == "sym")
    )


def turns(facts: Facts, version: Version) -> Iterator[Turn]:
    """All paths of all submit functions that order submitters."""
    for function in facts.submit:
        shared = any(_orders(e) and e.scope >= Scope.GPU for p in facts.paths(function) for e in p.events if isinstance(e, Rmw))
        for path in facts.paths(function):
            if not possible(path, version):
                continue
            tried = [e for e in path.events if isinstance(e, Rmw) and e.kind == "cas" and protocol.member(e.place) in protocol.ORDER_QUEUES]
            if not tried:
                continue
            cas = next((e for e in tried if won(path, e)), tried[-1])
            at = path.events.index(cas)
            yield Turn(
                function, path, cas, path.events[:at], path.events[at + 1 :], won(path, cas),
                flag_value(path, protocol.ASYNC_FLAG), flag_value(path, protocol.NIC_ON_GPU_FLAG),
                shared,
            )  # fmt: skip


def _orders(event: Rmw) -> bool:
    return event.kind == "cas" and protocol.member(event.place) in protocol.ORDER_QUEUES


def orderless(facts: Facts, version: Version) -> Iterator[tuple[Function, Path]]:
    """Paths of submit functions that post, or that one mode takes, without an ordering CAS."""
    for function in facts.submit:
        for path in facts.paths(function):
            posts = any(isinstance(e, (Rmw, Store)) and protocol.member(e.place) == protocol.DOORBELL for e in path.events)
            orders = any(isinstance(e, Rmw) and e.kind == "cas" and protocol.member(e.place) in protocol.ORDER_QUEUES for e in path.events)
            posts = posts or flag_value(path, protocol.ASYNC_FLAG) is not None
            if posts and not orders and possible(path, version) and not _submits_nothing(path):
                yield function, path


def _submits_nothing(path: Path) -> bool:
    """Whether the path knows the index after a submission to be the one before it."""
    sums = ((c[2], c[3]) for c, value in path.known.items() if value and c[:2] == ("op", "=="))
    return any(a[:2] == ("op", "+") and b in a[2:] for pair in sums for a, b in (pair, pair[::-1]))


def won(path: Path, cas: Rmw) -> bool:
    """Whether a path goes on only where a CAS succeeded."""
    condition, positive = atom(operation("==", cas.result, cas.operands[0]))
    return path.known.get(condition) is positive


_LOOPS = frozenset({"while_statement", "for_statement", "do_statement"})


def wait_points(turns_: Sequence[Turn]) -> list[Node]:
    """The statements after which a turn is won: one that holds all waits, or each of them where the one does more."""
    waits = {(n.start_byte, n.end_byte): n for n in (_wait(t) for t in turns_)}
    points = list(waits.values())
    if len(points) == 1:
        return points
    whole = common_statement(points)
    more = any(
        isinstance(e, (Rmw, Store)) and contains(whole, e.outer.node) and protocol.member(e.place) not in protocol.ORDER_QUEUES
        for t in turns_
        for e in t.after
    )
    return points if more else [whole]


def _wait(turn: Turn) -> Node:
    """The statement that waits: the innermost loop round the CAS in the function, else its statement."""
    body, at_ = turn.function.body, turn.cas.outer.node.parent
    while at_ is not None and at_.start_byte > body.start_byte:
        if at_.type in _LOOPS:
            effects = [e for e in turn.after if isinstance(e, (Rmw, Store)) and contains(at_, e.outer.node)]
            return own_statement(at_) if not effects else own_statement(turn.cas.outer.node)
        at_ = at_.parent
    return own_statement(turn.cas.outer.node)


def one_cta(turn: Turn) -> bool:
    """Whether the path is the variant for a QP that a single CTA owns, in a function that has one for shared QPs too.

    NVSHMEM's ``need_strong_flush == false``; DeepEP shares its QPs.
    """
    return turn.cas.scope < Scope.GPU and turn.shared


def at(site: Site, note: str, end: Node | None = None) -> Evidence:
    """Evidence at a place."""
    unit = site.unit
    return Evidence(unit.path, unit.line(site.node.start_byte), unit.line((end or site.node).end_byte), note)


def at_function(function: Function, note: str) -> Evidence:
    """Evidence for a whole function."""
    unit = function.unit
    return Evidence(unit.path, function.line, unit.line(function.node.end_byte), note)


def verdicts(found: dict[str, list[Evidence]], order: Sequence[str], held: dict[str, list[Evidence]]) -> list[Judgement]:
    """Judgements from evidence against (``found``) and for (``held``)."""
    return [
        Judgement(name, Verdict.VIOLATED if found.get(name) else Verdict.HOLDS, _unique(found.get(name) or held.get(name) or []))
        for name in order
    ]


def _unique(items: Sequence[Evidence]) -> tuple[Evidence, ...]:
    seen: dict[tuple[str, int, str], Evidence] = {}
    for item in items:
        seen.setdefault((item.path, item.line, item.note), item)
    return tuple(seen.values())


def not_understood(facts: Facts, order: Sequence[str], wanted: str) -> list[Judgement]:
    """Judgements where the role was not found: none where no device code touches a queue, unknown else."""
    nearest = nearest_candidate(facts)
    if lost := unparsed(facts):
        return [Judgement(name, Verdict.UNKNOWN, lost) for name in order]
    if facts.problems:
        evidence = tuple(Evidence(p.path, p.line, p.line, p.what) for p in facts.problems)
    elif nearest is not None:
        evidence = (at_function(nearest, f"no {wanted} was recognised; `{nearest.name}` comes nearest"),)
    else:
        return []
    return [Judgement(name, Verdict.UNKNOWN, evidence) for name in order]


_USED = re.compile(rb"\btx_wq\s*\.|->\s*tx_wq\b")
_VOCABULARY = re.compile(rb"tx_wq|\\brcs\\b|wqe_counter")


def unparsed(facts: Facts) -> tuple[Evidence, ...]:
    """Places of device code that the grammar lost, and that have to do with queue pairs."""
    found = []
    for unit in facts.units:
        used = _USED.search(unit.text)
        if used is not None and not unit.functions:
            line = unit.line(used.start())
            found.append(Evidence(unit.path, line, line, "no function round this code is understood by the parser"))
        for start, end in unit.errors:
            if end - start > 200 and _VOCABULARY.search(unit.text, start, end):
                found.append(Evidence(unit.path, unit.line(start), unit.line(end), "this code is not understood by the parser"))
    return tuple(found)


def understood(facts: Facts, order: Sequence[str]) -> list[Judgement] | None:
    """None where the submit path can be judged, else judgements that say why not (none: there is no such path)."""
    if not facts.submit or facts.problems:
        return not_understood(facts, order, "function that waits by CAS for its turn and then posts")
    if second := _second_queue(facts):
        return [Judgement(name, Verdict.UNKNOWN, second) for name in order]
    hidden = [e for f in facts.submit for p in facts.paths(f) for e in p.events if isinstance(e, (Call, Opaque)) and _touches(facts, e, p)]
    if not hidden:
        lost = list(turns(facts, facts.versions[0]))
        if any(t.won for t in lost):
            return None
        where = (
            at(lost[0].cas.outer, "whether this wait ends with the turn won is not understood")
            if lost
            else at_function(facts.submit[0], f"`{facts.submit[0].name}` has no path that waits for its turn")
        )
        return [Judgement(name, Verdict.UNKNOWN, (where,)) for name in order]
    evidence = _unique([at(e.inner, f"{_what(e)} is given a place of the queue pair, and what it does is not known") for e in hidden])
    return [Judgement(name, Verdict.UNKNOWN, evidence) for name in order]


def _second_queue(facts: Facts) -> tuple[Evidence, ...]:
    """Waits for a second turn on a queue that no NVSHMEM has (a fork's): its protocol with the proxy is not known."""
    found = []
    for function in facts.submit:
        for path in facts.paths(function):
            for event in path.events:
                queue = protocol.member(event.place) if isinstance(event, Rmw) and event.kind == "cas" else ""
                if queue and queue not in protocol.ORDER_QUEUES:
                    found.append(at(event.outer, f"waits for a second turn on `{queue}`, a queue that no release of NVSHMEM has"))
    return _unique(found)


def _touches(facts: Facts, event: Call | Opaque, path: Path) -> bool:
    """Whether what is not known is given a place that the protocol is about, or the whole queue pair."""
    terms = event.arguments if isinstance(event, Call) else event.operands
    if any(protocol.member(deref(t)) in _WATCHED for t in terms):
        return True
    pairs = {qp_pointer(e.place) for e in path.events if isinstance(e, Rmw) and _orders(e)} - {None}
    known = isinstance(event, Call) and facts.resolve(event.name, event.inner.unit)
    return not known and any(t in pairs for t in terms)


def _what(event: Call | Opaque) -> str:
    return f"`{event.name}`, which this tree does not define," if isinstance(event, Call) else f"`asm({event.text[:40]!r})`"


_WATCHED = frozenset({protocol.READY_HEAD, protocol.PROD_IDX, protocol.PROXY_QUEUE, protocol.DOORBELL, protocol.DOORBELL_RECORD})


def nearest_candidate(facts: Facts) -> Function | None:
    """The function that has most to do with the queue, where none has the role."""
    best, most = None, 0
    for function in facts.functions():
        body = function.body.text or b""
        if b"tx_wq" not in body:
            continue
        score = sum(body.count(word) for word in (b"ready_head", b"prod_idx", b"resv_head", b"atomicCAS", b"atomicMax", b"bf", b"dbrec"))
        if (b"ready_head" in body or b"atomicCAS" in body) and score > most:
            best, most = function, score
    return best


def fences(events: Sequence[Event]) -> list[Fence]:
    """The memory fences among events, proxy fences left out."""
    return [e for e in events if isinstance(e, Fence) and not e.proxy]
