"""The 36 versions of the file, before and after apply, compiled against NVSHMEM, and their PTX judged by what it does.

Needs ``DEEPEP_REPO`` (see test_history), ``nvcc`` (PATH, else CUDA_HOME) and ``infiniband/mlx5dv.h`` (libibverbs-dev).  NVSHMEM's
headers come from ``NVSHMEM_HEADERS``, a folder with ``VERSION/nvidia/nvshmem/include``, or from the package index.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import registry_files as registry
from audits import after
from git_objects import GitTree, Repository
from patcher.engine import plan
from patcher.model import State
from patcher.protocol import PROXY_SLOT_SINCE, QP_MAJOR_SINCE, SUPPORTED, Version
from patcher.tree import Overlay
from test_history import DEVICE, FIXES, REPO, VERSIONS, kept_in, needs_repo, none_of

NVSHMEM = tuple(Version(*v) for v in ((3, 3, 9), (3, 4, 5), (3, 8, 0)))
"""One release of each form of the protocol."""

PULL_677 = ("d8d4aaaa", "2d43ccf3")
"""The only versions that publish before apply."""

UNIT = """\
#include "ibgda_device.cuh"
using namespace {namespace};
extern "C" __global__ void unit_submit_always(nvshmemi_ibgda_device_qp_t* qp, uint64_t base, uint32_t n) {{
    ibgda_submit_requests<true>(qp, base, n);
}}
extern "C" __global__ void unit_submit_batched(nvshmemi_ibgda_device_qp_t* qp, uint64_t base, uint32_t n, int message) {{
    ibgda_submit_requests<false>(qp, base, n, message);
}}
extern "C" __global__ void unit_get_rc(int pe, int id, nvshmemi_ibgda_device_qp_t** out) {{ *out = ibgda_get_rc(pe, id); }}
"""
QUIET_OF_PEER = 'extern "C" __global__ void unit_quiet(int pe, int id) { nvshmemi_ibgda_quiet(pe, id); }\n'
QUIET_OF_QP = 'extern "C" __global__ void unit_quiet(nvshmemi_ibgda_device_qp_t* qp) { ibgda_quiet(qp); }\n'
SUBMITS = ("unit_submit_always", "unit_submit_batched")

Measured = Callable[[str], None]
pytestmark = needs_repo


@dataclass(frozen=True)
class Toolkit:
    """The compiler and the include folders that it needs."""

    nvcc: str
    includes: tuple[str, ...]


@pytest.fixture(scope="module")
def toolkit(tmp_path_factory: pytest.TempPathFactory) -> Toolkit:
    """nvcc; skips where it, or a header that NVSHMEM's need, is not there."""
    homes = [os.environ[v] for v in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(v)]
    nvcc = shutil.which("nvcc") or next((n for h in homes if (n := shutil.which("nvcc", path=os.path.join(h, "bin")))), None)
    if nvcc is None:
        pytest.skip("no nvcc on PATH or in CUDA_HOME")
    probe = tmp_path_factory.mktemp("probe") / "probe.cu"
    probe.write_text("#include <infiniband/mlx5dv.h>\n")
    if subprocess.run([nvcc, "-E", str(probe)], capture_output=True).returncode != 0:
        pytest.skip("infiniband/mlx5dv.h, which NVSHMEM's headers include, is not installed (Debian: libibverbs-dev)")
    told = subprocess.run([nvcc, "--dryrun", "-E", str(probe)], capture_output=True, text=True).stderr
    tops = re.findall(r"^#\$ TOP=(.+)$", told, re.M)
    return Toolkit(nvcc, tuple(p for top in tops[:1] if os.path.isdir(p := os.path.join(top.strip(), "include", "cccl"))))


@pytest.fixture(scope="module")
def headers() -> dict[Version, str]:
    """NVSHMEM's include folders by release."""
    base = os.environ.get("NVSHMEM_HEADERS")
    found = {}
    for version in NVSHMEM:
        if base:
            folder: Path | None = Path(base, str(version))
        elif os.environ.get("DEEPEP_PATCH_OFFLINE") == "1":
            pytest.skip("NVSHMEM_HEADERS is not set, and DEEPEP_PATCH_OFFLINE=1")
        else:
            folder = registry.headers("nvidia-nvshmem-cu12", str(version), "nvidia/nvshmem/include/")
        assert folder is not None and (folder / "nvidia/nvshmem/include").is_dir(), f"{base or 'the index'} has no NVSHMEM {version}"
        found[version] = str(folder / "nvidia/nvshmem/include")
    return found


@dataclass(frozen=True)
class Instruction:
    """An instruction of PTX: its name and its modifiers, in whatever order the compiler writes them."""

    name: str
    modifiers: frozenset[str]

    @property
    def scope(self) -> str:
        """cta, gpu or sys; a ``membar`` has its own words for them, and an atomic without one has gpu."""
        found = self.modifiers & {"cta", "cluster", "gpu", "sys", "gl"}
        return {"gl": "gpu"}.get(next(iter(found), "gpu"), next(iter(found), "gpu"))

    @property
    def fence(self) -> bool:
        return self.name == "membar" or (self.name == "fence" and "proxy" not in self.modifiers)

    def atomic(self, operation: str) -> bool:
        """Whether it is a 64-bit atomic of this kind."""
        return self.name in ("atom", "red") and operation in self.modifiers and bool(self.modifiers & {"u64", "s64", "b64"})


@dataclass(frozen=True)
class Compiled:
    """The entries of a unit, or why it did not compile."""

    entries: dict[str, str] = field(default_factory=dict)
    error: str = ""

    def instructions(self, entry: str) -> list[Instruction]:
        """An entry's instructions in text order."""
        found = []
        for line in self.entries[entry].splitlines():
            match = re.match(r"\s*(?:@!?%\w+\s+)?([a-z]\w*)((?:\.\w+(?:::\w+)*)*)[\s;]", line)
            if match:
                found.append(Instruction(match[1], frozenset(match[2].split(".")[1:])))
        return found


def compiled(toolkit: Toolkit, tree: Path, device: str, version: Version, include: str) -> Compiled:
    """The unit of ours that includes a tree's device file."""
    text = (tree / device).read_text("utf-8", "replace")
    namespace = re.search(r"^namespace\s+([\w:]+)\s*\{", text, re.M)
    assert namespace, f"{device}: no namespace"
    unit = UNIT.format(namespace=namespace[1])
    if re.search(r"\bnvshmemi_ibgda_quiet\s*\(\s*int", text):
        unit += QUIET_OF_PEER
    elif re.search(r"\bibgda_quiet\s*\(\s*nvshmemi", text):
        unit += QUIET_OF_QP
    folder = tree / os.path.dirname(device)
    source, ptx = folder / f"unit-{version}.cu", folder / f"unit-{version}.ptx"
    source.write_text(unit)
    wanted = [*toolkit.includes, str(folder), str(tree / "csrc/kernels"), str(tree / "csrc"), str(tree / "deep_ep/include"), include]
    flags = ["-ptx", "-arch=sm_90", "-std=c++17", "-rdc=true", "--expt-relaxed-constexpr", "-DNDEBUG"]  # asserts hold line numbers
    command = [toolkit.nvcc, *flags, *(f"-I{i}" for i in wanted)]
    done = subprocess.run([*command, str(source), "-o", str(ptx)], capture_output=True, text=True)
    if done.returncode != 0:
        lines = (done.stderr + done.stdout).splitlines()
        told = next((line for line in lines if "error" in line), lines[0] if lines else "no message")
        return Compiled(error=told.replace(f"{tree}/", "").replace(f"{include}/", ""))
    return Compiled(entries(ptx.read_text()))


def entries(ptx: str) -> dict[str, str]:
    """The bodies of the entry points."""
    found = {}
    for match in re.finditer(r"^\s*\.visible \.entry (\w+)\(", ptx, re.M):
        start = ptx.index("{", match.end())
        depth, at = 1, start + 1
        while depth:
            depth += {"{": 1, "}": -1}.get(ptx[at], 0)
            at += 1
        found[match[1]] = ptx[start:at]
    return found


@dataclass(frozen=True)
class Case:
    """One version of the file against one NVSHMEM: as it is, mended for all releases, and for this one (None: not tried)."""

    blob: str
    nvshmem: Version
    before: Compiled
    mended: Compiled
    alone: Compiled | None

    def __str__(self) -> str:
        return f"{self.blob} with NVSHMEM {self.nvshmem}"


@pytest.fixture(scope="module")
def cases(toolkit: Toolkit, headers: dict[Version, str], tmp_path_factory: pytest.TempPathFactory, measured: Measured) -> list[Case]:
    """All of them, compiled on all cores."""
    assert REPO
    repository = Repository(REPO)
    base = tmp_path_factory.mktemp("trees")
    started = time.monotonic()

    def start(tree: GitTree | Overlay, folder: Path, device: str, version: Version) -> Future[Compiled]:
        if not folder.exists():
            write(tree, folder)
        return pool.submit(compiled, toolkit, folder, device, version, headers[version])

    waiting = []
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for number, (blob, commit) in enumerate(kept_in(repository).items()):
            tree = GitTree(repository, commit)
            (device,) = (p for p, b in tree.files.items() if b == blob and p.endswith(DEVICE))
            mended = after(tree, plan(tree, FIXES, SUPPORTED))
            folder = base / blob[:8]
            for version in NVSHMEM:
                before = start(tree, folder / "before", device, version)
                both = start(mended, folder / "mended", device, version)
                alone = None
                if version is NVSHMEM[number % len(NVSHMEM)]:  # one release for each version: all would take minutes more
                    only = plan(tree, FIXES, (version,))
                    if not any(s.state is State.BLOCKED for s in only.before):
                        alone = start(after(tree, only), folder / f"for-{version}", device, version)
                waiting.append((blob[:8], version, before, both, alone))
        found = [Case(blob, version, a.result(), b.result(), c.result() if c else None) for blob, version, a, b, c in waiting]
    repository.close()
    shutil.rmtree(base, ignore_errors=True)
    measured(summary(found, time.monotonic() - started))
    return found


def write(tree: GitTree | Overlay, folder: Path) -> None:
    """Put a tree's sources on disk."""
    for path in tree.paths():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(tree.read(path))


def counts(unit: Compiled) -> Counter[str]:
    """What the two submit entries do, taken together."""
    found: Counter[str] = Counter()
    for entry in SUBMITS:
        for item in unit.instructions(entry):
            found["publishes, max.sys"] += item.atomic("max") and item.scope == "sys"
            found["advances, max.gpu"] += item.atomic("max") and item.scope == "gpu"
            found["turns, cas.64"] += item.atomic("cas")
            found["fences.sys"] += item.fence and item.scope == "sys"
            found["fences.gpu"] += item.fence and item.scope == "gpu"
            found["fences.cta"] += item.fence and item.scope == "cta"
    return found


def summary(cases: list[Case], seconds: float) -> str:
    """Which compile, and what the submit entries do."""
    lines = [f"compiled with nvcc, {len({c.blob for c in cases})} versions of ibgda_device.cuh: {seconds:.0f} s"]
    for version in NVSHMEM:
        mine = [c for c in cases if c.nvshmem == version]
        good = [c for c in mine if not c.before.error]
        lines.append(
            f"  NVSHMEM {version}: {len(good)} of {len(mine)} compile before apply, {sum(not c.mended.error for c in mine)} after, "
            f"{sum(c.alone is not None and not c.alone.error for c in mine)} mended for this release only"
        )
        errors: dict[str, list[str]] = defaultdict(list)
        for case in mine:
            if case.before.error:
                errors[re.sub(r"\(\d+\)", "", case.before.error)].append(case.blob)
        lines += [f"    before apply, {', '.join(blobs)}: {error}" for error, blobs in errors.items()]
        for title, units in (("before", [c.before for c in good]), ("after", [c.mended for c in good if not c.mended.error])):
            total = sum(map(counts, units), Counter())
            lines.append(f"    {title:6} in {2 * len(units)} submit entries: " + ", ".join(f"{total[k]} {k}" for k in sorted(total)))
    return "\n".join(lines)


def both(cases: list[Case]) -> list[Case]:
    """Those that compile before and after."""
    found = [c for c in cases if not c.before.error and not c.mended.error]
    assert found, "nothing compiles"
    return found


def test_what_compiles_before_compiles_after(cases: list[Case]) -> None:
    none_of([f"{c}: {c.mended.error}" for c in cases if c.mended.error and not c.before.error])
    none_of([f"{c}, mended for it only: {c.alone.error}" for c in cases if c.alone and c.alone.error and not c.before.error])
    for version in NVSHMEM:
        assert any(c.nvshmem == version and not c.before.error for c in cases), f"no version compiles with NVSHMEM {version}"


def test_the_publish_is_there_since_the_slot_is(cases: list[Case]) -> None:
    problems = []
    for case in both(cases):
        before, now = counts(case.before), counts(case.mended)
        published = now["publishes, max.sys"]
        wanted = len(SUBMITS) if case.nvshmem >= PROXY_SLOT_SINCE else 0  # one in each submit entry
        if published != wanted:
            problems.append(f"{case}: {published} maxima of system scope, {wanted} were expected")
        if bool(before["publishes, max.sys"]) != (case.blob in PULL_677):
            problems.append(f"{case}: {before['publishes, max.sys']} maxima of system scope before apply")
        if wanted and now["advances, max.gpu"] < 2 * len(SUBMITS):  # the doorbell's path and the async one
            problems.append(f"{case}: `prod_idx` is advanced in {now['advances, max.gpu']} places only")
        if now["turns, cas.64"] != before["turns, cas.64"]:
            problems.append(f"{case}: {before['turns, cas.64']} waits became {now['turns, cas.64']}")
    none_of(problems)


def test_the_fences_reach_the_nic(cases: list[Case]) -> None:
    problems = []
    for case in both(cases):
        for entry in SUBMITS:
            was, now = case.before.instructions(entry), case.mended.instructions(entry)
            if any(i.fence and i.scope == "sys" for i in was):
                problems.append(f"{case}: {entry} has a fence of system scope before apply")
            turn = next(n for n, i in enumerate(now) if i.atomic("cas"))
            earlier = {i.scope for i in now[:turn] if i.fence}
            if not {"gpu", "sys"} <= earlier:
                problems.append(f"{case}: {entry} has fences of {earlier or 'no'} scope before the wait; gpu and sys were expected")
            later = [i for i in now[turn + 1 :] if i.fence or i.name in ("atom", "red", "st")]
            if not later or not later[0].fence:
                problems.append(f"{case}: in {entry} the first thing after the wait is {later[0] if later else 'nothing'}, no fence")
            if sum(i.scope == "sys" and (i.fence or (i.name == "st" and "release" in i.modifiers)) for i in now[turn + 1 :]) < 2:
                problems.append(f"{case}: {entry} has too few fences of system scope for the doorbell record and the doorbell")
    none_of(problems)


def test_the_qp_is_looked_up_by_the_layout(cases: list[Case]) -> None:
    problems = []
    for case in both(cases):
        text = case.mended.entries["unit_get_rc"]
        by_pes = bool(re.search(r"\bnvshmemi_device_state_d\b", text))  # where the number of PEs is
        if by_pes != (case.nvshmem >= QP_MAJOR_SINCE):
            problems.append(f"{case}: the index {'uses' if by_pes else 'does not use'} the number of PEs")
        had, has = (any(i.name == "rem" for i in unit.instructions("unit_get_rc")) for unit in (case.before, case.mended))
        if had and not has:
            problems.append(f"{case}: `id` was reduced by the number of QPs, and no longer is")
    none_of(problems)


def test_guards_and_one_release_give_the_same_code(cases: list[Case]) -> None:
    # What the preprocessor leaves of the tree for all releases is what --nvshmem writes for one.
    problems = []
    for case in both(cases):
        if case.alone is not None and not case.alone.error:
            problems += [f"{case}: {entry} differs" for entry, text in case.mended.entries.items() if case.alone.entries[entry] != text]
    none_of(problems)


def test_the_unit_covers_every_version(cases: list[Case]) -> None:
    assert {c.blob for c in cases} >= set(VERSIONS)
    quiet = {c.blob for c in cases if "unit_quiet" in c.before.entries}
    assert len(quiet & set(VERSIONS)) >= 20, "fewer versions with a quiet than the history has"
