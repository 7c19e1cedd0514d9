"""Fences before the CAS, the doorbell record and the doorbell reach the NIC.

What goes wrong
    The NIC reads WQEs and doorbell records by PCIe.  NVSHMEM asks ``nic_buf_on_gpumem`` before it chooses
    a fence: GPU scope where those buffers are in GPU memory, system scope where they are in host memory
    (``NVSHMEM_IBGDA_FORCE_NIC_BUF_MEMTYPE``, and by itself where GPU memory can't be registered).  DeepEP
    uses ``__threadfence()`` and ``st.release.gpu`` in both cases.  With buffers in host memory the doorbell can
    overtake the WQE: the NIC executes a stale one (#113, #587).

Why, by the PTX memory model
    A fence orders for observers within its scope only (PTX ISA, "Memory Consistency Model", scope): one of
    GPU scope orders nothing for the NIC.  In practice a GPU-scope fence waits until the writes are in L2,
    which is what a NIC that reads GPU memory sees; that is what NVSHMEM relies on, and what this fix asks for.
    Writes to host memory leave L2 on their own, and only a system-scope fence waits for them.

What is done
    ``wqe``       before the CAS: GPU scope if ``nic_buf_on_gpumem``, else system scope.
    ``record``    the same between the CAS and the store to the doorbell record.
    ``doorbell``  the same between the doorbell record and the doorbell.
    A release store of sufficient scope counts as the fence; so with buffers in GPU memory nothing is added.

What is not touched
    Token data (see ``data-fence``), and the order of what is stored.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from tree_sitter import Node

from patcher import protocol
from patcher.errors import Blocked
from patcher.facts import Facts
from patcher.fix import Case, Fix
from patcher.machine import Event, Fence, Load, Scope, Site, Store
from patcher.model import Evidence, Judgement, Obligation
from patcher.protocol import DOORBELL, DOORBELL_RECORD, NIC_ON_GPU_FLAG, Version
from patcher.rewrite import Rewriter, common_statement, contains, own_statement
from patches._submit import Turn, at, fences, one_cta, turns, understood, verdicts

_ORDER = ("wqe", "record", "doorbell")


def required(turn: Turn) -> Scope:
    """The scope that reaches the NIC on a path: system scope unless the path knows the buffers to be in GPU memory."""
    return Scope.GPU if turn.nic_on_gpu else Scope.SYS


def widest(events: Sequence[Event]) -> Scope:
    """The widest fence among events."""
    return max((f.scope for f in fences(events)), default=Scope.NONE)


def judge(facts: Facts, version: Version) -> list[Judgement]:
    """Judge the fences of every path that won its turn."""
    if (why_not := understood(facts, _ORDER)) is not None:
        return why_not
    bad: dict[str, list[Evidence]] = defaultdict(list)
    good: dict[str, list[Evidence]] = defaultdict(list)
    for turn in turns(facts, version):
        if not turn.won:
            continue
        if not one_cta(turn):
            _note(turn, "wqe", turn.cas, turn.before, "the CAS that hands WQEs on", bad, good)
        for name, event, since in _stores(turn):
            _note(turn, name, event, since, {"record": "the doorbell record", "doorbell": "the doorbell"}[name], bad, good)
    return verdicts(bad, _ORDER, good)


def _note(
    turn: Turn, name: str, event: Event, since: Sequence[Event], what: str, bad: dict[str, list[Evidence]], good: dict[str, list[Evidence]]
) -> None:
    scope = widest(since)
    if isinstance(event, Store) and event.release:
        scope = max(scope, event.scope)
    asked = "with the NIC's buffers in host memory" if turn.nic_on_gpu is False else "without asking where the NIC's buffers are"
    if scope < required(turn):
        bad[name].append(at(event.outer, f"{asked}, {what} is fenced at {scope.word} scope; the NIC needs {required(turn).word} scope"))
    else:
        good[name].append(at(event.outer, f"{what} is fenced at {scope.word} scope"))


def _stores(turn: Turn) -> list[tuple[str, Store, list[Event]]]:
    """The stores that ring, each with the events since the last one that the NIC must see before it."""
    found: list[tuple[str, Store, list[Event]]] = []
    since: list[Event] = []
    for event in turn.after:
        if isinstance(event, Store):
            name = {DOORBELL_RECORD: "record", DOORBELL: "doorbell"}.get(protocol.member(event.place))
            if name is not None:
                found.append((name, event, since))
                since = []
                continue
        since = [*since, event]
    return found


def rewrite(code: Rewriter) -> None:
    """Widen the fence before the CAS; fence before the stores that ring."""
    for facts, version in code.worlds():
        for turn in turns(facts, version):
            if not turn.won:
                continue
            if not one_cta(turn) and widest(turn.before) < required(turn):
                _widen(code, facts, version, turn)
            stores = _stores(turn)
            for position, (_, event, since) in enumerate(stores):
                scope = max(widest(since), event.scope if event.release else Scope.NONE)
                if scope < required(turn):
                    others = [e for i, (_, e, _) in enumerate(stores) if i != position]
                    _fence_before(code, facts, event, others or [turn.cas])


def _widen(code: Rewriter, facts: Facts, version: Version, turn: Turn) -> None:
    """Ask where the NIC's buffers are at the last fence of GPU scope before the CAS."""
    gpu = [f for f in fences(turn.before) if f.scope is Scope.GPU]
    mine = [t for t in turns(facts, version) if t.function is turn.function and t.won]
    flag = code.state_member(turn.cas.outer, facts, NIC_ON_GPU_FLAG)
    step = code.step(turn.function)
    if gpu and all(any(f.scope >= Scope.GPU for f in fences(t.before)) for t in mine):
        site = gpu[-1].outer
        statement = own_statement(site.node)
        if statement.type != "expression_statement" or not contains(statement, site.node):
            raise Blocked(f"{site.unit.path}:{site.unit.line(site.node.start_byte)}: the fence before the CAS is no statement of its own")
        indent, own = code.indent(site.unit, statement), site.unit.source(statement)
        flag = code.state_member(site, facts, NIC_ON_GPU_FLAG)
        if not _only_fences(statement, mine):
            lines = [f"{indent}if (!{flag})", f"{indent}{step}__threadfence_system();"]
            code.insert_after(site.unit, statement, lines)
            return
        text = f"if ({flag})\n{indent}{step}{own}\n{indent}else\n{indent}{step}__threadfence_system();"
        code.edit(site.unit, statement.start_byte, statement.end_byte, text)
        return
    statement = common_statement([t.cas.outer.node for t in mine])
    unit = turn.cas.outer.unit
    indent = code.indent(unit, statement)
    lines = [f"if ({flag})", f"{step}__threadfence();", "else", f"{step}__threadfence_system();"]
    code.insert_before(unit, statement, [indent + line for line in lines])


def _only_fences(statement: Node, mine: Sequence[Turn]) -> bool:
    """Whether a statement is a call without arguments, or assembly, that fences and does nothing else."""
    text = (statement.text or b"").decode("utf-8", "replace")
    if not re.fullmatch(r"[\w:]+\s*\([^()]*\)\s*;|asm\b.*|cuda::.*", text, re.S):
        return False
    inside = [e for t in mine for e in t.path.events if contains(statement, e.outer.node)]
    bare = text.startswith(("asm", "cuda::")) or re.search(r"\(\s*\)", text) is not None
    return bare and all(isinstance(e, (Fence, Load)) for e in inside)


def _fence_before(code: Rewriter, facts: Facts, event: Store, others: Sequence[Event]) -> None:
    site = _own_site(event, others)
    statement = own_statement(site.node)
    indent = code.indent(site.unit, statement)
    split = _comma(site.node, statement)
    depth = event.sites.index(site)
    if split is not None and any(depth < len(o.sites) and contains(split[0], o.sites[depth].node) for o in others):
        flag, step = code.state_member(site, facts, NIC_ON_GPU_FLAG), code.step(site.function)
        between = f";\n{indent}if (!{flag})\n{indent}{step}__threadfence_system();\n{indent}"
        code.edit(site.unit, split[0].end_byte, split[1].start_byte, between)
        return
    flag = code.state_member(site, facts, NIC_ON_GPU_FLAG)
    code.insert_before(site.unit, statement, [f"{indent}if (!{flag})", f"{indent}{code.step(site.function)}__threadfence_system();"])


def _comma(node: Node, statement: Node) -> tuple[Node, Node] | None:
    """The two sides of the comma that ``node`` stands right of, in a statement."""
    at_: Node | None = node
    while at_ is not None and contains(statement, at_):
        parent = at_.parent
        if parent is not None and parent.type == "comma_expression":
            left, right = parent.child_by_field_name("left"), parent.child_by_field_name("right")
            if left is not None and right is not None and contains(right, node):
                return left, right
        at_ = parent
    return None


def _own_site(event: Event, others: Sequence[Event]) -> Site:
    """The innermost place that leads to ``event`` only: where it and the others part."""
    depth = 0
    for other in others:
        shared = 0
        for a, b in zip(event.sites, other.sites, strict=False):
            if a.function is not b.function:
                break
            shared += 1
            if a.node.start_byte != b.node.start_byte:
                break
        depth = max(depth, shared - 1)
    return event.sites[min(max(depth, 0), len(event.sites) - 1)]


FIX = Fix(
    id="nic-fence-scope",
    title="fences before the CAS, the doorbell record and the doorbell reach the NIC",
    version=1,
    upstream=("https://github.com/deepseek-ai/DeepEP/issues/113", "https://github.com/deepseek-ai/DeepEP/issues/587"),
    obligations=(
        Obligation("wqe", "WQEs are fenced for the NIC before the CAS that hands them on"),
        Obligation("record", "a fence or release that reaches the NIC stands before the store to the doorbell record"),
        Obligation("doorbell", "and another between the doorbell record and the doorbell"),
    ),
    judge=judge,
    rewrite=rewrite,
    documentation=__doc__ or "",
    cases=(
        Case("the sample has GPU scope", "needed"),
        Case(
            "the fence before the CAS asks, those of the doorbell don't",
            "partial",
            (
                (
                    "    __threadfence();",
                    "    if (state->nic_buf_on_gpumem)\n        __threadfence();\n    else\n        __threadfence_system();",
                ),
            ),
        ),
        Case(
            "system scope everywhere",
            "upstream",
            (
                ("    __threadfence();", "    __threadfence_system();"),
                ("        write_doorbell_record(qp, index);", "        __threadfence_system();\n        write_doorbell_record(qp, index);"),
                ("        ring_doorbell(qp, index);", "        __threadfence_system();\n        ring_doorbell(qp, index);"),
            ),
        ),
        Case("no fence before the CAS", "needed", (("    __threadfence();\n", ""),)),
        Case(
            "the doorbell rings in an `if` without braces",
            "needed",
            (("        ring_doorbell(qp, index);", "        if (index != 0)\n            ring_doorbell(qp, index);"),),
        ),
        Case(
            "a helper that the tree does not define stores the doorbell",
            "blocked",
            (
                (
                    "    store_release(reinterpret_cast<uint64_t*>(qp->tx_wq.bf)",
                    "    store_elsewhere(reinterpret_cast<uint64_t*>(qp->tx_wq.bf)",
                ),
            ),
            reason="store_elsewhere",
        ),
    ),
)
