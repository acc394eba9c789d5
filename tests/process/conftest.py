"""Process tests run on each kind of server that is here: the wheel's, and a Redis on PATH."""

from __future__ import annotations

import pytest

from pool.store.server import ServerProgram, find_servers


def _programs() -> list[ServerProgram]:
    """Return the program that all tests use, and the first Redis on PATH if there is one."""
    found = list(find_servers("wheel", []))
    return found[:1] + [other for other in found[1:] if other.name == "redis"][:1]


@pytest.fixture(scope="module", params=_programs(), ids=lambda found: found.name)
def program(request: pytest.FixtureRequest) -> ServerProgram:
    """Return each server program in turn."""
    assert isinstance(request.param, ServerProgram)
    return request.param
