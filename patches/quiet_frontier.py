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
from collections.abc import Iterator

from tree_sitter import Node

from patcher import protocol
from patcher.errors import Blocked
from patcher.facts import Facts, awaited_frontiers
from patcher.fix import Case, Fix
from patcher.machine import Load, Path, Store
from patcher.model import Evidence, Judgement, Obligation, Verdict
from patcher.protocol import PROXY_QUEUE, PROXY_SLOT_SINCE, READY_HEAD, Version
from patcher.rewrite import Rewriter
from patcher.source.unit import Function
from patches._address import Origin, both_queues, origin, ready_instead
from patches._submit import at, at_function, flag_value, possible, turns, understood, unparsed, verdicts

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
    if facts.quiet and (why_not := _unsettled(facts, version)) is not None:
        return why_not
    bad: dict[str, list[Evidence]] = defaultdict(list)
    good: dict[str, list[Evidence]] = defaultdict(list)
    for function in facts.quiet:
        for path in facts.paths(function):
            found = awaited_frontiers(path.known)
            mode = flag_value(path, protocol.ASYNC_FLAG)
            if not possible(path, version):
                continue
            if not found:
                if mode is not None and not any(protocol.mentions(c, "cons_idx") for c in path.known):
                    bad["frontier"].append(at_function(function, f"`{function.name}` waits for nothing in one mode"))
                continue
            right = wanted(version, mode)
            load = _load(path)
            how = {True: "in async mode", False: "with handler gpu", None: "in every mode"}[mode]
            note = f"{how} `{function.name}` waits for `{', '.join(sorted(found))}`"
            place = at(load.outer, note) if load is not None else at_function(function, note)
            if found <= right:
                good["frontier"].append(place)
            else:
                expected = ", ".join(sorted(right)) or f"{PROXY_QUEUE} in async mode, {READY_HEAD} else"
                bad["frontier"].append(Evidence(place.path, place.line, place.end_line, f"{note}; submissions advance `{expected}`"))
    if not facts.quiet and facts.tried:
        evidence = tuple(Evidence(p.path, p.line, p.line, f"whether this drains a queue pair is not known: {p.what}") for p in facts.tried)
        return [Judgement("frontier", Verdict.UNKNOWN, evidence)]
    if not facts.quiet and (lost := unparsed(facts)):
        return [Judgement("frontier", Verdict.UNKNOWN, lost)]
    return verdicts(bad, _ORDER, good) if facts.quiet else []


def _unsettled(facts: Facts, version: Version) -> list[Judgement] | None:
    """Quiet is not moved to a frontier where it is not known that submissions can be made to advance it."""
    if not facts.submit:
        return None
    why_not = understood(facts, _ORDER)
    lost = [
        t
        for t in turns(facts, version)
        if not t.won and any(protocol.member(e.place) == protocol.DOORBELL for e in t.after if isinstance(e, Store))
    ]
    if why_not is None and lost:
        why_not = [Judgement("frontier", Verdict.UNKNOWN, (at(lost[0].cas.outer, "submissions here can go on without their turn"),))]
    return why_not


def _load(path: Path) -> Load | None:
    return next((e for e in path.events if isinstance(e, Load) and protocol.member(e.place) in protocol.FRONTIERS), None)


def rewrite(code: Rewriter) -> None:
    """Give each statement that reads a wrong frontier the form that each protocol needs."""
    changes: dict[tuple[str, int], tuple[Origin, dict[bool, dict[tuple[int, int], tuple[Node, str]]]]] = {}
    for facts, version in code.worlds():
        slot = version >= PROXY_SLOT_SINCE
        for function, path in _wrong(facts, version):
            loads = [e for e in path.events if isinstance(e, Load) and protocol.member(e.place) in protocol.FRONTIERS]
            loads = [e for e in loads if protocol.member(e.place) in awaited_frontiers(path.known)]
            if not loads:
                raise Blocked(f"{function.unit.path}:{function.line}: `{function.name}` reads its frontier in a way that can't be edited")
            for event in loads:
                made = origin(event)
                part = (
                    ready_instead(code, made, event)
                    if slot or protocol.member(event.place) != READY_HEAD
                    else both_queues(code, facts, made, event)
                )
                if not slot and protocol.member(event.place) != READY_HEAD:
                    part = _conditional(code, facts, made, event, part)
                _, sides = changes.setdefault((made.site.unit.path, made.statement.start_byte), (made, {}))
                sides.setdefault(slot, {})[part[0].start_byte, part[0].end_byte] = part
    for made, sides in changes.values():
        unit = made.site.unit
        texts = {slot: code.replaced(unit, made.statement, *parts.values()) for slot, parts in sides.items()}
        comment = ["// NVSHMEM 3.4.5 and later advance `ready_head` in every mode"] if True in sides else []
        code.guard(unit, made.statement, PROXY_SLOT_SINCE, texts.get(True), texts.get(False), comment)


def _wrong(facts: Facts, version: Version) -> Iterator[tuple[Function, Path]]:
    for function in facts.quiet:
        for path in facts.paths(function):
            found = awaited_frontiers(path.known)
            if found and possible(path, version) and not found <= wanted(version, flag_value(path, protocol.ASYNC_FLAG)):
                yield function, path


def _conditional(code: Rewriter, facts: Facts, made: Origin, event: Load, ready: tuple[Node, str]) -> tuple[Node, str]:
    """Keep the proxy's queue for async mode where it was read in every mode."""
    node, text = ready
    flag = code.state_member(made.site, facts, protocol.ASYNC_FLAG)
    return node, f"{flag} ? {made.site.unit.source(node)} : {text}"


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
