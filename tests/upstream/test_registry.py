"""NVSHMEM's own headers, and the source distributions that call themselves DeepEP, from the package index.

Each NVSHMEM is judged by its own protocol: it is the reference, so everything that a default fix asks must hold there.
Needs the network; fails where the index can't be reached, unless DEEPEP_PATCH_OFFLINE=1 says that this is meant.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import registry_files as registry
from patcher.errors import Exit
from patcher.fix import select
from patcher.model import State, Verdict
from patcher.protocol import PROXY_SLOT_SINCE, QP_MAJOR_SINCE, RELEASES, SUPPORTED, Version
from patcher.report import exit_code
from patcher.session import look, open_session

pytestmark = pytest.mark.skipif(os.environ.get("DEEPEP_PATCH_OFFLINE") == "1", reason="DEEPEP_PATCH_OFFLINE=1")

NVSHMEM = "nvidia-nvshmem-cu12"
HEADERS = "nvidia/nvshmem/include/"
NEEDED = ("3.3.24", "3.4.5", "3.5.19")
"""One release of each form of the protocol, on its border: judged even where the server has no ranges."""


def headers_of(version: Version) -> Path:
    """The headers' folder of a release; skips a release that only a server with ranges could give."""
    folder = registry.headers(NVSHMEM, str(version), HEADERS)
    if folder is None:
        assert str(version) not in NEEDED, f"the index has no ranges, and the wheel of {version} is too large to fetch whole"
        pytest.skip(f"the index has no ranges; whole wheels are fetched for {', '.join(NEEDED)} only")
    return folder


def test_the_index_has_all_releases_that_the_protocol_names() -> None:
    listed = {f.name.split("-")[1] for f in registry.files_of(NVSHMEM)}
    assert {str(v) for v in RELEASES} <= listed
    newer = sorted(str(v) for t in listed if (v := Version.parse(t)) is not None and v > RELEASES[-1])
    if newer:
        print(f"newer than any release that the protocol was read from: {', '.join(newer)}")


@pytest.mark.parametrize("version", RELEASES, ids=str)
def test_nvshmem_keeps_its_own_protocol(version: Version) -> None:
    session = open_session(str(headers_of(version)), None, "default")
    assert (session.checkout.kind, session.checkout.nvshmem, session.versions) == ("nvshmem", version, (version,))
    seen = look(session, select())
    states = {s.id: (s.state.value, s.reason, [j for j in s.judgements if j.verdict is not Verdict.HOLDS]) for s in seen.before}
    assert states == {fix.id: ("upstream", None, []) for fix in select()}
    assert not seen.changes and exit_code(seen.before) is Exit.SETTLED


@pytest.mark.parametrize("border", [PROXY_SLOT_SINCE, QP_MAJOR_SINCE], ids=str)
def test_nvshmem_does_not_keep_the_protocol_of_the_other_side(border: Version) -> None:
    # Judged as the release before the border, the first headers after it must fail: the judgement is no rubber stamp.
    before, since = max(v for v in RELEASES if v < border), min(v for v in RELEASES if v >= border)
    wanted = {PROXY_SLOT_SINCE: "submit-order", QP_MAJOR_SINCE: "rc-layout"}[border]
    for tree, judged in ((since, before), (before, since)):
        session = open_session(str(headers_of(tree)), str(judged), "default")
        states = {s.id: s.state for s in look(session, select()).before}
        assert not states[wanted].settled, f"NVSHMEM {tree} judged as {judged}"


def test_a_path_names_the_release_by_the_headers_that_it_holds() -> None:
    version = Version.parse(NEEDED[1])
    assert version is not None
    folder = headers_of(version)
    for place in (folder, folder / "nvidia/nvshmem", folder / HEADERS):
        session = open_session(str(folder), str(place), "default")
        assert session.versions == (version,)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "patcher", *arguments], capture_output=True, text=True)


def test_deepinfer_ep_has_none_of_the_code() -> None:
    tree = registry.unpacked(registry.sdist("deepinfer-ep", "2.5.0"))
    session = open_session(str(tree), None, "default")
    assert session.checkout.kind == "deepep" and session.versions == SUPPORTED
    seen = look(session, select("all"))
    assert {s.id: s.state for s in seen.before} == {f.id: State.ABSENT for f in select("all")}
    done = run("status", str(tree), "--format", "json")
    assert done.returncode == Exit.SETTLED, done.stderr
    assert {f["state"] for f in json.loads(done.stdout)["fixes"]} == {"absent"}


def test_deep_ep_on_the_index_is_a_deepep_without_its_headers() -> None:
    # An early DeepEP packed without any header: `ibgda_device.cuh` is included, and nowhere there.
    tree = registry.unpacked(registry.sdist("deep_ep", "1.0.0"))
    assert (tree / "csrc/kernels/internode_ll.cu").is_file() and not list(tree.rglob("*.cuh"))
    session = open_session(str(tree), None, "default")
    assert (session.checkout.kind, session.checkout.layout) == ("deepep", "none")
    assert {s.state for s in look(session, select("all")).before} == {State.ABSENT}
    done = run("check", str(tree))
    assert (done.returncode, done.stdout) == (Exit.SETTLED, ""), done.stderr
