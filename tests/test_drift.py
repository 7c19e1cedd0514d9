"""The sample checkout spelled otherwise: what is needed is found, what is planned settles it, nothing else changes."""

from __future__ import annotations

import difflib
import gc
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
from tree_sitter import Parser

from patcher import protocol
from patcher.engine import plan
from patcher.fix import catalogue, select
from patcher.model import Plan, Verdict
from patcher.protocol import Version
from patcher.source.unit import LANGUAGE, without_specifiers
from patcher.tree import Overlay
from tests.drift import flow, layout, merged, names, refused, structure
from tests.drift.base import DEVICE, FIXES, NEEDED, Drift, Tree, source, with_device

RELEASES = {"all": protocol.SUPPORTED, "3.3.24": (Version(3, 3, 24),), "3.8.0": (Version(3, 8, 0),)}
DRIFTS = (*names.DRIFTS, *layout.DRIFTS, *flow.DRIFTS, *structure.DRIFTS, *merged.DRIFTS)
BROKEN: dict[str, str] = {}
"""Drifts that the engine does not settle yet, by id or by name for all releases, and why."""

STYLES = ("LLVM", "Google", "Chromium", "Mozilla", "WebKit", "Microsoft", "GNU")
_WORDS = frozenset(
    """atomicMax atomicMax_system __threadfence __threadfence_block __threadfence_system if else return reinterpret_cast unsigned long
    use_async_postsend nic_buf_on_gpumem tx_wq mvars ready_head prod_idx bf globalmem rcs npes num_rc_per_pe num_devices_initialized
    nvshmemi_device_state_d nvshmemi_ibgda_device_state_d NVSHMEM_VENDOR_MAJOR_VERSION NVSHMEM_VENDOR_MINOR_VERSION
    NVSHMEM_VENDOR_PATCH_VERSION endif""".split()
)
_TOUCHED = ("ready_head", "tx_wq.prod_idx", "tx_wq.bf", "__threadfence", "rcs", "atomicCAS", "queue", "post(")
_EFFECT = re.compile(r"\b(?:atomic\w+|__threadfence\w*|fence_cta)\s*\(")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)


@pytest.fixture(scope="module", autouse=True)
def _few_collections() -> Iterator[None]:
    """Thousands of syntax trees come and go here: a fifth of the time went into looking for cycles."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, 50, 50)
    yield
    gc.set_threshold(*before)


def _marks(name: str, releases: str) -> list[pytest.MarkDecorator]:
    reason = BROKEN.get(f"{name} [{releases}]") or BROKEN.get(name)
    return [pytest.mark.xfail(strict=True, reason=reason)] if reason else []


def _cases(drifts: tuple[Drift, ...]) -> list[object]:
    return [pytest.param(d, r, id=f"{d.name} [{r}]", marks=_marks(d.name, r)) for d in drifts for r in RELEASES]


def _text(data: bytes) -> str:
    return data.decode("latin-1")


def _code(text: str) -> str:
    return _COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)


def _states(made: Plan) -> dict[str, str]:
    return {s.id: s.state.value for s in made.before}


def _explained(made: Plan) -> str:
    lines = []
    for status in made.before:
        lines.append(f"{status.id}: {status.state.value} ({status.reason})")
        for judgement in status.judgements:
            if judgement.verdict is not Verdict.HOLDS:
                lines.extend(f"    {judgement.obligation}: {e.path}:{e.line}: {e.note}" for e in judgement.evidence[:3])
    return "\n".join(lines)


def _may_change(before: str, touched: tuple[str, ...]) -> set[int]:
    """Lines (from 0) of statements that have to do with the fixes."""
    code, lines = _code(before), set()
    for word in (*_TOUCHED, *touched):
        for match in re.finditer(re.escape(word), code):
            start = max(code.rfind(c, 0, match.start()) for c in ";{}") + 1
            start += len(code[start:]) - len(code[start:].lstrip())
            end = code.find(";", match.end())
            lines |= set(range(code.count("\n", 0, start), code.count("\n", 0, end if end >= 0 else len(code)) + 1))
    return lines


def _check_bytes(before: bytes, after: bytes, single: bool, touched: tuple[str, ...]) -> None:
    """Nothing but what the fixes are about has changed, in the file's own style."""
    old, new = _lines(before), _lines(after)
    allowed = _may_change(_text(before), touched)
    added: list[str] = []
    spins = _spins(after)
    for kind, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind != "equal":
            assert set(range(a, b)) <= allowed, [old[i] for i in range(a, b) if i not in allowed]
            added += new[c:d]
            early = [new[i] for i in range(c, d) if i in spins and _EFFECT.search(_code(new[i])) and "atomicCAS" not in new[i]]
            assert not early, f"runs on each try, before the turn is won: {early}"
    assert added
    assert len(added) <= 90
    ending = "\r\n" if before.count(b"\r\n") else "\n"
    assert all(line.endswith(ending) or line is new[-1] for line in new)
    assert after.startswith(b"\xef\xbb\xbf") == before.startswith(b"\xef\xbb\xbf")
    assert after.endswith(b"\n") == before.endswith(b"\n")
    depth = 0
    for line in new:
        depth += {"#if": 1, "#en": -1}.get(line.lstrip()[:3], 0)
        assert depth >= 0
    assert depth == 0
    if single:
        assert not [line for line in added if line.lstrip().startswith("#")]
    words = set(re.findall(r"[A-Za-z_]\w*", _code("".join(added))))
    assert words - set(re.findall(r"[A-Za-z_]\w*", _code(_text(before)))) <= _WORDS
    if b"\t" in before:
        assert not [line for line in added if line.startswith("  ")]


def _spins(data: bytes) -> set[int]:
    """Lines (from 0) in loops round a CAS: what stands there runs before the turn is won."""
    tree = Parser(LANGUAGE).parse(without_specifiers(re.sub(rb"(?m)^[ \t]*#.*$", lambda m: b" " * len(m[0]), data)))
    lines, stack = set(), [tree.root_node]
    while stack:
        node = stack.pop()
        if node.type in ("while_statement", "for_statement", "do_statement") and re.search(rb"atomicCAS|atom\.cas", node.text or b""):
            lines |= set(range(node.start_point.row, node.end_point.row + 1))
        stack.extend(node.children)
    return lines


def _lines(data: bytes) -> list[str]:
    return re.findall(r"[^\n]*\n|[^\n]+", _text(data))


def _check(drift: Drift, releases: str) -> None:
    tree, versions, fixes = Tree(drift.make()), RELEASES[releases], select("default")
    made = plan(tree, fixes, versions)
    expected = drift.expected(releases)
    assert _states(made) == expected, _explained(made)
    open_ = {name for name, state in expected.items() if state in ("needed", "partial")}
    assert set(made.applied) == open_
    after = Overlay(tree, {c.path: c.after for c in made.changes})
    again = plan(after, fixes, versions)
    assert again.changes == ()
    assert set(_states(again).values()) == {"upstream"}, _explained(again)
    assert all(j.verdict is Verdict.HOLDS for s in again.before for j in s.judgements)
    for change in made.changes:
        _check_bytes(change.before, change.after, len(versions) == 1, drift.touched)
    published = sum(
        _code(_text(c.after)).count("atomicMax_system") - _code(_text(c.before)).count("atomicMax_system") for c in made.changes
    )
    if releases == "3.3.24" or "submit-order" not in open_:
        assert published <= 0
    else:
        assert published == drift.publishes
    if releases == "3.8.0" and "rc-layout" in open_:
        assert any("npes" in _text(c.after) for c in made.changes)


def test_the_sample_itself() -> None:
    assert tuple(f.id for f in select("default")) == FIXES
    for releases, versions in RELEASES.items():
        assert _states(plan(Tree(with_device(source())), select("default"), versions)) == NEEDED[releases]


def test_names_of_drifts_are_different() -> None:
    listed = [d.name for d in DRIFTS] + [d.name for d, _, _ in refused.DRIFTS]
    assert len(set(listed)) == len(listed)
    assert {re.sub(r" \[[^]]*\]$", "", name) for name in BROKEN} <= {
        *listed,
        "quiet alone",
        *(f"clang-format: {s}, {n}" for s in STYLES for n in (80, 0)),
    }


@pytest.mark.parametrize(("drift", "releases"), _cases(DRIFTS))
def test_a_drift_is_found_and_settled(drift: Drift, releases: str) -> None:
    _check(drift, releases)


def _refused() -> list[object]:
    return [
        pytest.param(drift, reason, releases, id=f"{drift.name} [{releases}]", marks=_marks(drift.name, releases))
        for drift, reason, listed in refused.DRIFTS
        for releases in listed
    ]


@pytest.mark.parametrize(("drift", "reason", "releases"), _refused())
def test_a_shape_that_is_not_understood_is_refused(drift: Drift, reason: str, releases: str) -> None:
    tree = Tree(drift.make())
    made = plan(tree, [catalogue()["submit-order"]], RELEASES[releases])
    (status,) = made.before
    assert status.state.value == "blocked", _explained(made)
    assert made.changes == ()
    assert status.reason
    assert re.search(r"\b" + re.escape(DEVICE) + r":\d+\b", status.reason), status.reason
    assert reason in status.reason


@pytest.mark.parametrize("name", [pytest.param(n, id=n, marks=_marks("quiet alone", n)) for n in ("all", "3.4.5", "3.8.0")])
def test_quiet_is_not_moved_to_a_queue_that_submissions_do_not_advance(name: str) -> None:
    drift = next(d for d, _, _ in refused.DRIFTS if d.name == "a second turn on another member")
    made = plan(Tree(drift.make()), select("default"), RELEASES.get(name) or (Version(3, 4, 5),))
    assert not {"submit-order", "quiet-frontier"} & set(made.applied)


def _formatter() -> str | None:
    own = Path(sysconfig.get_path("scripts"), "clang-format")
    return str(own) if own.exists() else shutil.which("clang-format")


def _formatted(style: str, columns: int) -> Drift:
    def make() -> dict[str, bytes]:
        program = _formatter()
        if program is None:
            pytest.skip("clang-format is not installed")
        command = [program, f"--style={{BasedOnStyle: {style}, ColumnLimit: {columns}}}", "--assume-filename=ibgda_device.cpp"]
        return with_device(subprocess.run(command, input=source().encode(), stdout=subprocess.PIPE, check=True).stdout)

    return Drift(f"clang-format: {style}, {columns}", make)


@pytest.mark.parametrize(("drift", "releases"), _cases(tuple(_formatted(s, n) for s in STYLES for n in (80, 0))))
def test_a_formatted_tree_is_found_and_settled(drift: Drift, releases: str) -> None:
    _check(drift, releases)
