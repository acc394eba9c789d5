"""examples/payments.py, killed between any two of its calls: with `step.key` it charges once."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

from pool import Node, Step
from tests.process import payer
from tests.process.payer import SETTINGS, payments
from tests.servers import connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from anyio.abc import Process

pytestmark = pytest.mark.anyio
AT_A_TIME = 4
PATIENCE_S = 60.0
LOOK_AGAIN_S = 0.05
POINTS_MIN = 10  # two steps, each asked for and stored, and the end: fewer would show too little


@pytest.fixture
def pool(redis_url: str, pool_name: str) -> Iterator[str]:
    """Yield what the names of pools begin with; nothing of them is left."""
    yield pool_name
    with connect(redis_url) as client:
        for key in client.scan_iter(match=f"pool:{{{pool_name}-*", count=1000):
            client.delete(key)


@pytest.fixture
async def port(anyio_backend: str) -> AsyncIterator[int]:
    """Yield where a provider listens, in a process of its own."""
    async with await anyio.open_process([sys.executable, payments.PROVIDER]) as provider:
        assert provider.stdout is not None
        yield int(await provider.stdout.receive())
        provider.terminate()


async def started(url: str, pool: str, dies_at: int, *, keys: str, backend: str) -> Process:
    """Start a worker that is killed at this point."""
    path = str(Path(payer.__file__))
    words = [sys.executable, path, url, pool, str(dies_at), keys, backend]
    return await anyio.open_process(words, stderr=None)


async def pay(
    url: str, pool: str, port: int, dies_at: int, *, keys: str, backend: str, cancels: bool = False
) -> tuple[int, list[str]]:
    """Pay an order; its first worker dies at this point, and another one takes over.

    One that is cancelled is so once it is charged, and before it is shipped.

    Returns how often it was charged, and the points that its first worker came to.  Of one that was
    cancelled: how many of its charges were not given back.
    """
    order = f"{pool}-{dies_at}"

    async def end(client: Node) -> None:
        if cancels:
            while not await asked(port, "charges", order):  # noqa: ASYNC110 - it has no bell
                await anyio.sleep(LOOK_AGAIN_S)
            told = await payments.cancel(client, order, port)
            assert told == "cancelled (changed my mind)"
        else:
            assert "charge" in await ref.result(timeout_s=PATIENCE_S)

    async with Node(pool, url, settings=SETTINGS, observers=()) as client:
        options = client.options(allow_unknown=True, idempotency_key=order)
        ref = await options.dispatch("pay", order, port, 2 * PATIENCE_S if cancels else 0.0)
        async with await started(url, pool, dies_at, keys=keys, backend=backend) as worker:
            try:
                with anyio.fail_after(PATIENCE_S):
                    over = anyio.Event()
                    async with anyio.create_task_group() as tasks:
                        if dies_at:
                            tasks.start_soon(take_over, url, pool, worker, over)
                        await end(client)
                        over.set()
                        if worker.returncode is None:  # it has not come to that point this time
                            await client.shutdown_pool()
            except BaseException:
                worker.kill()
                raise
            assert worker.stdout is not None
            told = b"".join([each async for each in worker.stdout])
    what = "kept" if cancels else "charges"
    return await asked(port, what, order), told.decode().splitlines()


async def take_over(url: str, pool: str, worker: Process, end: anyio.Event) -> None:
    """Be the next worker once this one has died."""
    await worker.wait()
    async with Node(pool, url, handlers=payments.handlers, settings=SETTINGS, observers=()):
        await end.wait()


async def asked(port: int, what: str, order: str) -> int:
    """Return what the provider says of an order."""
    call = partial(payments.ask, port, what, order, Step(name=what, key=""))
    return await anyio.to_thread.run_sync(call)


async def points_of(url: str, pool: str, port: int, **how: Any) -> list[str]:
    """Return the points of a worker that nobody kills."""
    times, points = await pay(url, f"{pool}-0", port, 0, **how)
    assert (times, len(points) >= POINTS_MIN) == (not how.get("cancels"), True), points
    return points


async def charges(
    url: str, pool: str, port: int, points: Iterable[int], **how: Any
) -> dict[int, int]:
    """Return how often each order was charged whose worker died at one of these points."""
    found: dict[int, int] = {}
    limiter = anyio.CapacityLimiter(AT_A_TIME)

    async def die(at: int) -> None:
        async with limiter:
            found[at], _ = await pay(url, f"{pool}-{at}", port, at, **how)

    async with anyio.create_task_group() as tasks:
        for at in points:
            tasks.start_soon(die, at)
    return found


async def test_whenever_the_worker_dies_the_order_is_charged_once(
    redis_url: str, pool: str, port: int, anyio_backend: str
) -> None:
    """Between any two of its calls to the store and to the provider (steps, G-02)."""
    how = {"keys": "keys", "backend": anyio_backend}
    points = await points_of(redis_url, pool, port, **how)
    found = await charges(redis_url, pool, port, range(1, len(points) + 1), **how)
    assert set(found.values()) == {1}, [(points[at - 1], found[at]) for at in sorted(found)]


async def test_whenever_the_worker_dies_a_cancelled_order_is_not_paid(
    redis_url: str, pool: str, port: int, anyio_backend: str
) -> None:
    """Stopped under way: what was charged is given back, by it or by who comes after."""
    how = {"keys": "keys", "backend": anyio_backend, "cancels": True}
    points = await points_of(redis_url, pool, port, **how)
    assert "after refund" in points
    found = await charges(redis_url, pool, port, range(1, len(points) + 1), **how)
    assert set(found.values()) == {0}, [(points[at - 1], found[at]) for at in sorted(found)]


async def test_without_the_key_of_its_step_it_is_charged_twice(
    redis_url: str, pool: str, port: int, anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it dies between the charge and what tells of it: nobody can know."""
    monkeypatch.setattr(payments, "ask", payments.ask)
    payer.forget_keys()
    how = {"keys": "none", "backend": anyio_backend}
    points = await points_of(redis_url, pool, port, **how)
    before, after = (points.index(f"{when} charge") + 1 for when in ("before", "after"))
    found = await charges(redis_url, pool, port, (before, after), **how)
    # Calls of before and of beside may change places: which of the two it is differs.
    assert 2 in found.values(), found
    assert set(found.values()) <= {1, 2}, found
