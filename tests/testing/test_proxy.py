"""The fault proxy: what it must do besides misbehaving."""

from __future__ import annotations

import anyio
import pytest

from pool.testing import fault_proxy

PATIENCE_S = 30.0


@pytest.mark.anyio
async def test_a_cancelled_test_ends_its_proxy(redis_url: str) -> None:
    """The listening task was cancelled with the test, and said to nobody that it had ended."""
    with anyio.fail_after(PATIENCE_S), anyio.CancelScope() as scope:
        async with fault_proxy(redis_url) as proxy:
            assert proxy.url
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
