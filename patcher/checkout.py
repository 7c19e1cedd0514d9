"""What a folder is: DeepEP or NVSHMEM, which layout, which commit, which NVSHMEM it goes with."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from patcher import protocol
from patcher.errors import MissingTool, UsageProblem
from patcher.protocol import Version
from patcher.tree import FileTree, WorkTree

_VERSION_HEADER = "non_abi/nvshmem_version.h"
_MACRO = re.compile(rb"#\s*define\s+NVSHMEM_VENDOR_(MAJOR|MINOR|PATCH)_VERSION\s+(\d+)")
_PROJECT = re.compile(r"project\s*\(\s*NVSHMEM\b[^)]*?VERSION\s+(\d+\.\d+\.\d+)", re.I | re.S)
_PROJECT_VERSION = re.compile(r"set\s*\(\s*PROJ_VERSION\s+\"?(\d+\.\d+\.\d+)", re.I)


class Checkout(NamedTuple):
    """``kind`` is deepep or nvshmem; ``layout`` v1, v2, hybrid, embedded (device code in another project) or none
    (no IBGDA kernels); ``commit`` and ``nvshmem`` are None where they can't be told."""

    kind: str
    layout: str
    commit: str | None
    nvshmem: Version | None

    def __str__(self) -> str:
        name = {"deepep": "DeepEP", "nvshmem": "NVSHMEM"}[self.kind]
        version = f" {self.nvshmem}" if self.nvshmem and self.kind == "nvshmem" else ""
        at = f" at {self.commit[:9]}" if self.commit else ""
        return f"{name}{version} ({self.layout}){at}"


def describe(tree: WorkTree) -> Checkout:
    """Tell what a tree is.  Raises UsageProblem where it is neither DeepEP nor NVSHMEM."""
    paths = tree.paths()
    commit = head_commit(tree.root)
    if any(p.endswith("device_host_transport/nvshmem_common_ibgda.h") for p in paths):
        return Checkout("nvshmem", _nvshmem_layout(paths), commit, own_version(tree))
    layout = _deepep_layout(tree, paths)
    if layout is None:
        unread = f" {len(tree.unreadable)} of its files or folders could not be read." if tree.unreadable else ""
        large = f" Passed over as too large for source: {', '.join(tree.too_large[:3])}." if tree.too_large else ""
        raise UsageProblem(
            f"{tree.root}: neither DeepEP nor NVSHMEM: no `deep_ep` package, no `ibgda_device.cuh`, no NVSHMEM device headers were found."
            f"{unread}{large} Give the root of a checkout (`deepep-patch status path/to/DeepEP`)."
        )
    return Checkout("deepep", layout, commit, None)


def _nvshmem_layout(paths: tuple[str, ...]) -> str:
    return "sources" if any(p.startswith("src/include/") for p in paths) else "headers"


def _deepep_layout(tree: FileTree, paths: tuple[str, ...]) -> str | None:
    device = [p for p in paths if b"tx_wq" in tree.read(p)]
    package = tree.exists("deep_ep/__init__.py") or any(p.startswith("deep_ep/") for p in paths)
    if tree.exists("csrc/hybrid_ep"):
        return "hybrid"
    if tree.exists("csrc/kernels/legacy") or tree.exists("deep_ep/include"):
        return "v2" if package or device else "embedded"
    if device:
        return "v1" if tree.exists("csrc/kernels") else "embedded"
    return "none" if package or tree.exists("csrc/deep_ep.cpp") or _names_package(tree) else None


def _names_package(tree: FileTree) -> bool:
    try:
        return tree.exists("setup.py") and b"deep_ep" in tree.read("setup.py")
    except OSError:
        return False


def own_version(tree: FileTree) -> Version | None:
    """The release that NVSHMEM sources or headers are of."""
    for path in tree.paths():
        if path.endswith(_VERSION_HEADER):
            found = header_version(tree.read(path))
            if found is not None:
                return found
    if tree.exists("CMakeLists.txt"):
        text = tree.read("CMakeLists.txt").decode("utf-8", "replace")
        match = _PROJECT.search(text) or _PROJECT_VERSION.search(text)
        if match:
            return Version.parse(match[1])
    return None


def header_version(data: bytes) -> Version | None:
    """The release that ``non_abi/nvshmem_version.h`` states."""
    found = {m[1]: int(m[2]) for m in _MACRO.finditer(data)}
    return Version(found[b"MAJOR"], found[b"MINOR"], found[b"PATCH"]) if len(found) == 3 else None


def head_commit(root: str) -> str | None:
    """The commit that HEAD of a git work tree names, read from the files of ``.git``: starting git costs more than a status."""
    folder = os.path.join(root, ".git")
    try:
        if os.path.isfile(folder):
            with open(folder, encoding="utf-8") as file:
                folder = os.path.normpath(os.path.join(root, file.read().partition("gitdir:")[2].strip()))
        with open(os.path.join(folder, "HEAD"), encoding="utf-8") as file:
            head = file.read().strip()
        if not head.startswith("ref:"):
            return head if re.fullmatch(r"[0-9a-f]{40,64}", head) else None
        return _reference(folder, head[4:].strip())
    except (OSError, UnicodeDecodeError):
        return None


def _reference(folder: str, name: str) -> str | None:
    common = folder
    if os.path.isfile(os.path.join(folder, "commondir")):
        with open(os.path.join(folder, "commondir"), encoding="utf-8") as file:
            common = os.path.normpath(os.path.join(folder, file.read().strip()))
    for base in (folder, common):
        if os.path.isfile(os.path.join(base, name)):
            with open(os.path.join(base, name), encoding="utf-8") as file:
                return file.read().strip()
    if os.path.isfile(os.path.join(common, "packed-refs")):
        with open(os.path.join(common, "packed-refs"), encoding="utf-8") as file:
            for line in file:
                if line.rstrip().endswith(" " + name):
                    return line.split()[0]
    return None


def releases(wanted: str | None, checkout: Checkout) -> tuple[Version, ...]:
    """The releases to judge for: what ``--nvshmem`` names, else a NVSHMEM tree's own, else all that DeepEP supports.

    ``wanted`` is a version, a folder with NVSHMEM's headers, or ``auto`` (the installed one).
    Raises UsageProblem, or MissingTool where ``auto`` finds none.
    """
    if wanted is None:
        return (checkout.nvshmem,) if checkout.kind == "nvshmem" and checkout.nvshmem else protocol.SUPPORTED
    version = installed() if wanted == "auto" else Version.parse(wanted)
    if version is None and wanted == "auto":
        raise MissingTool(
            "--nvshmem auto: no NVSHMEM was found (NVSHMEM_DIR is not set, no nvidia-nvshmem-cu* package is installed). "
            "Name the version (`--nvshmem 3.4.5`), or `pip install nvidia-nvshmem-cu12`."
        )
    if version is None:
        version = _from_folder(wanted)
    if version < protocol.RELEASES[0]:
        raise UsageProblem(
            f"--nvshmem {wanted}: NVSHMEM {version} is older than {protocol.RELEASES[0]}, the oldest whose protocol is known."
        )
    return (version,)


def _from_folder(folder: str) -> Version:
    if not os.path.isdir(folder):
        raise UsageProblem(f"--nvshmem {folder}: neither a version like 3.4.5, nor a folder, nor `auto`.")
    for base in ("", "include", "nvidia/nvshmem/include"):
        path = os.path.join(folder, base, _VERSION_HEADER)
        if os.path.isfile(path):
            with open(path, "rb") as file:
                found = header_version(file.read(1 << 20))
            if found is not None:
                return found
    raise UsageProblem(f"--nvshmem {folder}: no include/{_VERSION_HEADER} with NVSHMEM's version was found there.")


def installed() -> Version | None:
    """The NVSHMEM that a build would find: NVSHMEM_DIR, else the installed nvidia-nvshmem-cu* package."""
    folder = os.environ.get("NVSHMEM_DIR")
    if folder:
        return _from_folder(folder)
    from importlib import metadata

    for name in ("nvidia-nvshmem-cu13", "nvidia-nvshmem-cu12"):
        try:
            return Version.parse(metadata.version(name))
        except metadata.PackageNotFoundError:
            continue
    return None
