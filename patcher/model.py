"""The words that all parts share: verdicts, evidence, obligations, states, edits and plans."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Verdict(Enum):
    """What the facts say of an obligation."""

    HOLDS = "holds"
    VIOLATED = "violated"
    UNKNOWN = "unknown"


class State(Enum):
    """What a checkout is to a fix."""

    APPLIED = "applied"
    UPSTREAM = "upstream"
    NEEDED = "needed"
    PARTIAL = "partial"
    BLOCKED = "blocked"
    ABSENT = "absent"

    @property
    def settled(self) -> bool:
        """Whether nothing is left to do."""
        return self in (State.APPLIED, State.UPSTREAM, State.ABSENT)


class Evidence(NamedTuple):
    """Lines of a file (1-based, inclusive) and what they show."""

    path: str
    line: int
    end_line: int
    note: str


class Obligation(NamedTuple):
    """One condition that must be true of the code.

    ``shows``: where it holds, somebody has begun the fix.  A tree is ``partial`` where, for one release of
    NVSHMEM, such an obligation holds with evidence and another of the fix is violated.
    """

    id: str
    title: str
    shows: bool = True


class Judgement(NamedTuple):
    """The verdict on one obligation for some releases of NVSHMEM, with the evidence."""

    obligation: str
    verdict: Verdict
    evidence: tuple[Evidence, ...] = ()
    versions: tuple[str, ...] = ()


class FixStatus(NamedTuple):
    """A fix on a checkout."""

    id: str
    state: State
    reason: str | None
    judgements: tuple[Judgement, ...]


class Edit(NamedTuple):
    """Bytes ``start`` to ``end`` of a file become ``text``; an insertion has ``start == end``."""

    start: int
    end: int
    text: bytes


class FileChange(NamedTuple):
    """The whole content of one file before and after."""

    path: str
    before: bytes
    after: bytes


class Plan(NamedTuple):
    """What an apply would write, and what is true before and after."""

    changes: tuple[FileChange, ...]
    before: tuple[FixStatus, ...]
    after: tuple[FixStatus, ...]
    applied: tuple[str, ...] = ()
    """Ids of the fixes that the plan's changes carry out."""
