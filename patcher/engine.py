"""Read, judge, rewrite, read again: from a tree and fixes to a plan.  Pure: nothing is written here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from patcher import facts as reading
from patcher import protocol
from patcher.errors import Blocked
from patcher.facts import Facts, Sources
from patcher.fix import Fix
from patcher.model import Edit, Evidence, FileChange, FixStatus, Judgement, Plan, State, Verdict
from patcher.protocol import Version
from patcher.rewrite import Rewriter, apply_edits
from patcher.tree import FileTree, Overlay

_WORST = (Verdict.VIOLATED, Verdict.UNKNOWN, Verdict.HOLDS)


class Reading(NamedTuple):
    """The facts of one tree for the releases asked for."""

    tree: FileTree
    groups: tuple[Facts, ...]

    @classmethod
    def of(cls, tree: FileTree, versions: tuple[Version, ...], before: Reading | None = None) -> Reading:
        """Read ``tree`` as compiled against each of ``versions``; files are not read again that ``before`` has read."""
        known = before.groups[0].sources if before is not None and before.groups else None
        return cls(tree, reading.read(Sources(tree, known), versions))


def judge(fix: Fix, now: Reading) -> tuple[list[Judgement], bool]:
    """The judgements of a fix, merged over releases, and whether one release has only a part of it.

    An empty list: the code that the fix concerns is not there.
    """
    found: dict[str, list[Judgement]] = {}
    partly = False
    showing = {o.id for o in fix.obligations if o.shows}
    for facts in now.groups:
        for first in _epochs(facts):
            versions = [v for v in facts.versions if protocol.epoch(v) == protocol.epoch(first)]
            judgements = fix.judge(facts, versions[0])
            names = tuple(str(v) for v in versions)
            for judgement in judgements:
                found.setdefault(judgement.obligation, []).append(judgement._replace(versions=names))
            begun = any(j.verdict is Verdict.HOLDS and j.evidence and j.obligation in showing for j in judgements)
            partly |= begun and any(j.verdict is Verdict.VIOLATED for j in judgements)
    order = {o.id: i for i, o in enumerate(fix.obligations)}
    merged = [_merge(name, group) for name, group in sorted(found.items(), key=lambda item: order.get(item[0], 99))]
    return merged, partly


def _merge(name: str, judgements: list[Judgement]) -> Judgement:
    verdict = next(v for v in _WORST if any(j.verdict is v for j in judgements))
    chosen = [j for j in judgements if j.verdict is verdict]
    seen: dict[Evidence, set[str]] = {}
    for judgement in chosen:
        for item in judgement.evidence:
            seen.setdefault(item, set()).update(judgement.versions)
    evidence = [
        item if verdict is Verdict.HOLDS else item._replace(note=f"{item.note} (NVSHMEM {_span(sorted(versions, key=_key))})")
        for item, versions in seen.items()
    ]
    return Judgement(name, verdict, tuple(evidence), tuple(sorted({v for j in chosen for v in j.versions}, key=_key)))


def _key(text: str) -> Version:
    return Version.parse(text) or Version(0, 0, 0)


def _span(versions: Sequence[str]) -> str:
    return versions[0] if len(versions) == 1 else f"{versions[0]} to {versions[-1]}"


def plan(tree: FileTree, fixes: Iterable[Fix], versions: tuple[Version, ...], applied: frozenset[str] = frozenset()) -> Plan:
    """What an apply of ``fixes`` would write.

    A function of the bytes and the set of fixes: all rewrites are made on one reading, and edits at one place
    follow the order of the ids.  Where they don't fit together they are made one after the other, each on
    the text that the last one left.  So any subset, applied in any order, ends in the same bytes (the caller
    starts again from the bytes before, see :mod:`patcher.session`).

    A fix that can't be carried out, or would break another, is ``blocked`` with the reason.
    ``applied`` are the fixes that our record names.
    """
    fixes = tuple(sorted(fixes, key=lambda f: f.id))
    now = Reading.of(tree, versions)
    judged = {fix.id: judge(fix, now) for fix in fixes}
    states = {fix.id: _state(fix, *judged[fix.id], applied) for fix in fixes}
    wanted = [fix for fix in fixes if states[fix.id] in (State.NEEDED, State.PARTIAL)]
    kept = [fix for fix in fixes if states[fix.id].settled and states[fix.id] is not State.ABSENT]
    reasons = {fix.id: _unknown(judged[fix.id][0]) for fix in fixes if states[fix.id] is State.BLOCKED}
    try:
        final = carry_out(wanted, now, kept) if wanted else now
        done = wanted
    except Blocked:
        final, done = now, []
        for fix in wanted:
            try:
                final = carry_out([fix], final, [*kept, *done])
                done = [*done, fix]
            except Blocked as error:
                reasons[fix.id] = str(error)
    before, after = [], []
    for fix in fixes:
        judgements = tuple(judged[fix.id][0])
        state = State.BLOCKED if fix.id in reasons else states[fix.id]
        before.append(FixStatus(fix.id, state, reasons.get(fix.id), judgements))
        after.append(before[-1]._replace(state=State.APPLIED) if fix in done else before[-1])
    files = final.tree.files if isinstance(final.tree, Overlay) else {}
    changes = tuple(FileChange(p, tree.read(p), data) for p, data in sorted(files.items()) if data != tree.read(p))
    return Plan(changes, tuple(before), tuple(after), tuple(f.id for f in done))


def _state(fix: Fix, judgements: Sequence[Judgement], partly: bool, applied: frozenset[str]) -> State:
    if not judgements:
        return State.ABSENT
    verdicts = {j.verdict for j in judgements}
    if Verdict.UNKNOWN in verdicts:
        return State.BLOCKED
    if Verdict.VIOLATED in verdicts:
        return State.PARTIAL if partly else State.NEEDED
    return State.APPLIED if fix.id in applied else State.UPSTREAM


def _unknown(judgements: Sequence[Judgement]) -> str:
    notes = [f"{e.path}:{e.line}: {e.note}" for j in judgements if j.verdict is Verdict.UNKNOWN for e in j.evidence]
    return "; ".join(dict.fromkeys(notes)) or "the code is not understood"


def carry_out(fixes: Sequence[Fix], now: Reading, kept: Sequence[Fix]) -> Reading:
    """The tree with ``fixes`` carried out, verified: their obligations and those of ``kept`` hold.

    Raises Blocked where they can't be.
    """
    edits: dict[str, list[Edit]] = {}
    versions = tuple(sorted(v for g in now.groups for v in g.versions))
    for fix in fixes:
        rewriter = Rewriter(now.groups)
        fix.rewrite(rewriter)
        if not any(rewriter.edits.values()):
            open_ = next((j for j in judge(fix, now)[0] if j.verdict is not Verdict.HOLDS and j.evidence), None)
            where = f"{open_.evidence[0].path}:{open_.evidence[0].line}: {open_.evidence[0].note}: " if open_ is not None else ""
            raise Blocked(f"{where}no rewrite of {fix.id} fits this code")
        for path, made in rewriter.edits.items():
            _merge_edits(path, edits.setdefault(path, []), made)
    files = {path: apply_edits(now.tree.read(path), made) for path, made in edits.items()}
    base = now.tree
    tree = Overlay(base.base, {**base.files, **files}) if isinstance(base, Overlay) else Overlay(base, files)
    after = Reading.of(tree, versions, now)
    for fix in (*fixes, *kept):
        for judgement in judge(fix, after)[0]:
            if judgement.verdict is not Verdict.HOLDS:
                raise Blocked(_remains(fix, judgement))
    for path in files:
        _no_new_errors(path, now, after)
    for fix in fixes:
        _keeps(fix, now, after)
    return after


def _keeps(fix: Fix, before: Reading, after: Reading) -> None:
    """Raises Blocked where a rewrite changes what its fix must leave alone."""
    if fix.keeps is None:
        return
    was = {v: fix.keeps(facts, v) for facts in before.groups for v in _epochs(facts)}
    for facts in after.groups:
        for version in _epochs(facts):
            if version in was and fix.keeps(facts, version) != was[version]:
                raise Blocked(f"carrying out {fix.id} would change more than it should for NVSHMEM {version}; nothing is changed")


def _epochs(facts: Facts) -> list[Version]:
    """The first release of each form of the protocol."""
    return [next(v for v in facts.versions if protocol.epoch(v) == e) for e in sorted({protocol.epoch(v) for v in facts.versions})]


def _merge_edits(path: str, into: list[Edit], new: Iterable[Edit]) -> None:
    for edit in new:
        if any(
            max(edit.start, o.start) < min(edit.end, o.end) or o.start < edit.start < o.end or edit.start < o.start < edit.end for o in into
        ):
            raise Blocked(f"{path}: two fixes change the same bytes")
        into.append(edit)


def _remains(fix: Fix, judgement: Judgement) -> str:
    title = next((o.title for o in fix.obligations if o.id == judgement.obligation), judgement.obligation)
    where = judgement.evidence[0] if judgement.evidence else None
    place = f" {where.path}:{where.line}: {where.note}." if where else ""
    return f"a rewrite was tried, and `{judgement.obligation}` ({title}) would still not hold:{place} Nothing is changed"


def _no_new_errors(path: str, before: Reading, after: Reading) -> None:
    def count(at: Reading) -> int:
        return max((len(u.errors) for g in at.groups for u in g.units if u.path == path), default=0)

    if count(after) > count(before):
        raise Blocked(f"{path}: the rewrite would leave code that does not parse; nothing is changed")
