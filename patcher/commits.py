"""``apply --commit``: one git commit for each fix, made by git itself, so hooks and signing are as the user set them up."""

from __future__ import annotations

import inspect
import os
import subprocess
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from patcher import __version__, transaction
from patcher.errors import MissingTool, PatchError, Refused
from patcher.fix import Fix
from patcher.model import FileChange, FixStatus, Plan, State
from patcher.session import Session, Target, open_session, target, write
from patcher.tree import WorkTree

if TYPE_CHECKING:
    from git import Repo

WIDTH = 72
_REDIRECTIONS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX", "GIT_NAMESPACE")
"""Variables that git sets for aliases and hooks.  They may mean another repository than the checkout's."""
_UNDER_WAY = {
    "MERGE_HEAD": "merge",
    "rebase-merge": "rebase",
    "rebase-apply": "rebase or `git am`",
    "CHERRY_PICK_HEAD": "cherry-pick",
    "REVERT_HEAD": "revert",
    "sequencer": "cherry-pick or revert of several commits",
}
_MOST_LINES = 30


def commit_each(session: Session, fixes: Sequence[Fix]) -> list[str]:
    """Carry out fixes in the order of their ids, each in a commit of its own, and say what was committed.

    The commit of a fix has the bytes that an apply of it and those before it would write.  Refuses before
    anything is written where git is not ready for that.  Where git refuses a commit, its fix is undone, and
    earlier commits stay.
    """
    fixes = sorted(fixes, key=lambda f: f.id)
    with _no_redirections():
        repo = _repository(session.tree.root)
        _check(repo, session, _paths(session, fixes))
        done: list[str] = []
        for n, fix in enumerate(fixes):
            try:
                done.append(_carry_out(repo, session, fix, fixes[n + 1 :]))
                session = open_session(session.tree.root, session.nvshmem, session.profile)
            except PatchError as error:
                raise type(error)(f"{error}\n{_so_far(done)}") from error
            except KeyboardInterrupt as error:
                raise KeyboardInterrupt(_so_far(done)) from error
    return done


def message(fix: Fix) -> str:
    """The commit message: what, why, and trailers for machines."""
    trailers = [
        f"DeepEP-Patch-Fix: {fix.id}@{fix.version}",
        *(f"DeepEP-Patch-Obligation: {o.id}" for o in fix.obligations),
        *(f"Link: {url}" for url in fix.upstream),
        f"DeepEP-Patch-Version: {__version__}",
    ]
    parts = [_filled(f"{fix.id}: {fix.title}"), *map(_filled, _why(fix.documentation)), "\n".join(trailers)]
    return "\n\n".join(parts) + "\n"


def _why(documentation: str) -> list[str]:
    """What the documentation says first after its summary, up to the end of a sentence."""
    paragraphs = [p for p in inspect.cleandoc(documentation).split("\n\n") if p.strip()]
    chosen: list[str] = []
    for text in paragraphs[1:] or paragraphs:
        lines = text.splitlines()
        if chosen and not lines[0].startswith(" "):
            break  # the next section
        if len(lines) > 1 and not lines[0].startswith(" ") and lines[1].startswith(" "):
            lines = lines[1:]  # without the section's heading
        chosen.append("\n".join(line.strip() for line in lines).replace("``", "`"))
        if chosen[-1].endswith("."):
            break
    return chosen


def _filled(text: str) -> str:
    """Text in lines of at most ``WIDTH``, list items each on their own."""
    items: list[str] = []
    for line in text.splitlines():
        if items and not line.startswith("- "):
            items[-1] += f" {line}"
        else:
            items.append(line)
    return "\n".join(map(_wrapped, items))


def _wrapped(text: str) -> str:
    # No line begins with `#`: where commit.cleanup is strip, git takes it for a comment.
    indent = "  " if text.startswith("- ") else ""
    glued = text.replace(" #", "\0#")
    return textwrap.fill(glued, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False).replace("\0", " ")


# Before


@contextmanager
def _no_redirections() -> Iterator[None]:
    kept = {name: os.environ.pop(name) for name in _REDIRECTIONS if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)


def _repository(root: str) -> Repo:
    try:
        import git
    except ImportError as error:  # also where there is no git to call
        raise MissingTool("--commit needs git and the Python package GitPython: install them, or apply without --commit.") from error
    try:
        repo = git.Repo(root, search_parent_directories=True, expand_vars=False)
    except (git.InvalidGitRepositoryError, git.NoSuchPathError) as error:
        raise Refused(f"{root}: --commit needs a git work tree, and this is none. Apply without --commit.") from error
    if repo.bare or repo.working_tree_dir is None:
        raise Refused(f"{root}: --commit needs a git work tree, and this is a bare repository.")
    return repo


def _paths(session: Session, fixes: Sequence[Fix]) -> list[str]:
    """All files that one of the commits would change.  Raises Blocked where not every commit is possible."""
    found: set[str] = set()
    for n in range(len(fixes)):
        found.update(c.path for c in _target(session, fixes[: n + 1], fixes[n + 1 :]).changes)
    return sorted(found)


def _check(repo: Repo, session: Session, paths: Sequence[str]) -> None:
    for name, what in _UNDER_WAY.items():
        if os.path.lexists(os.path.join(repo.git_dir, name)):
            raise Refused(f"{repo.working_dir}: a {what} is under way. Finish it or abort it, then run again.")
    if not _head(repo):
        raise Refused(f"{repo.working_dir}: the branch has no commit yet, so there is nothing to put a fix on. Commit the sources first.")
    staged, unstaged = _changed_files(repo)
    if staged:
        shown = ", ".join(staged[:3]) + (f" and {len(staged) - 3} more" if len(staged) > 3 else "")
        raise Refused(f"{repo.working_dir}: there are staged changes ({shown}). Commit or unstage them first (`git restore --staged`).")
    for path in paths:
        name = _in_repository(repo, session.tree.root, path)
        if name in unstaged:
            taken_back = " (`deepep-patch revert` takes back what was applied without --commit)" if session.record else ""
            raise Refused(f"{path}: has uncommitted changes, which the commit would carry too. Commit or stash them first{taken_back}.")
        if not _git(repo, "ls-files", "-z", "--", _literal(name)):
            raise Refused(f"{path}: git does not track this file in {repo.working_dir}. Add it, or give its own repository as CHECKOUT.")


def _changed_files(repo: Repo) -> tuple[list[str], set[str]]:
    """Files with staged changes, and files with changes in the work tree."""
    fields = iter(_git(repo, "status", "--porcelain=v1", "-z", "--untracked-files=no", "--ignore-submodules=dirty").split("\0"))
    staged, unstaged = [], set()
    for field in fields:
        if not field:
            continue
        state, name = field[:2], field[3:]
        if "R" in state or "C" in state:
            next(fields)  # the old name
        if state[0] != " ":
            staged.append(name)
        if state[1] != " ":
            unstaged.add(name)
    return staged, unstaged


def _git(repo: Repo, *arguments: str) -> str:
    from git import GitCommandError

    try:
        return str(repo.git.execute([repo.git.GIT_PYTHON_GIT_EXECUTABLE or "git", *arguments]))
    except GitCommandError as error:
        said = str(error.stderr).strip().removeprefix("stderr: ").strip("'")
        raise Refused(f"{repo.working_dir}: `git {arguments[0]}` failed, so nothing can be committed. git said: {said}") from error


def _head(repo: Repo) -> str:
    """The commit that HEAD names, or nothing where there is none yet."""
    return str(repo.git.rev_parse("--verify", "--quiet", "HEAD^{commit}", with_exceptions=False))


def _in_repository(repo: Repo, root: str, path: str) -> str:
    """The name that git has for a file, which may be what a link in the checkout leads to."""
    return os.path.relpath(os.path.realpath(os.path.join(root, path)), os.path.realpath(repo.working_dir))


def _literal(name: str) -> str:
    return f":(top,literal){name}"


# One fix


def _target(session: Session, fixes: Sequence[Fix], later: Sequence[Fix]) -> Target:
    """The bytes with ``fixes`` and what the record names, without those that come later (the record may name them from before)."""
    not_yet = tuple(FixStatus(f.id, State.NEEDED, None, ()) for f in later)
    return target(session, fixes, Plan((), not_yet, (), tuple(f.id for f in fixes)))


def _carry_out(repo: Repo, session: Session, fix: Fix, later: Sequence[Fix]) -> str:
    """Write and commit one fix, or leave all as it was.  Says what was done."""
    root = session.tree.root
    goal = _target(session, [fix], later)
    head, record = _head(repo), transaction.read_record(root)
    try:
        write(session, goal)
        if not goal.changes:
            return f"no commit for {fix.id}: those before it have made all its changes"
        names = list(dict.fromkeys(_in_repository(repo, root, c.path) for c in goal.changes))
        code, said = _commit(repo, message(fix), names)
    except BaseException:
        if _head(repo) == head:
            _undo(root, goal.changes, record)
        raise
    now = _head(repo)
    if now == head:
        _undo(root, goal.changes, record)
        raise Refused(f"{fix.id}: git refused the commit (exit {code}), and the files are as they were before it. git said:\n{said}")
    _git(repo, "reset", "-q", "--", *map(_literal, names))  # a hook may have staged more, which git leaves out of the index
    if code:
        raise Refused(f"{fix.id} was committed as {now[:9]}, and then git failed (exit {code}). git said:\n{said}")
    return f"committed {fix.id} as {now[:9]}"


def _commit(repo: Repo, text: str, names: Sequence[str]) -> tuple[int, str]:
    """The exit code of ``git commit``, and what it and the hooks said."""
    # GitPython sets these to C, which is not for hooks to see; an empty one counts as not set.
    locale = {name: os.environ.get(name, "") for name in ("LC_ALL", "LANGUAGE")}
    with tempfile.TemporaryFile() as file:
        file.write(text.encode("utf-8"))
        file.seek(0)
        owner = repo.git.commit("-F", "-", "--", *map(_literal, names), istream=file, as_process=True, env=locale)
        running: subprocess.Popen[bytes] = owner.proc  # which ends when nothing refers to its owner
        try:
            out, error = running.communicate()
        except BaseException:
            running.terminate()  # upon which git removes its locks
            running.wait()
            raise
    lines = (error.strip() or out.strip()).decode("utf-8", "replace").splitlines() or ["(nothing)"]
    left_out = [f"  ({len(lines) - _MOST_LINES} lines left out)"] * (len(lines) > _MOST_LINES)
    return running.returncode, "\n".join([*left_out, *(f"  {line}" for line in lines[-_MOST_LINES:])])


def _undo(root: str, changes: Sequence[FileChange], record: bytes | None) -> None:
    """Put the files back, also those that a hook has changed on the way."""
    transaction.recover(root)
    now = WorkTree(root)
    back = [FileChange(c.path, now.read(c.path), c.before) for c in changes]
    if transaction.read_record(root) != record or any(c.before != c.after for c in back):
        transaction.write_all(root, back, record)


def _so_far(done: Sequence[str]) -> str:
    return "Before that: " + "; ".join(done) + "." if done else "Nothing was committed."
