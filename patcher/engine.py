"""Read, judge, rewrite, read again: from a tree and fixes to a plan.  Pure: nothing is written here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from patcher import facts as reading
from patcher import protocol
from patcher.errors import Blocked
from patcher.facts import Facts, Sources
from patcher.fix import Fix
from patcher.model import Evidence, FileChange, FixStatus, Judgement, Plan, State, Verdict
from patcher.protocol import Version
from patcher.rewrite import Rewriter, apply_edits
from patcher.tree import FileTree, Overlay

_WORST = (Verdict.VIOLATED, Verdict.UNKNOWN, Verdict.HOLDS)


@dataclass(frozen=True)
class Reading:
    """The facts of one tree for the releases asked for."""

    tree: FileTree
    groups: tuple[Facts, ...]

    @classmethod
    def of(cls, tree: FileTree, versions: tuple[Version, ...]) -> Reading:
        """Read ``tree`` as compiled against each of ``versions``."""
        return cls(tree, reading.read(Sources(tree), versions))


def judge(fix: Fix, now: Reading) -> tuple[list[Judgement], bool]:
    """The judgements of a fix, merged over releases, and whether one release has only a part of it.

    An empty list: the code that the fix concerns is not there.
    """
    found: dict[str, list[Judgement]] = {}
    partly = False
    mending = {o.id for o in fix.obligations if o.mends}
    for facts in now.groups:
        for epoch in sorted({protocol.epoch(v) for v in facts.versions}):
            versions = [v for v in facts.versions if protocol.epoch(v) == epoch]
            judgements = fix.judge(facts, versions[0])
            names = tuple(str(v) for v in versions)
            for judgement in judgements:
                found.setdefault(judgement.obligation, []).append(replace(judgement, versions=names))
            verdicts = {j.verdict for j in judgements if j.obligation in mending}
            partly |= Verdict.VIOLATED in verdicts and Verdict.HOLDS in verdicts
    order = {o.id: i for i, o in enumerate(fix.obligations)}
    merged = [_merge(name, group) for name, group in sorted(found.items(), key=lambda item: order.get(item[0], 99))]
    return merged, partly


def _merge(name: str, judgements: list[Judgement]) -> Judgement:
    verdict = next(v for v in _WORST if any(j.verdict is v for j in judgements))
    chosen = [j for j in judgements if j.verdict is verdict]
    evidence: list[Evidence] = []
    for judgement in chosen:
        label = _span(judgement.versions)
        for item in judgement.evidence:
            noted = replace(item, note=f"{item.note} (NVSHMEM {label})") if verdict is not Verdict.HOLDS else item
            if noted not in evidence:
                evidence.append(noted)
    return Judgement(name, verdict, tuple(evidence), tuple(sorted({v for j in chosen for v in j.versions}, key=_key)))


def _key(text: str) -> Version:
    return Version.parse(text) or Version(0, 0, 0)


def _span(versions: Sequence[str]) -> str:
    return versions[0] if len(versions) == 1 else f"{versions[0]} to {versions[-1]}"


def plan(tree: FileTree, fixes: Iterable[Fix], versions: tuple[Version, ...], applied: frozenset[str] = frozenset()) -> Plan:
    """What an apply of ``fixes`` would write.

    The fixes are carried out one after the other in the order of their ids, each on the text that the
    last one left; so any subset applied in any order ends in the same bytes (the caller starts again
    from the bytes before, see :mod:`patcher.session`).  ``applied`` are the fixes that our record names.
    A fix whose obligations do not all hold afterwards, or that breaks another, changes nothing and is
    ``blocked`` with the reason.
    """
    fixes = tuple(fixes)
    now = Reading.of(tree, versions)
    before: list[FixStatus] = []
    done: list[str] = []
    reading_now = now
    for fix in fixes:
        judgements, partly = judge(fix, now)
        state = _state(fix, judgements, partly, applied)
        if state in (State.NEEDED, State.PARTIAL):
            try:
                reading_now = carry_out(fix, reading_now)
                done.append(fix.id)
            except Blocked as error:
                before.append(FixStatus(fix.id, State.BLOCKED, str(error), tuple(judgements)))
                continue
        reason = _unknown(judgements) if state is State.BLOCKED else None
        before.append(FixStatus(fix.id, state, reason, tuple(judgements)))
    after = []
    for fix, was in zip(fixes, before, strict=True):
        judgements, partly = judge(fix, reading_now)
        state = _state(fix, judgements, partly, applied | frozenset(done))
        after.append(was if was.state is State.BLOCKED else FixStatus(fix.id, state, None, tuple(judgements)))
        if was.state.settled and not state.settled:
            raise Blocked(f"carrying out {', '.join(done)} would undo {fix.id}: nothing is changed")
    final = reading_now.tree
    files = final.files if isinstance(final, Overlay) else {}
    changes = tuple(FileChange(p, tree.read(p), data) for p, data in sorted(files.items()) if data != tree.read(p))
    return Plan(changes, tuple(before), tuple(after), tuple(done))


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


def carry_out(fix: Fix, now: Reading) -> Reading:
    """The tree with one fix carried out, verified.  Raises Blocked where it can't be."""
    rewriter = Rewriter(now.groups)
    fix.rewrite(rewriter)
    edits = {path: made for path, made in rewriter.edits.items() if made}
    if not edits:
        raise Blocked(f"no rewrite of {fix.id} fits this code")
    files = {path: apply_edits(now.tree.read(path), made) for path, made in edits.items()}
    base = now.tree
    tree = Overlay(base.base, {**base.files, **files}) if isinstance(base, Overlay) else Overlay(base, files)
    after = Reading.of(tree, rewriter.versions)
    judgements, _ = judge(fix, after)
    for judgement in judgements:
        if judgement.verdict is not Verdict.HOLDS:
            raise Blocked(_remains(fix, judgement))
    for path in files:
        _no_new_errors(path, now, after)
    return after


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
