"""A checkout with its record: the bytes before, what is applied, and plans from one to the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from patcher.checkout import Checkout, describe, releases
from patcher.engine import plan
from patcher.errors import Blocked, Refused, UsageProblem
from patcher.fix import Fix, catalogue
from patcher.model import FileChange, FixStatus, Plan, State
from patcher.protocol import Version
from patcher.tree import FileTree, Overlay, WorkTree

if TYPE_CHECKING:
    from patcher.record import Record

FOLDER = ".deepep-patch"


class Session(NamedTuple):
    """One look at a checkout."""

    tree: WorkTree
    checkout: Checkout
    versions: tuple[Version, ...]
    record: Record | None
    nvshmem: str | None
    profile: str

    @property
    def recorded(self) -> frozenset[str]:
        """Ids of the fixes that the record names."""
        return frozenset(f.id for f in self.record.fixes) if self.record else frozenset()

    def base(self) -> FileTree:
        """The tree before our changes.  Raises Refused where the code of an applied fix was changed since."""
        if self.record is None:
            return self.tree
        from patcher import record as records

        files = {f.path: records.undo(f, self.tree.read(f.path)) for f in self.record.files}
        return Overlay(self.tree, files)


def open_session(folder: str, nvshmem: str | None, profile: str) -> Session:
    """Read a checkout and its record."""
    tree = WorkTree(folder)
    checkout = describe(tree)
    record = _stored(tree) if tree.exists(FOLDER) else None
    return Session(tree, checkout, releases(nvshmem, checkout), record, nvshmem, profile)


def _stored(tree: WorkTree) -> Record | None:
    from patcher import record, transaction  # a checkout without a record does not pay for them

    stored = transaction.read_record(tree.root)
    return record.from_bytes(stored) if stored is not None else None


def look(session: Session, fixes: Sequence[Fix]) -> Plan:
    """The states of fixes on the checkout as it is, and what an apply would write."""
    seen = plan(session.tree, fixes, session.versions, session.recorded)
    if session.tree.unreadable or session.tree.too_large:
        seen = seen._replace(before=_unread(session.tree, seen.before), after=_unread(session.tree, seen.after))
    if not seen.applied or session.record is None:
        return seen
    return seen._replace(changes=target(session, fixes, seen).changes)


def _unread(tree: WorkTree, statuses: Sequence[FixStatus]) -> tuple[FixStatus, ...]:
    """Nothing is absent for certain while some files can't be read."""
    kinds = (("not readable", tree.unreadable), ("too large for source", tree.too_large))
    told = [f"{what}: {_listed(list(dict.fromkeys(names)))}" for what, names in kinds if names]
    reason = f"not found in what could be read; {'; '.join(told)}"
    return tuple(s._replace(state=State.BLOCKED, reason=reason) if s.state is State.ABSENT else s for s in statuses)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if names[3:] else "")


class Target(NamedTuple):
    """Changes to the files as they are, and the record that goes with them (None: no fix is left)."""

    changes: tuple[FileChange, ...]
    record: Record | None


def target(session: Session, fixes: Sequence[Fix], seen: Plan) -> Target:
    """The bytes with ``fixes`` and all recorded ones that still hold, made anew from the bytes before.

    So any order of applies ends in the same bytes.
    """
    held = {s.id for s in seen.before if s.state is State.APPLIED}
    kept = [f for f in _known(session.recorded) if f.id in held or f.id not in {s.id for s in seen.before}]
    wanted = {f.id: f for f in (*kept, *(f for f in fixes if f.id in seen.applied))}
    return _from_base(session, wanted, seen if session.record is None and seen.changes and set(wanted) == set(seen.applied) else None)


def without(session: Session, fixes: Sequence[Fix]) -> Target:
    """The bytes with only those recorded fixes that are not among ``fixes``."""
    gone = {f.id for f in fixes}
    return _from_base(session, {f.id: f for f in _known(session.recorded) if f.id not in gone})


def _known(ids: frozenset[str]) -> list[Fix]:
    fixes = catalogue()
    unknown = sorted(ids - set(fixes))
    if unknown:
        raise Refused(
            f"the record names {', '.join(unknown)}, which this version of deepep-patch does not know. Use the version that applied it."
        )
    return [fixes[i] for i in sorted(ids)]


def _from_base(session: Session, wanted: dict[str, Fix], made: Plan | None = None) -> Target:
    from patcher.record import FixRecord, record_of

    base = session.base()
    made = made or plan(base, wanted.values(), session.versions)
    blocked = [s for s in made.before if s.state is State.BLOCKED]
    if blocked:
        raise Blocked("; ".join(f"{s.id}: {s.reason}" for s in blocked))
    final = {c.path: c.after for c in made.changes}
    touched = sorted({*final, *(base.files if isinstance(base, Overlay) else ())})
    changes = []
    for path in touched:
        now, after = session.tree.read(path), final.get(path, base.read(path))
        if now != after:
            changes.append(FileChange(path, now, after))
    if not made.applied:
        return Target(tuple(changes), None)
    applied = [wanted[i] for i in made.applied]
    entries = [FixRecord(f.id, str(f.version), tuple(o.id for o in f.obligations), f.upstream) for f in applied]
    return Target(tuple(changes), record_of(made.changes, entries, session.checkout.commit, session.nvshmem, session.profile))


def write(session: Session, goal: Target) -> None:
    """Write a target: the files and the record, all or nothing."""
    from patcher import record, transaction

    transaction.write_all(session.tree.root, goal.changes, record.to_bytes(goal.record) if goal.record else None)


def refuse_blocked(statuses: Sequence[FixStatus]) -> None:
    """Raises Blocked where one of the selected fixes is: a run carries out all or none."""
    blocked = [s for s in statuses if s.state is State.BLOCKED]
    if blocked:
        reasons = "\n".join(f"  {s.id}: {s.reason}" for s in blocked)
        others = "\nThe others alone: " + " ".join(f"--skip {s.id}" for s in blocked) if len(blocked) < len(statuses) else ""
        raise Blocked(f"nothing was changed, since not every selected fix can be carried out:\n{reasons}{others}")


def only_recorded(session: Session, fixes: Sequence[Fix], named: bool) -> list[Fix]:
    """The fixes that a revert takes back.  Raises UsageProblem where one that was named is not applied."""
    found = [f for f in fixes if f.id in session.recorded]
    if named and len(found) < len(fixes):
        missing = ", ".join(f.id for f in fixes if f.id not in session.recorded)
        raise UsageProblem(f"{missing}: not applied by deepep-patch here, so there is nothing to take back.")
    return found
