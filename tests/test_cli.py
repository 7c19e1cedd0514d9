"""The command line as people and CI meet it: results, exit codes, messages, and trees that are whole whatever happens."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import pty
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import pytest
from click.testing import CliRunner

from patcher import cli, session, transaction
from patcher.fix import DEVICE, catalogue
from patcher.model import State, Verdict
from patcher.session import Session, Target
from patcher.tree import MAX_SOURCE_BYTES

ROOT = Path(__file__).resolve().parents[1]
SAMPLE = ROOT / "patcher" / "sample"
FIXES = ("nic-fence-scope", "post-cas-fence", "quiet-frontier", "rc-layout", "submit-order")
"""What the sample needs."""

Tree = dict[str, bytes]


class Ended(NamedTuple):
    """How a run of the command line ended."""

    code: int
    out: str
    err: str


def run(*arguments: str | bytes | Path, cwd: Path | None = None, env: dict[str, str] | None = None, **options: Any) -> Ended:
    """A whole process."""
    command: list[str | bytes | Path] = [sys.executable, "-m", "patcher", *arguments]
    done = subprocess.run(command, cwd=cwd, env=env or environment(), capture_output=True, **options)
    return checked(Ended(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")))


def call(*arguments: str | Path) -> Ended:
    """The same in this process."""
    done = CliRunner().invoke(cli.main, [str(a) for a in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return checked(Ended(done.exit_code, done.stdout, done.stderr))


def checked(ended: Ended) -> Ended:
    """What is true of every run."""
    assert "Traceback" not in ended.err, ended.err
    if ended.code in (2, 4, 5):
        assert len([line for line in ended.err.splitlines() if line.lower().startswith("error: ")]) == 1, ended.err
    return ended


def environment(**more: str) -> dict[str, str]:
    """This process's environment, with the package to be found from any folder."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **more}


def contents(root: Path) -> Tree:
    """All files and links of a tree, git's and ours left out."""
    found = {}
    for folder, folders, names in os.walk(root):
        folders[:] = [f for f in folders if f != ".git" and not (f == ".deepep-patch" and Path(folder) == root)]
        for name in names + [f for f in folders if os.path.islink(os.path.join(folder, f))]:
            path = os.path.join(folder, name)
            found[os.path.relpath(path, root)] = os.fsencode(os.readlink(path)) if os.path.islink(path) else Path(path).read_bytes()
    return found


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    kept = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, kept)


@pytest.fixture
def new(tmp_path: Path) -> Callable[..., Path]:
    """Makes copies of the sample checkout."""
    numbers = itertools.count(1)

    def make(name: str | None = None) -> Path:
        folder = tmp_path / (name or f"checkout-{next(numbers)}")
        shutil.copytree(SAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
        return folder

    return make


@pytest.fixture
def tree(new: Callable[..., Path]) -> Path:
    """A copy of the sample checkout."""
    return new()


@pytest.fixture(scope="module")
def mended(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """The sample with all default fixes."""
    folder = tmp_path_factory.mktemp("mended") / "sample"
    shutil.copytree(SAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    assert call("apply", folder).code == 0
    return contents(folder)


def states(tree: Path, *options: str) -> dict[str, str]:
    """Fix ids and states, as ``status`` says them."""
    found = json.loads(call("status", tree, "--format", "json", *options).out)
    return {fix["id"]: fix["state"] for fix in found["fixes"]}


# The main job


def test_the_main_job_as_whole_processes(tree: Path, mended: Tree) -> None:
    before = contents(tree)
    status = run("status", tree)
    assert status.code == 1 and all(f"needed    {f}:" in status.out for f in FIXES) and not status.err
    check = run("check", tree)
    assert check.code == 1 and check.out.splitlines() == [f"{f}: needed" for f in FIXES]
    diff = run("diff", tree)
    assert diff.code == 1 and diff.out.startswith(f"--- a/{DEVICE}\n+++ b/{DEVICE}\n@@ ")
    assert contents(tree) == before and not (tree / ".deepep-patch").exists()

    applied = run("apply", tree)
    assert applied.code == 0 and not applied.out
    assert applied.err.splitlines() == [*(f"applied {f}" for f in FIXES), f"wrote {DEVICE}"]
    assert contents(tree) == mended != before
    assert (tree / ".deepep-patch" / ".gitignore").read_text() == "*\n"
    assert run("check", tree) == Ended(0, "", "")
    assert run("diff", tree) == Ended(0, "", "")
    assert set(states(tree).values()) == {"applied"}

    again = run("apply", tree)
    assert again.code == 0 and again.err.startswith("nothing to do: ") and contents(tree) == mended

    reverted = run("revert", tree)
    assert reverted.code == 0 and not reverted.out
    assert reverted.err.splitlines() == [*(f"reverted {f}" for f in FIXES), f"wrote {DEVICE}"]
    assert contents(tree) == before and not (tree / ".deepep-patch").exists()
    assert run("revert", tree).err == "nothing to do: no fix was applied here by deepep-patch\n"


def test_the_current_folder_is_the_default(tree: Path, mended: Tree) -> None:
    assert run("apply", cwd=tree).code == 0
    assert contents(tree) == mended
    assert run("status", cwd=tree).code == 0


def test_a_run_from_an_unrelated_folder(tree: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert run("apply", tree, cwd=elsewhere).code == 0
    assert run("apply", f"../{tree.name}", cwd=elsewhere).code == 0
    missed = run("apply", cwd=elsewhere)
    assert missed.code == 2 and "neither DeepEP nor NVSHMEM" in missed.err and str(elsewhere) in missed.err
    assert not list(elsewhere.iterdir())


def test_list(tree: Path) -> None:
    listed = call("list")
    assert listed.code == 0 and [line.split()[0] for line in listed.out.splitlines()] == list(catalogue())
    default = call("list", "--profile", "default")
    assert [line.split()[0] for line in default.out.splitlines()] == list(FIXES)


@pytest.mark.parametrize("fix", catalogue().values(), ids=lambda f: f.id)
def test_explain_prints_the_page_of_a_fix(fix: Any) -> None:
    page = call("explain", fix.id)
    assert page.code == 0 and not page.err
    for part in (fix.documentation.strip(), *fix.upstream, *(f"{o.id}: {o.title}" for o in fix.obligations)):
        assert part in page.out


def test_explain_on_a_checkout_says_why(tree: Path) -> None:
    page = call("explain", "submit-order", tree)
    assert page.code == 1
    assert "needed    submit-order" in page.out and f"{DEVICE}:64: " in page.out and "Apply would change:" in page.out
    assert f"+++ b/{DEVICE}" in page.out
    call("apply", tree)
    page = call("explain", "submit-order", tree)
    assert page.code == 0 and "applied   submit-order" in page.out and "Apply would change" not in page.out


@pytest.mark.parametrize("arguments", [["-h"], ["--help"], ["--version"], *([c, "--help"] for c in cli.main.commands)], ids=" ".join)
def test_help(arguments: list[str]) -> None:
    shown = call(*arguments)
    assert shown.code == 0 and shown.out and not shown.err


@pytest.mark.parametrize("command", cli.main.commands)
def test_every_command_shows_an_example(command: str) -> None:
    assert f"deepep-patch {command}" in call(command, "--help").out.partition("Example:")[2]


# Results for machines


def test_json_has_the_documented_shape(tree: Path) -> None:
    subprocess.run(["git", "init", "-q", "."], cwd=tree, check=True)
    ended = call("status", tree, "--format", "json", "--profile", "all")
    found = json.loads(ended.out)
    assert ended.code == 1
    assert found["schema"] == "deepep-patch/status/1" and found["settled"] is False
    assert found["checkout"] == {"kind": "deepep", "layout": "v1", "commit": None, "nvshmem": None}
    assert [fix["id"] for fix in found["fixes"]] == list(catalogue())
    for fix in found["fixes"]:
        assert {"id", "state", "reason", "obligations"} <= fix.keys()
        assert fix["state"] in {s.value for s in State}
        assert fix["reason"] is None or isinstance(fix["reason"], str)
        for obligation in fix["obligations"]:
            assert {"id", "verdict", "evidence"} <= obligation.keys()
            assert obligation["id"] in {o.id for o in catalogue()[fix["id"]].obligations}
            assert obligation["verdict"] in {v.value for v in Verdict}
            for item in obligation["evidence"]:
                assert item.keys() == {"path", "line", "end_line", "note"}
                assert (tree / item["path"]).is_file() and item["note"]
                assert 1 <= item["line"] <= item["end_line"] <= len((tree / item["path"]).read_bytes().split(b"\n"))
    assert json.loads(call("check", tree, "--format", "json", "--profile", "all").out) == found


def test_json_of_a_commit_and_of_a_settled_tree(tree: Path) -> None:
    commit = committed(tree)
    call("apply", tree)
    found = json.loads(call("status", tree, "--format", "json").out)
    assert found["settled"] is True and found["checkout"]["commit"] == commit
    assert {fix["state"] for fix in found["fixes"]} == {"applied"}


def committed(tree: Path) -> str:
    """Make the tree a git work tree with one commit."""
    for arguments in (["init", "-q"], ["add", "-A"], ["-c", "user.name=n", "-c", "user.email=e@x", "commit", "-q", "-m", "base"]):
        subprocess.run(["git", *arguments], cwd=tree, check=True)
    return subprocess.run(["git", "rev-parse", "HEAD"], cwd=tree, check=True, capture_output=True, text=True).stdout.strip()


def test_sarif_has_the_shape_that_code_scanning_takes(tree: Path) -> None:
    (tree / DEVICE).rename(tree / "csrc/kernels/ibgda device#1.cuh")
    for command in ("status", "check"):
        log = json.loads(call(command, tree, "--format", "sarif").out)
        assert log["version"] == "2.1.0" and log["$schema"].endswith("sarif-2.1.0.json") and len(log["runs"]) == 1
        driver = log["runs"][0]["tool"]["driver"]
        rules = [rule["id"] for rule in driver["rules"]]
        assert driver["name"] == "deepep-patch" and len(set(rules)) == len(rules)
        results = log["runs"][0]["results"]
        assert {r["ruleId"].split("/")[0] for r in results} == set(FIXES)
        for result in results:
            place = result["locations"][0]["physicalLocation"]
            assert result["ruleId"] in rules and result["level"] in ("error", "warning") and result["message"]["text"]
            assert " " not in place["artifactLocation"]["uri"] and "#" not in place["artifactLocation"]["uri"]
            assert (tree / unquote(place["artifactLocation"]["uri"])).is_file()
            assert 1 <= place["region"]["startLine"] <= place["region"]["endLine"]
    call("apply", tree)
    assert json.loads(call("status", tree, "--format", "sarif").out)["runs"][0]["results"] == []


def test_quiet_leaves_the_result_only(tree: Path) -> None:
    (tree / "csrc/nowhere.cuh").symlink_to("gone.cuh")
    assert "csrc/nowhere.cuh: passed over" in call("status", tree).err
    assert call("status", tree, "-q").out == call("status", tree).out and not call("status", tree, "-q").err
    assert call("check", tree, "--quiet") == Ended(1, "", "")
    assert call("diff", tree, "-q").out == call("diff", tree).out
    assert call("apply", tree, "-q") == Ended(0, "", "")
    assert call("revert", tree, "-q") == Ended(0, "", "")
    wrong = call("apply", tree, "-q", "--select", "nope")
    assert wrong.code == 2 and "nope" in wrong.err  # errors are no log


def on_terminal(*arguments: str | Path, env: dict[str, str]) -> str:
    """What a terminal is shown."""
    ours, theirs = pty.openpty()
    with subprocess.Popen([sys.executable, "-m", "patcher", *arguments], stdout=theirs, stderr=theirs, stdin=theirs, env=env):
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:
                break
            if not part:
                break
            shown += part
    os.close(ours)
    return shown.decode()


def test_colour_on_a_terminal_only_and_never_with_no_color(tree: Path) -> None:
    plain = {k: v for k, v in environment(TERM="xterm").items() if k != "NO_COLOR"}
    assert "\x1b[" in on_terminal("status", tree, env=plain)
    assert "\x1b[" not in on_terminal("status", tree, env={**plain, "NO_COLOR": "1"})
    assert "\x1b[" not in on_terminal("status", tree / "nowhere", env={**plain, "NO_COLOR": "1"})
    assert "\x1b[" not in run("status", tree, env=plain).out


# Diffs


def with_crlf(tree: Path) -> None:
    (tree / DEVICE).write_bytes((tree / DEVICE).read_bytes().replace(b"\n", b"\r\n"))


def without_last_newline(tree: Path) -> None:
    text = (tree / DEVICE).read_bytes()
    (tree / DEVICE).write_bytes(text[: text.index(b"}  // namespace")] + b"}")


def with_bytes_that_are_not_utf8(tree: Path) -> None:
    (tree / DEVICE).write_bytes(b"\xef\xbb\xbf// caf\xe9 \x0c\r \x80\n" + (tree / DEVICE).read_bytes())


def named(name: str) -> Callable[[Path], None]:
    def rename(tree: Path) -> None:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / DEVICE).rename(tree / name)

    return rename


ODD_NAMES = ("a b/c d.cuh", 'say "x".cuh', "tab\there.cuh", "two\nlines.cuh", "back\\slash.cuh", "caf\u00e9.cuh", "\udcff.cuh", " lead.cuh")
SHAPES: dict[str, Callable[[Path], None]] = {
    "sample": lambda tree: None,
    "crlf": with_crlf,
    "no last newline": without_last_newline,
    "not utf-8": with_bytes_that_are_not_utf8,
    **{ascii(name): named("csrc/kernels/" + name) for name in ODD_NAMES},
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_git_applies_the_diff_to_what_apply_writes(shape: Callable[[Path], None], new: Callable[..., Path]) -> None:
    ours, gits = new(), new()
    shape(ours)
    shape(gits)
    before = contents(ours)
    diff = CliRunner().invoke(cli.main, ["diff", str(ours)]).stdout_bytes
    assert contents(ours) == before
    subprocess.run(["git", "init", "-q"], cwd=gits, check=True)
    subprocess.run(["git", "apply", "--whitespace=nowarn", "-"], cwd=gits, input=diff, check=True)
    assert call("apply", ours).code == 0
    assert contents(ours) == contents(gits) != before
    assert call("revert", ours).code == 0
    assert contents(ours) == before


def test_the_diff_of_what_is_left_is_against_the_files_as_they_are(new: Callable[..., Path], mended: Tree) -> None:
    tree, copy = new(), new()
    for folder in (tree, copy):
        call("apply", folder, "--select", "submit-order")
    diff = CliRunner().invoke(cli.main, ["diff", str(tree)])
    assert diff.exit_code == 1
    subprocess.run(["git", "apply", "-"], cwd=copy, input=diff.stdout_bytes, check=True)
    assert contents(copy) == mended
    assert call("apply", tree).code == 0
    assert contents(tree) == mended


# Order


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(FIXES, 2)))
def test_two_fixes_in_either_order_or_at_once(first: str, second: str, new: Callable[..., Path]) -> None:
    one, other, both = new(), new(), new()
    for folder, order in ((one, (first, second)), (other, (second, first))):
        for fix in order:
            assert call("apply", folder, "--select", fix).err == f"applied {fix}\nwrote {DEVICE}\n"
    assert call("apply", both, "--select", second, "--select", first).code == 0
    assert contents(one) == contents(other) == contents(both)
    assert len({(folder / ".deepep-patch/record.json").read_bytes() for folder in (one, other, both)}) == 1


@pytest.mark.parametrize("order", [*random.Random(5).sample(list(itertools.permutations(FIXES)), 1), FIXES[::-1]], ids="|".join)
def test_all_fixes_one_at_a_time(order: Sequence[str], tree: Path, mended: Tree) -> None:
    for fix in order:
        assert call("apply", tree, "--select", fix).code == 0
    assert contents(tree) == mended
    before = {name: (SAMPLE / name).read_bytes() for name in mended}
    for fix in order[1:]:
        assert call("revert", tree, "--select", fix).err == f"reverted {fix}\nwrote {DEVICE}\n"
    assert call("revert", tree).code == 0
    assert contents(tree) == before


@pytest.mark.parametrize("fix", FIXES)
def test_revert_of_one_fix_leaves_the_bytes_of_the_others(fix: str, new: Callable[..., Path]) -> None:
    tree, others = new(), new()
    call("apply", tree)
    call("apply", others, "--skip", fix)
    assert call("revert", tree, "--select", fix).code == 0
    assert contents(tree) == contents(others)
    assert states(tree) == states(others)


def test_revert_keeps_what_others_have_changed_elsewhere(tree: Path) -> None:
    before = (tree / DEVICE).read_bytes()
    call("apply", tree)
    text = (tree / DEVICE).read_bytes()
    (tree / DEVICE).write_bytes(b"// one\n// two\n" + text + b"// last\n")
    assert set(states(tree).values()) == {"applied"}
    assert call("revert", tree).code == 0
    assert (tree / DEVICE).read_bytes() == b"// one\n// two\n" + before + b"// last\n"
    assert not (tree / ".deepep-patch").exists()


def test_revert_refuses_where_our_lines_were_changed(tree: Path) -> None:
    before = (tree / DEVICE).read_bytes().split(b"\n")
    call("apply", tree)
    lines = (tree / DEVICE).read_bytes().split(b"\n")
    ours = next(n for n, line in enumerate(lines) if line.strip() and line not in before)
    lines[ours] += b" // mine"
    (tree / DEVICE).write_bytes(b"\n".join(lines))
    now = contents(tree)
    refused = call("revert", tree)
    assert refused.code == 5 and DEVICE in refused.err and "by hand" in refused.err
    assert contents(tree) == now


def test_revert_of_what_was_not_applied(tree: Path) -> None:
    call("apply", tree, "--select", "rc-layout")
    now = contents(tree)
    refused = call("revert", tree, "--select", "submit-order")
    assert refused.code == 2 and "submit-order: not applied" in refused.err and contents(tree) == now


def test_a_tree_without_our_record_is_mended_upstream(tree: Path, mended: Tree) -> None:
    call("apply", tree)
    shutil.rmtree(tree / ".deepep-patch")
    assert set(states(tree).values()) == {"upstream"}
    assert call("check", tree).code == 0
    assert call("apply", tree).err.startswith("nothing to do: ")
    assert contents(tree) == mended and not (tree / ".deepep-patch").exists()


def test_one_release_of_nvshmem_needs_no_version_guards(tree: Path) -> None:
    assert call("apply", tree, "--nvshmem", "3.4.5").code == 0
    assert b"NVSHMEM_VENDOR" not in (tree / DEVICE).read_bytes()
    assert set(states(tree, "--nvshmem", "3.4.5").values()) <= {"applied", "upstream"}
    assert call("revert", tree).code == 0
    assert (tree / DEVICE).read_bytes() == (SAMPLE / DEVICE).read_bytes()


def test_nvshmem_as_a_folder(tree: Path, tmp_path: Path) -> None:
    header = tmp_path / "nvshmem/include/non_abi/nvshmem_version.h"
    header.parent.mkdir(parents=True)
    header.write_text("".join(f"#define NVSHMEM_VENDOR_{n}_VERSION {v}\n" for n, v in (("MAJOR", 3), ("MINOR", 4), ("PATCH", 5))))
    for wanted in (tmp_path / "nvshmem", tmp_path / "nvshmem/include"):
        assert "for NVSHMEM 3.4.5\n" in call("status", tree, "--nvshmem", str(wanted)).out
    found = run("status", tree, "--nvshmem", "auto", env=environment(NVSHMEM_DIR=str(tmp_path / "nvshmem")))
    assert "for NVSHMEM 3.4.5\n" in found.out


# Usage


WRONG: dict[str, tuple[list[str], str]] = {
    "unknown fix": (["status", "--select", "submit-oder"], "submit-order"),
    "unknown fix to skip": (["apply", "--skip", "nope"], "no fix is called `nope`"),
    "unknown profile": (["status", "--profile", "lax"], "'strict'"),
    "unknown format": (["status", "--format", "xml"], "'json'"),
    "sarif of a diff": (["diff", "--format", "sarif"], "No such option"),
    "no version": (["status", "--nvshmem", "three"], "neither a version like 3.4.5, nor a folder"),
    "too old": (["apply", "--nvshmem", "2.11.0"], "older than"),
    "half a version": (["status", "--nvshmem", "3.4"], "--nvshmem 3.4"),
    "folder without headers": (["status", "--nvshmem", "/"], "nvshmem_version.h"),
    "unknown command": (["aply"], "No such command"),
}


@pytest.mark.parametrize(("arguments", "said"), WRONG.values(), ids=list(WRONG))
def test_wrong_usage(arguments: list[str], said: str, tree: Path) -> None:
    ended = call(arguments[0], tree, *arguments[1:])
    assert ended.code == 2 and said in ended.err and not ended.out
    assert contents(tree) == {name: (SAMPLE / name).read_bytes() for name in contents(tree)}


def test_explain_of_an_unknown_fix_names_those_that_are() -> None:
    ended = call("explain", "nope")
    assert ended.code == 2 and all(fix in ended.err for fix in FIXES)


def test_no_nvshmem_in_the_environment(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    def none(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.delenv("NVSHMEM_DIR", raising=False)
    monkeypatch.setattr(metadata, "version", none)
    ended = call("status", tree, "--nvshmem", "auto")
    assert ended.code == 4 and "--nvshmem 3.4.5" in ended.err


COMMANDS = ("status", "check", "diff", "apply", "revert")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_path_that_is_no_checkout(command: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other/main.cpp").write_text("int main() {}\n")
    neither = "neither DeepEP nor NVSHMEM"
    for name, said in (("nowhere", "no such folder"), ("file", "is a file"), ("empty", neither), ("other", neither)):
        ended = call(command, tmp_path / name)
        assert ended.code == 2 and said in ended.err and name in ended.err and not ended.out
    assert not list(tmp_path.rglob(".deepep-patch"))


# Trees that nobody expects


def test_a_huge_file_is_passed_over(tree: Path, mended: Tree) -> None:
    with open(tree / "csrc/huge.cuh", "wb") as file:
        file.truncate(200 << 20)
    ended = run("apply", tree, timeout=30)
    assert ended.code == 0 and "csrc/huge.cuh: passed over, too large" in ended.err
    assert (tree / DEVICE).read_bytes() == mended[DEVICE]
    with open(tree / DEVICE, "r+b") as file:
        file.truncate(MAX_SOURCE_BYTES + 1)
    assert f"{DEVICE}: passed over, too large" in call("status", tree).err


def test_a_tree_whose_only_source_is_huge(tmp_path: Path) -> None:
    (tmp_path / "checkout").mkdir()
    with open(tmp_path / "checkout/ibgda_device.cuh", "wb") as file:
        file.truncate(200 << 20)
    ended = call("status", tmp_path / "checkout")
    assert ended.code == 2 and "too large for source: ibgda_device.cuh" in ended.err


NOISE = random.Random(7).randbytes(50_000)
ODD_FILES = {
    "empty": b"",
    "binary": NOISE,
    "binary with our words": NOISE + b"\ntx_wq ready_head prod_idx atomicCAS atomicMax\n",
    "nul bytes": b"tx_wq\0ready_head\0\0atomicCAS\n" * 50,
    "one long line": b"/* tx_wq ready_head */ " + b"x = y; " * 50_000,
    "open braces": b"// tx_wq\nvoid f() " + b"{" * 10_000,
    "braces": b"// tx_wq\nvoid f() " + b"{" * 10_000 + b"}" * 10_000,
    "parentheses": b"// tx_wq\nint f() { return " + b"(" * 10_000 + b"1" + b")" * 10_000 + b"; }",
    "conditions": b"// tx_wq\n" + b"#if 1\n" * 10_000 + b"#endif\n" * 10_000,
    "open conditions": b"// tx_wq\n" + b"#ifdef X\n" * 10_000,
    "strings": b'// tx_wq\nauto s = "' + b'"' * 9_999,
    "utf-16": "// tx_wq ready_head\nvoid f() {}\n".encode("utf-16"),
}


@pytest.mark.parametrize("text", ODD_FILES.values(), ids=list(ODD_FILES))
def test_an_odd_file_beside_the_code(text: bytes, tree: Path, mended: Tree) -> None:
    (tree / "csrc/kernels/odd.cuh").write_bytes(text)
    before = contents(tree)
    ended = call("apply", tree)
    assert ended.code == 0
    assert contents(tree) == {**mended, "csrc/kernels/odd.cuh": text}
    assert call("revert", tree).code == 0
    assert contents(tree) == before


def test_device_code_nested_too_deeply(tree: Path) -> None:
    call_ = b"atomicCAS(&qp->mvars.tx_wq.ready_head, a, b);"
    (tree / DEVICE).write_bytes(b"// tx_wq\n__device__ void f(nvshmemi_ibgda_device_qp_t* qp) " + b"{" * 10_000 + call_ + b"}" * 10_000)
    before = contents(tree)
    for command in ("status", "apply"):
        ended = call(command, tree)
        assert ended.code == 3 and contents(tree) == before


@pytest.mark.parametrize("text", [b"", NOISE, b"\0" * 1000], ids=["empty", "binary", "nul"])
def test_device_code_replaced_by_something_else(text: bytes, tree: Path) -> None:
    (tree / DEVICE).write_bytes(text)
    ended = call("apply", tree)
    assert ended.code == 0 and "submit-order absent" in ended.err and not (tree / ".deepep-patch").exists()


def test_nul_bytes_in_device_code(tree: Path) -> None:
    (tree / DEVICE).write_bytes(b"// a\0b\n" + (tree / DEVICE).read_bytes() + b"\0\0\n")
    before = contents(tree)
    assert call("apply", tree).code == 0
    text = (tree / DEVICE).read_bytes()
    assert text.startswith(b"// a\0b\n") and text.endswith(b"\0\0\n")
    assert call("check", tree).code == 0
    assert call("revert", tree).code == 0 and contents(tree) == before


def test_code_that_is_not_understood_is_blocked(tree: Path) -> None:
    (tree / "csrc/kernels/utils.cuh").write_text("#pragma once\n")
    before = contents(tree)
    assert call("status", tree).code == 3
    check = call("check", tree, "--select", "submit-order")
    assert check.code == 3 and check.out.startswith("submit-order: blocked: ") and f"{DEVICE}:" in check.out
    diff = call("diff", tree, "--select", "submit-order")
    assert diff.code == 3 and not diff.out and "submit-order: blocked: " in diff.err
    apply = call("apply", tree)
    assert apply.code == 3 and "nothing was changed" in apply.err and "--skip submit-order" in apply.err
    assert contents(tree) == before and not (tree / ".deepep-patch").exists()
    assert "--skip" not in call("apply", tree, "--select", "submit-order").err  # nothing would be left
    assert call("apply", tree, "--select", "rc-layout").code == 0


# Links


def test_a_file_that_is_a_link_out_of_the_checkout_is_read_and_never_written(tree: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.cuh"
    (tree / DEVICE).rename(outside)
    (tree / DEVICE).symlink_to(outside)
    text, before = outside.read_bytes(), contents(tree)
    assert states(tree)["submit-order"] == "needed"
    ended = call("apply", tree)
    assert ended.code == 5 and "leads out of the checkout" in ended.err and str(outside) in ended.err
    assert outside.read_bytes() == text and contents(tree) == before and not (tree / ".deepep-patch").exists()


def test_a_folder_that_is_a_link_out_of_the_checkout_is_not_walked(tree: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (tree / "csrc/kernels").rename(outside)
    (tree / "csrc/kernels").symlink_to(outside)
    before = contents(outside)
    ended = call("apply", tree)
    assert ended.code == 0 and "submit-order absent" in ended.err
    assert "csrc/kernels: passed over, a link that leads nowhere or out of the checkout" in ended.err
    assert contents(outside) == before


def test_a_link_within_the_checkout_stays_a_link(tree: Path, mended: Tree) -> None:
    (tree / DEVICE).rename(tree / "csrc/real.cuh")
    (tree / DEVICE).symlink_to("../real.cuh")
    before = contents(tree)
    assert call("apply", tree).code == 0
    assert (tree / DEVICE).is_symlink() and (tree / "csrc/real.cuh").read_bytes() == mended[DEVICE]
    assert call("check", tree).code == 0
    assert call("revert", tree).code == 0 and contents(tree) == before


def test_links_in_circles(tree: Path, tmp_path: Path, mended: Tree) -> None:
    (tree / "csrc/circle.cuh").symlink_to("circle.cuh")
    (tree / "csrc/again").symlink_to("..")
    (tmp_path / "link").symlink_to(tree)
    ended = run("apply", tmp_path / "link", timeout=30)
    assert ended.code == 0 and "csrc/circle.cuh: passed over" in ended.err
    assert (tree / DEVICE).read_bytes() == mended[DEVICE]
    (tmp_path / "circle").symlink_to("circle")
    assert call("status", tmp_path / "circle").code == 2


def test_the_record_folder_as_a_link(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tree / ".deepep-patch").symlink_to(tmp_path / "outside")
    ended = call("apply", tree)
    assert ended.code == 5 and "Move it away" in ended.err and not list((tmp_path / "outside").iterdir())


def test_a_pipe_named_like_a_source(tree: Path) -> None:
    os.mkfifo(tree / "csrc/kernels/pipe.cuh")
    assert run("check", tree, timeout=30).code == 1


# The environment


DAMAGE = {
    "empty": b"",
    "cut short": b'{"schema": "deepep-patch/record/1", "fixes": [',
    "binary": NOISE[:1000],
    "a list": b"[]",
    "nested": b"[" * 100_000,
    "of a later release": b'{"schema": "deepep-patch/record/9"}',
    "with a path outside": b"""{"schema": "deepep-patch/record/1", "fixes": [], "commit": null, "nvshmem": null, "profile": "default",
        "files": [{"path": "../x", "sha256_before": "", "sha256_after": "", "hunks": []}]}""",
}


@pytest.mark.parametrize("record", DAMAGE.values(), ids=list(DAMAGE))
def test_a_damaged_record(record: bytes, tree: Path) -> None:
    call("apply", tree)
    (tree / ".deepep-patch/record.json").write_bytes(record)
    before = contents(tree)
    for command in COMMANDS:
        ended = call(command, tree)
        assert ended.code == 5 and ".deepep-patch/record.json" in ended.err and not ended.out
    assert contents(tree) == before


def test_a_record_of_a_fix_that_is_not_known_here(tree: Path) -> None:
    call("apply", tree)
    path = tree / ".deepep-patch/record.json"
    path.write_bytes(path.read_bytes().replace(b'"rc-layout"', b'"tomorrow"'))
    ended = call("revert", tree, "--select", "submit-order")
    assert ended.code == 5 and "tomorrow" in ended.err and "version" in ended.err


def test_a_checkout_that_another_process_has_locked(tree: Path, mended: Tree) -> None:
    script = "import sys; from patcher.transaction import locked\nwith locked(sys.argv[1]): print('here', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script, tree], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "here\n"
        before = contents(tree)
        for command in ("apply", "revert"):
            ended = run(command, tree)
            assert ended.code == 5 and f"pid {other.pid}" in ended.err and "Wait" in ended.err
        assert run("status", tree).code == 1  # reading needs no lock
        assert contents(tree) == before
        other.communicate("")
    assert call("apply", tree).code == 0 and contents(tree) == mended


def test_a_file_that_changes_between_plan_and_write(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = session.write

    def late(here: Session, goal: Target) -> None:
        (tree / DEVICE).write_bytes(b"// another commit\n")
        write(here, goal)

    monkeypatch.setattr(cli, "write", late)
    ended = call("apply", tree)
    assert ended.code == 5 and f"{DEVICE} was changed since it was read" in ended.err
    assert (tree / DEVICE).read_bytes() == b"// another commit\n" and not (tree / ".deepep-patch").exists()


def without_privilege() -> None:
    """Let a child of root meet permissions like anybody."""
    if os.geteuid() == 0:
        for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
            ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


def run_unprivileged(probe: Path, *arguments: str | Path) -> Ended:
    """A whole process that ``probe``, which nobody may use, is closed to."""
    opened = subprocess.run(["ls", probe] if probe.is_dir() else ["cat", probe], preexec_fn=without_privilege, capture_output=True)
    if opened.returncode == 0:
        pytest.skip("this user may read everything")
    return run(*arguments, preexec_fn=without_privilege)


@pytest.fixture
def close(tree: Path) -> Iterator[Callable[[str, int], Path]]:
    """Takes rights from a file or folder of the tree, for the time of a test."""
    closed: list[tuple[Path, int]] = []

    def change(name: str, mode: int) -> Path:
        path = tree / name
        closed.append((path, path.stat().st_mode))
        path.chmod(mode)
        return path

    yield change
    for path, mode in reversed(closed):
        path.chmod(mode)


@pytest.mark.parametrize("name", [DEVICE, "csrc/kernels"])
def test_code_that_may_not_be_read(name: str, tree: Path, close: Callable[[str, int], Path]) -> None:
    probe = close(name, 0)
    status = run_unprivileged(probe, "status", tree)
    assert status.code == 3 and f"not readable: {name}" in status.out and f"{name}" in status.err
    assert run_unprivileged(probe, "apply", tree).code == 3
    assert not (tree / ".deepep-patch").exists()


def test_a_checkout_that_may_not_be_read(tree: Path, close: Callable[[str, int], Path]) -> None:
    ended = run_unprivileged(close(".", 0), "status", tree)
    assert ended.code == 2 and "not readable" in ended.err


@pytest.mark.parametrize("name", [".", "csrc/kernels"])
def test_a_folder_that_may_not_be_written(name: str, tree: Path, close: Callable[[str, int], Path]) -> None:
    before = contents(tree)
    probe = tree / "README.md"
    probe.chmod(0)
    close(name, 0o555)
    ended = run_unprivileged(probe, "apply", tree)
    probe.chmod(0o644)
    assert ended.code == 5 and "Nothing was changed" in ended.err
    assert contents(tree) == before and not (tree / ".deepep-patch").exists()


def test_a_record_that_may_not_be_read(tree: Path, close: Callable[[str, int], Path]) -> None:
    call("apply", tree)
    now = contents(tree)
    probe = close(".deepep-patch/record.json", 0)
    for command in ("status", "apply", "revert"):
        ended = run_unprivileged(probe, command, tree)
        assert ended.code == 5 and "record.json" in ended.err and "no permission" in ended.err
    assert contents(tree) == now


def on_own_file_system(options: str, then: str, tmp_path: Path) -> tuple[Ended, Tree]:
    """Apply to the sample on a small file system of its own, which nothing outlives."""
    place, kept = tmp_path / "disk", tmp_path / "kept"
    place.mkdir()
    script = (
        f"mount -t tmpfs -o {options} none disk && cp -r sample/. disk && {then}"
        ' || exit 99; "$0" -m patcher apply disk; code=$?; cp -a disk kept; exit $code'
    )
    shutil.copytree(SAMPLE, tmp_path / "sample", ignore=shutil.ignore_patterns("__pycache__"))
    if shutil.which("unshare") is None:
        pytest.skip("no unshare here")
    command = ["unshare", "--mount", "sh", "-c", script, sys.executable]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    if not kept.exists():
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    assert not (kept / ".deepep-patch").exists()
    return checked(Ended(done.returncode, done.stdout, done.stderr)), contents(kept)


@pytest.mark.parametrize(
    ("options", "then", "said"),
    [
        ("size=1m", "mount -o remount,ro disk", "read-only"),
        ("size=40k", "true", "not enough space"),
        ("size=1m,nr_inodes=14", "true", "disk is full"),
    ],
    ids=["read-only", "little space", "no inodes"],
)
def test_a_disk_that_takes_nothing(options: str, then: str, said: str, tmp_path: Path) -> None:
    ended, after = on_own_file_system(options, then, tmp_path)
    assert ended.code == 5 and said in ended.err and after == contents(tmp_path / "sample")


@pytest.mark.parametrize(("number", "said"), [(28, "the disk is full"), (30, "read-only"), (122, "quota"), (5, "Input/output error")])
def test_a_disk_that_fails_while_written(number: int, said: str, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(tree)
    create, made = transaction._create, itertools.count()

    def failing(path: str, *rest: Any, **more: Any) -> None:
        if next(made) == 4:
            raise OSError(number, os.strerror(number), path)
        create(path, *rest, **more)

    monkeypatch.setattr(transaction, "_create", failing)
    ended = call("apply", tree)
    assert ended.code == 5 and said in ended.err and "Nothing was changed" in ended.err
    assert contents(tree) == before and not (tree / ".deepep-patch").exists()


def test_a_result_that_nobody_can_take(tree: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run([sys.executable, "-m", "patcher", "status", tree], stdout=full, stderr=subprocess.PIPE, env=environment())
    assert done.returncode == 5 and b"Traceback" not in done.stderr and b"the result can't be written" in done.stderr
    with subprocess.Popen(
        [sys.executable, "-m", "patcher", "diff", tree], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as one:
        assert one.stdout is not None and one.stderr is not None
        one.stdout.close()
        assert b"Traceback" not in one.stderr.read()


@pytest.mark.parametrize("dropped", ["HOME", "PATH", "LANG"])
def test_without_a_variable(dropped: str, tree: Path, mended: Tree) -> None:
    env = {k: v for k, v in environment().items() if k != dropped}
    assert run("apply", tree, env=env).code == 0 and contents(tree) == mended


def test_in_an_empty_environment(new: Callable[..., Path]) -> None:
    tree = new("caf\u00e9")
    for more in ({}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}):
        env = {"PYTHONPATH": str(ROOT), **more}
        assert run("status", os.fsencode(tree), env=env).code == 1
        missing = run("status", os.fsencode(tree) + b"/no", env=env)
        assert missing.code == 2


@pytest.mark.parametrize("name", [b"with spaces", b"caf\xc3\xa9", b"not \xff utf-8", b"-dash", b"$HOME", b"a\nb"], ids=ascii)
def test_a_checkout_with_an_odd_name(name: bytes, tree: Path, mended: Tree) -> None:
    place = os.path.join(os.fsencode(tree.parent), name)
    os.rename(tree, place)
    odd = named("csrc/kernels/\udcfe \udcff.cuh")
    odd(Path(os.fsdecode(place)))
    assert run("status", place).code == 1
    assert run("status", place, "--format", "json").code == 1
    assert run("apply", place).code == 0
    assert sorted(contents(Path(os.fsdecode(place))).values()) == sorted(mended.values())
    assert run("check", b"./" + name, cwd=tree.parent).code == 0
    assert run("revert", place).code == 0


# Interrupted


@pytest.mark.slow
def test_interrupts_at_any_moment_leave_the_tree_before_or_after(tree: Path, mended: Tree) -> None:
    before = contents(tree)
    begun = time.monotonic()
    assert run("apply", tree).code == 0
    duration = time.monotonic() - begun
    call("revert", tree)
    chance = random.Random(11)
    killed = (130, -signal.SIGINT)  # Python may end by the signal itself where it comes as the run winds up: 130 to a shell
    for n in range(20):
        with subprocess.Popen(
            [sys.executable, "-m", "patcher", "apply", tree], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
        ) as child:
            time.sleep(duration * chance.uniform(0.4, 1.05))
            child.send_signal((signal.SIGINT, signal.SIGTERM)[n % 2])
            _, told = child.communicate(timeout=30)
        assert ", in run\n" not in told, told  # a traceback of Python's own start-up is not ours
        now = contents(tree)
        assert now in (before, mended), told
        if "the checkout is as it was" in told:
            assert child.returncode in killed and now == before
        if "the change was complete" in told:
            assert child.returncode in killed and now == mended
        assert call("apply", tree).code == 0
        assert contents(tree) == mended
        assert call("revert", tree).code == 0
        assert contents(tree) == before and not (tree / ".deepep-patch").exists()


def test_an_interrupt_says_how_the_run_ended(tree: Path, mended: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    before, write = contents(tree), session.write

    def too_early(here: Session, goal: Target) -> None:
        raise KeyboardInterrupt

    def too_late(here: Session, goal: Target) -> None:
        write(here, goal)
        raise KeyboardInterrupt

    def again_while_cleaning_up(here: Session, goal: Target) -> None:
        calls, remove = itertools.count(), transaction._remove_leftovers
        with monkeypatch.context() as patch:
            patch.setattr(transaction, "_remove_leftovers", lambda base: too_early(here, goal) if next(calls) else remove(base))
            write(here, goal)

    monkeypatch.setattr(cli, "write", too_early)
    ended = call("apply", tree)
    assert (ended.code, ended.err) == (130, "interrupted: the checkout is as it was\n") and contents(tree) == before
    monkeypatch.setattr(cli, "write", too_late)
    ended = call("apply", tree)
    assert (ended.code, ended.err) == (130, "interrupted: the change was complete\n") and contents(tree) == mended
    call("revert", tree)
    monkeypatch.setattr(cli, "write", again_while_cleaning_up)
    ended = call("apply", tree)
    assert (ended.code, ended.err) == (130, "interrupted: the change was complete\n") and contents(tree) == mended
    assert not (tree / ".deepep-patch/backup").exists()


def test_a_killed_run_is_put_right_by_the_next(tree: Path, mended: Tree) -> None:
    before = contents(tree)
    script = (
        "import os, signal, sys; from patcher import cli, transaction\n"
        "transaction._Run._settle = lambda self: os.kill(os.getpid(), signal.SIGKILL)\n"
        "cli.main(['apply', sys.argv[1]])"
    )
    killed = subprocess.run([sys.executable, "-c", script, tree], env=environment())
    assert killed.returncode == -signal.SIGKILL
    assert "interrupted" in call("status", tree).err
    ended = call("revert", tree)
    assert ended.code == 0 and "interrupted run" in ended.err
    assert contents(tree) in (before, mended)
    assert call("apply", tree).code == 0 and contents(tree) == mended
    assert call("revert", tree).code == 0 and contents(tree) == before
