"""Trees in memory, made from the sample checkout."""

from __future__ import annotations

from pathlib import Path

import patcher
from patcher.fix import Case

ROOT = Path(patcher.__file__).parent / "sample"


class MemoryTree:
    """A FileTree whose files are given."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files

    def paths(self) -> tuple[str, ...]:
        return tuple(sorted(p for p in self.files if p.endswith((".cuh", ".cu", ".h"))))

    def read(self, path: str) -> bytes:
        return self.files[path]

    def exists(self, path: str) -> bool:
        return path in self.files


def sample() -> dict[str, bytes]:
    """The sample checkout's files."""
    return {p.relative_to(ROOT).as_posix(): p.read_bytes() for p in ROOT.rglob("*") if p.is_file() and "__pycache__" not in p.parts}


def case_tree(case: Case) -> MemoryTree:
    """The sample with the changes of a case; each old text must be there exactly once."""
    files = sample()
    text = files[case.path].decode()
    for old, new in case.changes:
        assert text.count(old) == 1, f"{case.name}: {old!r} is found {text.count(old)} times in {case.path}"
        text = text.replace(old, new)
    return MemoryTree({**files, case.path: text.encode()})
