"""The files of a checkout, read as bytes and never executed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import Protocol

from patcher.errors import UsageProblem

SOURCE_SUFFIXES = (".cuh", ".cu", ".h", ".hpp", ".hh", ".inl", ".cc", ".cpp", ".cxx", ".inc", ".ipp")
SKIPPED_FOLDERS = frozenset(
    {".git", ".hg", ".svn", ".deepep-patch", "__pycache__", "node_modules", ".venv", "venv", ".tox", ".nox", "dist", "fmt"}
)
MAX_SOURCE_BYTES = 8 << 20
"""Larger files are no hand-written source: they are listed as passed over."""


class FileTree(Protocol):
    """Relative paths with ``/`` and their bytes."""

    def paths(self) -> tuple[str, ...]:
        """All source files, sorted."""
        ...

    def read(self, path: str) -> bytes:
        """The bytes of one file."""
        ...

    def exists(self, path: str) -> bool:
        """Whether a file or folder is there."""
        ...


class WorkTree:
    """A folder on disk."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        if not os.path.exists(self.root):
            raise UsageProblem(f"{root}: no such folder. Give the path of a DeepEP checkout or of NVSHMEM's sources.")
        if not os.path.isdir(self.root):
            raise UsageProblem(f"{root}: is a file. Give the folder that holds the checkout.")
        if not os.access(self.root, os.R_OK | os.X_OK):
            raise UsageProblem(f"{root}: not readable for this user.")
        self.too_large: list[str] = []
        self.unreadable: list[str] = []
        self.astray: list[str] = []
        """Links to nothing, and links to folders elsewhere, which are not walked."""
        self._paths: tuple[str, ...] | None = None
        self._cache: dict[str, bytes] = {}

    def paths(self) -> tuple[str, ...]:
        if self._paths is None:
            self._paths = tuple(sorted(self._walk(self.root, "")))
        return self._paths

    def _walk(self, folder: str, prefix: str) -> Iterator[str]:
        try:
            entries = list(os.scandir(folder))
        except OSError:
            self.unreadable.append(prefix or ".")
            return
        for entry in entries:
            name = prefix + entry.name
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in SKIPPED_FOLDERS:
                    yield from self._walk(entry.path, name + "/")
            elif entry.is_symlink() and os.path.isdir(entry.path):
                if not self._inside(entry.path):
                    self.astray.append(name)
            elif entry.name.endswith(SOURCE_SUFFIXES) and self._wanted(entry, name):
                yield name

    def _wanted(self, entry: os.DirEntry[str], name: str) -> bool:
        try:
            info = entry.stat()
        except OSError:
            (self.astray if entry.is_symlink() else self.unreadable).append(name)
            return False
        if not stat.S_ISREG(info.st_mode):
            return False
        if info.st_size > MAX_SOURCE_BYTES:
            self.too_large.append(name)
            return False
        return True

    def _inside(self, path: str) -> bool:
        root = os.path.realpath(self.root)
        return os.path.commonpath([root, os.path.realpath(path)]) == root

    def read(self, path: str) -> bytes:
        if path not in self._cache:
            try:
                with open(os.path.join(self.root, path), "rb") as file:
                    self._cache[path] = file.read()
            except OSError as error:
                self.unreadable.append(path)
                self._cache[path] = b""
                if isinstance(error, IsADirectoryError):
                    return b""
        return self._cache[path]

    def exists(self, path: str) -> bool:
        return os.path.exists(os.path.join(self.root, path))


class Overlay:
    """A tree with some files replaced, in memory: what the tree would be after a plan."""

    def __init__(self, base: FileTree, files: dict[str, bytes]) -> None:
        self.base, self.files = base, files

    def paths(self) -> tuple[str, ...]:
        return tuple(sorted({*self.base.paths(), *self.files}))

    def read(self, path: str) -> bytes:
        return self.files[path] if path in self.files else self.base.read(path)

    def exists(self, path: str) -> bool:
        return path in self.files or self.base.exists(path)
