"""The server's own account: what it did between two moments, and what a bare XADD costs it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import attrs
import redis

from pool.names import Control, Names

# What a client sends by itself; all other commands run inside scripts.  (A worker's word to a node
# that waits is an XADD like those in scripts; it is counted among the commands only.)
_CALLS: Final = ("evalsha", "xread", "xtrim", "script|load")
_POLL_S: Final = 0.01
_RAW_BATCH: Final = 1000
_RAW_CLIENTS: Final = 50
_RAW_FIELDS: Final = ("k", "tenant-00000001", "m", "8z4k0qv1xt2f|noop|j|1|||", "p", "")


@attrs.frozen(kw_only=True)
class Usage:
    """What the server has done; the difference of two is what it did between them."""

    commands: int  # those inside scripts included
    calls: int  # scripts and reads: an upper bound of the round trips
    reads: int  # times it found something to read on a connection
    bytes_in: int
    bytes_out: int
    cpu_us: float  # of the server process
    script_us: float  # of that, within scripts
    memory_bytes: int

    def __sub__(self, before: Usage) -> Usage:
        then = attrs.asdict(before)
        return Usage(**{name: now - then[name] for name, now in attrs.asdict(self).items()})


class Probe:
    """A connection of the benchmark's own to the server under measurement."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.client: Any = redis.Redis.from_url(url, protocol=2)
        self._stream = f"raw-xadd-{secrets.token_hex(4)}"  # the server may be somebody's

    def close(self) -> None:
        """Close the connection."""
        self.client.close()

    def server(self) -> dict[str, str]:
        """Return name and version."""
        info = self.client.info("server")
        name = info.get("server_name", "redis")
        return {"name": name, "version": info.get(f"{name}_version", info["redis_version"])}

    def usage(self) -> Usage:
        """Return what the server has done so far."""
        info = self.client.info("everything")
        calls = [info.get(f"cmdstat_{name}", {"calls": 0, "usec": 0}) for name in _CALLS]
        return Usage(
            commands=info["total_commands_processed"],
            calls=sum(call["calls"] for call in calls),
            reads=info["total_reads_processed"],
            bytes_in=info["total_net_input_bytes"],
            bytes_out=info["total_net_output_bytes"],
            cpu_us=1e6 * (info["used_cpu_user"] + info["used_cpu_sys"]),
            script_us=calls[0]["usec"],
            memory_bytes=info["used_memory"],
        )

    def keys_bytes(self) -> int:
        """Return what all keys hold: unlike `used_memory`, no buffers of connections."""
        found = 0
        keys = list(self.client.scan_iter(count=1000))
        for first in range(0, len(keys), 1000):
            pipeline = self.client.pipeline(transaction=False)
            for key in keys[first : first + 1000]:
                pipeline.memory_usage(key, samples=0)
            found += sum(size or 0 for size in pipeline.execute())  # None: it expired meanwhile
        return found

    def wait_done(self, pool: str, jobs: int, *, limit_s: float) -> int:
        """Return once so many jobs have ended as done; returns how often it had to ask."""
        lane, deadline_s, asked = Names(pool, 0).lane, time.monotonic() + limit_s, 0
        while True:
            asked += 1
            done = int(self.client.hget(lane, "done") or 0)
            if done >= jobs:
                return asked
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{done} of {jobs} jobs done after {limit_s} s")
            time.sleep(_POLL_S)

    @contextmanager
    def pool(self) -> Iterator[str]:
        """Yield the name of a pool of its own, which is gone afterwards."""
        name = f"bench-{secrets.token_hex(4)}"
        try:
            yield name
        finally:
            self.forget(name)

    def forget(self, pool: str) -> None:
        """Delete everything of a pool."""
        everything = Control(pool).prefix.rpartition("}")[0]  # the lanes' tags begin like it
        keys = list(self.client.scan_iter(match=f"{everything}*", count=1000))
        for first in range(0, len(keys), 1000):
            self.client.unlink(*keys[first : first + 1000])

    # --- the yardstick ----------------------------------------------------------------------------

    def xadd_pipelined(self, count: int) -> tuple[float, float]:
        """Append `count` entries in pipelines; return how many a second, and server CPU us each."""
        before, began_s = self.usage(), time.monotonic()
        for _ in range(0, count, _RAW_BATCH):
            pipeline = self.client.pipeline(transaction=False)
            for _ in range(_RAW_BATCH):
                pipeline.execute_command("XADD", self._stream, "*", *_RAW_FIELDS)
            pipeline.execute()
        seconds = time.monotonic() - began_s
        spent = self.usage() - before
        self.client.unlink(self._stream)
        return count / seconds, spent.cpu_us / count

    def xadd_one_by_one(self, count: int) -> list[float]:
        """Append `count` entries, one by one; return the us of each round trip."""
        spent_us = []
        for _ in range(count):
            began_ns = time.monotonic_ns()
            self.client.execute_command("XADD", self._stream, "*", *_RAW_FIELDS)
            spent_us.append((time.monotonic_ns() - began_ns) / 1e3)
        self.client.unlink(self._stream)
        return spent_us

    def xadd_clients(self, count: int) -> tuple[float, float]:
        """Likewise from 50 connections, each of which waits for its answer before the next one."""
        words = ("XADD", self._stream, "*", *_RAW_FIELDS)
        pool = self.client.connection_pool
        connections = [pool.get_connection() for _ in range(_RAW_CLIENTS)]
        packed = connections[0].pack_command(*words)
        before, began_s = self.usage(), time.monotonic()
        for _ in range(0, count, _RAW_CLIENTS):
            for connection in connections:
                connection.send_packed_command(packed)
            for connection in connections:
                connection.read_response()
        seconds = time.monotonic() - began_s
        spent = self.usage() - before
        for connection in connections:
            pool.release(connection)
        self.client.unlink(self._stream)
        return count / seconds, spent.cpu_us / count
