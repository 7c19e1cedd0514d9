"""Quiet waits for the frontier that the submit path advances.

What goes wrong
    ``nvshmemi_ibgda_quiet`` drains a QP: it reads how far submissions got and waits until the completion
    queue is there.  With NVSHMEM 3.4.5 and later, submissions advance ``mvars.tx_wq.ready_head`` in every
    mode (see ``submit-order``).  A quiet that reads ``*tx_wq.prod_idx`` in async mode returns before the
    data has left, and buffers are reused or freed under the NIC.  Trees between DeepEP's first quiet and
    its async branch read ``*tx_wq.prod_idx`` in every mode: there, WQEs that are written but not yet
    posted (batches of 4) are not waited for.

What is done
    ``frontier``  quiet waits for ``ready_head`` in every mode (3.4.5 and later); before, for
                  ``*tx_wq.prod_idx`` in async mode and ``ready_head`` else, as NVSHMEM's ``ibgda_quiet`` does.

What is not touched
    How the completion queue is polled.
"""

from __future__ import annotations

from collections import defaultdict

from tree_sitter import Node

from patcher import protocol
from patcher.errors import Blocked
from patcher.facts import Facts, awaited_frontiers
from patcher.fix import Case, Fix
from patcher.machine import Load, Path
from patcher.model import Evidence, Judgement, Obligation, Verdict
from patcher.protocol import PROXY_QUEUE, PROXY_SLOT_SINCE, READY_HEAD, Version
from patcher.rewrite import Rewriter, contains, descendants, qp_pointer, statement_of
from patcher.source.unit import Function
from patches._submit import at, at_function, flag_value, possible, verdicts

_ORDER = ("frontier",)


def wanted(version: Version, mode: bool | None) -> frozenset[str]:
    """The queues that a path of a given mode may wait for; without asking for the mode, all its modes must agree."""
    if version >= PROXY_SLOT_SINCE or mode is False:
        return frozenset({READY_HEAD})
    return frozenset({PROXY_QUEUE}) if mode else frozenset()


def judge(facts: Facts, version: Version) -> list[Judgement]:
    """Judge every path of every function that drains a QP."""
    if facts.problems:
        return [Judgement("frontier", Verdict.UNKNOWN, tuple(Evidence(p.path, p.line, p.line, p.what) for p in facts.problems))]
    bad: dict[str, list[Evidence]] = defaultdict(list)
    good: dict[str, list[Evidence]] = defaultdict(list)
    for function in facts.quiet:
        for path in facts.paths(function):
            found = awaited_frontiers(path.known)
            if not found or not possible(path, version):
                continue
            mode = flag_value(path, protocol.ASYNC_FLAG)
            right = wanted(version, mode)
            load = _load(path)
            how = {True: "in async mode", False: "with handler gpu", None: "in every mode"}[mode]
            note = f"{how} `{function.name}` waits for `{', '.join(sorted(found))}`"
            place = at(load.outer, note) if load is not None else at_function(function, note)
            if found & right:
                good["frontier"].append(place)
            else:
                expected = ", ".join(sorted(right)) or f"{PROXY_QUEUE} in async mode, {READY_HEAD} else"
                bad["frontier"].append(Evidence(place.path, place.line, place.end_line, f"{note}; submissions advance `{expected}`"))
    if not facts.quiet and facts.tried:
        evidence = tuple(Evidence(p.path, p.line, p.line, f"whether this drains a queue pair is not known: {p.what}") for p in facts.tried)
        return [Judgement("frontier", Verdict.UNKNOWN, evidence)]
    return verdicts(bad, _ORDER, good) if facts.quiet else []


def _load(path: Path) -> Load | None:
    return next((e for e in path.events if isinstance(e, Load) and protocol.member(e.place) in protocol.FRONTIERS), None)


def rewrite(code: Rewriter) -> None:
    """Give the statement that reads the frontier the form that each protocol needs."""
    needed: dict[tuple[str, int], tuple[Facts, Function, set[bool]]] = {}
    for facts, version in code.worlds():
        for function in facts.quiet:
            for path in facts.paths(function):
                found = awaited_frontiers(path.known)
                if found and possible(path, version) and not found & wanted(version, flag_value(path, protocol.ASYNC_FLAG)):
                    key = (function.unit.path, function.node.start_byte)
                    needed.setdefault(key, (facts, function, set()))[2].add(version >= PROXY_SLOT_SINCE)
    for facts, function, sides in needed.values():
        _mend(code, facts, function, sides)


def _mend(code: Rewriter, facts: Facts, function: Function, sides: set[bool]) -> None:
    unit = function.unit
    loads = [e for p in facts.paths(function) for e in p.events if isinstance(e, Load) and protocol.member(e.place) in protocol.FRONTIERS]
    reads = {(e.outer.node.start_byte, e.outer.node.end_byte): e for e in loads if contains(function.body, e.outer.node)}
    if not reads:
        raise Blocked(f"{unit.path}:{function.line}: `{function.name}` reads its frontier in a way that can't be edited")
    events = [reads[key] for key in sorted(reads)]
    statement = statement_of(events[0].outer.node)
    if any(not contains(statement, e.outer.node) for e in events):
        raise Blocked(f"{unit.path}:{function.line}: `{function.name}` reads its frontier in several statements")
    proxy = [e for e in events if protocol.member(e.place) == PROXY_QUEUE]
    ready = [e for e in events if protocol.member(e.place) == READY_HEAD]
    event = (proxy or ready or events)[0]
    target = _choice(statement, events[0].outer.node) if len(events) > 1 else events[0].outer.node
    qp = qp_pointer(event.place)
    ready_text = (
        unit.source(ready[0].outer.node)
        if ready
        else _read(code, unit.source(event.outer.node), event, f"&{code.member(event.outer, qp, READY_HEAD)}")
    )
    new = code.replaced(unit, statement, (target, ready_text)) if True in sides else None
    old = None
    if False in sides:
        flag = code.state_member(event.outer, facts, protocol.ASYNC_FLAG)
        proxy_text = (
            unit.source(proxy[0].outer.node)
            if proxy
            else _read(code, unit.source(event.outer.node), event, code.member(event.outer, qp, "tx_wq.prod_idx"))
        )
        old = code.replaced(unit, statement, (target, f"{flag} ? {proxy_text} : {ready_text}"))
    comment = ["// NVSHMEM 3.4.5 and later advance `ready_head` in every mode"] if True in sides else []
    code.guard(unit, statement, PROXY_SLOT_SINCE, new, old, comment)


def _choice(statement: Node, node: Node) -> Node:
    """The conditional expression that picks between the reads."""
    found = [c for c in descendants(statement, "conditional_expression") if contains(c, node)]
    if not found:
        raise Blocked("the frontier is picked in a way that is not understood")
    return found[0]


def _read(code: Rewriter, text: str, event: Load, address: str) -> str:
    """The call that reads a frontier, with another address."""
    listed = event.outer.node.child_by_field_name("arguments")
    items = [c for c in listed.named_children if c.type != "comment"] if listed is not None else []
    if event.outer.node.type in ("field_expression", "pointer_expression"):
        return address.removeprefix("&") if address.startswith("&") else f"*{address}"
    if len(items) != 1:
        raise Blocked(
            f"{event.outer.unit.path}:{event.outer.unit.line(event.outer.node.start_byte)}: the read of the frontier is no plain call"
        )
    return code.replaced(event.outer.unit, event.outer.node, (items[0], address))


FIX = Fix(
    id="quiet-frontier",
    title="quiet waits for the frontier that the submit path advances",
    version=1,
    upstream=("https://github.com/deepseek-ai/DeepEP/pull/677",),
    obligations=(Obligation("frontier", "draining a QP waits for the queue that submissions advance"),),
    judge=judge,
    rewrite=rewrite,
    documentation=__doc__ or "",
    cases=(
        Case("the sample asks for the mode", "needed"),
        Case("the old protocol wants just that", "upstream", nvshmem="3.3.24"),
        Case(
            "`ready_head` in every mode",
            "upstream",
            (("state->use_async_postsend ? load_relaxed(qp->tx_wq.prod_idx) : load_relaxed(", "load_relaxed("),),
            nvshmem="3.4.5",
        ),
        Case(
            "`ready_head` in every mode, also for old releases",
            "needed",
            (("state->use_async_postsend ? load_relaxed(qp->tx_wq.prod_idx) : load_relaxed(", "load_relaxed("),),
        ),
        Case(
            "`prod_idx` in every mode",
            "needed",
            (
                (
                    "state->use_async_postsend ? load_relaxed(qp->tx_wq.prod_idx) : load_relaxed(&qp->mvars.tx_wq.ready_head)",
                    "load_relaxed(qp->tx_wq.prod_idx)",
                ),
            ),
        ),
        Case(
            "read without a helper",
            "needed",
            (
                (
                    "load_relaxed(qp->tx_wq.prod_idx) : load_relaxed(&qp->mvars.tx_wq.ready_head)",
                    "*qp->tx_wq.prod_idx : qp->mvars.tx_wq.ready_head",
                ),
            ),
        ),
    ),
)
