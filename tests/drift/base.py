"""What all drifts are made of: trees in memory and exact replacements in the sample's bytes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from patcher.tree import SOURCE_SUFFIXES
from tests.sample import sample

DEVICE = "csrc/kernels/ibgda_device.cuh"
UTILS = "csrc/kernels/utils.cuh"
Files = dict[str, bytes]

# Statements of the sample that many drifts replace.
QUEUE = """\
    auto queue = reinterpret_cast<unsigned long long*>(state->use_async_postsend ? qp->tx_wq.prod_idx : &mvars->tx_wq.ready_head);
"""
FENCE = "    __threadfence();\n"
WAIT = "    while (atomicCAS(queue, base, next) != base)\n        ;\n"
GATE = "    if (!state->use_async_postsend) {\n"
POST = """\
    if (!state->use_async_postsend) {
        constexpr int kBatch = 4;
        if (kAlwaysPost or (message + 1) % kBatch == 0)
            post(qp, next);
    }
"""
FRONTIER = """\
    const uint64_t index = state->use_async_postsend ? load_relaxed(qp->tx_wq.prod_idx) : load_relaxed(&qp->mvars.tx_wq.ready_head);
"""
LOOKUP = "    return &state->globalmem.rcs[pe * per_peer + id % per_peer];\n"
SUBMIT_HEAD = """\
template <bool kAlwaysPost>
__device__ static __forceinline__ void submit(nvshmemi_ibgda_device_qp_t* qp, uint64_t base, uint32_t count, int message = 0) {
"""
SUBMIT_TOP = """\
    auto state = device_state();
    auto mvars = &qp->mvars;
    const uint64_t next = base + count;
"""

FIXES = ("nic-fence-scope", "post-cas-fence", "quiet-frontier", "rc-layout", "submit-order")
NEEDED: Mapping[str, Mapping[str, str]] = {
    "all": dict.fromkeys(FIXES, "needed"),
    "3.3.24": {**dict.fromkeys(FIXES, "needed"), **dict.fromkeys(("quiet-frontier", "rc-layout", "submit-order"), "upstream")},
    "3.8.0": dict.fromkeys(FIXES, "needed"),
}
"""The states of the sample, by the releases asked for."""


class Tree:
    """A FileTree whose files are given."""

    def __init__(self, files: Files) -> None:
        self.files = files

    def paths(self) -> tuple[str, ...]:
        return tuple(sorted(p for p in self.files if p.endswith(SOURCE_SUFFIXES)))

    def read(self, path: str) -> bytes:
        return self.files[path]

    def exists(self, path: str) -> bool:
        return path in self.files


@dataclass(frozen=True)
class Drift:
    """One spelling of the sample.

    ``states`` replaces some of the states that the sample has, by releases.  ``publishes`` is how many system-scope
    publishes a plan for new releases adds.  ``touched`` are texts whose statements a plan may rewrite, besides those
    of the sample.
    """

    name: str
    make: Callable[[], Files]
    states: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    publishes: int = 1
    touched: tuple[str, ...] = ()

    def expected(self, releases: str) -> dict[str, str]:
        """The state of each fix before."""
        return {**NEEDED[releases], **self.states.get(releases, {})}


def replaced(text: str, *pairs: tuple[str, str]) -> str:
    """``text`` with each old text, found exactly once, replaced."""
    found = []
    for old, new in pairs:
        assert text.count(old) == 1, f"{old!r} is found {text.count(old)} times"
        found.append((text.index(old), old, new))
    for start, old, new in sorted(found, reverse=True):
        assert text[start:].startswith(old), f"{old!r} overlaps another text"
        text = text[:start] + new + text[start + len(old) :]
    return text


def renamed(text: str, names: Mapping[str, str]) -> str:
    """``text`` with names replaced, all at once; members of structures keep theirs."""
    return re.sub(r"(?<!\.)(?<!->)\b(" + "|".join(map(re.escape, names)) + r")\b", lambda m: names[m[1]], text)


def source() -> str:
    """The sample's device code."""
    return sample()[DEVICE].decode()


def with_device(text: str | bytes, extra: Mapping[str, str | bytes] | None = None) -> Files:
    """The sample with other device code, and files added or replaced."""
    more = {path: _bytes(data) for path, data in (extra or {}).items()}
    return {**sample(), DEVICE: _bytes(text), **more}


def _bytes(data: str | bytes) -> bytes:
    return data.encode() if isinstance(data, str) else data


def edited(
    name: str,
    *pairs: tuple[str, str],
    states: Mapping[str, Mapping[str, str]] | None = None,
    publishes: int = 1,
    touched: tuple[str, ...] = (),
    extra: Mapping[str, str | bytes] | None = None,
) -> Drift:
    """A drift by replacements in the device code, each old text found once."""
    return Drift(name, lambda: with_device(replaced(source(), *pairs), extra), states or {}, publishes, touched)


def rewritten(name: str, change: Callable[[str], str], touched: tuple[str, ...] = ()) -> Drift:
    """A drift by a function of the device code's text."""
    return Drift(name, lambda: with_device(change(source())), touched=touched)


def encoded(name: str, change: Callable[[bytes], bytes]) -> Drift:
    """A drift by a function of the device code's bytes."""
    return Drift(name, lambda: with_device(change(source().encode())))
