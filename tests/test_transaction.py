"""Writing: all files or none, whatever fails, and nothing outside the checkout."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from patcher import transaction
from patcher.errors import Refused
from patcher.model import FileChange
from patcher.transaction import interrupted, locked, read_record, recover, write_all

OLD = {"csrc/a.cuh": b"a\r\n\xff\0", "csrc/deep/b.cuh": b"b\n", "setup.py": b""}
NEW = {"csrc/a.cuh": b"A\r\n\xff\0", "csrc/deep/b.cuh": b"b\nmore\n" * 100, "setup.py": b"print()\n"}
RECORD_1, RECORD_2 = b'{"first": "\xff"}\n', b'{"second": 2}\n'
LOCK = b"any process id\n"
CALLS = ("open", "write", "replace", "unlink", "rmdir", "mkdir", "fsync", "fchmod")
"""What changes the disk: the steps at which a run can fail or be killed."""

Tree = dict[str, bytes]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make(tmp_path / "checkout")


@pytest.fixture(autouse=True)
def _no_lock_is_left() -> Iterator[None]:
    yield
    assert not transaction._HELD


def make(root: Path) -> Path:
    for path, data in OLD.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return root


def changes(before: Tree = OLD, after: Tree = NEW) -> list[FileChange]:
    return [FileChange(path, before[path], after[path]) for path in before]


def everything(root: Path) -> Tree:
    """All files below a folder with their bytes, links and empty folders included."""
    found = {}
    for folder, folders, files in os.walk(root):
        for name in files:
            path = Path(folder, name)
            found[str(path.relative_to(root))] = b"-> " + os.fsencode(os.readlink(path)) if path.is_symlink() else path.read_bytes()
        if not folders and not files:
            found[str(Path(folder).relative_to(root)) + "/"] = b""
    # Which process was the last to lock is of no interest.
    return {path: LOCK if path.endswith(".deepep-patch/lock") else data for path, data in found.items()}


def whole(files: Tree, record: bytes | None) -> Tree:
    """What a checkout should hold when no run is at work."""
    if record is None:
        return files
    return files | {".deepep-patch/record.json": record, ".deepep-patch/.gitignore": b"*\n", ".deepep-patch/lock": LOCK}


class Failing:
    """Counts the calls that change the disk, and does something at the nth."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, act: Callable[[], None], names: tuple[str, ...] = CALLS) -> None:
        self.act, self.at, self.until, self.count = act, 0, 0, 0
        self.before = True
        for name in names:
            monkeypatch.setattr(os, name, self.wrapped(name, getattr(os, name)))

    def wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if name == "open" and not args[1] & os.O_CREAT:
                return real(*args, **kwargs)
            self.count += 1
            due = self.at <= self.count <= self.until
            if due and self.before:
                self.act()
            try:
                return None if name == "fsync" else real(*args, **kwargs)
            finally:
                if due and not self.before:
                    self.act()

        return call

    def arm(self, at: int, until: int | None = None, before: bool = True) -> None:
        self.count, self.at, self.until, self.before = 0, at, at if until is None else until, before

    def disarm(self) -> None:
        self.arm(0)


def fail(number: int) -> Callable[[], None]:
    def act() -> None:
        raise OSError(number, os.strerror(number))

    return act


# What a run does


def test_apply_and_revert(root: Path) -> None:
    write_all(str(root), changes(), RECORD_1)
    assert everything(root) == whole(NEW, RECORD_1)
    assert read_record(str(root)) == RECORD_1
    write_all(str(root), changes(NEW, OLD), None)
    assert everything(root) == OLD


def test_what_an_earlier_run_has_left_is_in_nobodys_way(root: Path) -> None:
    (root / ".deepep-patch/backup").mkdir(parents=True)
    (root / ".deepep-patch/backup/0").write_bytes(b"left")
    write_all(str(root), changes(), RECORD_1)
    assert everything(root) == whole(NEW, RECORD_1)


def test_git_does_not_see_the_folder(root: Path) -> None:
    git = ["git", "-C", str(root), "-c", "core.excludesFile="]
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    subprocess.run([*git, "add", "."], check=True)
    write_all(str(root), [], RECORD_1)
    status = subprocess.run([*git, "status", "--porcelain", "--untracked-files=all"], check=True, capture_output=True, text=True)
    assert ".deepep-patch" not in status.stdout


def test_reading_writes_nothing(root: Path) -> None:
    assert read_record(str(root)) is None
    assert not interrupted(str(root))
    assert recover(str(root)) is None
    assert everything(root) == OLD


def test_recovering_inside_a_lock_finds_nothing_to_do(root: Path) -> None:
    with locked(str(root)):
        assert recover(str(root)) is None
        write_all(str(root), changes(), RECORD_1)
        assert recover(str(root)) is None
    assert everything(root) == whole(NEW, RECORD_1)


def test_a_lock_without_a_run_leaves_nothing(root: Path) -> None:
    with locked(str(root)):
        assert int((root / ".deepep-patch/lock").read_bytes()) == os.getpid()
    assert everything(root) == OLD


def test_foreign_files_in_the_folder_are_kept(root: Path) -> None:
    write_all(str(root), changes(), RECORD_1)
    (root / ".deepep-patch/notes").write_bytes(b"mine")
    write_all(str(root), changes(NEW, OLD), None)
    assert (root / ".deepep-patch/notes").read_bytes() == b"mine"
    assert read_record(str(root)) is None


@pytest.mark.parametrize("mode", [0o644, 0o755, 0o600, 0o444, 0o2775])
def test_mode_and_owner_stay(root: Path, mode: int) -> None:
    file = root / "csrc/a.cuh"
    if os.getuid() == 0:
        os.chown(file, 12345, 23456)
    file.chmod(mode)
    info = file.stat()
    mask = os.umask(0o077)
    try:
        write_all(str(root), changes(), RECORD_1)
    finally:
        os.umask(mask)
    assert file.read_bytes() == NEW["csrc/a.cuh"]
    assert (stat.S_IMODE(file.stat().st_mode), file.stat().st_uid, file.stat().st_gid) == (mode, info.st_uid, info.st_gid)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_our_folder_belongs_to_the_owner_of_the_checkout(root: Path) -> None:
    os.chown(root, 12345, 23456)
    write_all(str(root), changes(), RECORD_1)
    folder = root / ".deepep-patch"
    assert {(path.stat().st_uid, path.stat().st_gid) for path in (folder, *folder.iterdir())} == {(12345, 23456)}


def test_a_change_of_nothing_leaves_the_file_alone(root: Path) -> None:
    inode = (root / "setup.py").stat().st_ino
    write_all(str(root), [FileChange("setup.py", b"", b"")], RECORD_1)
    assert (root / "setup.py").stat().st_ino == inode


# Links


def test_a_link_inside_stays_a_link(root: Path) -> None:
    (root / "link.cuh").symlink_to("csrc/a.cuh")
    (root / "folder").symlink_to("csrc/deep")
    write_all(str(root), [FileChange("link.cuh", OLD["csrc/a.cuh"], b"x"), FileChange("folder/b.cuh", b"b\n", b"y")], RECORD_1)
    links = {"link.cuh": b"-> csrc/a.cuh", "csrc/a.cuh": b"x", "csrc/deep/b.cuh": b"y"}
    assert os.readlink(root / "folder") == "csrc/deep"
    assert everything(root) == whole(OLD | links, RECORD_1)


def test_a_file_that_is_named_twice_must_become_the_same(root: Path) -> None:
    (root / "link.cuh").symlink_to("csrc/a.cuh")
    one, same, other = (FileChange(p, OLD["csrc/a.cuh"], b) for p, b in (("csrc/a.cuh", b"x"), ("link.cuh", b"x"), ("link.cuh", b"y")))
    with pytest.raises(Refused, match="same file"):
        write_all(str(root), [one, other], RECORD_1)
    assert (root / "csrc/a.cuh").read_bytes() == OLD["csrc/a.cuh"]
    write_all(str(root), [one, same], RECORD_1)
    assert (root / "csrc/a.cuh").read_bytes() == b"x"


def test_other_names_of_a_hard_link_are_not_written(root: Path, tmp_path: Path) -> None:
    os.link(root / "csrc/a.cuh", tmp_path / "elsewhere")
    write_all(str(root), changes(), RECORD_1)
    assert (tmp_path / "elsewhere").read_bytes() == OLD["csrc/a.cuh"]


@pytest.mark.parametrize(
    "path", ["link.cuh", "folder/a.cuh", "../outside/a.cuh", "/ABSOLUTE/a.cuh", "csrc/../../outside/a.cuh", "a\0b", "", "."]
)
def test_nothing_outside_is_written(root: Path, tmp_path: Path, path: str) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/a.cuh").write_bytes(b"x")
    (root / "link.cuh").symlink_to(tmp_path / "outside/a.cuh")
    (root / "folder").symlink_to(tmp_path / "outside")
    before = everything(tmp_path)
    with pytest.raises(Refused, match="out of the checkout"):
        write_all(str(root), [*changes(), FileChange(path.replace("/ABSOLUTE", str(tmp_path / "outside")), b"x", b"y")], RECORD_1)
    assert everything(tmp_path) == before


@pytest.mark.parametrize("path", [".git/config", "csrc/.git/config", ".deepep-patch/lock", "link/config"])
def test_the_folders_of_tools_are_not_written(root: Path, path: str) -> None:
    for folder in (".git", "csrc/.git"):
        (root / folder).mkdir()
        (root / folder / "config").write_bytes(b"x")
    (root / "link").symlink_to(".git")
    before = everything(root)
    with pytest.raises(Refused, match="no source file"):
        write_all(str(root), [FileChange(path, b"x", b"y")], RECORD_1)
    assert everything(root) == before


@pytest.mark.parametrize("call", [lambda r: write_all(r, [], RECORD_1), recover, read_record, interrupted])
@pytest.mark.parametrize("kind", ["link", "file"])
def test_our_folder_being_something_else_is_refused(root: Path, tmp_path: Path, kind: str, call: Callable[[str], object]) -> None:
    (tmp_path / "outside").mkdir()
    if kind == "link":
        (root / ".deepep-patch").symlink_to(tmp_path / "outside")
    else:
        (root / ".deepep-patch").write_bytes(b"")
    before = everything(tmp_path)
    with pytest.raises(Refused, match=r"\.deepep-patch: a link or a file"):
        call(str(root))
    assert everything(tmp_path) == before


@pytest.mark.parametrize("name", ["lock", "record.json"])
def test_a_link_in_our_folder_is_not_followed(root: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "outside").write_bytes(b"x")
    (root / ".deepep-patch").mkdir()
    (root / ".deepep-patch" / name).symlink_to(tmp_path / "outside")
    with pytest.raises(Refused, match=f"{name}: a symbolic link"):
        write_all(str(root), changes(), RECORD_1)
    assert (tmp_path / "outside").read_bytes() == b"x"
    assert {path: (root / path).read_bytes() for path in OLD} == OLD


# Refusals before anything is written


def test_changed_since_it_was_read(root: Path) -> None:
    (root / "setup.py").write_bytes(b"other")
    with pytest.raises(Refused, match=r"setup\.py was changed since it was read"):
        write_all(str(root), changes(), RECORD_1)
    assert everything(root) == OLD | {"setup.py": b"other"}


def test_gone_since_it_was_read(root: Path) -> None:
    (root / "setup.py").unlink()
    with pytest.raises(Refused, match=r"setup\.py is gone since"):
        write_all(str(root), changes(), RECORD_1)
    assert "setup.py" not in everything(root)
    assert (root / "csrc/a.cuh").read_bytes() == OLD["csrc/a.cuh"]


def test_a_named_pipe_is_refused(root: Path) -> None:
    (root / "setup.py").unlink()
    os.mkfifo(root / "setup.py")
    with pytest.raises(Refused, match="no regular file"):
        write_all(str(root), changes(), RECORD_1)


def test_too_little_space_is_found_before(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        f_blocks, f_bavail, f_frsize = 1000, 1, 4096

    monkeypatch.setattr(os, "statvfs", lambda _: Full)
    monkeypatch.setattr(os, "replace", lambda *_: pytest.fail("something was written"))
    with pytest.raises(Refused, match="not enough space"):
        write_all(str(root), changes(), RECORD_1)
    assert everything(root) == OLD


def test_a_file_system_that_knows_no_sizes_is_written(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Unknown:
        f_blocks, f_bavail, f_frsize = 0, 0, 4096

    monkeypatch.setattr(os, "statvfs", lambda _: Unknown)
    write_all(str(root), changes(), RECORD_1)
    assert everything(root) == whole(NEW, RECORD_1)


@pytest.mark.parametrize("folder", [".", "csrc/deep"])
def test_a_folder_that_is_read_only(root: Path, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    if os.getuid() != 0:
        (root / folder).chmod(0o555)
    else:  # permission bits don't bind root
        real = os.open

        def denied(path: str, flags: int, *args: int, **kwargs: int) -> int:
            if flags & os.O_CREAT and (folder != "." or ".deepep-patch" in path) and Path(path).parent == root / folder:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
            return real(path, flags, *args, **kwargs)

        def no_mkdir(path: str, *_: int) -> None:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

        monkeypatch.setattr(os, "open", denied)
        if folder == ".":
            monkeypatch.setattr(os, "mkdir", no_mkdir)
        else:
            monkeypatch.setattr(os, "access", lambda path, _: Path(path) != root / folder)
    try:
        with pytest.raises(Refused, match="no permission" if folder == "." else "deep: not writable"):
            write_all(str(root), changes(), RECORD_1)
    finally:
        (root / folder).chmod(0o755)
    assert everything(root) == OLD


def test_no_folder_to_work_in(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="nowhere"):
        write_all(str(tmp_path / "nowhere"), [], RECORD_1)


# Failures in the middle


def test_every_failing_step_leaves_all_as_it_was(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Failing(monkeypatch, fail(errno.ENOSPC))
    refused, reasons = 0, set()
    for n in range(1, 1000):
        steps.arm(n)
        try:
            write_all(str(root), changes(), RECORD_1)
        except Refused as error:
            reasons.add(str(error).split(": ", 1)[1].split(".")[0])
            refused += 1
            steps.disarm()
            recover(str(root))  # only what a failing clean-up has left
            assert everything(root) == OLD
            continue
        count = steps.count
        steps.disarm()
        recover(str(root))
        assert everything(root) == whole(NEW, RECORD_1)
        if count < n:
            break
        write_all(str(root), changes(NEW, OLD), None)
    assert refused > 30
    assert reasons == {"the disk is full: free some space"}


@pytest.mark.parametrize("n", range(1, 7))
def test_every_failing_rename_leaves_all_as_it_was(root: Path, monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    write_all(str(root), [], RECORD_2)
    steps = Failing(monkeypatch, fail(errno.EACCES), ("replace",))
    steps.arm(n)  # two for the journal, three for the files, one for the record
    with pytest.raises(Refused, match="Nothing was changed"):
        write_all(str(root), changes(), RECORD_1)
    assert everything(root) == whole(OLD, RECORD_2)
    steps.arm(7)
    write_all(str(root), changes(), RECORD_1)
    assert steps.count == 6


def test_a_disk_that_fills_up_between_the_files(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, left = os.write, 700

    def short(descriptor: int, data: bytes | memoryview) -> int:
        nonlocal left
        if not left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = real(descriptor, data[: min(len(data), left, 100)])
        left -= written
        return written

    monkeypatch.setattr(os, "write", short)
    with pytest.raises(Refused, match="disk is full: free some space"):
        write_all(str(root), changes(), RECORD_1)
    assert everything(root) == OLD
    left = 1 << 20  # short writes alone are no failure
    write_all(str(root), changes(), RECORD_1)
    assert everything(root) == whole(NEW, RECORD_1)


class Terminated(SystemExit):
    """What a handler of SIGTERM raises."""


@pytest.mark.parametrize("kind", [KeyboardInterrupt, Terminated])
@pytest.mark.parametrize("before", [True, False])
def test_every_interrupt_leaves_all_or_none_and_goes_on(
    root: Path, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException], before: bool
) -> None:
    def act() -> None:
        raise kind

    steps = Failing(monkeypatch, act)
    for n in range(1, 1000):
        steps.arm(n, before=before)
        try:
            write_all(str(root), changes(), RECORD_1)
        except kind:
            steps.disarm()
            recover(str(root))
            assert everything(root) in (OLD, whole(NEW, RECORD_1))
        if steps.count < n and steps.at:
            break
        steps.disarm()
        if read_record(str(root)):
            write_all(str(root), changes(NEW, OLD), None)
    assert n > 40


def test_an_interrupt_rolls_back_at_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def act() -> None:
        raise KeyboardInterrupt

    steps = Failing(monkeypatch, act, ("replace",))
    steps.arm(4)
    with pytest.raises(KeyboardInterrupt):
        write_all(str(root), changes(), RECORD_1)
    assert everything(root) == OLD


def test_a_disk_that_breaks_down_is_said_and_undone_later(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Failing(monkeypatch, fail(errno.EIO), ("replace",))
    steps.arm(4, until=1000)
    with pytest.raises(Refused, match=r"undoing it failed too.*run deepep-patch again"):
        write_all(str(root), changes(), RECORD_1)
    steps.disarm()
    assert interrupted(str(root))
    with pytest.raises(Refused, match="must be recovered first"):
        write_all(str(root), changes(), RECORD_1)
    assert recover(str(root)) == "An interrupted run was undone: 3 files as before it."
    assert everything(root) == OLD


def test_changed_under_us_between_check_and_rename(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.replace

    def meddling(source: str, target: str) -> None:
        real(source, target)
        if target.endswith("a.cuh"):
            (root / "csrc/deep/b.cuh").write_bytes(b"edited meanwhile")

    monkeypatch.setattr(os, "replace", meddling)
    with pytest.raises(Refused, match=r"deep/b\.cuh was changed since"):
        write_all(str(root), changes(), RECORD_1)
    assert everything(root) == OLD | {"csrc/deep/b.cuh": b"edited meanwhile"}


def test_a_folder_that_becomes_a_link_between_check_and_rename(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = tmp_path / "outside"
    real = os.replace

    def meddling(source: str, target: str) -> None:
        real(source, target)
        if target.endswith("a.cuh") and not outside.exists():
            (root / "csrc/deep").rename(outside)
            (root / "csrc/deep").symlink_to(outside)

    monkeypatch.setattr(os, "replace", meddling)
    with pytest.raises(Refused, match="out of the checkout"):
        write_all(str(root), changes(), RECORD_1)
    assert (outside / "b.cuh").read_bytes() == OLD["csrc/deep/b.cuh"]


def test_roll_back_over_mounts(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.replace

    def bounded(source: str, target: str) -> None:
        if Path(source).parent != Path(target).parent:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        if target.endswith("setup.py"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(source, target)

    (root / "csrc/a.cuh").chmod(0o751)
    monkeypatch.setattr(os, "replace", bounded)
    with pytest.raises(Refused, match="all files are as they were"):
        write_all(str(root), changes(), RECORD_1)
    assert everything(root) == OLD
    assert stat.S_IMODE((root / "csrc/a.cuh").stat().st_mode) == 0o751


# Killed


def in_child(act: Callable[[], object]) -> int:
    """Run something in a process of its own and return its exit status."""
    child = os.fork()
    if child == 0:
        status = 3
        try:
            act()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


KILLED = 9


def kill() -> None:
    os._exit(KILLED)


@pytest.mark.parametrize(
    ("before", "after", "start", "end"), [(OLD, NEW, None, RECORD_1), (NEW, OLD, RECORD_1, None), (NEW, OLD, RECORD_1, RECORD_2)]
)
@pytest.mark.parametrize("early", [True, False])
def test_killed_at_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: Tree, after: Tree, start: bytes | None, end: bytes | None, early: bool
) -> None:
    steps = Failing(monkeypatch, kill)
    outcomes = []
    for n in range(1, 1000):
        root = make(tmp_path / str(n))
        if start:
            write_all(str(root), changes(), start)
        steps.arm(n, before=early)
        status = in_child(lambda: write_all(str(root), changes(before, after), end))  # noqa: B023
        steps.disarm()
        said = recover(str(root))
        assert everything(root) in (whole(before, start), whole(after, end)), n
        assert not interrupted(str(root))
        assert recover(str(root)) is None
        outcomes.append((everything(root) == whole(after, end), said))
        if status == 0:
            break
        assert status == KILLED
    done = [outcome for outcome, _ in outcomes]
    assert done == sorted(done)  # undone up to one step, finished from then on
    assert {said.split(":")[0] for _, said in outcomes if said} == {
        "An interrupted run was undone",
        "An interrupted run was finished",
        "Leftovers of an interrupted run were removed; it had not left any file half-changed.",
    }


@pytest.mark.parametrize("mounts", [False, True])
@pytest.mark.parametrize("last", ["setup.py", "csrc/a.cuh"])
def test_recovery_is_killed_at_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str, mounts: bool) -> None:
    """A run killed while it replaces (or just after it) files, and then its recovery at every step."""
    plain = os.replace

    def across(source: str, target: str) -> None:
        if Path(source).parent != Path(target).parent:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        plain(source, target)

    if mounts:
        monkeypatch.setattr(os, "replace", across)
    steps = Failing(monkeypatch, kill)
    real = os.replace

    def dying(source: str, target: str) -> None:
        real(source, target)
        if target.endswith(last):
            os._exit(KILLED)

    expected = whole(NEW, RECORD_1) if last == "setup.py" else OLD
    for n in range(1, 1000):
        root = make(tmp_path / str(n))
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", dying)
            assert in_child(lambda: write_all(str(root), changes(), RECORD_1)) == KILLED  # noqa: B023
        steps.arm(n)
        status = in_child(lambda: recover(str(root)))  # noqa: B023
        steps.disarm()
        recover(str(root))
        assert everything(root) == expected, n
        if status == 0:
            break
    assert n > 5


def crashed(root: Path, after: str) -> None:
    """Leave a run that was killed right after it replaced one file."""
    code = f"""
import os, sys
real = os.replace
def dying(source, target):
    real(source, target)
    if target.endswith({after!r}):
        os.kill(os.getpid(), {int(signal.SIGKILL)})
os.replace = dying
from patcher.model import FileChange
from patcher.transaction import write_all
write_all({str(root)!r}, [FileChange(*parts) for parts in {[(c.path, c.before, c.after) for c in changes()]!r}], {RECORD_1!r})
"""
    folder = str(Path(transaction.__file__).parents[1])
    assert subprocess.run([sys.executable, "-c", code], cwd=folder, check=False).returncode == -signal.SIGKILL


def test_killed_for_real(root: Path) -> None:
    crashed(root, "b.cuh")
    assert (root / "csrc/a.cuh").read_bytes() == NEW["csrc/a.cuh"]
    assert (root / "setup.py").read_bytes() == OLD["setup.py"]
    assert recover(str(root)) == "An interrupted run was undone: 3 files as before it."
    assert everything(root) == OLD


def test_a_file_that_was_edited_after_the_kill_is_not_overwritten(root: Path) -> None:
    crashed(root, "b.cuh")
    (root / "csrc/a.cuh").write_bytes(b"mine")
    before = everything(root)
    with pytest.raises(Refused, match=r"csrc/a\.cuh \(the old content is .*backup/0\)"):
        recover(str(root))
    assert everything(root) == before
    (root / "csrc/a.cuh").write_bytes(OLD["csrc/a.cuh"])
    assert recover(str(root)) is not None
    assert everything(root) == OLD


def test_a_file_that_was_not_replaced_before_the_kill_may_be_edited(root: Path) -> None:
    crashed(root, "b.cuh")
    (root / "setup.py").write_bytes(b"mine")
    recover(str(root))
    assert everything(root) == OLD | {"setup.py": b"mine"}


def test_a_file_may_be_edited_after_a_kill_before_anything_was_replaced(root: Path) -> None:
    crashed(root, "journal.json")
    (root / "setup.py").write_bytes(b"mine")
    assert interrupted(str(root))
    recover(str(root))
    assert everything(root) == OLD | {"setup.py": b"mine"}


def test_a_file_that_is_gone_after_the_kill_is_restored(root: Path) -> None:
    crashed(root, "b.cuh")
    (root / "csrc/a.cuh").unlink()
    recover(str(root))
    assert everything(root) == OLD


def test_a_run_that_was_completed_by_hand_after_the_kill_is_finished(root: Path) -> None:
    crashed(root, "b.cuh")
    (root / "setup.py").write_bytes(NEW["setup.py"])
    assert recover(str(root)) == "An interrupted run was finished: 3 files had been changed, and now the record says so."
    assert everything(root) == whole(NEW, RECORD_1)


def test_the_journal_of_another_release_is_refused(root: Path) -> None:
    crashed(root, "b.cuh")
    journal = root / ".deepep-patch/journal.json"
    journal.write_bytes(journal.read_bytes().replace(b"journal/1", b"journal/2"))
    before = everything(root)
    with pytest.raises(Refused, match="journal/2"):
        recover(str(root))
    assert everything(root) == before


def test_a_damaged_backup_is_not_restored(root: Path) -> None:
    crashed(root, "b.cuh")
    (root / ".deepep-patch/backup/1").write_bytes(b"damage")
    before = everything(root)
    with pytest.raises(Refused, match="backup/1: damaged"):
        recover(str(root))
    assert everything(root) == before


@pytest.mark.parametrize("journal", [b"", b"{", b"[]", b"{}", b'{"schema": "deepep-patch/journal/1", "token": "../../x"}'])
def test_a_damaged_journal_is_refused(root: Path, journal: bytes) -> None:
    (root / ".deepep-patch").mkdir()
    (root / ".deepep-patch/journal.json").write_bytes(journal)
    with pytest.raises(Refused, match=r"journal\.json: an interrupted run's journal, and it can't be read"):
        recover(str(root))
    assert (root / ".deepep-patch/journal.json").read_bytes() == journal


@pytest.mark.parametrize("after", ["journal.json", "b.cuh"])
def test_a_journal_that_leads_outside_is_refused(root: Path, tmp_path: Path, after: str) -> None:
    crashed(root, after)
    journal = root / ".deepep-patch/journal.json"
    (tmp_path / "setup.py").write_bytes(b"outside")
    (tmp_path / f".deepep-patch-{json.loads(journal.read_bytes())['token']}-2").write_bytes(b"outside")
    journal.write_bytes(journal.read_bytes().replace(b'"setup.py"', b'"../setup.py"'))
    before = everything(tmp_path)
    with pytest.raises(Refused, match="out of the checkout"):
        recover(str(root))
    assert everything(tmp_path) == before


# Two at once


def test_a_second_process_is_refused(root: Path) -> None:
    def second() -> None:
        transaction._HELD.clear()  # what a process of its own would have
        with pytest.raises(Refused, match=rf"another deepep-patch \(pid {os.getppid()}\) is at work in "):
            write_all(str(root), changes(), RECORD_1)

    with locked(str(root)):
        assert in_child(second) == 0
    assert everything(root) == OLD


def test_a_lock_may_be_nested_and_ends_with_the_outermost(root: Path) -> None:
    link = root.parent / "link"
    link.symlink_to(root)

    def second() -> None:
        transaction._HELD.clear()
        with locked(str(root)):
            pass

    with locked(str(root)):
        with locked(str(link)):
            pass
        assert in_child(second) == 3
    assert in_child(second) == 0


def test_the_lock_of_a_killed_process_is_free(root: Path) -> None:
    def dying() -> None:
        with locked(str(root)):
            os._exit(KILLED)

    assert in_child(dying) == KILLED
    assert recover(str(root)) is None
    assert everything(root) == OLD


def test_the_lock_of_a_run_that_ends_meanwhile_is_not_taken_for_one(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other run removes its lock file after we opened it: locking that would lock nothing."""
    real = os.open
    removed: list[str] = []

    def racing(path: str, *args: int, **kwargs: int) -> int:
        descriptor = real(path, *args, **kwargs)
        if path.endswith("lock") and not removed:
            removed.append(path)
            os.unlink(path)
            os.rmdir(os.path.dirname(path))
        return descriptor

    monkeypatch.setattr(os, "open", racing)
    with locked(str(root)):
        assert (root / ".deepep-patch/lock").exists()
    assert removed


def test_many_processes_take_turns(root: Path) -> None:
    """Each applies and reverts; every one either is refused or does all of it."""
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            status = 3
            try:
                for _ in range(10):
                    with suppress(Refused), locked(str(root)):
                        assert everything(root).keys() == whole(OLD, b"").keys() - {".deepep-patch/record.json"}
                        write_all(str(root), changes(), RECORD_1)
                        write_all(str(root), changes(NEW, OLD), None)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 4
    assert everything(root) == OLD


def test_a_file_system_without_locks_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("fcntl.flock", unsupported)
    with pytest.raises(Refused, match="has no locks"):
        write_all(str(root), changes(), RECORD_1)
    assert {path: (root / path).read_bytes() for path in OLD} == OLD
