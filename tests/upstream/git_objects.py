"""Trees of a git repository read from its object store: one ``git cat-file --batch``, no checkout, nothing is run."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from functools import cached_property

from patcher.tree import MAX_SOURCE_BYTES, SKIPPED_FOLDERS, SOURCE_SUFFIXES


class Repository:
    """Objects by their name, each read once."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._reader: subprocess.Popen[bytes] | None = None
        self._trees: dict[str, dict[str, str]] = {}
        self._blobs: dict[str, bytes] = {}

    def git(self, *arguments: str) -> list[str]:
        """The lines that a git command prints."""
        done = subprocess.run(["git", "-C", self.folder, *arguments], capture_output=True, text=True)
        assert done.returncode == 0, f"git -C {self.folder} {' '.join(arguments)}: {done.stderr.strip()}"
        return done.stdout.splitlines()

    def refs(self) -> dict[str, str]:
        """Refs and the objects that they name."""
        return {name: oid for oid, name in (line.split() for line in self.git("for-each-ref", "--format=%(objectname) %(refname)"))}

    def commits(self) -> list[str]:
        """All commits that any ref reaches, oldest first."""
        return self.git("rev-list", "--reverse", "--date-order", "--all")

    def object(self, name: str) -> tuple[str, bytes]:
        """Kind and content of an object."""
        if self._reader is None:
            command = ["git", "-C", self.folder, "cat-file", "--batch"]
            self._reader = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        pipe_in, pipe_out = self._reader.stdin, self._reader.stdout
        assert pipe_in is not None and pipe_out is not None
        pipe_in.write(name.encode() + b"\n")
        pipe_in.flush()
        fields = pipe_out.readline().split()
        assert len(fields) == 3, f"{name}: {b' '.join(fields).decode()}"
        content = pipe_out.read(int(fields[2]) + 1)[:-1]
        return fields[1].decode(), content

    def close(self) -> None:
        """End the reader."""
        if self._reader is not None:
            self._reader.communicate()
            self._reader = None

    def root(self, commit: str) -> str:
        """The name of a commit's tree."""
        kind, content = self.object(commit)
        assert kind == "commit", f"{commit} is a {kind}"
        return content.split(b"\n", 1)[0].split()[1].decode()

    def files(self, tree: str) -> dict[str, str]:
        """Regular source files below a tree and their blobs; shared folders are read once."""
        if tree not in self._trees:
            found: dict[str, str] = {}
            rest = self.object(tree)[1]
            while rest:
                mode, _, rest = rest.partition(b" ")
                raw, _, rest = rest.partition(b"\0")
                oid, rest = rest[:20].hex(), rest[20:]
                name = raw.decode("utf-8", "surrogateescape")
                if mode == b"40000":
                    if name not in SKIPPED_FOLDERS:
                        found.update((f"{name}/{path}", blob) for path, blob in self.files(oid).items())
                elif mode in (b"100644", b"100755"):
                    found[name] = oid
            self._trees[tree] = found
        return self._trees[tree]

    def blob(self, oid: str) -> bytes:
        """The content of a file."""
        if oid not in self._blobs:
            self._blobs[oid] = self.object(oid)[1]
        return self._blobs[oid]


@dataclass(frozen=True, eq=False)
class GitTree:
    """The source files of one commit, as the engine reads a work tree."""

    repository: Repository
    commit: str

    @cached_property
    def files(self) -> dict[str, str]:
        """All regular files and their blobs."""
        return self.repository.files(self.repository.root(self.commit))

    @cached_property
    def key(self) -> tuple[tuple[str, str], ...]:
        """What the engine can see of this tree: two commits with equal keys are one input."""
        return tuple((path, self.files[path]) for path in self.paths())

    def paths(self) -> tuple[str, ...]:
        return self._paths

    @cached_property
    def _paths(self) -> tuple[str, ...]:
        return tuple(sorted(p for p in self.files if p.endswith(SOURCE_SUFFIXES) and len(self.read(p)) <= MAX_SOURCE_BYTES))

    def read(self, path: str) -> bytes:
        return self.repository.blob(self.files[path])

    def exists(self, path: str) -> bool:
        return path in self.files or any(p.startswith(path + "/") for p in self.files)
