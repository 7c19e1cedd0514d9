"""What must be true of the engine on any tree, whatever is in it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from patcher.engine import plan
from patcher.fix import Fix
from patcher.model import FileChange, FixStatus, Plan, State, Verdict
from patcher.protocol import Version
from patcher.record import FixRecord, from_bytes, record_of, to_bytes, undo
from patcher.tree import FileTree, Overlay

PLACE = re.compile(r"\S+\.\w+:[1-9]\d*: \S")
"""A reason names the line: a person can go there."""


@dataclass(frozen=True)
class Audited:
    """A plan on a tree, and what is wrong with it."""

    plan: Plan
    problems: tuple[str, ...]

    @property
    def states(self) -> dict[str, str]:
        """The state of each fix."""
        return {s.id: s.state.value for s in self.plan.before}


def audit(name: str, tree: FileTree, fixes: Sequence[Fix], versions: tuple[Version, ...]) -> Audited:
    """Plan, then check the plan: blocked with a place, settled after, nothing left to change, the same bytes after undo."""
    try:
        first = plan(tree, fixes, versions)
        problems = [*_unplaced(first.before), *_unsettled(tree, fixes, versions, first), *_not_undone(fixes, first)]
    except Exception as error:  # a crash on one tree must not hide the others
        return Audited(Plan((), (), ()), (f"{name}: {type(error).__name__}: {error}",))
    return Audited(first, tuple(f"{name}: {p}" for p in problems))


def _unplaced(statuses: Iterable[FixStatus]) -> list[str]:
    problems = []
    for status in statuses:
        if (status.state is State.BLOCKED) != (status.reason is not None):
            problems.append(f"{status.id} is {status.state.value} with reason {status.reason!r}")
        if status.reason is not None and not PLACE.search(status.reason):
            problems.append(f"{status.id} is blocked without a place: {status.reason}")
        for judgement in status.judgements:
            shown = bool(judgement.evidence) and all(e.path and e.line > 0 and e.note for e in judgement.evidence)
            if judgement.verdict is not Verdict.HOLDS and not shown:
                problems.append(f"{status.id}: {judgement.obligation} is {judgement.verdict.value} without evidence")
    return problems


def after(tree: FileTree, made: Plan) -> Overlay:
    """The tree with a plan carried out."""
    return Overlay(tree, {c.path: c.after for c in made.changes})


def _unsettled(tree: FileTree, fixes: Sequence[Fix], versions: tuple[Version, ...], first: Plan) -> list[str]:
    second = plan(after(tree, first), fixes, versions, frozenset(first.applied))
    problems = [f"a second apply changes {c.path}" for c in second.changes]
    for was, now in zip(first.before, second.before, strict=True):
        expected = State.APPLIED if was.id in first.applied else was.state
        if now.state is not expected:
            problems.append(f"{was.id} was {was.state.value}, and after apply is {now.state.value}, not {expected.value}: {now.reason}")
        if was.state in (State.NEEDED, State.PARTIAL) and was.id not in first.applied:
            problems.append(f"{was.id} is {was.state.value}, and apply leaves it out")
    if first.applied and not first.changes:
        problems.append(f"{', '.join(first.applied)} applied, and nothing changed")
    return problems


def _not_undone(fixes: Sequence[Fix], first: Plan) -> list[str]:
    entries = [FixRecord(f.id, str(f.version), tuple(o.id for o in f.obligations), f.upstream) for f in fixes if f.id in first.applied]
    record = from_bytes(to_bytes(record_of(first.changes, entries, None, None, "default")))
    changes: dict[str, FileChange] = {c.path: c for c in first.changes}
    problems = [f"{path}: changed, and not in the record" for path in sorted(set(changes) - {f.path for f in record.files})]
    for file in record.files:
        if undo(file, changes[file.path].after) != changes[file.path].before:
            problems.append(f"{file.path}: undo gives other bytes")
    return problems


def table(title: str, rows: Iterable[tuple[dict[str, str], int]]) -> str:
    """Counts by fix and state; each row is a tree's states and how many trees are like it."""
    counts: Counter[tuple[str, str]] = Counter()
    total = 0
    for states, weight in rows:
        total += weight
        for fix, state in states.items():
            counts[fix, state] += weight
    columns = [s.value for s in State if s is not State.APPLIED]
    lines = [f"{title}: {total}", f"  {'':16}" + "".join(f"{c:>10}" for c in columns)]
    for fix in sorted({f for f, _ in counts}):
        lines.append(f"  {fix:16}" + "".join(f"{counts[fix, c] or '.':>10}" for c in columns))
    return "\n".join(lines)
