"""Of simulated worlds nothing is left to the tests that come after them."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest

from tests.verify.sim.world import sweep


@pytest.fixture(autouse=True)
def _no_world_is_left() -> Iterator[None]:
    """Let a test tell of what it leaves, not whichever test the collector comes by in."""
    sweep()  # of others
    gc.freeze()  # what they have left: each world that is thrown away would look through it
    yield
    left: list[object] = []
    hook, sys.unraisablehook = sys.unraisablehook, lambda told: left.append(repr(told.object))
    try:
        gc.collect()
    finally:
        sys.unraisablehook = hook
    sweep()
    assert not left, left[:3]
