"""The record of a checkout: what was applied, enough to say so later and to take it back.  No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple, TypeVar

from patcher.errors import Refused
from patcher.model import FileChange

SCHEMA = "deepep-patch/record/1"
CONTEXT_LINES = 3
_T = TypeVar("_T")


@dataclass(frozen=True)
class Hunk:
    """Whole lines ``before``, at offset ``start`` of the file before, that became ``after``.

    ``lead`` and ``trail`` are up to three unchanged lines around.  ``near`` and ``far`` say how many lines
    of each other places with the same text shared, at most, when it was recorded: places between the
    neighbouring hunks, and in the whole file (-1, -1: there was no other place).
    """

    start: int
    before: bytes
    after: bytes
    lead: bytes = b""
    trail: bytes = b""
    near: tuple[int, int] = (-1, -1)
    far: tuple[int, int] = (-1, -1)


@dataclass(frozen=True)
class FileRecord:
    """What was changed in one file."""

    path: str
    sha256_before: str
    sha256_after: str
    hunks: tuple[Hunk, ...]


@dataclass(frozen=True)
class FixRecord:
    """A fix that was applied."""

    id: str
    version: str
    obligations: tuple[str, ...]
    upstream: tuple[str, ...]


@dataclass(frozen=True)
class Record:
    """All that was applied to a checkout."""

    fixes: tuple[FixRecord, ...]
    files: tuple[FileRecord, ...]
    commit: str | None
    nvshmem: str | None
    profile: str


class _Place(NamedTuple):
    """Where a hunk's ``after`` stands, by line, and how much of its context stands around it."""

    line: int
    lead: int
    trail: int


def sha256(data: bytes) -> str:
    """The hash that records name content by."""
    import hashlib

    return hashlib.sha256(data).hexdigest()


# Making


def record_of(changes: Sequence[FileChange], fixes: Sequence[FixRecord], commit: str | None, nvshmem: str | None, profile: str) -> Record:
    """The record of carrying out ``changes`` (those that change nothing are left out)."""
    files = sorted((c for c in changes if c.before != c.after), key=lambda c: c.path)
    return Record(
        fixes=tuple(fixes),
        files=tuple(FileRecord(c.path, sha256(c.before), sha256(c.after), _hunks(c.before, c.after)) for c in files),
        commit=commit,
        nvshmem=nvshmem,
        profile=profile,
    )


def _lines(data: bytes) -> list[bytes]:
    # Not splitlines(): a lone \r or \f ends no line here, so that every cut is one that an editor shows.
    parts = data.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def _hunks(before: bytes, after: bytes) -> tuple[Hunk, ...]:
    old, new = _lines(before), _lines(after)
    spans = _changed(old, new)
    ends = [(0, 0), *((i2, j2) for _, i2, _, j2 in spans)]
    starts = [*((i1, j1) for i1, _, j1, _ in spans), (len(old), len(new))]
    hunks = []
    for n, (i1, i2, j1, j2) in enumerate(spans):
        hunk = Hunk(
            start=sum(map(len, old[:i1])),
            before=b"".join(old[i1:i2]),
            after=b"".join(new[j1:j2]),
            lead=b"".join(old[max(ends[n][0], i1 - CONTEXT_LINES) : i1]),
            trail=b"".join(old[i2 : min(starts[n + 1][0], i2 + CONTEXT_LINES)]),
        )
        others = [place for place in _places(hunk, new) if place.line != j1]
        # While hunks keep their order, what lies beyond a neighbour can't be mistaken for this one.
        between = [p for p in others if p.line >= ends[n][1] and p.line + j2 - j1 <= starts[n + 1][1]]
        hunks.append(replace(hunk, near=_likest(between), far=_likest(others)))
    return tuple(hunks)


def _changed(old: list[bytes], new: list[bytes]) -> list[tuple[int, int, int, int]]:
    """Spans of lines (start and end in old, start and end in new) that differ."""
    import difflib

    # The matcher is quadratic on repeated lines: most of a file is before the first or after the last change.
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    matcher = difflib.SequenceMatcher(None, old[head : len(old) - tail], new[head : len(new) - tail], autojunk=False)
    return [(i1 + head, i2 + head, j1 + head, j2 + head) for tag, i1, i2, j1, j2 in matcher.get_opcodes() if tag != "equal"]


# Undoing


def undo(record_file: FileRecord, current: bytes) -> bytes:
    """The file without our hunks, also where other commits have changed it elsewhere.

    Refuses where one of the hunks can't be told for certain.
    """
    digest = sha256(current)
    if digest == record_file.sha256_before:
        return current
    if digest == record_file.sha256_after:
        return _reversed_exactly(record_file, current)
    lines = _lines(current)
    spots = sorted(zip(_locate(record_file, lines), record_file.hunks, strict=True), key=lambda spot: spot[0])
    result, done = [], 0
    for index, hunk in spots:
        end = index + len(_lines(hunk.after))
        if hunk.before and not hunk.before.endswith(b"\n") and end != len(lines):
            raise Refused(
                f"{record_file.path}: {_described(hunk)} stood for the file's end without a line break, and lines were added after it: "
                "undo it by hand."
            )
        result += [*lines[done:index], hunk.before]
        done = end
    return b"".join([*result, *lines[done:]])


def _reversed_exactly(record_file: FileRecord, current: bytes) -> bytes:
    result, done, shift = [], 0, 0
    for hunk in record_file.hunks:
        start = hunk.start + shift
        result += [current[done:start], hunk.before]
        done = start + len(hunk.after)
        shift += len(hunk.after) - len(hunk.before)
    restored = b"".join([*result, current[done:]])
    if sha256(restored) != record_file.sha256_before:
        raise _damaged(f"its changes to {record_file.path} don't lead back to the file that it names")
    return restored


def _places(hunk: Hunk, lines: list[bytes]) -> list[_Place]:
    after, lead, trail = _lines(hunk.after), _lines(hunk.lead)[::-1], _lines(hunk.trail)
    size = len(after)
    places = []
    for index in range(len(lines) - size + 1):
        if lines[index : index + size] != after:
            continue
        above = lines[max(0, index - len(lead)) : index][::-1]
        below = lines[index + size : index + size + len(trail)]
        places.append(_Place(index, _shared(lead, above), _shared(trail, below)))
    return places


def _shared(wanted: list[bytes], found: list[bytes]) -> int:
    count = 0
    while count < min(len(wanted), len(found)) and wanted[count] == found[count]:
        count += 1
    return count


def _likest(places: list[_Place]) -> tuple[int, int]:
    return max((p.lead for p in places), default=-1), max((p.trail for p in places), default=-1)


def _fits(hunk: Hunk, place: _Place, others: tuple[int, int]) -> bool:
    """Whether a place can be the hunk's.

    Where there were other places with its text, a whole side of its context must be there that none of
    them had: else a look-alike would be taken for a hunk that somebody has removed.
    """
    lead, trail = len(_lines(hunk.lead)), len(_lines(hunk.trail))
    if not hunk.after and (place.lead < min(1, lead) or place.trail < min(1, trail)):
        return False
    return others == (-1, -1) or (place.lead == lead > others[0]) or (place.trail == trail > others[1])


def _locate(record_file: FileRecord, lines: list[bytes]) -> list[int]:
    """The line at which each hunk stands now."""
    hunks = record_file.hunks
    options = [[place for place in _places(hunk, lines) if _fits(hunk, place, hunk.near)] for hunk in hunks]
    for hunk, places in zip(hunks, options, strict=True):
        if not places:
            raise Refused(f"{record_file.path}: {_described(hunk)} was changed since, or is gone: restore it, or undo it by hand.")
    sizes = [len(_lines(hunk.after)) for hunk in hunks]
    while True:
        first, last = _earliest(options, sizes), _latest(options, sizes)
        if first is None or last is None:
            return _out_of_order(record_file, lines, sizes)
        if first == last:
            return first
        narrowed = False
        for n, places in enumerate(options):
            best = _best([p for p in places if first[n] <= p.line <= last[n]])
            if best is not None and len(places) > 1:
                options[n], narrowed = [best], True
        if not narrowed:
            n = next(n for n in range(len(hunks)) if first[n] != last[n])
            raise _ambiguous(record_file.path, hunks[n], [first[n], last[n]])


def _earliest(options: list[list[_Place]], sizes: list[int]) -> list[int] | None:
    """The hunks in their order, each as early as it can be; _latest is its mirror.  Where both agree, there is one way only."""
    result, low = [], 0
    for places, size in zip(options, sizes, strict=True):
        index = min((p.line for p in places if p.line >= low), default=None)
        if index is None:
            return None
        result.append(index)
        low = index + size
    return result


def _latest(options: list[list[_Place]], sizes: list[int]) -> list[int] | None:
    result: list[int] = []
    for places, size in zip(reversed(options), reversed(sizes), strict=True):
        index = max((p.line for p in places if not result or p.line + size <= result[-1]), default=None)
        if index is None:
            return None
        result.append(index)
    return result[::-1]


def _best(places: list[_Place]) -> _Place | None:
    """The place that shares as much context as any other on either side, and more in all."""
    for one in places:
        if all(one is p or (one.lead >= p.lead and one.trail >= p.trail and one[1:] != p[1:]) for p in places):
            return one
    return None


def _out_of_order(record_file: FileRecord, lines: list[bytes], sizes: list[int]) -> list[int]:
    """The hunks where functions have changed places: each must be told from every other place of the file."""
    result = []
    for hunk in record_file.hunks:
        found = [place for place in _places(hunk, lines) if _fits(hunk, place, hunk.far)]
        best = _best(found)
        if not found:
            raise Refused(f"{record_file.path}: {_described(hunk)} is no more in its place among our changes: undo it by hand.")
        if best is None:
            raise _ambiguous(record_file.path, hunk, [place.line for place in found])
        result.append(best.line)
    spans = sorted((index, index + size) for index, size in zip(result, sizes, strict=True))
    if any(end > start for (_, end), (start, _) in pairwise(spans)):
        raise Refused(f"{record_file.path}: the lines that were applied can't be told apart any more: undo them by hand.")
    return result


def _ambiguous(path: str, hunk: Hunk, indexes: Sequence[int]) -> Refused:
    where = " and ".join(str(index + 1) for index in indexes)
    return Refused(f"{path}: {_described(hunk)} could be the one at line {where}, and nothing tells which: undo it by hand.")


def _described(hunk: Hunk) -> str:
    def quoted(text: bytes, last: bool = False) -> str:
        shown = [line for line in text.split(b"\n") if line.strip()] or [text]
        return repr(shown[-1 if last else 0].strip().decode("utf-8", "backslashreplace")[:80])

    if hunk.after:
        count = len(_lines(hunk.after))
        return f"the text that was applied at byte {hunk.start} ({count} line{'s' * (count != 1)} from {quoted(hunk.after)})"
    around = [f"after {quoted(hunk.lead, last=True)}"] * bool(hunk.lead) + [f"before {quoted(hunk.trail)}"] * bool(hunk.trail)
    return f"the place at byte {hunk.start} where {quoted(hunk.before)} was removed ({' and '.join(around) or 'the whole file'})"


# Storing


def to_bytes(record: Record) -> bytes:
    """The record as JSON: the same bytes for the same record."""
    import json

    data = {
        "schema": SCHEMA,
        "commit": record.commit,
        "nvshmem": record.nvshmem,
        "profile": record.profile,
        "fixes": [
            {"id": fix.id, "version": fix.version, "obligations": list(fix.obligations), "upstream": list(fix.upstream)}
            for fix in record.fixes
        ],
        "files": [
            {
                "path": file.path,
                "sha256_before": file.sha256_before,
                "sha256_after": file.sha256_after,
                "hunks": [_hunk_to_json(hunk) for hunk in file.hunks],
            }
            for file in record.files
        ],
    }
    return json.dumps(data, indent=1, sort_keys=True).encode("ascii") + b"\n"


def _hunk_to_json(hunk: Hunk) -> dict[str, object]:
    # Latin-1 gives every byte one character and back: sources aren't always UTF-8.
    texts = {name: getattr(hunk, name).decode("latin-1") for name in ("before", "after", "lead", "trail")}
    return {"start": hunk.start, "near": list(hunk.near), "far": list(hunk.far), **texts}


def from_bytes(data: bytes) -> Record:
    """The record that ``to_bytes`` wrote; Refused where it is damaged or of another release."""
    import json

    try:
        found = json.loads(data.decode("utf-8"))
        schema = _get(found, "schema", str)
        if schema != SCHEMA:
            raise Refused(
                f".deepep-patch/record.json has the form {schema!r}, and this release reads {SCHEMA!r}: "
                "use the release of deepep-patch that applied the fixes."
            )
        return Record(
            fixes=tuple(_fix_from_json(fix) for fix in _get(found, "fixes", list)),
            files=tuple(_file_from_json(file) for file in _get(found, "files", list)),
            commit=_get_text_or_none(found, "commit"),
            nvshmem=_get_text_or_none(found, "nvshmem"),
            profile=_get(found, "profile", str),
        )
    except RecursionError as error:
        raise _damaged("it is nested too deeply") from error
    except ValueError as error:  # JSON's, Unicode's and ours
        raise _damaged(str(error)) from error


def _damaged(why: str) -> Refused:
    return Refused(
        f".deepep-patch/record.json is damaged ({why}). Restore it from a copy; or restore the patched files with git, "
        "delete the folder .deepep-patch and apply again."
    )


def _get(data: object, key: str, kind: type[_T]) -> _T:
    value = data.get(key) if isinstance(data, dict) else None
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{key!r} is missing or no {kind.__name__}")
    return value


def _get_text_or_none(data: object, key: str) -> str | None:
    return None if isinstance(data, dict) and key in data and data[key] is None else _get(data, key, str)


def _get_texts(data: object, key: str) -> tuple[str, ...]:
    values = _get(data, key, list)
    if not all(isinstance(value, str) for value in values):
        raise ValueError(f"{key!r} holds more than texts")
    return tuple(values)


def _fix_from_json(data: object) -> FixRecord:
    return FixRecord(_get(data, "id", str), _get(data, "version", str), _get_texts(data, "obligations"), _get_texts(data, "upstream"))


def _file_from_json(data: object) -> FileRecord:
    path = _get(data, "path", str)
    if not path or path.startswith("/") or "\0" in path or ".." in path.split("/"):
        raise ValueError(f"{path!r} is no path in a checkout")
    hunks = tuple(_hunk_from_json(hunk) for hunk in _get(data, "hunks", list))
    ends = [0, *(hunk.start + len(hunk.before) for hunk in hunks)]
    if not hunks or any(hunk.start < end for hunk, end in zip(hunks, ends, strict=False)):
        raise ValueError(f"the changes to {path!r} are missing or out of order")
    return FileRecord(path, _get(data, "sha256_before", str), _get(data, "sha256_after", str), hunks)


def _hunk_from_json(data: object) -> Hunk:
    before, after, lead, trail = (_get(data, name, str).encode("latin-1") for name in ("before", "after", "lead", "trail"))
    return Hunk(_get(data, "start", int), before, after, lead, trail, _get_pair(data, "near"), _get_pair(data, "far"))


def _get_pair(data: object, key: str) -> tuple[int, int]:
    values = _get(data, key, list)
    if len(values) != 2 or not all(type(value) is int for value in values):
        raise ValueError(f"{key!r} is no pair of numbers")
    return values[0], values[1]
