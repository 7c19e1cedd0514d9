"""Tasks.  A bare `nox` runs lint and the fast tests; `nox -s apply -- PATH` mends a checkout, `nox -s tests` tests everything."""

from __future__ import annotations

import shutil
from pathlib import Path

import nox

ROOT = Path(__file__).resolve().parent
PRINT_SAMPLE = "import pathlib, patcher; print(pathlib.Path(patcher.__file__).parent / 'sample')"

nox.needs_version = ">=2024.3.2"
nox.options.sessions = ["lint", "fast"]


def copy_of_sample(session: nox.Session) -> Path:
    """A fresh copy of the sample checkout that the installed package brings."""
    told = session.run("python", "-I", "-c", PRINT_SAMPLE, silent=True)
    assert isinstance(told, str)
    copy = Path(session.create_tmp()).resolve() / "sample"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(told.strip(), copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def mend(session: nox.Session, checkout: Path, options: list[str], silent: bool = False) -> None:
    """status, diff, apply, status.  The first two may find that something is needed (1); after apply nothing may be."""
    with session.chdir(session.create_tmp()):  # what runs is the installed command, not the source beside this file
        session.run("deepep-patch", "status", str(checkout), *options, success_codes=[0, 1], silent=silent)
        session.run("deepep-patch", "diff", str(checkout), *options, success_codes=[0, 1], silent=silent)
        session.run("deepep-patch", "apply", str(checkout), *options, silent=silent)
        session.run("deepep-patch", "status", str(checkout), *options, silent=silent)


def check_lint(session: nox.Session) -> None:
    session.run("ruff", "check")


def check_types(session: nox.Session) -> None:
    session.run("mypy", "--strict")  # on the folders that pyproject.toml names


def check_docs(session: nox.Session) -> None:
    session.run("python", "docs/generate.py", "--check")


@nox.session
def apply(session: nox.Session) -> None:
    """Mend a checkout: `nox -s apply -- PATH [--nvshmem VERSION] …`; without a path, a copy of the sample."""
    session.install(".")
    given, options = session.posargs[:1], list(session.posargs[1:])
    if given and given[0].startswith("-"):
        given, options = [], list(session.posargs)
    checkout = Path(session.invoked_from, given[0]).resolve() if given else copy_of_sample(session)
    mend(session, checkout, options)


@nox.session
def tests(session: nox.Session) -> None:
    """Everything, in a fresh environment: lint, types, documentation, the installed command on the sample, tests."""
    session.install(".[test,lint]")
    check_lint(session)
    check_types(session)
    check_docs(session)
    mend(session, copy_of_sample(session), ["--profile", "strict"], silent=True)
    session.run("pytest", *session.posargs)


@nox.session(reuse_venv=True)
def fast(session: nox.Session) -> None:
    """The tests that need neither the network nor upstream's sources, less the slow ones."""
    session.install(".[test]")
    session.run("pytest", "--ignore=tests/upstream", "-m", "not slow", *session.posargs)


@nox.session(reuse_venv=True)
def lint(session: nox.Session) -> None:
    """ruff."""
    session.install(".[lint]")
    check_lint(session)


@nox.session(reuse_venv=True)
def types(session: nox.Session) -> None:
    """mypy, strict."""
    session.install(".[test,lint]")
    check_types(session)


@nox.session(reuse_venv=True)
def docs(session: nox.Session) -> None:
    """Write docs/fixes.md and the README's table from the fixes; `-- --check` only looks."""
    session.install(".")
    session.run("python", "docs/generate.py", *session.posargs)


@nox.session(reuse_venv=True)
def bench(session: nox.Session) -> None:
    """Time deepep-patch beside other tools: `nox -s bench -- --checkout PATH [--runs 20] [--json FILE]`."""
    session.install(".[bench]")
    session.chdir(session.invoked_from)
    session.run("python", str(ROOT / "benchmarks" / "run.py"), *session.posargs)
