"""DeepEP's whole history, read from the object store of a clone: every state is right, every mend holds and can be undone.

``DEEPEP_REPO`` is a clone with all refs (``git clone --mirror``: pull requests' heads too), ``DEEPEP_FORKS`` a folder of
forks' trees, one each.  Without them these tests are skipped.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from audits import Audited, after, audit, table
from git_objects import GitTree, Repository
from patcher.checkout import describe
from patcher.engine import plan
from patcher.errors import UsageProblem
from patcher.facts import Sources
from patcher.fix import select
from patcher.model import Plan, State, Verdict
from patcher.protocol import SUPPORTED, Version
from patcher.tree import FileTree, Overlay, WorkTree

REPO = os.environ.get("DEEPEP_REPO")
FORKS = os.environ.get("DEEPEP_FORKS")
needs_repo = pytest.mark.skipif(not REPO, reason="DEEPEP_REPO does not name a clone of DeepEP")
needs_forks = pytest.mark.skipif(not FORKS, reason="DEEPEP_FORKS does not name a folder with trees of forks")

FIXES = select("default")
DEVICE = "ibgda_device.cuh"
MAIN = "dd758caf451848bd150e1046af3d0a73e5fff38d"
VERSIONS = """
f2ac147c 0ef360db 34f0cc4e 1e8d8715 ae71c5e6 eebdc594 2200a07c 9f8c37c0 2259bc4c 3d02af43 217abf90 c9a10a5a
1854b0a1 2e85f1a2 df71f02c b2da0819 22680339 c4744fa3 7a5b9eb5 7fab70c1 36415dc5 41999fa2 bd779b2e 0d921caa
2f501ce8 23daaa93 c2323d56 421ec2a8 b047c980 819bdd1c 34e1d634 d1eaa674 d8d4aaaa 2d43ccf3 a0d13579 cbe02876
""".split()
"""The 36 versions of the file over all refs when this was written, as git names them; newer ones are judged too."""

Measured = Callable[[str], None]


@pytest.fixture(scope="module")
def repository() -> Iterator[Repository]:
    assert REPO
    opened = Repository(REPO)
    yield opened
    opened.close()


def kept_in(repository: Repository) -> dict[str, str]:
    """All versions of the device file over all refs, each with the first commit that has it."""
    found: dict[str, str] = {}
    for commit in repository.commits():
        for path, blob in repository.files(repository.root(commit)).items():
            if path.endswith(DEVICE):
                found.setdefault(blob, commit)
    return found


def relevant(tree: GitTree) -> tuple[tuple[str, str], ...]:
    """The files that the engine reads facts from, with their contents: trees that agree in them get the same plan."""
    sources = Sources(tree)
    paths = {p for candidate in sources.candidates for p in (candidate, *sources.included(candidate))}
    return tuple((p, tree.files[p]) for p in sorted(paths))


def audit_all(repository: Repository, named: dict[str, str]) -> dict[str, Audited]:
    """An audit of each named commit; commits that agree in what is read share one."""
    by_content: dict[tuple[tuple[str, str], ...], Audited] = {}
    found = {}
    for name, commit in named.items():
        tree = GitTree(repository, commit)
        key = relevant(tree)
        if key not in by_content:
            by_content[key] = audit(f"{name} ({commit[:9]})", tree, FIXES, SUPPORTED)
        found[name] = by_content[key]
    return found


def none_of(problems: Sequence[str]) -> None:
    assert not problems, f"{len(problems)} problems:\n" + "\n".join(problems)


def problems_of(audits: dict[str, Audited]) -> list[str]:
    return sorted({p for a in audits.values() for p in a.problems})


def audit_version(repository: Repository, blob: str, commit: str, versions: tuple[Version, ...]) -> Audited:
    return audit(f"{blob[:8]} of {commit[:9]}", GitTree(repository, commit), FIXES, versions)


def blocked_of(audits: dict[str, Audited]) -> list[str]:
    """Upstream's own versions can all be mended: none may be blocked."""
    return [f"{b[:8]}: {s.id} is blocked: {s.reason}" for b, a in audits.items() if b[:8] in VERSIONS for s in a.plan.before if s.reason]


def states_at(repository: Repository, commit: str, versions: tuple[Version, ...] = SUPPORTED) -> Plan:
    """The plan for one commit."""
    return plan(GitTree(repository, commit), FIXES, versions)


@needs_repo
def test_every_version_of_the_file(repository: Repository, measured: Measured) -> None:
    commits = kept_in(repository)
    missing = [v for v in VERSIONS if not any(blob.startswith(v) for blob in commits)]
    assert not missing, f"{REPO} lacks {', '.join(missing)}: it should be a `git clone --mirror`, with refs/pull/*/head"
    started = time.monotonic()
    audits = {blob: audit_version(repository, blob, commit, SUPPORTED) for blob, commit in commits.items()}
    each = (time.monotonic() - started) / len(audits)
    measured(table("versions of ibgda_device.cuh", ((a.states, 1) for a in audits.values())) + f"\n  {each:.2f} s each for two plans")
    none_of([*problems_of(audits), *blocked_of(audits)])


@needs_repo
@pytest.mark.parametrize("version", ["3.3.24", "3.4.5", "3.8.0"])
def test_every_version_of_the_file_for_one_nvshmem(repository: Repository, measured: Measured, version: str) -> None:
    only = Version.parse(version)
    assert only is not None
    audits = {blob: audit_version(repository, blob, commit, (only,)) for blob, commit in kept_in(repository).items()}
    measured(table(f"versions of ibgda_device.cuh, --nvshmem {version}", ((a.states, 1) for a in audits.values())))
    word = b"NVSHMEM_VENDOR"
    guarded = [b[:8] for b, a in audits.items() for c in a.plan.changes if c.after.count(word) > c.before.count(word)]
    none_of([*problems_of(audits), *blocked_of(audits), *(f"{b}: a guard on the version was inserted" for b in guarded)])


@needs_repo
def test_what_is_mended_for_all_holds_for_each(repository: Repository) -> None:
    # The tree with guards, judged as one release sees it, has nothing left to do: for the first and the last of each form.
    problems = []
    for blob, commit in kept_in(repository).items():
        tree = GitTree(repository, commit)
        mended = after(tree, plan(tree, FIXES, SUPPORTED))
        for version in (v for v in SUPPORTED if str(v) in ("3.3.9", "3.3.24", "3.4.5", "3.5.19", "3.8.0")):
            left = {s.id: s.state.value for s in plan(mended, FIXES, (version,)).before if not s.state.settled}
            problems += [f"{blob[:8]} for {version}: {left}"] if left else []
    none_of(problems)


@needs_repo
def test_every_fix_alone_and_in_any_order(repository: Repository) -> None:
    # Alone each one settles itself and breaks no other; one after the other they end where all at once end.
    problems = []
    for blob, commit in kept_in(repository).items():
        tree = GitTree(repository, commit)
        base = {s.id: s.state for s in plan(tree, FIXES, SUPPORTED).before}
        for fix in FIXES:
            alone = after(tree, plan(tree, [fix], SUPPORTED))
            now = {s.id: s.state for s in plan(alone, FIXES, SUPPORTED).before}
            if base[fix.id] not in (State.ABSENT, State.BLOCKED) and now[fix.id] is not State.UPSTREAM:
                problems.append(f"{blob[:8]}: {fix.id} alone leaves itself {now[fix.id].value}")
            problems += [f"{blob[:8]}: {fix.id} makes {i} {now[i].value}" for i in base if base[i].settled and not now[i].settled]
        for order in (FIXES, FIXES[::-1]):
            at: FileTree = tree
            for fix in order:
                made = plan(at, [fix], SUPPORTED)
                at = Overlay(tree, {**(at.files if isinstance(at, Overlay) else {}), **{c.path: c.after for c in made.changes}})
            left = {s.id: s.state.value for s in plan(at, FIXES, SUPPORTED).before if not s.state.settled}
            problems += [f"{blob[:8]}: {' then '.join(f.id for f in order)} leaves {left}"] if left else []
    none_of(problems)


@needs_repo
@pytest.mark.parametrize(
    ("title", "start", "end"),
    [("branches", "refs/heads/", ""), ("heads of pull requests", "refs/pull/", "/head")],
    ids=["branches", "pulls"],
)
def test_refs(repository: Repository, measured: Measured, title: str, start: str, end: str) -> None:
    named = {name: commit for name, commit in repository.refs().items() if name.startswith(start) and name.endswith(end)}
    assert named, f"{REPO} has no {start}*{end}: it should be a `git clone --mirror`"
    audits = audit_all(repository, named)
    measured(table(title, ((a.states, 1) for a in audits.values())))
    none_of(problems_of(audits))


@needs_repo
def test_every_commit(repository: Repository, measured: Measured) -> None:
    started = time.monotonic()
    audits = audit_all(repository, {commit: commit for commit in repository.commits()})
    different = len({id(a) for a in audits.values()})
    took = time.monotonic() - started
    measured(table("commits", ((a.states, 1) for a in audits.values())) + f"\n  {different} different inputs, all in {took:.0f} s")
    none_of(problems_of(audits))


@needs_repo
def test_main_needs_all_five(repository: Repository) -> None:
    assert {s.id: s.state for s in states_at(repository, MAIN).before} == {f.id: State.NEEDED for f in FIXES}
    assert len(FIXES) == 5


@needs_repo
def test_pull_677_lacks_the_advance_and_nothing_else(repository: Repository) -> None:
    # Its own NVSHMEM is new enough, so only what PROTOCOL calls the third hang is left.
    head = repository.refs()["refs/pull/677/head"]
    only = Version.parse("3.4.5")
    assert only is not None
    (status,) = (s for s in states_at(repository, head, (only,)).before if s.id == "submit-order")
    verdicts = {j.obligation: j.verdict for j in status.judgements}
    assert status.state is State.PARTIAL
    assert verdicts == {o: Verdict.VIOLATED if o == "advance" else Verdict.HOLDS for o in ("order", "advance", "publish", "doorbell")}
    # Older releases, which DeepEP supports, have no slot to publish in: there it is not a part of the fix but a fault.
    (older,) = (s for s in states_at(repository, head, (SUPPORTED[0],)).before if s.id == "submit-order")
    assert {j.obligation for j in older.judgements if j.verdict is Verdict.VIOLATED} >= {"order", "publish"}


@needs_repo
def test_pulls_that_fix_the_layout(repository: Repository) -> None:
    for commit in (repository.refs()["refs/pull/696/head"], "567632dd59810d77b3cc05553df953cc0f779799"):
        states = {s.id: s.state for s in states_at(repository, commit).before}
        assert states["rc-layout"] is State.UPSTREAM, commit


@needs_repo
def test_the_pull_that_adds_the_fence(repository: Repository) -> None:
    head = repository.refs().get("refs/pull/703/head")
    if head is None:
        pytest.skip("the clone was made before pull request 703")
    assert {s.id: s.state for s in states_at(repository, head).before}["post-cas-fence"] is State.UPSTREAM


# Forks: what a tree is, is told by the blob of its device file, so the names of the folders are free.

OTHER_TRANSPORT = {"2d41fce1", "691aeb33", "40b48e00", "64e68de6", "df6964db", "92eb2701", "f55ed2cc"}
"""uccl's and Mooncake's files: the same names over other transports."""

ENDING_WAIT = {"84ca3d00", "6e99c3fe", "98c6a16b"}
"""A timeout breaks out of the wait for the turn, and the submission goes on."""

SECOND_QUEUE = {"72794e57", "79c35257", "ef80de92"}
"""A Broadcom NIC: a second CAS on a queue that no NVSHMEM has."""

FOLLOWS_NVSHMEM = {"3f33d2e6"}
"""The fork commit a238b9e: it follows NVSHMEM 3.4.5 in full."""


def blobs(tree: WorkTree) -> set[str]:
    """The files of a tree as git names them, in short."""
    return {hashlib.sha1(b"blob %d\0" % len(data := tree.read(p)) + data).hexdigest()[:8] for p in tree.paths()}


@pytest.fixture(scope="module")
def forks() -> dict[str, tuple[set[str], WorkTree, Audited]]:
    """Every tree of the folder, audited."""
    assert FORKS
    found = {}
    for folder in sorted(Path(FORKS).iterdir()):
        if folder.is_dir():
            tree = WorkTree(str(folder))
            found[folder.name] = (blobs(tree), tree, audit(folder.name, tree, FIXES, SUPPORTED))
    assert found, f"{FORKS} holds no trees"
    return found


def those(forks: dict[str, tuple[set[str], WorkTree, Audited]], wanted: set[str]) -> list[tuple[str, WorkTree, Audited]]:
    found = [(name, tree, made) for name, (have, tree, made) in forks.items() if have & wanted]
    if not found:
        pytest.skip(f"no tree there has any of {', '.join(sorted(wanted))}")
    return found


@needs_forks
def test_every_fork(forks: dict[str, tuple[set[str], WorkTree, Audited]], measured: Measured) -> None:
    kinds: dict[str, list[str]] = defaultdict(list)
    reasons: dict[str, list[str]] = defaultdict(list)
    for name, (_, tree, made) in forks.items():
        try:
            kinds[f"{describe(tree).kind}/{describe(tree).layout}"].append(name)
        except UsageProblem:
            kinds["not DeepEP"].append(name)
            assert set(made.states.values()) == {"absent"}, f"{name} is no DeepEP, and yet {made.states}"
        for status in made.plan.before:
            if status.reason:
                reasons[f"{status.id}: {status.reason[:240]}"].append(name)
    blocked = "\n".join(f"  {', '.join(names)}\n    {reason}" for reason, names in sorted(reasons.items()))
    told = ", ".join(f"{kind} {len(names)}" for kind, names in sorted(kinds.items()))
    measured(table("trees of forks", ((made.states, 1) for _, _, made in forks.values())) + f"\n  {told}\n{blocked}")
    none_of(problems_of({name: made for name, (_, _, made) in forks.items()}))


@needs_forks
def test_files_of_other_transports_are_absent(forks: dict[str, tuple[set[str], WorkTree, Audited]]) -> None:
    for name, _, made in those(forks, OTHER_TRANSPORT):
        assert made.states == {f.id: "absent" for f in FIXES}, name


@needs_forks
def test_a_wait_that_can_end_is_blocked(forks: dict[str, tuple[set[str], WorkTree, Audited]]) -> None:
    for name, _, made in those(forks, ENDING_WAIT):
        (status,) = (s for s in made.plan.before if s.id == "submit-order")
        assert status.state is State.BLOCKED and "can end without it" in (status.reason or ""), name


@needs_forks
def test_a_second_queue_is_blocked(forks: dict[str, tuple[set[str], WorkTree, Audited]]) -> None:
    for name, _, made in those(forks, SECOND_QUEUE):
        for status in made.plan.before:
            if status.id in ("submit-order", "post-cas-fence", "nic-fence-scope"):
                assert status.state is State.BLOCKED and "second turn" in (status.reason or ""), (name, status.id)


@needs_forks
def test_the_fork_that_follows_nvshmem(forks: dict[str, tuple[set[str], WorkTree, Audited]]) -> None:
    only = Version.parse("3.4.5")
    assert only is not None
    for name, tree, made in those(forks, FOLLOWS_NVSHMEM):
        states = {s.id: s.state for s in plan(tree, FIXES, (only,)).before}
        assert (states["submit-order"], states["quiet-frontier"], states["rc-layout"]) == (State.UPSTREAM,) * 3, name
        assert made.states["submit-order"] == "needed", f"{name}: releases before 3.4.5 have no slot"
