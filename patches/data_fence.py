"""Token data reaches the NIC before it is posted (strict: more than NVSHMEM does).

What goes wrong
    The kernels write tokens into the send buffer, synchronise, and one thread posts.  The only fence on the
    way is the one before the CAS of the submission, of GPU scope.  By the letter of the PTX memory model it
    orders nothing for the NIC (#587, #113).  NVSHMEM's own answer for buffers in GPU memory is that GPU scope
    is enough (it adds a system-scope fence only where the data is in host memory), so this fix is not in the
    default profile.

    There is a second gap in trees before EPv2: the low-latency combine and the forwarders of internode
    combine write the send buffer by TMA (the async proxy) and wait with ``cp.async.bulk.wait_group.read``.  That only
    says that shared memory was read; the writes to global memory may still be on their way when the NIC
    fetches them (PTX ISA, "cp.async.bulk.wait_group").  No fence helps against a write that is not complete.

What is done
    ``send``         the fence before the CAS has system scope in every case.
    ``async-proxy``  the wait for bulk stores in kernels that post is for completion: without ``.read``.  EPv2
                     waits so.

Why one fence is enough
    A fence is cumulative (PTX ISA, "Memory Consistency Model", causality order): it orders, for observers in
    its scope, also the writes of other threads that happened before it.  So it is put where every post passes
    and every writer is ordered before:

    - low-latency dispatch: all warps of the block cast and write, then ``bar.sync 1``; the posting lane is one
      of the threads that passed it.
    - low-latency combine: the warp that writes is the warp that posts; each lane waits for its own bulk
      stores, then ``__syncwarp()``.
    - internode notify: writers and posters pass ``__syncthreads()``.
    - internode dispatch: the senders release their tail at CTA scope and the coordinator acquires it before
      it posts; channel metadata is written by the warp that posts it, with ``__syncwarp()`` between.
    - internode combine: the forwarder warps wait for their bulk stores and meet at a named barrier; one of
      them posts.

    Buffers that the caller filled (``zero_copy``) were written by an earlier kernel: its end is a system-scope
    release.

What it costs
    A system-scope fence waits for all outstanding writes of the SM to be acknowledged, also those to peers by
    NVLink.  See docs/data-fence.md for what was measured on an H200.

What is not touched
    Fences after the CAS (see ``nic-fence-scope``), and stores to peers by NVLink.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from tree_sitter import Node

from patcher.errors import Blocked
from patcher.facts import Facts
from patcher.fix import Case, Fix
from patcher.machine import Scope
from patcher.model import Evidence, Judgement, Obligation
from patcher.protocol import Version
from patcher.rewrite import Rewriter, common_statement, descendants, own_statement
from patcher.source.unit import Function, Unit
from patches._submit import Turn, at, fences, one_cta, turns, understood, verdicts

_ORDER = ("send", "async-proxy")
_READ_WAIT = re.compile(rb"cp\.async\.bulk\.wait_group\.read")


def judge(facts: Facts, version: Version) -> list[Judgement]:
    """Judge the fence before each CAS, and the waits for bulk stores in the kernels that post."""
    if (why_not := understood(facts, _ORDER)) is not None:
        return why_not
    bad: dict[str, list[Evidence]] = defaultdict(list)
    good: dict[str, list[Evidence]] = defaultdict(list)
    for turn in turns(facts, version):
        if turn.won and not one_cta(turn):
            scope = max((f.scope for f in fences(turn.before)), default=Scope.NONE)
            note = f"token data is fenced at {scope.word} scope before the CAS"
            (good if scope is Scope.SYS else bad)["send"].append(at(turn.cas.outer, note))
    for unit, start, user in _read_waits(facts):
        line = unit.line(start)
        bad["async-proxy"].append(
            Evidence(unit.path, line, line, f"`{user}` posts after a wait that does not mean the bulk stores are complete")
        )
    return verdicts(bad, _ORDER, good)


def _read_waits(facts: Facts) -> Iterator[tuple[Unit, int, str]]:
    """Waits with ``.read`` in files that post: in the file itself or in a helper that it includes and calls."""
    sources = facts.sources
    posting = {f.unit.path for f in facts.submit}
    for path in sources.tree.paths():
        if not posting & {path, *sources.included(path)}:
            continue
        text = sources.tree.read(path)
        for place in {path, *sources.included(path)}:
            if not _READ_WAIT.search(sources.tree.read(place)):
                continue
            unit = facts.unit(place)
            for function in (f for group in unit.functions.values() for f in group):
                called = place == path or re.search(rb"\b" + re.escape(function.name.encode()) + rb"\b", text)
                for match in _READ_WAIT.finditer(unit.pre.text, function.body.start_byte, function.body.end_byte):
                    if called:
                        yield unit, match.start(), path


def rewrite(code: Rewriter) -> None:
    """Widen the fence before the CAS to system scope; wait for completion of bulk stores."""
    for facts, version in code.worlds():
        for turn in turns(facts, version):
            if turn.won and not one_cta(turn) and not any(f.scope is Scope.SYS for f in fences(turn.before)):
                _widen(code, facts, version, turn)
        for unit, start, _ in _read_waits(facts):
            dot = unit.pre.text.index(b".read", start)
            code.edit(unit, dot, dot + len(b".read"), "")


def _widen(code: Rewriter, facts: Facts, version: Version, turn: Turn) -> None:
    weaker = fences(turn.before)
    if not weaker:
        mine = [t for t in turns(facts, version) if t.function is turn.function and t.won]
        statement = common_statement([t.cas.outer.node for t in mine])
        unit = turn.cas.outer.unit
        code.insert_before(unit, statement, [code.indent(unit, statement) + "__threadfence_system();"])
        return
    site = weaker[-1].outer
    statement = own_statement(site.node)
    if statement.type != "expression_statement":
        raise Blocked(f"{site.unit.path}:{site.unit.line(site.node.start_byte)}: the fence before the CAS is no statement of its own")
    whole = _choice_of_fences(turn.function, statement) or statement
    code.edit(site.unit, whole.start_byte, whole.end_byte, "__threadfence_system();")


def _choice_of_fences(function: Function, statement: Node) -> Node | None:
    """The ``if`` that does nothing but choose between fences, where ``statement`` is one of them."""
    at_: Node | None = statement
    while at_ is not None and at_.type != "if_statement":
        if at_ == function.body:
            return None
        at_ = at_.parent
    if at_ is None or at_.child_by_field_name("alternative") is None:
        return None
    statements = descendants(at_, "expression_statement")
    return at_ if len(statements) == 2 and all(b"fence" in (s.text or b"") for s in statements) else None


FIX = Fix(
    id="data-fence",
    title="token data reaches the NIC before it is posted",
    version=1,
    upstream=("https://github.com/deepseek-ai/DeepEP/issues/587", "https://github.com/deepseek-ai/DeepEP/issues/113"),
    obligations=(
        Obligation("send", "the fence between the last write of token data and its post has system scope"),
        Obligation("async-proxy", "kernels that post wait until their bulk stores (TMA) are complete", shows=False),
    ),
    judge=judge,
    rewrite=rewrite,
    profile="strict",
    documentation=__doc__ or "",
    cases=(
        Case("the sample has GPU scope", "needed"),
        Case("system scope already", "upstream", (("    __threadfence();\n", "    __threadfence_system();\n"),)),
        Case("no fence at all", "needed", (("    __threadfence();\n", ""),)),
        Case(
            "a choice by the place of the NIC's buffers",
            "needed",
            (
                (
                    "    __threadfence();\n",
                    "    if (state->nic_buf_on_gpumem)\n        __threadfence();\n    else\n        __threadfence_system();\n",
                ),
            ),
        ),
        Case(
            "bulk stores awaited for reading only",
            "partial",
            (
                ("    __threadfence();\n", "    __threadfence_system();\n"),
                (
                    "// Wait until all that",
                    '__device__ void wait_bulk() {\n    asm volatile("cp.async.bulk.wait_group.read 0;");\n}\n\n// Wait until all that',
                ),
            ),
        ),
    ),
)
