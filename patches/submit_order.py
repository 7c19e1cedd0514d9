"""Submissions to a shared QP are ordered and published as NVSHMEM does it.

What goes wrong
    With a CPU handler (``NVSHMEM_IBGDA_NIC_HANDLER=cpu`` or ``cpu_host_memory``, and ``auto`` on hosts
    where the doorbell register can't be mapped to the GPU) DeepEP orders submitters by a CAS on
    ``*qp->tx_wq.prod_idx`` and posts nothing else.  That is the protocol of NVSHMEM up to 3.3.24.  From
    3.4.5 on the proxy thread polls the slot at ``*qp->tx_wq.bf`` and all submitters are ordered by
    ``mvars.tx_wq.ready_head``.  So with 3.4.5 and later

    - the first dispatch hangs: nothing is ever published where the proxy looks;
    - ``ready_head`` stays behind, and the first submission of NVSHMEM itself on that QP (the barrier in
      ``Buffer::destroy()`` at the latest) spins for ever;
    - a fix that publishes but leaves ``mvars.tx_wq.prod_idx`` behind hangs an NVSHMEM quiet that follows
      undrained DeepEP traffic: NVSHMEM's poll waits for ``*cq->prod_idx``.  This was measured on an H200
      with a software NIC for the head of PR #677.

What is done
    ``order``    the CAS waits on ``ready_head`` in every mode (3.4.5 and later); on ``*tx_wq.prod_idx`` in
                 async mode before, where that CAS is itself the publish.
    ``advance``  in async mode ``mvars.tx_wq.prod_idx`` is advanced by an atomic max, as
                 ``ibgda_proxy_post_send`` does it.
    ``publish``  exactly one 64-bit max of system scope on ``*tx_wq.bf``, after the CAS; never before 3.4.5,
                 where ``bf`` is NULL for CPU handlers.
    ``doorbell`` the GPU's own doorbell rings only when handler gpu is in use, and after the CAS.

    One tree serves both protocols: the difference is decided by NVSHMEM's version macros, unless
    ``--nvshmem`` names one release.

What is not touched
    The conditions of the doorbell path (batches of 4, always post), fences, and the batching of NVSHMEM.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from tree_sitter import Node

from patcher import protocol
from patcher.errors import Blocked
from patcher.facts import Facts
from patcher.fix import Case, Fix
from patcher.machine import Event, Fence, Rmw, Scope, Store
from patcher.machine.terms import Term, operation, spell, walk
from patcher.model import Evidence, Judgement, Obligation
from patcher.protocol import DOORBELL, PROD_IDX, PROXY_QUEUE, PROXY_SLOT_SINCE, READY_HEAD, Version
from patcher.rewrite import Rewriter, common_range, contains, qp_pointer, since, statement_of
from patcher.source.unit import Unit
from patches._address import argument, both_queues, origin, ready_instead
from patches._submit import Turn, at, at_function, one_cta, orderless, turns, understood, verdicts, wait_points, won

_ORDER = ("order", "advance", "publish", "doorbell")


def judge(facts: Facts, version: Version) -> list[Judgement]:
    """Judge every path of every submit function for one release."""
    if (why_not := understood(facts, _ORDER)) is not None:
        return why_not
    slot = version >= PROXY_SLOT_SINCE
    bad: dict[str, list[Evidence]] = defaultdict(list)
    good: dict[str, list[Evidence]] = defaultdict(list)
    rings = False
    for function, path in orderless(facts, version):
        posts = [e for e in path.events if isinstance(e, (Rmw, Store)) and protocol.member(e.place) == DOORBELL]
        if posts:
            bad["order"].append(at(posts[0].outer, f"`{function.name}` posts on a path where it never waits for its turn"))
        else:
            bad["order"].append(at_function(function, f"one mode has a path through `{function.name}` that never waits for its turn"))
    for turn in turns(facts, version):
        _judge_order(turn, slot, bad, good)
        rings |= _judge_doorbell(turn, bad)
        if turn.could_be(asynchronous=True):
            _judge_publish(turn, slot, bad, good)
    if not rings:
        bad["doorbell"].append(at_function(facts.submit[0], "handler gpu never rings the doorbell"))
    return verdicts(bad, _ORDER, good)


def _judge_order(turn: Turn, slot: bool, bad: dict[str, list[Evidence]], good: dict[str, list[Evidence]]) -> None:
    modes = [m for m in (True, False) if turn.could_be(m)]
    wanted = {READY_HEAD if slot or not m else PROXY_QUEUE for m in modes}
    mode = {True: "in async mode", False: "with handler gpu", None: "in every mode"}[turn.mode]
    if not turn.won:
        if any(isinstance(e, (Rmw, Store)) and protocol.member(e.place) == DOORBELL for e in turn.after) or turn.could_be(True):
            bad["order"].append(at(turn.cas.outer, "the wait for its turn can end without it, and the submission goes on"))
    elif turn.cas.scope < Scope.GPU and not one_cta(turn):
        bad["order"].append(at(turn.cas.outer, "the CAS has CTA scope, and other CTAs submit to the same queue pair"))
    elif not _follows(turn):
        bad["order"].append(at(turn.cas.outer, f"the turn passes from {spell(turn.cas.operands[0])} to {spell(turn.new_index)}"))
    elif other := [e for e in turn.path.events if _disturbs(e, turn)]:
        bad["order"].append(at(other[0].outer, "writes the queue that orders submitters besides the CAS"))
    elif {turn.queue} != wanted:
        bad["order"].append(
            at(turn.cas.outer, f"{mode} waits on `{turn.queue}`, NVSHMEM orders submitters by `{' or '.join(sorted(wanted))}`")
        )
    else:
        good["order"].append(at(turn.cas.outer, f"{mode} waits on `{turn.queue}`"))


def _follows(turn: Turn) -> bool:
    """Whether the index after the submission is the one before it and some more."""
    base, after = turn.cas.operands[0], turn.new_index
    parts = set(base[2:]) if base[:2] == ("op", "+") else {base}
    return bool(base != after and (after[0] in ("sym", "call", "val") or (after[:2] == ("op", "+") and parts < set(after[2:]))))


def _disturbs(event: Event, turn: Turn) -> bool:
    """Whether an event writes an ordering queue, other than by a CAS that was lost."""
    if not isinstance(event, (Rmw, Store)) or protocol.member(event.place) not in protocol.ORDER_QUEUES or event is turn.cas:
        return False
    return isinstance(event, Store) or event.kind != "cas" or won(turn.path, event)


def _rings(turn: Turn) -> list[Store]:
    return [e for e in (*turn.before, *turn.after) if isinstance(e, Store) and protocol.member(e.place) == DOORBELL]


def _judge_doorbell(turn: Turn, bad: dict[str, list[Evidence]]) -> bool:
    rings = _rings(turn)
    early = [e for e in turn.before if isinstance(e, Store) and protocol.member(e.place) == DOORBELL]
    if early:
        bad["doorbell"].append(at(early[0].outer, "the doorbell rings before the submission has its turn"))
    if turn.mode is False:
        _judge_gpu(turn, rings, bad)
    if rings and turn.mode is not False:
        what = "in async mode" if turn.mode else "without asking `use_async_postsend`"
        bad["doorbell"].append(at(rings[0].outer, f"the GPU's doorbell rings {what}"))
    return bool(rings)


def _judge_gpu(turn: Turn, rings: Sequence[Store], bad: dict[str, list[Evidence]]) -> None:
    """With handler gpu: the record before the doorbell, both with the new index, and nothing that the proxy is for."""
    published = [e for e in turn.path.events if isinstance(e, Rmw) and protocol.member(e.place) == DOORBELL]
    advances = [e for e in turn.path.events if isinstance(e, Rmw) and protocol.member(e.place) == PROD_IDX]
    if published:
        bad["doorbell"].append(at(published[0].outer, "with handler gpu, the doorbell register is changed by an atomic"))
    if len(advances) > 1:
        bad["doorbell"].append(
            at(advances[0].outer, "with handler gpu, `mvars.tx_wq.prod_idx` is advanced twice: the second finds nothing to ring")
        )
    for ring in rings:
        earlier = turn.path.events[: turn.path.events.index(ring)]
        if not any(isinstance(e, Store) and protocol.member(e.place) == protocol.DOORBELL_RECORD for e in earlier):
            bad["doorbell"].append(at(ring.outer, "the doorbell rings without its record"))
        if turn.new_index not in set(walk(ring.value)):
            bad["doorbell"].append(at(ring.outer, f"the doorbell rings for {spell(ring.value)}, not for {spell(turn.new_index)}"))


def _deferred(turn: Turn) -> bool:
    """Whether the path left posting to a later submission, as NVSHMEM's batching does."""
    for condition, value in turn.path.known.items():
        compares = condition[:2] == ("op", "==") and turn.new_index in condition[2:] and not value
        if compares and any(protocol.member_read(t) == protocol.RESV_HEAD for t in condition[2:]):
            return True
        if value and protocol.mentions(condition, "region_batch_rma_pending_qps"):
            return True
    return False


def _judge_publish(turn: Turn, slot: bool, bad: dict[str, list[Evidence]], good: dict[str, list[Evidence]]) -> None:
    touched = [e for e in turn.path.events if isinstance(e, (Rmw, Store)) and protocol.member(e.place) == DOORBELL]
    if not slot:
        if touched and (turn.mode or any(isinstance(e, Rmw) for e in touched)):
            bad["publish"].append(
                at(touched[0].outer, "in async mode accesses `*tx_wq.bf`, which is NULL with a CPU handler of this NVSHMEM")
            )
        return
    published = [e for e in touched if isinstance(e, Rmw)]
    if turn.mode is None and not published:
        if _deferred(turn):
            return
        bad["publish"].append(at(turn.cas.outer, "in async mode nothing is published to the proxy"))
        return
    advances = [e for e in turn.path.events if isinstance(e, Rmw) and protocol.member(e.place) == PROD_IDX]
    right = [
        e
        for e in advances
        if e.kind == "max" and e.operands == (turn.new_index,) and e in turn.after and e.scope >= min(turn.cas.scope, Scope.GPU)
    ]
    if right:
        good["advance"].append(at(right[0].outer, f"`mvars.tx_wq.prod_idx` reaches {spell(turn.new_index)}"))
        if published and turn.path.events.index(right[0]) > turn.path.events.index(published[0]):
            bad["advance"].append(at(right[0].outer, "`mvars.tx_wq.prod_idx` is advanced after the publish; NVSHMEM advances it first"))
    elif not (_deferred(turn) and not published):
        bad["advance"].append(at(turn.cas.outer, "in async mode `mvars.tx_wq.prod_idx` is left behind; NVSHMEM's poll waits for it"))
    stale = any(turn.path.known.get(operation(">", turn.new_index, e.result)) is False for e in right)
    if not published:
        if not stale and not (_deferred(turn) and not right):
            bad["publish"].append(at(turn.cas.outer, "in async mode nothing is published to the proxy"))
        return
    event = published[0]
    foreign = [e for e in (*right, event) if (pair := qp_pointer(e.place)) is not None and pair != qp_pointer(turn.cas.place)]
    if foreign and qp_pointer(turn.cas.place) is not None:
        bad["publish"].append(at(foreign[0].outer, "this is done on another queue pair than the one that was waited for"))
    elif len(published) > 1:
        bad["publish"].append(at(published[1].outer, "publishes twice"))
    elif event in turn.before:
        bad["publish"].append(at(event.outer, "publishes before the submission has its turn"))
    elif event.kind != "max" or event.operands != (turn.new_index,):
        bad["publish"].append(
            at(event.outer, f"publishes by {event.kind} of {', '.join(map(spell, event.operands))}, not by max of {spell(turn.new_index)}")
        )
    elif event.scope < Scope.SYS:
        bad["publish"].append(at(event.outer, f"publishes at {event.scope.word} scope; the proxy is a CPU thread"))
    else:
        good["publish"].append(at(event.outer, "one max of system scope on `*tx_wq.bf`"))


def keeps(facts: Facts, version: Version) -> frozenset[object]:
    """When the doorbell rings with handler gpu: the conditions of each path that rings it, less the modes."""
    return frozenset(
        frozenset((spell(c), value) for c, value in turn.path.known.items() if not _is_mode(c))
        for turn in turns(facts, version)
        if turn.won and turn.could_be(asynchronous=False) and _rings(turn)
    )


def _is_mode(condition: Term) -> bool:
    return protocol.flag(condition, protocol.ASYNC_FLAG) or protocol.flag(condition, protocol.NIC_ON_GPU_FLAG)


def rewrite(code: Rewriter) -> None:
    """Mend each submit function for the releases for which an obligation is violated."""
    new = [w for w in code.worlds() if w[1] >= PROXY_SLOT_SINCE]
    old = [w for w in code.worlds() if w[1] < PROXY_SLOT_SINCE]
    _mend_queue(code, new, old)
    for facts, version in old:
        _keep_from_old(code, facts, version)  # first: what completes a publish then stands inside its guard
        if not new:
            _keep_doorbell(code, facts, version)
    for facts, version in new:
        _mend_publish(code, facts, version)


def _mend_queue(code: Rewriter, new: Sequence[tuple[Facts, Version]], old: Sequence[tuple[Facts, Version]]) -> None:
    wrong: dict[tuple[str, int], tuple[Turn, Facts, bool, bool]] = {}
    for worlds, slot in ((new, True), (old, False)):
        for facts, version in worlds:
            for turn in turns(facts, version):
                wanted = READY_HEAD if slot else PROXY_QUEUE
                if turn.won and turn.could_be(True) and turn.queue != wanted:
                    key = (turn.cas.inner.unit.path, turn.cas.inner.node.start_byte)
                    was = wrong.get(key)
                    wrong[key] = (turn, facts, slot or bool(was and was[2]), not slot or bool(was and was[3]))
    for turn, facts, for_new, for_old in wrong.values():
        _switch_queue(code, turn, facts, for_new, for_old)


def _switch_queue(code: Rewriter, turn: Turn, facts: Facts, for_new: bool, for_old: bool) -> None:
    made = origin(turn.cas)
    unit, statement = made.site.unit, made.statement
    new_text = code.replaced(unit, statement, ready_instead(code, made, turn.cas)) if for_new else None
    old_text = code.replaced(unit, statement, both_queues(code, facts, made, turn.cas)) if for_old else None
    comment = "// NVSHMEM 3.4.5 and later order all submitters by `ready_head`, its own included"
    if not for_new:
        comment = "// Before NVSHMEM 3.4.5, the proxy polls the index that orders submitters in async mode"
    code.guard(unit, statement, PROXY_SLOT_SINCE, new_text, old_text, [comment])


def _mend_publish(code: Rewriter, facts: Facts, version: Version) -> None:
    for function in facts.submit:
        mine = [t for t in turns(facts, version) if t.function is function and t.won]
        asynchronous = [t for t in mine if t.could_be(True)]
        published = [e for t in asynchronous for e in t.path.events if isinstance(e, Rmw) and protocol.member(e.place) == DOORBELL]
        bad: dict[str, list[Evidence]] = defaultdict(list)
        for turn in asynchronous:
            _judge_publish(turn, True, bad, defaultdict(list))
            _judge_doorbell(turn, bad)
        if not bad:
            continue
        if not published:
            _add_publish(code, facts, mine, rings=bool(bad.get("doorbell")))
            continue
        if any(protocol.mentions(c, f) for t in mine for c in t.path.known for f in protocol.DEFERRAL_FIELDS):
            raise Blocked(f"{function.unit.path}:{function.line}: `{function.name}` publishes in batches, differently from NVSHMEM")
        _complete_publish(code, asynchronous, published[0], bad)


def _after_fences(unit: Unit, statement: Node, turns_: Sequence[Turn]) -> Node:
    """The last of the fences that follow the wait as statements of their own."""
    last = at_ = statement
    while (following := at_.next_named_sibling) is not None:
        at_ = following
        if at_.type == "comment":
            continue
        inside = [e for t in turns_ for e in t.path.events if contains(at_, e.outer.node)]
        if not inside or not all(isinstance(e, Fence) for e in inside) or at_.type != "expression_statement":
            break
        last = at_
    return last


def _add_publish(code: Rewriter, facts: Facts, mine: Sequence[Turn], rings: bool) -> None:
    """Publish after the wait, in async mode; where the doorbell rings in any mode, keep it from async mode."""
    points = wait_points(mine)
    for point in points:
        here = [t for t in mine if contains(point, t.cas.outer.node)]
        if not any(t.could_be(asynchronous=True) for t in here):
            continue
        turn = next(t for t in here if t.could_be(asynchronous=True))
        body = turn.function.body
        whole = point.parent is not None and (point.parent.start_byte, point.parent.end_byte) == (body.start_byte, body.end_byte)
        unit = turn.cas.outer.unit
        if rings and not (whole and turn.function.returns_nothing):
            raise Blocked(
                f"{unit.path}:{unit.line(point.start_byte)}: the doorbell rings in any mode, and the wait is not a step of its own"
            )
        if rings:
            _nothing_follows(unit, point, mine)
        code.insert_after(unit, _after_fences(unit, point, mine), ["", *_publish(code, facts, turn, point, rings)])


def _nothing_follows(unit: Unit, point: Node, mine: Sequence[Turn]) -> None:
    """Raises Blocked where a way out before the doorbell would leave out more than the doorbell."""
    posted, at_ = False, point.next_named_sibling
    while at_ is not None:
        rings = any(contains(at_, e.outer.node) for t in mine for e in _rings(t))
        if posted and not rings and at_.type != "comment":
            raise Blocked(f"{unit.path}:{unit.line(at_.start_byte)}: the doorbell rings in any mode, and more follows it")
        posted |= rings
        at_ = at_.next_named_sibling


def _keep_doorbell(code: Rewriter, facts: Facts, version: Version) -> None:
    """Leave before the doorbell in async mode, where the CAS was the publish."""
    for function in facts.submit:
        mine = [t for t in turns(facts, version) if t.function is function and t.won]
        bad: dict[str, list[Evidence]] = defaultdict(list)
        for turn in mine:
            _judge_doorbell(turn, bad)
        if bad:
            turn, (point, *others) = mine[0], wait_points(mine)
            unit, body = turn.cas.outer.unit, turn.function.body
            whole = point.parent is not None and point.parent.start_byte == body.start_byte
            if others or not whole or not function.returns_nothing:
                raise Blocked(
                    f"{unit.path}:{unit.line(point.start_byte)}: the doorbell rings in any mode, and the wait is not a step of its own"
                )
            _nothing_follows(unit, point, mine)
            indent, flag = code.indent(unit, point), code.state_member(turn.cas.outer, facts, protocol.ASYNC_FLAG)
            lines = [
                "",
                f"{indent}// In async mode, NVSHMEM's proxy thread posts",
                f"{indent}if ({flag})",
                f"{indent}{code.step(function)}return;",
            ]
            code.insert_after(unit, _after_fences(unit, point, mine), lines)


def _publish(code: Rewriter, facts: Facts, turn: Turn, point: Node, leave: bool) -> list[str]:
    site, unit = turn.cas.outer, turn.cas.outer.unit
    indent, step = code.indent(unit, point), code.step(turn.function)
    qp, index = qp_pointer(turn.cas.place), code.value(site, turn.new_index) or _third_argument(turn)
    flag = code.state_member(site, facts, protocol.ASYNC_FLAG)
    prod = code.pointer(turn.function, f"&{code.member(site, qp, PROD_IDX)}")
    slot = code.pointer(turn.function, code.member(site, qp, "tx_wq.bf"))
    publish = [f"{indent}{step}if (atomicMax({prod}, {index}) < {index})", f"{indent}{step}{step}atomicMax_system({slot}, {index});"]
    comment = [
        f"{indent}// In async mode, NVSHMEM's proxy thread posts what is published in its slot, which `tx_wq.bf` points to since 3.4.5.",
        f"{indent}// NVSHMEM's own quiet waits for `mvars.tx_wq.prod_idx`, so that must be advanced too.",
    ]
    shared = code.both_protocols and code.active_elsewhere(unit, point, [v for v in code.versions if v >= PROXY_SLOT_SINCE])
    if leave:
        inner = [f"#if {since(PROXY_SLOT_SINCE)}", *publish, "#endif"] if shared else publish
        return [*comment, f"{indent}if ({flag}) {{", *inner, f"{indent}{step}return;", f"{indent}}}"]
    lines = [*comment, f"{indent}if ({flag}) {{", *publish, f"{indent}}}"]
    return [f"#if {since(PROXY_SLOT_SINCE)}", *lines, "#endif"] if shared else lines


def _third_argument(turn: Turn) -> str:
    node = argument(turn.cas.outer.node, 2)
    unit = turn.cas.outer.unit
    if node is None or len(turn.cas.sites) > 1:
        raise Blocked(f"{unit.path}:{unit.line(turn.cas.outer.node.start_byte)}: no name in sight holds the new producer index")
    return unit.source(node)


def _complete_publish(code: Rewriter, asynchronous: Sequence[Turn], event: Rmw, bad: dict[str, list[Evidence]]) -> None:
    """Complete a publish that is there: its scope, and the index that must advance first."""
    site = event.outer
    unit, statement = site.unit, statement_of(site.node)
    indent = code.indent(unit, statement)
    turn = next(t for t in asynchronous if event in t.path.events)
    parts: list[tuple[Node, str]] = []
    if event.scope < Scope.SYS and event.kind == "max":
        callee = event.inner.node.child_by_field_name("function")
        if callee is None or len(event.sites) > 1:
            raise Blocked(f"{unit.path}:{unit.line(site.node.start_byte)}: the scope of this publish can't be edited")
        parts.append((callee, "atomicMax_system"))
    lines: list[str] = []
    if bad.get("advance"):
        index = code.value(site, turn.new_index)
        if index is None:
            raise Blocked(f"{unit.path}:{unit.line(site.node.start_byte)}: no name in sight holds the new producer index")
        prod = code.pointer(turn.function, f"&{code.member(site, qp_pointer(turn.cas.place), PROD_IDX)}")
        lines = [f"{indent}// NVSHMEM's own quiet waits for `mvars.tx_wq.prod_idx`", f"{indent}atomicMax({prod}, {index});"]
    if lines:
        code.insert_before(unit, statement, lines)
    for node, text in parts:
        code.edit(unit, node.start_byte, node.end_byte, text)


def _keep_from_old(code: Rewriter, facts: Facts, version: Version) -> None:
    """Compile a publish that is there only for the releases that have the slot."""
    for turn in turns(facts, version):
        touched = [e for e in turn.path.events if isinstance(e, Rmw) and protocol.member(e.place) == DOORBELL]
        advances = [e for e in turn.path.events if isinstance(e, Rmw) and protocol.member(e.place) == PROD_IDX]
        if touched:
            nodes = [e.outer.node for e in (*[a for a in advances if turn.mode], *touched)]
            first, last = common_range(nodes)
            code.only_since(touched[0].outer.unit, first, last, PROXY_SLOT_SINCE)


_PUBLISH = "        atomicMax_system(reinterpret_cast<unsigned long long*>(qp->tx_wq.bf), next);\n"
_ADVANCE = "        if (atomicMax(reinterpret_cast<unsigned long long*>(&mvars->tx_wq.prod_idx), next) < next)\n"

FIX = Fix(
    id="submit-order",
    title="submissions are ordered and published as the NVSHMEM compiled against does it",
    version=1,
    upstream=("https://github.com/deepseek-ai/DeepEP/pull/677", "https://github.com/deepseek-ai/DeepEP/issues/509"),
    obligations=(
        Obligation("order", "submitters wait for their turn on the queue that NVSHMEM orders them by, in every mode", shows=False),
        Obligation("advance", "in async mode mvars.tx_wq.prod_idx is advanced before the publish"),
        Obligation("publish", "in async mode one system-scope max on the proxy's slot, after the CAS"),
        Obligation("doorbell", "the GPU's doorbell rings with handler gpu only, after the CAS", shows=False),
    ),
    judge=judge,
    rewrite=rewrite,
    keeps=keeps,
    documentation=__doc__ or "",
    cases=(
        Case("the sample has the old protocol", "needed"),
        Case("which is right for old releases", "upstream", nvshmem="3.3.24"),
        Case("and broken for new ones", "needed", nvshmem="3.4.5"),
        Case(
            "published, but `prod_idx` left behind",
            "partial",
            (
                ("state->use_async_postsend ? qp->tx_wq.prod_idx : &mvars", "&mvars"),
                ("            post(qp, next);\n    }\n", "            post(qp, next);\n    } else {\n" + _PUBLISH + "    }\n"),
            ),
        ),
        Case(
            "published and advanced",
            "upstream",
            (
                ("state->use_async_postsend ? qp->tx_wq.prod_idx : &mvars", "&mvars"),
                (
                    "            post(qp, next);\n    }\n",
                    "            post(qp, next);\n    } else {\n" + _ADVANCE + "    " + _PUBLISH + "    }\n",
                ),
            ),
            nvshmem="3.8.0",
        ),
        Case(
            "published and advanced, also where there is no slot",
            "needed",
            (
                ("state->use_async_postsend ? qp->tx_wq.prod_idx : &mvars", "&mvars"),
                (
                    "            post(qp, next);\n    }\n",
                    "            post(qp, next);\n    } else {\n" + _ADVANCE + "    " + _PUBLISH + "    }\n",
                ),
            ),
        ),
        Case(
            "published at GPU scope",
            "partial",
            (
                ("state->use_async_postsend ? qp->tx_wq.prod_idx : &mvars", "&mvars"),
                (
                    "            post(qp, next);\n    }\n",
                    "            post(qp, next);\n    } else {\n" + _ADVANCE + "    " + _PUBLISH.replace("_system", "") + "    }\n",
                ),
            ),
            nvshmem="3.8.0",
        ),
        Case(
            "no async mode at all",
            "needed",
            (
                ("state->use_async_postsend ? qp->tx_wq.prod_idx : &mvars", "&mvars"),
                ("    if (!state->use_async_postsend) {\n", "    {\n"),
            ),
        ),
        Case(
            "the wait gives up after a while",
            "blocked",
            (("base)\n        ;\n", "base)\n        if (++state->tries == 1000)\n            break;\n"),),
            reason="can end without it",
        ),
        Case(
            "a second turn on a queue of a fork",
            "blocked",
            (("base)\n        ;\n", "base)\n        ;\n    while (atomicCAS(&mvars->tx_wq.ready_slot, base, next) != base)\n        ;\n"),),
            reason="ready_slot",
        ),
    ),
)
