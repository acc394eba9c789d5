"""The memory budget: what a queued job costs the server, in all and by its parts."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
import redis

from pool.redis.commands.admission import Admission
from pool.redis.commands.calls import Target

if TYPE_CHECKING:
    from pool.redis.embedded.server import EmbeddedServer
    from tests.redis.conftest import Bench

JOBS = 2_000
BATCH = 32
PAYLOAD = b"x" * 100
WORKER = Target("w8z4k0qv1xt1", 1)


def budget_bytes(name: str, version: str) -> int:
    """Return what DESIGN allows: less on Valkey 9, whose hashes are more compact."""
    return 450 if name == "valkey" and int(version.partition(".")[0]) >= 9 else 600


def used_bytes(client: redis.Redis) -> int:
    info: Any = client.info("memory")
    return int(info["used_memory"])


def test_a_queued_job_stays_within_its_memory_budget(
    server_to_fill: EmbeddedServer, bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    """G-09: a 15-byte key and 100 bytes of payload, waiting in the stream of one worker."""
    program = server_to_fill.program
    with redis.Redis.from_url(server_to_fill.url, protocol=2) as client:
        client.flushall()
        full = type(bench)(client, bench.pool).join({WORKER: 2 * JOBS})
        items = [
            Admission(
                key=f"tenant-{i:08d}",
                id=f"8z4k0qv1xt{i:x}",
                handler="h",
                kind="job",
                payload=PAYLOAD,
                ranked=[1],
            )
            for i in range(JOBS + BATCH)
        ]
        assert len(items[0].key) == 15
        # The first batch makes the structures themselves, which are not a job's.
        full.dispatch(*items[:BATCH], targets=[WORKER], queued_jobs_max=2 * JOBS)
        before = used_bytes(client)
        for i in range(BATCH, len(items), BATCH):
            full.dispatch(*items[i : i + BATCH], targets=[WORKER], queued_jobs_max=2 * JOBS)
        per_job = (used_bytes(client) - before) / JOBS
        parts = {
            key.removeprefix(full.names.prefix): int(
                full.do("MEMORY", "USAGE", key, "SAMPLES", 0) or 0
            )
            / len(items)
            for key in full.key_names()
        }
        assert full.audit() == []
        full.close()

    with capsys.disabled():
        named = ", ".join(f"{key} {size:.0f}" for key, size in parts.items() if size >= 1)
        said = f"{program.name} {program.version}: {per_job:.0f} B per queued job ({named})"
        sys.stdout.write(f"\n{said}\n")
    assert per_job <= budget_bytes(program.name, program.version)
