"""The one place that writes files of a checkout: all files of a run, or none.

Order of a run: back up, write the journal, write every new content beside its file, mark the journal,
rename each into place, write the record, remove the journal.  Until the journal is gone a run can be
undone, by itself when it fails and by the next one (``recover``) when it was killed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from patcher.errors import Refused
from patcher.model import FileChange
from patcher.record import sha256

FOLDER = ".deepep-patch"
SCHEMA = "deepep-patch/journal/1"
_LOCK, _IGNORE, _RECORD, _JOURNAL, _BACKUP = "lock", ".gitignore", "record.json", "journal.json", "backup"
_NEW, _OLD = ".new", ".old"
_HELD: set[str] = set()
"""Roots that this process has locked: flock itself can't say so, and process ids repeat between containers."""


# Reading


def read_record(root: str) -> bytes | None:
    """The stored record, or None where nothing was applied.  Writes nothing."""
    base = os.path.realpath(root)
    try:
        return _read(os.path.join(base, FOLDER, _RECORD)) if _has_folder(base) else None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Refused(f"{_told(error, base)}. The record of what was applied can't be read.") from error


def interrupted(root: str) -> bool:
    """Whether a run was interrupted (or is at work) and has left something to recover.  Writes nothing."""
    base = os.path.realpath(root)
    try:
        names = set(os.listdir(os.path.join(base, FOLDER))) if _has_folder(base) else set()
    except OSError as error:
        raise Refused(f"{_told(error, base)}. What an earlier run has left can't be read.") from error
    return not names.isdisjoint({_JOURNAL, _BACKUP, _JOURNAL + _NEW, _RECORD + _NEW})


# Writing


def write_all(root: str, changes: Sequence[FileChange], record: bytes | None) -> None:
    """Carry out all changes and store the record, or refuse and change nothing.

    A record of None removes the folder too, at the end of the outermost ``locked``.  A file with several
    hard links gets a new content under the one name only: the other names may be outside the checkout.
    """
    base = os.path.realpath(root)
    with locked(base):
        if _exists(_own(base, _JOURNAL)):
            raise Refused(f"{base}: an earlier run was interrupted and must be recovered first. Run the command again.")
        try:
            _remove_leftovers(base)
            planned = _checked(base, changes)
            old = read_record(base)
            _check_space(base, planned, len(old or b"") + len(record or b""))
        except OSError as error:
            raise Refused(f"{_told(error, base)}. Nothing was changed.") from error
        files = tuple(_Entry(path, sha256(change.before), sha256(change.after)) for path, change in planned.items())
        _Run(base, _Journal(os.urandom(6).hex(), False, files, old, record)).carry_out(list(planned.values()))


def recover(root: str) -> str | None:
    """Finish or undo a run that was interrupted and say which; None where there was none."""
    base = os.path.realpath(root)
    if not interrupted(base):
        if _has_folder(base) and not _exists(_own(base, _RECORD)):
            with locked(base):
                pass  # which removes the empty folder of a run that was killed before it did anything
        return None
    with locked(base):
        try:
            if _exists(_own(base, _JOURNAL)):
                return _Run(base, _read_journal(base)).resume()
            _remove_leftovers(base)
        except OSError as error:
            raise Refused(
                f"{_told(error, base)}. An earlier run was interrupted and can't be undone until this is put right: then run again."
            ) from error
    return "Leftovers of an interrupted run were removed; it had not left any file half-changed."


@contextmanager
def locked(root: str) -> Iterator[None]:
    """Keep other runs out of a checkout; within one process it may be nested."""
    base = os.path.realpath(root)
    if base in _HELD:
        yield
        return
    try:
        lock = _acquire(base)
    except OSError as error:
        raise Refused(f"{_told(error, base)}. Nothing was changed.") from error
    try:
        _HELD.add(base)
        try:
            os.ftruncate(lock, 0)
            os.pwrite(lock, b"%d\n" % os.getpid(), 0)
            if not _exists(_own(base, _IGNORE)):
                _create(_own(base, _IGNORE), b"*\n", os.stat(base), 0o644)
        except OSError as error:
            raise Refused(f"{_told(error, base)}. Nothing was changed.") from error
        yield
    finally:
        _HELD.discard(base)
        _tidy(base)
        os.close(lock)


def _acquire(base: str) -> int:
    path = _own(base, _LOCK)
    for _ in range(1000):
        if not _has_folder(base):
            with suppress(FileExistsError):
                os.mkdir(os.path.dirname(path), 0o755)
                _give(os.path.dirname(path), os.stat(base))
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        except FileNotFoundError:
            continue  # a run that just ended has removed the folder
        ours = False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A run that just ended may have removed the file between open and flock: then this locks nothing.
            ours = _exists(path) and os.path.samestat(os.fstat(lock), os.stat(path))
            if ours:
                _give(lock, os.stat(base))
                return lock
        except BlockingIOError as error:
            pid = os.pread(lock, 20, 0).decode("ascii", "replace").strip() or "unknown"
            raise Refused(f"another deepep-patch (pid {pid}) is at work in {base}. Wait until it has ended.") from error
        except OSError as error:
            if error.errno in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK):
                raise Refused(f"{base}: this file system has no locks. Work on a copy on a local disk.") from error
            raise
        finally:
            if not ours:
                os.close(lock)
    raise Refused(f"another deepep-patch is at work in {base}. Wait until it has ended.")


def _tidy(base: str) -> None:
    """Remove the folder where it holds nothing that is still needed."""
    with suppress(OSError):  # what stays is harmless, and the next run tries again
        if set(os.listdir(os.path.join(base, FOLDER))) <= {_LOCK, _IGNORE}:
            for name in (_IGNORE, _LOCK):
                with suppress(FileNotFoundError):
                    os.unlink(_own(base, name))
            os.rmdir(os.path.join(base, FOLDER))


# Checking


def _checked(base: str, changes: Sequence[FileChange]) -> dict[str, FileChange]:
    """The changes by their real path in the checkout, each found to be possible."""
    planned: dict[str, FileChange] = {}
    for change in changes:
        path = _real_path(base, change.path)
        if path in planned and (planned[path].before, planned[path].after) != (change.before, change.after):
            raise Refused(f"{change.path} and {planned[path].path} are the same file, and should become different. Nothing was changed.")
        _check_unchanged(base, path, change)
        folder = os.path.dirname(os.path.join(base, path))
        if not os.access(folder, os.W_OK | os.X_OK):
            raise Refused(f"{folder}: not writable, so {change.path} can't be replaced. Nothing was changed.")
        planned[path] = change
    return {path: change for path, change in planned.items() if change.before != change.after}


def _check_unchanged(base: str, path: str, change: FileChange) -> None:
    try:
        current = _read(os.path.join(base, path))
    except FileNotFoundError as error:
        raise Refused(f"{change.path} is gone since it was read. Nothing was changed: run again.") from error
    if current != change.before:
        raise Refused(f"{change.path} was changed since it was read. Nothing was changed: run again.")


def _real_path(base: str, path: str) -> str:
    """The path below ``base`` of the file that a path leads to; Refused where it leads elsewhere."""
    full = os.path.realpath(os.path.join(base, path)) if "\0" not in path else ""
    if not full or full == base or os.path.commonpath([base, full]) != base:
        raise Refused(f"{path!r} leads out of the checkout {base} (to {full!r}): not written.")
    real = os.path.relpath(full, base)
    if {".git", FOLDER}.intersection(real.split(os.sep)):
        raise Refused(f"{path!r} is no source file of the checkout (it leads to {real!r}): not written.")
    return real


def _check_space(base: str, planned: dict[str, FileChange], extra: int) -> None:
    needed: dict[int, tuple[str, int]] = {}
    wants = [(base, 4 * extra + 65536)]  # the record and the journal, which holds it escaped
    for path, change in planned.items():
        wants += [(base, len(change.before)), (os.path.dirname(os.path.join(base, path)), len(change.after))]
    for folder, size in wants:
        device = os.stat(folder).st_dev
        needed[device] = (folder, needed.get(device, ("", 0))[1] + size)
    for folder, size in needed.values():
        disk = os.statvfs(folder)
        # Some network file systems know no sizes and report none.
        if disk.f_blocks and disk.f_bavail * disk.f_frsize < size:
            raise Refused(f"{folder}: not enough space on the disk ({size} bytes needed). Nothing was changed.")


# One run


@dataclass(frozen=True)
class _Entry:
    """A file to replace, by its real path, and the hashes of what was and what is to be there."""

    path: str
    before: str
    after: str


@dataclass(frozen=True)
class _Journal:
    """What a run is about to do.  ``replacing``: all new contents are on the disk, and files are being replaced."""

    token: str
    replacing: bool
    entries: tuple[_Entry, ...]
    record_before: bytes | None
    record_after: bytes | None


class _Run:
    def __init__(self, base: str, journal: _Journal) -> None:
        self.base, self.journal = base, journal

    def carry_out(self, changes: Sequence[FileChange]) -> None:
        """Change all files, or none."""
        try:
            self._prepare(changes)
            for n, (entry, change) in enumerate(zip(self.journal.entries, changes, strict=True)):
                _check_unchanged(self.base, entry.path, change)
                os.replace(self._temporary(n), self._target(entry))
            self._settle()
        except OSError as error:
            raise Refused(f"{_told(error, self.base)}. Nothing was changed: all files are as they were.") from error
        finally:
            # Also for KeyboardInterrupt, and for what a signal handler raises.
            self._end()

    def resume(self) -> str:
        """Finish or undo the run after it was killed."""
        entries = self.journal.entries
        count = f"{len(entries)} file{'s' * (len(entries) != 1)}"
        if all(self._current(entry) == entry.after for entry in entries):
            self._settle()
            said = f"An interrupted run was finished: {count} had been changed, and now the record says so."
        else:
            self._roll_back()
            said = f"An interrupted run was undone: {count} as before it." if entries else "An interrupted run was undone."
        self._end()
        return said

    def _prepare(self, changes: Sequence[FileChange]) -> None:
        os.mkdir(_own(self.base, _BACKUP))
        _sync(self.base)
        infos = [os.stat(self._target(entry)) for entry in self.journal.entries]
        for n, (change, info) in enumerate(zip(changes, infos, strict=True)):
            _create(self._backup(n), change.before, info)
        _sync(_own(self.base, _BACKUP))
        self._write_journal()
        for n, (change, info) in enumerate(zip(changes, infos, strict=True)):
            _create(self._temporary(n), change.after, info)
        self._sync_folders()
        self.journal = replace(self.journal, replacing=True)
        self._write_journal()

    def _settle(self) -> None:
        """Make the new state the valid one: removing the journal is the moment."""
        self._sync_folders()
        _put_record(self.base, self.journal.record_after)
        self._remove_temporaries()
        os.unlink(_own(self.base, _JOURNAL))

    def _end(self) -> None:
        if _exists(_own(self.base, _JOURNAL)):
            try:
                self._roll_back()
            except OSError as error:
                raise Refused(
                    f"{_told(error, self.base)}. The run failed, and undoing it failed too: some files may be new and some old. "
                    f"Put this right and run deepep-patch again, which undoes the rest; the old contents are in {self._backup(None)}."
                ) from error
        with suppress(OSError):  # leftovers are harmless, and the next run removes them
            _remove_leftovers(self.base)

    def _roll_back(self) -> None:
        self._restore_files()
        _put_record(self.base, self.journal.record_before)
        self._remove_temporaries()
        self._sync_folders()
        os.unlink(_own(self.base, _JOURNAL))

    def _restore_files(self) -> None:
        lost, foreign = [], []
        for n, entry in enumerate(self.journal.entries):
            # A temporary that is still there was not renamed: its file is not ours to touch.
            if not self.journal.replacing or _exists(self._temporary(n)):
                continue
            current = self._current(entry)
            if current in (None, entry.after):
                lost.append((n, entry))
            elif current != entry.before:
                foreign.append(f"{entry.path} (the old content is {self._backup(n)})")
        if foreign:
            raise Refused(
                f"A run was interrupted, and files were changed after it: {', '.join(foreign)}. Put the old content back and run again; "
                f"or, to keep all files as they are now, delete {os.path.join(self.base, FOLDER)}."
            )
        for n, entry in lost:
            if _hash(self._backup(n)) != entry.before:
                raise Refused(f"{self._backup(n)}: damaged, so {entry.path} can't be restored. Restore it with git, and run again.")
        for n, entry in lost:
            try:
                os.replace(self._backup(n), self._target(entry))  # needs no space
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                # Another name than the new content's: while that is there, the file counts as not yet replaced.
                with suppress(FileNotFoundError):
                    os.unlink(self._temporary(n, _OLD))
                _create(self._temporary(n, _OLD), _read(self._backup(n)), os.stat(self._backup(n)))
                os.replace(self._temporary(n, _OLD), self._target(entry))

    def _current(self, entry: _Entry) -> str | None:
        return _hash(self._target(entry))

    def _target(self, entry: _Entry) -> str:
        if _real_path(self.base, entry.path) != entry.path:
            raise Refused(f"{entry.path}: has become a link since it was read. Nothing was written to where it leads.")
        return os.path.join(self.base, entry.path)

    def _temporary(self, n: int, suffix: str = "") -> str:
        name = f".deepep-patch-{self.journal.token}-{n}{suffix}"
        return os.path.join(self.base, os.path.dirname(self.journal.entries[n].path), name)

    def _backup(self, n: int | None) -> str:
        return os.path.join(_own(self.base, _BACKUP), "" if n is None else str(n))

    def _remove_temporaries(self) -> None:
        for n in range(len(self.journal.entries)):
            for suffix in ("", _OLD):
                with suppress(FileNotFoundError):
                    os.unlink(self._temporary(n, suffix))

    def _sync_folders(self) -> None:
        for folder in sorted({os.path.dirname(self._temporary(n)) for n in range(len(self.journal.entries))}):
            _sync(folder)

    def _write_journal(self) -> None:
        import json

        journal = self.journal
        data = {
            "schema": SCHEMA,
            "token": journal.token,
            "replacing": journal.replacing,
            "entries": [[entry.path, entry.before, entry.after] for entry in journal.entries],
            "record_before": None if journal.record_before is None else journal.record_before.decode("latin-1"),
            "record_after": None if journal.record_after is None else journal.record_after.decode("latin-1"),
        }
        _put(self.base, _JOURNAL, json.dumps(data, indent=1, sort_keys=True).encode("ascii"))


def _read_journal(base: str) -> _Journal:
    import json

    path = _own(base, _JOURNAL)
    try:
        data = json.loads(_read(path))
        if data["schema"] != SCHEMA or not re.fullmatch("[0-9a-f]{12}", data["token"]):
            raise ValueError(f"its form is {data['schema']!r}")
        for name, _, _ in data["entries"]:
            _real_path(base, name)
        entries = tuple(_Entry(str(name), str(before), str(after)) for name, before, after in data["entries"])
        records = [None if data[key] is None else data[key].encode("latin-1") for key in ("record_before", "record_after")]
        return _Journal(data["token"], data["replacing"] is True, entries, records[0], records[1])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise Refused(
            f"{path}: an interrupted run's journal, and it can't be read ({error}). Compare the files with those in "
            f"{_own(base, _BACKUP)}, put right what is half-changed, and delete {os.path.dirname(path)}."
        ) from error


def _remove_leftovers(base: str) -> None:
    with suppress(FileNotFoundError):
        for name in os.listdir(_own(base, _BACKUP)):
            os.unlink(os.path.join(_own(base, _BACKUP), name))
        os.rmdir(_own(base, _BACKUP))
    for name in (_JOURNAL, _RECORD):
        with suppress(FileNotFoundError):
            os.unlink(_own(base, name + _NEW))


# Files


def _own(base: str, name: str) -> str:
    return os.path.join(base, FOLDER, name)


def _exists(path: str) -> bool:
    return os.path.lexists(path)


def _has_folder(base: str) -> bool:
    """Whether our folder is there, and is a folder."""
    try:
        mode = os.lstat(os.path.join(base, FOLDER)).st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(mode):
        raise Refused(f"{os.path.join(base, FOLDER)}: a link or a file, where deepep-patch keeps its folder. Move it away.")
    return True


def _read(path: str) -> bytes:
    # Non-blocking: a named pipe would wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise Refused(f"{path}: no regular file.")
        return file.read()


def _hash(path: str) -> str | None:
    try:
        return sha256(_read(path))
    except FileNotFoundError:
        return None


def _create(path: str, data: bytes, like: os.stat_result, mode: int | None = None) -> None:
    """Write a new file through to the disk, with the owner and the mode bits of another."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        _give(descriptor, like)
        wanted = stat.S_IMODE(like.st_mode) if mode is None else mode
        if stat.S_IMODE(os.fstat(descriptor).st_mode) != wanted:  # some file systems have one mode only and refuse chmod
            os.fchmod(descriptor, wanted)  # after chown, which clears bits
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _give(path: str | int, like: os.stat_result) -> None:
    """Make a file belong to another's owner: root in a container works on a user's checkout, who comes back without root."""
    info = os.stat(path)
    for user, group in ((like.st_uid, -1), (-1, like.st_gid)):
        if user not in (-1, info.st_uid) or group not in (-1, info.st_gid):
            with suppress(OSError):  # not allowed, or an owner that this container doesn't know
                os.chown(path, user, group)


def _put(base: str, name: str, data: bytes) -> None:
    path = _own(base, name)
    with suppress(FileNotFoundError):
        os.unlink(path + _NEW)
    _create(path + _NEW, data, os.stat(base), 0o644)
    os.replace(path + _NEW, path)
    _sync(os.path.dirname(path))


def _put_record(base: str, record: bytes | None) -> None:
    if read_record(base) == record:
        return
    if record is None:
        os.unlink(_own(base, _RECORD))
        _sync(os.path.join(base, FOLDER))
    else:
        _put(base, _RECORD, record)


def _sync(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # file systems that can't sync a folder
            raise
    finally:
        os.close(descriptor)


def _told(error: OSError, base: str) -> str:
    reasons = {
        errno.ENOSPC: "the disk is full: free some space",
        errno.EDQUOT: "the disk quota is used up: free some space",
        errno.EROFS: "the file system is read-only: work on a copy",
        errno.EACCES: "no permission: run as the owner of the checkout, or work on a copy",
        errno.EPERM: "not permitted: run as the owner of the checkout, or work on a copy",
        errno.ELOOP: "a symbolic link where a file should be",
    }
    where = error.filename if isinstance(error.filename, str) else base
    return f"{where}: {reasons.get(error.errno or 0, error.strerror or str(error))}"
