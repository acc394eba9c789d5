"""The processes of one fleet, seen from the benchmark: started, asked, and gone afterwards."""

from __future__ import annotations

import os
import signal
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final, Self, TypeAlias

from benchmarks.fleet_rows import Sizes
from benchmarks.probe import Probe
from benchmarks.throughput import Member
from pool.core.lease import TTL_DEFAULT_S

WAIT_S: Final = 60.0
LOOK_S: Final = 0.05  # between two looks at how far a fleet has come
CHUNK: Final = 10_000  # jobs in one `dispatch_many`

Kept: TypeAlias = dict[str, list[int]]


class Process(Member):
    """A process of a fleet; see `fleet_member.py`."""

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Fleet:
    """The processes of one pool, gone afterwards."""

    def __init__(self, probe: Probe, loop: str, sizes: Sizes) -> None:
        self._probe = probe
        self._loop = loop
        self._sizes = sizes
        self._stack = ExitStack()
        self.members: list[Member] = []  # those with workers

    def __enter__(self) -> Self:
        self._pool = self._stack.enter_context(self._probe.pool())
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, count: int, role: str = "worker") -> list[Member]:
        """Start so many processes."""
        module = "benchmarks.fleet_member"
        started: list[Member] = [
            Process(module, role, self._loop, self._pool, self._probe.url) for _ in range(count)
        ]
        for each in started:
            self._stack.enter_context(each)
        if role != "client":
            self.members += started
        return started

    def client(self) -> Member:
        """Start a process with one client node."""
        [client] = self.start(1, "client")
        self.joined(client, ["client"])
        return client

    def join(
        self,
        member: Member,
        names: Sequence[str],
        *,
        capacity: int = 100,
        workers: int = 1,
        ttl_s: float = TTL_DEFAULT_S,
        at_once: int = 100,
    ) -> None:
        """Have a process enter nodes, without waiting for it."""
        settings = {"lease_ttl_s": ttl_s, "settle_delay_s": self._sizes.settle_s}
        asked = {"capacity": capacity, "workers": workers, "settings": settings}
        member.tell(do="join", names=names, at_once=at_once, **asked)

    def joined(self, member: Member, names: Sequence[str], **more: Any) -> int:
        """Have a process enter nodes; return its number."""
        self.join(member, names, **more)
        pid: int = member.hear()["pid"]
        return pid

    def kill_at_end(self, pids: Iterable[int]) -> None:
        """Have processes killed when this ends: what they run is nobody's any more."""
        for pid in pids:
            self._stack.callback(os.kill, pid, signal.SIGKILL)

    # --- services ---------------------------------------------------------------------------------

    def serve(self, client: Member, handler: str, prefix: str, count: int) -> tuple[int, int]:
        """Dispatch services and wait until they run; return when the first and last call was."""
        told = [
            client.ask(
                "dispatch",
                handler=handler,
                prefix=prefix,
                first=first,
                count=min(CHUNK, count - first),
            )
            for first in range(0, count, CHUNK)
        ]
        self.wait_begun(count, self.members)
        return told[0]["began_ns"], told[-1]["ended_ns"]

    def wait_begun(self, count: int, members: Sequence[Member], limit_s: float = WAIT_S) -> None:
        """Wait until so many services have begun since the last news, or give up when none does."""
        progress, deadline_s = -1, time.monotonic() + limit_s
        while (begun := sum(self._counts(members, "begun"))) < count:
            if begun > progress:
                progress, deadline_s = begun, time.monotonic() + limit_s
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{begun} of {count} services begun, none for {limit_s} s")
            time.sleep(LOOK_S)

    def settle(self) -> int:
        """Return when the last service moved, once none has for a while."""
        begun, since_s = -1, 0.0
        while True:
            if (now := sum(self._counts(self.members, "begun"))) != begun:
                begun, since_s = now, time.monotonic()
            if time.monotonic() - since_s > self._sizes.quiet_s:
                return max(self._counts(self.members, "last_ns"))
            time.sleep(LOOK_S)

    def news(self) -> tuple[Kept, Kept]:
        """Return when services began and ended since the last time, by key and in order."""
        begun: Kept = defaultdict(list)
        ended: Kept = defaultdict(list)
        for member in self.members:
            told = member.ask("news")
            for kept, notes in ((begun, told["begun"]), (ended, told["ended"])):
                for key, at_ns in notes:
                    kept[key].append(at_ns)
        for times_ns in (*begun.values(), *ended.values()):
            times_ns.sort()
        return begun, ended

    def late_s(self) -> dict[str, list[float]]:
        """Return how late each notification was since the last time, by the prefix of its key."""
        late: dict[str, list[float]] = defaultdict(list)
        for member in self.members:
            for key, late_ns in member.ask("news")["late"]:
                late[key.partition("-")[0]].append(late_ns / 1e9)
        return late

    def wait_late(self, count: int) -> None:
        """Wait until so many notifications were received since the last news."""
        deadline_s = time.monotonic() + WAIT_S
        while (got := sum(self._counts(self.members, "late"))) < count:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{got} of {count} notifications received after {WAIT_S} s")
            time.sleep(LOOK_S)

    @staticmethod
    def _counts(members: Sequence[Member], what: str) -> list[int]:
        return [each.ask("news", is_whole=False)[what] for each in members]


def ask_all(members: Sequence[Member], do: str, **asked: Any) -> list[dict[str, Any]]:
    """Ask all at once; return all answers."""
    for each in members:
        each.tell(do=do, **asked)
    return [each.hear() for each in members]


def gaps_s(begun: Mapping[str, Sequence[int]], ended: Mapping[str, Sequence[int]]) -> list[float]:
    """Return how long each service that ended was nowhere, in seconds.

    Raises:
        RuntimeError: Some service did not begin again, or began before it had ended.
    """
    gaps: list[float] = []
    for key, ends_ns in ended.items():
        pairs = zip(ends_ns, begun.get(key, ()), strict=True)
        gaps += [(begin_ns - end_ns) / 1e9 for end_ns, begin_ns in pairs]
    if gaps and min(gaps) < 0:
        raise RuntimeError(f"two owners at once, for {-min(gaps)} s")
    return gaps
