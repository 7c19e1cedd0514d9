"""The words that all parts share: verdicts, evidence, obligations, states, edits and plans."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


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


@dataclass(frozen=True)
class Evidence:
    """Lines of a file (1-based, inclusive) and what they show."""

    path: str
    line: int
    end_line: int
    note: str


@dataclass(frozen=True)
class Obligation:
    """One condition that must be true of the code.

    ``shows``: where it holds, somebody has begun the fix.  A tree is ``partial`` where, for one release of
    NVSHMEM, such an obligation holds with evidence and another of the fix is violated.
    """

    id: str
    title: str
    shows: bool = True


@dataclass(frozen=True)
class Judgement:
    """The verdict on one obligation for some releases of NVSHMEM, with the evidence."""

    obligation: str
    verdict: Verdict
    evidence: tuple[Evidence, ...] = ()
    versions: tuple[str, ...] = ()


@dataclass(frozen=True)
class FixStatus:
    """A fix on a checkout."""

    id: str
    state: State
    reason: str | None
    judgements: tuple[Judgement, ...]


@dataclass(frozen=True, order=True)
class Edit:
    """Bytes ``start`` to ``end`` of a file become ``text``; an insertion has ``start == end``."""

    start: int
    end: int
    text: bytes


@dataclass(frozen=True)
class FileChange:
    """The whole content of one file before and after."""

    path: str
    before: bytes
    after: bytes


@dataclass(frozen=True)
class Plan:
    """What an apply would write, and what is true before and after."""

    changes: tuple[FileChange, ...]
    before: tuple[FixStatus, ...]
    after: tuple[FixStatus, ...]
    applied: tuple[str, ...] = field(default=())
    """Ids of the fixes that the plan's changes carry out."""
