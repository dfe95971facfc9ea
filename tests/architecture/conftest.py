"""The tests of this folder keep the syntax tree of every file, which the garbage collector would go through again and again."""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest


@pytest.fixture(scope="module", autouse=True)
def without_garbage_collection() -> Generator[None]:
    """Collect no garbage during a module's tests, and leave the objects that exist after them out of later collections."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()
