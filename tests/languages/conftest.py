"""What the tests of workers in other languages share: their programs, and one pool over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pool.redis.embedded.server import ServerProgram
from tests.languages.fleet import LANGUAGES, Fleet, Language
from tests.languages.proxy import Between
from tests.languages.toolchain import Toolchain


@pytest.hookimpl(tryfirst=True)  # `-m` looks at the marks afterwards
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark them: `make test-languages` alone runs them, which installs what they need."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("languages")


@pytest.fixture(scope="session")
def toolchain(tmp_path_factory: pytest.TempPathFactory) -> Toolchain:
    """Return Node, Go, and the tests' worker in Go."""
    return Toolchain.found(tmp_path_factory.mktemp("toolchain"))


@pytest.fixture(params=LANGUAGES)
def language(request: pytest.FixtureRequest) -> Language:
    """Return each language in turn."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def whole_fleet(
    tmp_path_factory: pytest.TempPathFactory, program: ServerProgram, toolchain: Toolchain
) -> Iterator[Fleet]:
    """Yield a pool with two gateways."""
    with Fleet.made(program, tmp_path_factory.mktemp("fleet"), toolchain) as fleet:
        yield fleet


@pytest.fixture
def fleet(whole_fleet: Fleet) -> Iterator[Fleet]:
    """Yield the pool with both gateways up; workers of this test leave with it."""
    for gateway in whole_fleet.gateways:
        assert gateway.process is not None
        if gateway.process.poll() is not None:
            gateway.up()
    yield whole_fleet
    whole_fleet.leave()


@pytest.fixture
def between(fleet: Fleet) -> Iterator[Between]:
    """Yield a proxy before the first gateway; who asks through it leaves first."""
    with Between(fleet.gateways[0].url).open() as proxy:
        yield proxy
        fleet.leave()
