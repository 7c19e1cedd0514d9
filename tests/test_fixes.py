"""Each fix on its own cases, and all of them together."""

from __future__ import annotations

import itertools
import random

import pytest

from patcher import protocol
from patcher.engine import plan
from patcher.fix import Case, Fix, catalogue, select
from patcher.model import State, Verdict
from patcher.protocol import Version
from patcher.record import FixRecord, record_of, undo
from patcher.tree import Overlay
from tests.sample import MemoryTree, case_tree, sample

FIXES = catalogue()
CASES = [pytest.param(fix, case, id=f"{fix.id}: {case.name}") for fix in FIXES.values() for case in fix.cases]


def versions_of(case: Case) -> tuple[Version, ...]:
    if case.nvshmem is None:
        return protocol.SUPPORTED
    version = Version.parse(case.nvshmem)
    assert version is not None
    return (version,)


@pytest.mark.parametrize("fix", FIXES.values(), ids=FIXES)
def test_a_fix_documents_itself_and_has_cases_of_each_kind(fix: Fix) -> None:
    states = {case.state for case in fix.cases}
    assert {"needed", "upstream"} <= states
    for heading in ("What goes wrong", "What is done", "What is not touched"):
        assert heading in fix.documentation
    for obligation in fix.obligations:
        assert f"``{obligation.id}``" in fix.documentation
    assert fix.upstream


@pytest.mark.parametrize(("fix", "case"), CASES)
def test_case(fix: Fix, case: Case) -> None:
    tree, versions = case_tree(case), versions_of(case)
    made = plan(tree, [fix], versions)
    (status,) = made.before
    assert status.state.value == case.state, (status.reason, [j for j in status.judgements if j.verdict is not Verdict.HOLDS])
    if status.state is State.BLOCKED:
        assert status.reason
        assert case.reason in status.reason
    if status.state not in (State.NEEDED, State.PARTIAL):
        assert made.changes == ()
        return
    assert made.after[0].state is State.APPLIED
    after = Overlay(tree, {c.path: c.after for c in made.changes})
    again = plan(after, [fix], versions)
    assert again.changes == ()
    assert again.before[0].state is State.UPSTREAM
    assert {j.verdict for j in again.before[0].judgements} == {Verdict.HOLDS}
    record = record_of(made.changes, [FixRecord(fix.id, "1", (), ())], None, None, "default")
    for file in record.files:
        assert undo(file, after.read(file.path)) == tree.read(file.path)


@pytest.mark.parametrize("nvshmem", [None, "3.3.9", "3.3.24", "3.4.5", "3.5.19", "3.8.0"])
def test_every_subset_settles_and_keeps_the_others(nvshmem: str | None) -> None:
    tree = MemoryTree(sample())
    versions = protocol.SUPPORTED if nvshmem is None else versions_of(Case("", "", nvshmem=nvshmem))
    fixes = select("all")
    for size in (1, 2, len(fixes)):
        for subset in itertools.combinations(fixes, size):
            made = plan(tree, subset, versions)
            assert all(s.state.settled for s in made.after), [(s.id, s.reason) for s in made.after]
            after = Overlay(tree, {c.path: c.after for c in made.changes})
            assert plan(after, subset, versions).changes == ()


def test_fixes_given_in_any_order_make_the_same_bytes() -> None:
    tree = MemoryTree(sample())
    fixes = list(select("all"))
    expected = plan(tree, fixes, protocol.SUPPORTED).changes
    for seed in range(4):
        random.Random(seed).shuffle(fixes)
        assert plan(tree, fixes, protocol.SUPPORTED).changes == expected


@pytest.mark.parametrize("version", protocol.SUPPORTED, ids=str)
def test_one_release_needs_no_directives(version: Version) -> None:
    made = plan(MemoryTree(sample()), select("default"), (version,))
    for change in made.changes:
        added = set(change.after.splitlines()) - set(change.before.splitlines())
        assert not [line for line in added if line.startswith(b"#")]
        assert {s.state for s in made.after} <= {State.APPLIED, State.UPSTREAM}


def test_the_proxy_slot_is_never_touched_before_its_release() -> None:
    old = plan(MemoryTree(sample()), select("default"), (Version(3, 3, 24),))
    assert all(b"atomicMax_system" not in c.after for c in old.changes)
    new = plan(MemoryTree(sample()), select("default"), (Version(3, 4, 5),))
    assert sum(c.after.count(b"atomicMax_system") for c in new.changes) == 1
