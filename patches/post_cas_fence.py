"""A fence follows the CAS that orders submitters.

What goes wrong
    After a submitter won its turn by CAS, nothing keeps the compiler and the SM from moving what follows
    (the update of ``prod_idx``, the doorbell record, the doorbell, the publish) before the CAS.  Then a
    doorbell can cover a WQE of an earlier submitter that is not yet written.  NVSHMEM has
    ``IBGDA_MFENCE()`` (``fence.acq_rel.cta``) there in every release since 3.1.7; DeepEP's copy lost it.

What is done
    ``fence``  between the CAS and whatever follows it on the QP stands a fence of CTA scope or wider.  It is
               the fence that NVSHMEM has, by the helper that the file itself uses where it has one.

What is not touched
    The fence before the CAS (see ``nic-fence-scope``).
"""

from __future__ import annotations

from collections import defaultdict

from patcher.facts import Facts
from patcher.fix import Case, Fix
from patcher.machine import Fence, Rmw, Scope, Store
from patcher.machine.terms import place_path
from patcher.model import Evidence, Judgement, Obligation
from patcher.protocol import Version
from patcher.rewrite import Rewriter
from patches._submit import Turn, at, turns, understood, verdicts, wait_points

_ORDER = ("fence",)


def judge(facts: Facts, version: Version) -> list[Judgement]:
    """Judge what comes first after the CAS on every path that won it."""
    if (why_not := understood(facts, _ORDER)) is not None:
        return why_not
    bad: dict[str, list[Evidence]] = defaultdict(list)
    good: dict[str, list[Evidence]] = defaultdict(list)
    for turn in turns(facts, version):
        if turn.won:
            fence = _first_fence(turn)
            if fence is None:
                bad["fence"].append(at(turn.cas.outer, "no fence follows the CAS; NVSHMEM has one of CTA scope"))
            else:
                good["fence"].append(at(fence.outer, f"fence of {fence.scope.word} scope"))
    return verdicts(bad, _ORDER, good)


def _first_fence(turn: Turn) -> Fence | None:
    for event in turn.after:
        if isinstance(event, Fence) and not event.proxy and event.scope >= Scope.CTA:
            return event
        if isinstance(event, (Rmw, Store)) and place_path(event.place):
            return None
    return None


def rewrite(code: Rewriter) -> None:
    """Insert the fence after the statement that waits."""
    for facts, version in code.worlds():
        for function in facts.submit:
            mine = [t for t in turns(facts, version) if t.function is function and t.won]
            if any(_first_fence(t) is None for t in mine):
                unit = mine[0].cas.outer.unit
                fence = code.cta_fence(facts, unit, mine[0].cas.outer.node.start_byte)
                for point in wait_points([t for t in mine if _first_fence(t) is None]):
                    indent = code.indent(unit, point)
                    lines = [f"{indent}// What follows must not be moved before the turn is won", f"{indent}{fence}"]
                    code.insert_after(unit, point, lines)


FIX = Fix(
    id="post-cas-fence",
    title="a fence follows the CAS that orders submitters",
    version=1,
    upstream=("https://github.com/deepseek-ai/DeepEP/pull/703",),
    obligations=(Obligation("fence", "a fence of CTA scope or wider stands between the CAS and what follows it"),),
    judge=judge,
    rewrite=rewrite,
    documentation=__doc__ or "",
    cases=(
        Case("the sample has none", "needed"),
        Case("NVSHMEM's own", "upstream", (("        ;\n\n    // The GPU posts", "        ;\n    fence_cta();\n\n    // The GPU posts"),)),
        Case(
            "a wider one", "upstream", (("        ;\n\n    // The GPU posts", "        ;\n    __threadfence();\n\n    // The GPU posts"),)
        ),
        Case(
            "a proxy fence is none",
            "needed",
            (("        ;\n\n    // The GPU", '        ;\n    asm volatile("fence.proxy.async;");\n\n    // The GPU'),),
        ),
    ),
)
