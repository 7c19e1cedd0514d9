"""What these tests measured, printed after the run: counts for the README, and what to look at."""

from __future__ import annotations

from collections.abc import Callable

import pytest

_MEASURED = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_MEASURED] = []


@pytest.fixture(scope="session")
def measured(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Takes a text to print after the run, captured or not."""
    return pytestconfig.stash[_MEASURED].append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.stash[_MEASURED]:
        terminalreporter.section("measured on upstream sources")
        for text in config.stash[_MEASURED]:
            terminalreporter.write_line(text)
