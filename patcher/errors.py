"""What can go wrong for a user, with the exit code of each kind."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of the command line."""

    SETTLED = 0
    NEEDED = 1
    USAGE = 2
    BLOCKED = 3
    MISSING_TOOL = 4
    REFUSED = 5


class PatchError(Exception):
    """An error for people: what was found and where, what was expected, what to do."""

    code = Exit.REFUSED


class UsageProblem(PatchError):
    """The command can't mean anything here: no such path, no DeepEP tree, no such fix or version."""

    code = Exit.USAGE


class Blocked(PatchError):
    """The code is not understood well enough to change it."""

    code = Exit.BLOCKED


class MissingTool(PatchError):
    """Something that the environment should have is not there."""

    code = Exit.MISSING_TOOL


class Refused(PatchError):
    """Nothing was written: locked, changed under us, not writable, no space."""

    code = Exit.REFUSED
