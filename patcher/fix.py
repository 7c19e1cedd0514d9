"""What a fix is: obligations, how they are judged on facts, and a rewrite."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import NamedTuple

from patcher.errors import UsageProblem
from patcher.facts import Facts
from patcher.model import Judgement, Obligation
from patcher.protocol import Version
from patcher.rewrite import Rewriter

PROFILES = ("default", "strict", "all")


DEVICE = "csrc/kernels/ibgda_device.cuh"
"""The file of the sample checkout that most cases change."""


class Case(NamedTuple):
    """The sample checkout (``patcher/sample``) with some text replaced, and the state that a fix must have there.

    Where the state is needed or partial, apply must settle it; where it is blocked, ``reason`` is in the
    explanation.  ``changes`` are (old, new) in ``path``, each old text found once.
    """

    name: str
    state: str
    changes: tuple[tuple[str, str], ...] = ()
    path: str = DEVICE
    nvshmem: str | None = None
    reason: str = ""


class Fix(NamedTuple):
    """One known defect and its cure.  The docstring of the module that defines it is its documentation.

    ``version`` changes whenever the rewrite gives other bytes.  ``judge`` returns no judgements where the
    code that the fix concerns is not in the tree.  ``rewrite`` makes edits or raises ``Blocked``.  ``keeps`` gives
    what must be the same before and after the rewrite.
    """

    id: str
    title: str
    version: int
    upstream: tuple[str, ...]
    obligations: tuple[Obligation, ...]
    judge: Callable[[Facts, Version], Sequence[Judgement]]
    rewrite: Callable[[Rewriter], None]
    keeps: Callable[[Facts, Version], frozenset[object]] | None = None
    profile: str = "default"
    documentation: str = ""
    cases: tuple[Case, ...] = ()


@cache
def catalogue() -> dict[str, Fix]:
    """All fixes of the ``patches`` package, by id."""
    import patches

    found: dict[str, Fix] = {}
    for module in pkgutil.iter_modules(patches.__path__):
        if not module.name.startswith("_"):
            fix = importlib.import_module(f"patches.{module.name}").FIX
            assert isinstance(fix, Fix)
            found[fix.id] = fix
    return dict(sorted(found.items()))


def select(profile: str = "default", only: Iterable[str] = (), skip: Iterable[str] = ()) -> tuple[Fix, ...]:
    """The fixes of a profile, or those named, less those skipped.

    ``strict`` adds the fixes that go beyond NVSHMEM's own code; ``all`` is every fix.
    Raises UsageProblem for an unknown id.
    """
    fixes = catalogue()
    only, skip = tuple(only), tuple(skip)
    for name in (*only, *skip):
        if name not in fixes:
            raise UsageProblem(f"no fix is called `{name}`. There are: {', '.join(fixes)}.")
    both = sorted(set(only) & set(skip))
    if both:
        raise UsageProblem(f"{', '.join(both)}: both selected and skipped.")
    wanted = {"default": ("default",), "strict": ("default", "strict"), "all": PROFILES}[profile]
    return tuple(f for f in fixes.values() if (f.id in only if only else f.profile in wanted) and f.id not in skip)
