"""``apply --commit``: one commit a fix, made by git as the user set it up, or nothing."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from patcher import __version__, cli
from patcher.commits import WIDTH, message
from patcher.fix import DEVICE, Fix, catalogue
from patcher.model import Obligation

SAMPLE = Path(__file__).resolve().parents[1] / "patcher" / "sample"
TWO = ("--select=rc-layout", "--select=submit-order")
FIXES = ("nic-fence-scope", "post-cas-fence", "quiet-frontier", "rc-layout", "submit-order")


def git(tree: Path, *arguments: str | Path) -> str:
    """What git says."""
    return subprocess.run(["git", *arguments], cwd=tree, check=True, capture_output=True, text=True).stdout


def call(*arguments: str | Path) -> tuple[int, str]:
    """Exit code and log of a run in this process."""
    done = CliRunner().invoke(cli.main, [str(a) for a in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert not done.stdout
    return done.exit_code, done.stderr


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Git without the settings of this machine."""
    for name in [n for n in os.environ if n.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(SAMPLE.parents[1]))


def begin(folder: Path) -> None:
    """Make a folder a git work tree, all in it committed."""
    git(folder, "init", "-q", "-b", "main")
    git(folder, "config", "user.name", "A U Thor")
    git(folder, "config", "user.email", "author@example.org")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "base")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The sample checkout as a git work tree with one commit."""
    folder = tmp_path / "checkout"
    shutil.copytree(SAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    begin(folder)
    return folder


def hook(tree: Path, name: str, script: str) -> None:
    """Install a hook."""
    path = tree / ".git/hooks" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def subjects(tree: Path) -> list[str]:
    """The fix ids (or what stands for them) of all commits, oldest first."""
    return [line.partition(":")[0] for line in git(tree, "log", "--reverse", "--format=%s").splitlines()]


def trailers(tree: Path, commit: str) -> list[str]:
    """The trailers of a commit, as git reads them."""
    return git(tree, "log", "-1", "--format=%(trailers:only,unfold)", commit).strip().splitlines()


def untouched(tree: Path, subjects_then: Sequence[str] = ("base",)) -> bool:
    """Whether the work tree is as its commits, which are as many as they were, and nothing of ours is left."""
    return subjects(tree) == list(subjects_then) and not git(tree, "status", "--porcelain") and not (tree / ".deepep-patch").exists()


# What is committed


def test_one_commit_a_fix(tree: Path, tmp_path: Path) -> None:
    code, log = call("apply", tree, "--commit")
    assert code == 0 and subjects(tree) == ["base", *FIXES]
    assert [line.split()[:2] for line in log.splitlines()] == [["committed", fix] for fix in FIXES]
    assert not git(tree, "status", "--porcelain", "--ignored=no")
    assert git(tree, "log", "--format=%an <%ae>", "-1") == "A U Thor <author@example.org>\n"
    for n, fix in enumerate(FIXES, 1):
        commit = f"HEAD~{len(FIXES) - n}"
        assert git(tree, "diff", "--name-only", f"{commit}~", commit).split() == [DEVICE]
        plain = tmp_path / fix
        shutil.copytree(SAMPLE, plain)
        assert call("apply", plain, *(f"--select={f}" for f in FIXES[:n]))[0] == 0
        assert git(tree, "show", f"{commit}:{DEVICE}") == (plain / DEVICE).read_text()
        known = catalogue()[fix]
        assert trailers(tree, commit) == [
            f"DeepEP-Patch-Fix: {fix}@{known.version}",
            *(f"DeepEP-Patch-Obligation: {o.id}" for o in known.obligations),
            *(f"Link: {url}" for url in known.upstream),
            f"DeepEP-Patch-Version: {__version__}",
        ]
    assert call("apply", tree, "--commit")[1].startswith("nothing to do: ")
    assert CliRunner().invoke(cli.main, ["check", str(tree)]).exit_code == 0


def test_revert_after_commits_is_on_the_work_tree(tree: Path) -> None:
    call("apply", tree, "--commit")
    assert call("revert", tree, "--select", "rc-layout")[0] == 0
    assert call("revert", tree)[0] == 0
    assert (tree / DEVICE).read_bytes() == (SAMPLE / DEVICE).read_bytes()
    assert subjects(tree) == ["base", *FIXES] and not (tree / ".deepep-patch").exists()
    assert git(tree, "status", "--porcelain") == f" M {DEVICE}\n"


def test_in_several_runs_and_after_other_commits(tree: Path) -> None:
    call("apply", tree, "--commit", "--select", "submit-order")
    (tree / DEVICE).write_bytes(b"// theirs\n" + (tree / DEVICE).read_bytes())
    git(tree, "commit", "-q", "-a", "-m", "theirs")
    code, _ = call("apply", tree, "--commit")
    assert code == 0 and subjects(tree) == ["base", "submit-order", "theirs", *FIXES[:-1]]
    assert call("revert", tree)[0] == 0
    assert (tree / DEVICE).read_bytes() == b"// theirs\n" + (SAMPLE / DEVICE).read_bytes()


def test_after_the_commits_were_taken_back_in_git(tree: Path) -> None:
    call("apply", tree, "--commit", *TWO)
    git(tree, "reset", "-q", "--hard", "HEAD~2")
    assert call("apply", tree, "--commit", *TWO)[0] == 0
    assert subjects(tree) == ["base", "rc-layout", "submit-order"]


def test_other_files_stay_out_of_the_commits(tree: Path) -> None:
    (tree / "README.md").write_text("mine\n")
    (tree / "new.txt").write_text("mine\n")
    assert call("apply", tree, "--commit", *TWO)[0] == 0
    assert git(tree, "status", "--porcelain") == " M README.md\n?? new.txt\n"
    assert (tree / "README.md").read_text() == "mine\n"


def test_a_checkout_in_a_folder_of_a_larger_repository(tmp_path: Path) -> None:
    shutil.copytree(SAMPLE, tmp_path / "outer/third party/DeepEP", ignore=shutil.ignore_patterns("__pycache__"))
    begin(tmp_path / "outer")
    assert call("apply", tmp_path / "outer/third party/DeepEP", "--commit", *TWO)[0] == 0
    assert subjects(tmp_path / "outer") == ["base", "rc-layout", "submit-order"] and not git(tmp_path / "outer", "status", "--porcelain")


def test_a_linked_work_tree_with_a_detached_head(tree: Path, tmp_path: Path) -> None:
    git(tree, "worktree", "add", "-q", "--detach", tmp_path / "second")
    assert call("apply", tmp_path / "second", "--commit", "--select", "rc-layout")[0] == 0
    assert subjects(tmp_path / "second") == ["base", "rc-layout"] and untouched(tree)


def test_a_submodule(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "outer").mkdir()
    (tmp_path / "outer/file").write_text("x")
    begin(tmp_path / "outer")
    git(tmp_path / "outer", "-c", "protocol.file.allow=always", "submodule", "add", "-q", tree, "deepep")
    inner = tmp_path / "outer/deepep"
    for name, value in (("user.name", "n"), ("user.email", "e@x")):
        git(inner, "config", name, value)
    assert call("apply", inner, "--commit", "--select", "rc-layout")[0] == 0
    assert subjects(inner) == ["base", "rc-layout"] and subjects(tmp_path / "outer") == ["base"]


@pytest.mark.parametrize("name", ["a b.cuh", ":(top)x.cuh", "*.cuh", "-x.cuh", 'a"b.cuh', "\udcff.cuh", "a\nb.cuh"], ids=ascii)
def test_odd_file_names(name: str, tree: Path) -> None:
    git(tree, "mv", DEVICE, f"csrc/kernels/{name}")
    git(tree, "commit", "-q", "-m", "renamed")
    assert call("apply", tree, "--commit", "--select", "rc-layout")[0] == 0
    assert subjects(tree) == ["base", "renamed", "rc-layout"] and not git(tree, "status", "--porcelain")


def test_a_link_within_the_checkout(tree: Path) -> None:
    git(tree, "mv", DEVICE, "csrc/real.cuh")
    (tree / DEVICE).symlink_to("../real.cuh")
    git(tree, "add", "-A")
    git(tree, "commit", "-q", "-m", "linked")
    assert call("apply", tree, "--commit", "--select", "rc-layout")[0] == 0
    assert git(tree, "diff", "--name-only", "HEAD~", "HEAD") == "csrc/real.cuh\n" and not git(tree, "status", "--porcelain")


def test_variables_that_mean_another_repository_are_not_followed(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").write_text("x")
    begin(tmp_path / "other")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other/.git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "other/.git/index"))
    assert call("apply", tree, "--commit", "--select", "rc-layout")[0] == 0
    assert os.environ["GIT_DIR"] == str(tmp_path / "other/.git")
    monkeypatch.delenv("GIT_DIR")
    monkeypatch.delenv("GIT_INDEX_FILE")
    assert subjects(tree) == ["base", "rc-layout"] and untouched(tmp_path / "other")


# Messages


def a_fix(version: int, upstream: tuple[str, ...], obligations: tuple[Obligation, ...], documentation: str) -> Fix:
    """A fix that does nothing."""
    return Fix("an-id", "a title", version, upstream, obligations, lambda f, v: [], lambda r: None, documentation=documentation)


@pytest.mark.parametrize("fix", catalogue().values(), ids=lambda f: f.id)
def test_the_message_of_each_fix(fix: Fix, tmp_path: Path) -> None:
    text = message(fix)
    subject, *body, last = text.strip().split("\n\n")
    assert " ".join(subject.split()) == f"{fix.id}: {fix.title}" and body
    assert all(len(line) <= WIDTH and not line.startswith("#") for line in "\n".join([subject, *body]).splitlines())
    assert "``" not in text and "What goes wrong" not in text and body[-1].endswith(".")
    read = subprocess.run(["git", "interpret-trailers", "--parse"], input=text, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert read.stdout.splitlines() == last.splitlines() and len(last.splitlines()) == 2 + len(fix.obligations) + len(fix.upstream)


def test_the_message_takes_the_first_paragraph_and_its_list() -> None:
    documentation = """A summary.

    What goes wrong
        It breaks (#12) and breaks and breaks and breaks and breaks and breaks (issue #345).  So

        - one thing ``hangs``,
          for ever;
        - another.

        More.

    What is done
        Much.
    """
    fix = a_fix(3, ("https://x/1",), (Obligation("o", "holds"),), documentation)
    assert message(fix) == (
        "an-id: a title\n\n"
        "It breaks (#12) and breaks and breaks and breaks and breaks and breaks\n(issue #345).  So\n\n"
        "- one thing `hangs`, for ever;\n- another.\n\n"
        f"DeepEP-Patch-Fix: an-id@3\nDeepEP-Patch-Obligation: o\nLink: https://x/1\nDeepEP-Patch-Version: {__version__}\n"
    )


def test_a_message_of_a_fix_without_a_page() -> None:
    fix = a_fix(1, (), (), "")
    assert message(fix) == f"an-id: a title\n\nDeepEP-Patch-Fix: an-id@1\nDeepEP-Patch-Version: {__version__}\n"


def test_cleaning_up_messages_takes_nothing_of_them(tree: Path) -> None:
    git(tree, "config", "commit.cleanup", "strip")
    call("apply", tree, "--commit")
    for n, fix in enumerate(FIXES):
        assert git(tree, "log", "-1", "--format=%B", f"HEAD~{len(FIXES) - 1 - n}").strip() == message(catalogue()[fix]).strip()


# Refusals before anything is written


def test_no_git_work_tree(tmp_path: Path) -> None:
    shutil.copytree(SAMPLE, tmp_path / "plain")
    code, log = call("apply", tmp_path / "plain", "--commit", *TWO)
    assert code == 5 and "needs a git work tree" in log
    assert (tmp_path / "plain" / DEVICE).read_bytes() == (SAMPLE / DEVICE).read_bytes() and not (tmp_path / "plain/.deepep-patch").exists()


def test_no_commit_yet(tmp_path: Path) -> None:
    shutil.copytree(SAMPLE, tmp_path / "plain")
    git(tmp_path / "plain", "init", "-q")
    code, log = call("apply", tmp_path / "plain", "--commit", *TWO)
    assert code == 5 and "no commit yet" in log and (tmp_path / "plain" / DEVICE).read_bytes() == (SAMPLE / DEVICE).read_bytes()


@pytest.mark.parametrize("change", ["add", "edit", "remove", "rename"])
def test_staged_changes(change: str, tree: Path) -> None:
    if change == "rename":
        git(tree, "mv", "README.md", "READ ME.md")
    elif change == "remove":
        git(tree, "rm", "-q", "README.md")
    else:
        (tree / ("README.md" if change == "edit" else "new")).write_text("x")
        git(tree, "add", "-A")
    before = git(tree, "status", "--porcelain")
    code, log = call("apply", tree, "--commit", *TWO)
    assert code == 5 and "staged changes" in log and ("READ" in log or "new" in log)
    assert git(tree, "status", "--porcelain") == before and subjects(tree) == ["base"] and not (tree / ".deepep-patch").exists()


def test_a_file_to_change_that_has_changes(tree: Path) -> None:
    text = (tree / DEVICE).read_bytes() + b"// mine\n"
    (tree / DEVICE).write_bytes(text)
    code, log = call("apply", tree, "--commit", *TWO)
    assert code == 5 and f"{DEVICE}: has uncommitted changes" in log and "revert" not in log
    assert (tree / DEVICE).read_bytes() == text and subjects(tree) == ["base"]


def test_what_was_applied_and_not_committed(tree: Path) -> None:
    call("apply", tree, "--select", "rc-layout")
    code, log = call("apply", tree, "--commit", *TWO)
    assert code == 5 and "uncommitted changes" in log and "`deepep-patch revert`" in log
    assert call("revert", tree)[0] == 0 and call("apply", tree, "--commit", *TWO)[0] == 0


def test_a_file_that_git_does_not_track(tree: Path) -> None:
    git(tree, "rm", "-q", "--cached", DEVICE)
    git(tree, "commit", "-q", "-m", "forgotten")
    code, log = call("apply", tree, "--commit", *TWO)
    assert code == 5 and f"{DEVICE}: git does not track this file" in log and subjects(tree) == ["base", "forgotten"]


def test_a_file_that_belongs_to_a_submodule(tree: Path, tmp_path: Path) -> None:
    outer = tmp_path / "outer"
    outer.mkdir()
    (outer / "file").write_text("x")
    begin(outer)
    git(outer, "-c", "protocol.file.allow=always", "submodule", "add", "-q", tree, "deepep")
    git(outer, "commit", "-q", "-m", "module")
    code, log = call("apply", outer, "--commit", *TWO)
    assert code == 5 and "give its own repository as CHECKOUT" in log and subjects(outer) == ["base", "module"]
    assert (outer / "deepep" / DEVICE).read_bytes() == (SAMPLE / DEVICE).read_bytes()


@pytest.mark.parametrize("what", ["merge", "rebase", "cherry-pick", "revert"])
def test_something_under_way(what: str, tree: Path) -> None:
    git(tree, "switch", "-q", "-c", "side")
    for branch in ("side", "main"):
        git(tree, "switch", "-q", branch)
        (tree / "README.md").write_text(f"{branch}\n")
        git(tree, "commit", "-q", "-a", "-m", branch)
        (tree / "README.md").write_text(f"{branch} again\n")
        git(tree, "commit", "-q", "-a", "-m", f"{branch} again")
    arguments = {"merge": ["side"], "rebase": ["side"], "cherry-pick": ["side"], "revert": ["--no-edit", "HEAD~"]}[what]
    assert subprocess.run(["git", what, *arguments], cwd=tree, capture_output=True).returncode != 0
    before = git(tree, "status", "--porcelain")
    code, log = call("apply", tree, "--commit", *TWO)
    assert code == 5 and f"a {what} is under way" in log and git(tree, "status", "--porcelain") == before


def test_a_blocked_fix_stops_all_commits(tree: Path) -> None:
    (tree / "csrc/kernels/utils.cuh").write_text("#pragma once\n")
    git(tree, "commit", "-q", "-a", "-m", "emptied")
    code, log = call("apply", tree, "--commit")
    assert code == 3 and "nothing was changed" in log and untouched(tree, ["base", "emptied"])


def test_no_git_program(tree: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "patcher", "apply", "--commit", tree], env={**os.environ, "PATH": "/nowhere"}, capture_output=True, text=True
    )
    assert done.returncode == 4 and "needs git" in done.stderr and "Traceback" not in done.stderr and untouched(tree)


# Git refuses


def test_a_hook_that_passes_sees_the_commit(tree: Path, tmp_path: Path) -> None:
    hook(tree, "pre-commit", f"git diff --cached --name-only >> {tmp_path}/seen; echo ${{LC_ALL-unset}} >> {tmp_path}/locale")
    hook(tree, "commit-msg", f'git interpret-trailers --parse "$1" >> {tmp_path}/seen')
    assert call("apply", tree, "--commit", "--select", "rc-layout")[0] == 0
    seen = (tmp_path / "seen").read_text().splitlines()
    assert seen[0] == DEVICE and seen[1].startswith("DeepEP-Patch-Fix: rc-layout@")
    assert (tmp_path / "locale").read_text().strip() == os.environ.get("LC_ALL", "")


@pytest.mark.parametrize("name", ["pre-commit", "commit-msg", "prepare-commit-msg"])
def test_a_hook_that_refuses_the_first_commit(name: str, tree: Path) -> None:
    hook(tree, name, "echo not today; echo really >&2; exit 1")
    code, log = call("apply", tree, "--commit", *TWO)
    assert code == 5 and untouched(tree)
    assert "rc-layout: git refused the commit (exit 1)" in log and "  not today\n  really\n" in log and "Nothing was committed." in log


def test_a_hook_that_refuses_the_third_commit(tree: Path) -> None:
    hook(tree, "commit-msg", '! grep "^DeepEP-Patch-Fix: quiet-frontier" "$1"')
    code, log = call("apply", tree, "--commit")
    assert code == 5 and subjects(tree) == ["base", "nic-fence-scope", "post-cas-fence"] and not git(tree, "status", "--porcelain")
    assert "quiet-frontier: git refused" in log
    assert "Before that: committed nic-fence-scope as " in log and "; committed post-cas-fence as " in log
    (tree / ".git/hooks/commit-msg").unlink()
    assert call("apply", tree, "--commit")[0] == 0 and subjects(tree) == ["base", *FIXES]
    assert call("revert", tree)[0] == 0 and (tree / DEVICE).read_bytes() == (SAMPLE / DEVICE).read_bytes()


def test_a_hook_that_changes_the_file_and_refuses(tree: Path) -> None:
    hook(tree, "pre-commit", f"echo '// formatted' >> {DEVICE}; exit 1")
    assert call("apply", tree, "--commit", *TWO)[0] == 5
    assert untouched(tree)


def test_a_hook_that_changes_the_file_and_commits_that(tree: Path) -> None:
    hook(tree, "pre-commit", f"echo '// formatted' >> {DEVICE}; git add {DEVICE}")
    assert call("apply", tree, "--commit", *TWO)[0] == 0
    assert git(tree, "show", f"HEAD:{DEVICE}").endswith("// formatted\n" * 2)
    assert call("revert", tree)[0] == 0
    assert (tree / DEVICE).read_bytes() == (SAMPLE / DEVICE).read_bytes() + b"// formatted\n" * 2


def test_a_hook_that_rewrites_our_lines(tree: Path) -> None:
    hook(tree, "pre-commit", f"sed -i 's/^ *//' {DEVICE}; git add {DEVICE}")
    code, log = call("apply", tree, "--commit", *TWO)
    assert code == 5 and subjects(tree) == ["base", "rc-layout"] and "Before that: committed rc-layout as " in log
    assert "was changed since" in log and not git(tree, "status", "--porcelain")


def test_a_hook_after_the_commit_is_not_asked(tree: Path) -> None:
    hook(tree, "post-commit", "exit 1")
    assert call("apply", tree, "--commit", *TWO)[0] == 0 and subjects(tree) == ["base", "rc-layout", "submit-order"]


@pytest.mark.parametrize("kind", ["openpgp", "ssh"])
def test_signing_that_fails(kind: str, tree: Path, tmp_path: Path) -> None:
    git(tree, "config", "commit.gpgSign", "true")
    git(tree, "config", "gpg.format", kind)
    git(tree, "config", "user.signingKey", "key")
    git(tree, "config", "gpg.program" if kind == "openpgp" else "gpg.ssh.program", "/bin/false")
    code, log = call("apply", tree, "--commit", *TWO)
    assert code == 5 and "git refused the commit" in log and untouched(tree)


def test_signing_is_done_where_it_is_set_up(tree: Path, tmp_path: Path) -> None:
    program = tmp_path / "sign"
    program.write_text(
        "#!/bin/sh\ncat > /dev/null\necho '[GNUPG:] SIG_CREATED ' >&2\n"
        "printf -- '-----BEGIN PGP SIGNATURE-----\\n\\nours\\n-----END PGP SIGNATURE-----\\n'\n"
    )
    program.chmod(0o755)
    git(tree, "config", "commit.gpgSign", "true")
    git(tree, "config", "gpg.program", str(program))
    assert call("apply", tree, "--commit", "--select", "rc-layout")[0] == 0
    assert "gpgsig -----BEGIN PGP SIGNATURE-----" in git(tree, "cat-file", "commit", "HEAD")


def test_no_author(tree: Path) -> None:
    git(tree, "config", "--unset", "user.name")
    git(tree, "config", "--unset", "user.email")
    git(tree, "config", "user.useConfigOnly", "true")
    code, log = call("apply", tree, "--commit", *TWO)
    assert code == 5 and "user.email" in log and subjects(tree) == ["base"] and not git(tree, "status", "--porcelain")


def test_a_locked_index(tree: Path) -> None:
    (tree / ".git/index.lock").write_text("")
    code, log = call("apply", tree, "--commit", *TWO)
    assert code == 5 and "index.lock" in log and (tree / DEVICE).read_bytes() == (SAMPLE / DEVICE).read_bytes()
    (tree / ".git/index.lock").unlink()
    assert untouched(tree)


def test_long_talk_of_a_hook_is_cut(tree: Path) -> None:
    hook(tree, "pre-commit", "seq 1000; exit 3")
    log = call("apply", tree, "--commit", *TWO)[1]
    assert "  (970 lines left out)\n  971\n" in log and "  1000\n" in log


# Interrupted


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_an_interrupt_while_git_is_at_work(number: signal.Signals, tree: Path, tmp_path: Path) -> None:
    hook(tree, "commit-msg", f'grep -q "quiet-frontier@" "$1" || exit 0; touch {tmp_path}/here; exec sleep 60')
    with subprocess.Popen([sys.executable, "-m", "patcher", "apply", "--commit", tree], stderr=subprocess.PIPE, text=True) as child:
        while not (tmp_path / "here").exists() and child.poll() is None:
            time.sleep(0.02)
        child.send_signal(number)
        _, log = child.communicate(timeout=30)
    assert child.returncode == 130 and "Traceback" not in log
    assert log.startswith("interrupted: Before that: committed nic-fence-scope as ")
    assert subjects(tree) == ["base", "nic-fence-scope", "post-cas-fence"] and not git(tree, "status", "--porcelain")
    (tree / ".git/hooks/commit-msg").unlink()
    assert call("apply", tree, "--commit")[0] == 0 and subjects(tree) == ["base", *FIXES]


def test_git_python_is_imported_for_commits_only(tree: Path) -> None:
    script = "import sys; from patcher import cli\ntry: cli.main(sys.argv[1:])\nfinally: print('git' in sys.modules)"
    for arguments, wanted in ((["apply"], "False"), (["revert"], "False"), (["apply", "--commit"], "True")):
        done = subprocess.run([sys.executable, "-c", script, *arguments, str(tree)], capture_output=True, text=True)
        assert done.stdout.strip() == wanted
