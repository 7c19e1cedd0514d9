"""What all tests share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """The command line turns the garbage collector off for its short run; a run of all tests is long."""
    yield
    gc.enable()
