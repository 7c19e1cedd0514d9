"""Time deepep-patch beside ast-grep, Coccinelle and git apply, as whole processes on copies of one checkout.

The tools take turns within every round, so a noisy moment hits all of them; each turn gets a fresh copy, made
outside the timing. Read the ratios: seconds depend on the machine.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

RULES = Path(__file__).resolve().parent / "rules"
TARGETS = ("csrc/kernels/legacy/ibgda_device.cuh", "csrc/kernels/ibgda_device.cuh")
SUFFIXES = {".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp"}
CHECKOUT = "CHECKOUT"  # stands for the copy's path in a command
RSS_UNIT = 1 if sys.platform == "darwin" else 1024


@dataclass(frozen=True)
class Finished:
    """A process that ended."""

    code: int
    seconds: float
    rss: int
    stdout: bytes
    stderr: str


@dataclass
class Contender:
    """A command to time, what it should do, and what was measured."""

    name: str
    command: Sequence[str]
    writes: bool
    codes: frozenset[int] = frozenset({0})
    inside: bool = True  # runs in the copy, not where run.py was started
    silent: bool = False  # may print nothing
    problem: str | None = None
    samples: list[Finished] = field(default_factory=list)

    def judge(self, end: Finished, changed: bool) -> str | None:
        """Why this run is no measurement, or None."""
        said = (end.stderr.strip().splitlines() or ["no message"])[-1]
        if end.code not in self.codes:
            return f"failed, exit {end.code}: {said}"
        if changed != self.writes:
            return "failed: changed the file" if changed else "failed: left the file as it was"
        if not (self.writes or self.silent or end.stdout.strip()):
            return f"failed, exit {end.code} and nothing printed: {said}"
        return None


def execute(command: Sequence[str], cwd: Path | None, scratch: Path) -> Finished:
    """Run a command to its end; the clock covers the start and the exit, files take the output."""
    out, err = scratch / "stdout", scratch / "stderr"
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(scratch)}
    with out.open("wb") as stdout, err.open("wb") as stderr:
        start = time.perf_counter()
        try:
            child = subprocess.Popen(command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr)
        except OSError as error:
            return Finished(127, 0, 0, b"", str(error))
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - start
    child.returncode = os.waitstatus_to_exitcode(status)
    return Finished(child.returncode, seconds, usage.ru_maxrss * RSS_UNIT, out.read_bytes(), err.read_text(errors="replace"))


def version(command: Sequence[str], scratch: Path) -> str | None:
    """The first line of what `--version` prints."""
    end = execute([*command, "--version"], None, scratch)
    return end.stdout.decode(errors="replace").strip().split("\n")[0] if end.code == 0 else None


def ours(tool: Sequence[str], options: Sequence[str]) -> Iterator[Contender]:
    """deepep-patch: status may answer with any state, apply must settle the checkout."""
    yield Contender("deepep-patch status", [*tool, "status", CHECKOUT, *options], False, frozenset({0, 1, 3}), inside=False)
    yield Contender("deepep-patch apply", [*tool, "apply", CHECKOUT, *options], True, inside=False)


def ast_grep_path() -> str | None:
    """Where ast-grep is: beside this Python, or on the PATH."""
    return shutil.which("ast-grep", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))


def ast_grep() -> Iterator[Contender]:
    """Three rules over csrc; a scan that finds something exits 1."""
    found = ast_grep_path()
    scan = [found or "ast-grep", "scan", "-c", str(RULES / "ag" / "sgconfig.yml"), "csrc"]
    missing = None if found else "skipped: not installed (pip install ast-grep-cli)"
    yield Contender("ast-grep find", scan, False, frozenset({1}), problem=missing)
    yield Contender("ast-grep apply", [*scan, "-U"], True, problem=missing)


def coccinelle(target: str, groups: Path) -> Iterator[Contender]:
    """One semantic patch: on the one file, and on all of csrc. (`--dir` knows no .cuh, so the files are listed.)"""
    spatch = [sys.executable, "-m", "cvehound_spatch", "--c++=17", "--sp-file", str(RULES / "cocci" / "full.cocci")]
    tree = ["--file-groups", str(groups)]
    missing = None if importlib.util.find_spec("cvehound_spatch") else "skipped: not installed (pip install cvehound-spatch)"
    yield Contender("spatch find, one file", [*spatch, target], False, problem=missing)
    yield Contender("spatch apply, one file", [*spatch, "--in-place", target], True, problem=missing)
    yield Contender("spatch find, csrc", [*spatch, *tree], False, problem=missing)
    yield Contender("spatch apply, csrc", [*spatch, "--in-place", *tree], True, problem=missing)


def git_apply(checkout: Path, tool: Sequence[str], options: Sequence[str], scratch: Path) -> Contender:
    """The line tool, fed with the diff that deepep-patch itself prints."""
    diff = scratch / "ours.diff"
    end = execute([*tool, "diff", str(checkout), *options], None, scratch)
    diff.write_bytes(end.stdout)
    missing = None
    if not shutil.which("git"):
        missing = "skipped: not installed (git)"
    elif end.code not in (0, 1) or not end.stdout.strip():
        missing = f"skipped: deepep-patch diff gave none, exit {end.code}"
    return Contender("git apply", ["git", "apply", str(diff)], True, problem=missing)


def turn(contender: Contender, checkout: Path, target: str, scratch: Path) -> Finished:
    """One run on a fresh copy; a run that did not do its work disqualifies the contender."""
    copy = scratch / "copy"
    shutil.copytree(checkout, copy, symlinks=True)
    try:
        command = [str(copy) if word == CHECKOUT else word for word in contender.command]
        end = execute(command, copy if contender.inside else None, scratch)
        changed = (copy / target).read_bytes() != (checkout / target).read_bytes()
    finally:
        shutil.rmtree(copy)
    contender.problem = contender.judge(end, changed)
    return end


def race(contenders: list[Contender], checkout: Path, target: str, runs: int, scratch: Path) -> None:
    """Round 0 warms the caches and is not counted; later rounds start one contender further each."""
    for number in range(runs + 1):
        first = number % len(contenders)
        for contender in contenders[first:] + contenders[:first]:
            if contender.problem:
                continue
            end = turn(contender, checkout, target, scratch)
            if number and not contender.problem:
                contender.samples.append(end)


def report(contenders: list[Contender]) -> list[dict[str, object]]:
    """Figures for each contender; the ratio is to ast-grep doing the same kind of work."""

    def middle(contender: Contender) -> float:
        return median(sample.seconds for sample in contender.samples)

    bases = {c.writes: middle(c) for c in contenders if c.name.startswith("ast-grep") and not c.problem}
    rows: list[dict[str, object]] = []
    for contender in contenders:
        row: dict[str, object] = {"name": contender.name, "writes": contender.writes, "problem": contender.problem}
        if not contender.problem:
            base = bases.get(contender.writes)
            row |= {
                "min_s": min(sample.seconds for sample in contender.samples),
                "median_s": middle(contender),
                "ratio": middle(contender) / base if base else None,
                "peak_rss_bytes": max(sample.rss for sample in contender.samples),
                "seconds": [sample.seconds for sample in contender.samples],
            }
        rows.append(row)
    return rows


def table(rows: list[dict[str, object]], floor: int) -> Iterator[str]:
    """The figures as text."""
    yield f"{'':24}{'min ms':>9}{'median ms':>11}{'x ast-grep':>12}{'peak MiB':>10}"
    for writes, title in ((False, "reads"), (True, "writes")):
        yield title
        for row in rows:
            if row["writes"] is not writes:
                continue
            if row["problem"]:
                yield f"  {row['name']:22}  {row['problem']}"
                continue
            low, mid, ratio, rss = row["min_s"], row["median_s"], row["ratio"], row["peak_rss_bytes"]
            assert isinstance(low, float) and isinstance(mid, float) and isinstance(rss, int)
            times = f"{ratio:.2f}" if isinstance(ratio, float) else "-"
            memory = f"{rss / 2**20:.0f}" if rss > floor else f"<{floor / 2**20:.0f}"
            yield f"  {row['name']:22}{low * 1e3:9.1f}{mid * 1e3:11.1f}{times:>12}{memory:>10}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, required=True, help="a DeepEP tree that needs the fixes; only copied")
    parser.add_argument("--runs", type=int, default=20, help="timed rounds (default 20)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples here")
    parser.add_argument("--tool", default=shlex.join([sys.executable, "-m", "patcher"]), help="how to call deepep-patch")
    parser.add_argument("--options", default="", help="more options for it, as in --options='--nvshmem 3.4.5'")
    arguments = parser.parse_args()
    checkout: Path = arguments.checkout.resolve()
    target = next((name for name in TARGETS if (checkout / name).is_file()), None)
    if target is None or arguments.runs < 1:
        parser.error(f"{checkout} has no {' or '.join(TARGETS)}" if target is None else "--runs must be 1 or more")
    tool, options = shlex.split(arguments.tool), shlex.split(arguments.options)

    with tempfile.TemporaryDirectory(prefix="deepep-patch-benchmark-") as name:
        scratch = Path(name).resolve()
        groups = scratch / "groups"  # each file a group of its own
        sources = (path.relative_to(checkout) for path in sorted((checkout / "csrc").rglob("*")) if path.suffix in SUFFIXES)
        groups.write_text("".join(f"{path}\n\n" for path in sources))
        contenders = [
            Contender("python -c pass", [sys.executable, "-c", "pass"], False, silent=True),
            *ours(tool, options),
            *ast_grep(),
            *coccinelle(target, groups),
            git_apply(checkout, tool, options, scratch),
        ]
        rivals = [["git"], [ast_grep_path() or "ast-grep"], [sys.executable, "-m", "cvehound_spatch"]]
        versions = [line for command in rivals if (line := version(command, scratch))]
        race(contenders, checkout, target, arguments.runs, scratch)

    rows = report(contenders)
    # A child starts as a copy of this process, so its peak can't be seen below ours (the kernel's count is up to 1 MiB off).
    floor = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT + 2**20
    machine: dict[str, object] = {
        "system": platform.platform(),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "rivals": versions,
    }
    print("\n".join(table(rows, floor)))
    print(f"{arguments.runs} rounds, {target}; {machine['system']}, {machine['cpus']} CPUs, Python {machine['python']}")
    print("; ".join(versions))
    if arguments.json:
        document = {"schema": "deepep-patch/benchmark/1", "runs": arguments.runs, "target": target, "machine": machine, "tools": rows}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if any((contender.problem or "").startswith("failed") for contender in contenders) else 0


if __name__ == "__main__":
    sys.exit(main())
