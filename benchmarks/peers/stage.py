"""One measurement of one peer: a server of its own, a client, workers, and what all of them did."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any, Final, Self

import attrs

from benchmarks.peers.environments import ROOT, python_of
from benchmarks.peers.protocol import Setting
from benchmarks.probe import Probe
from benchmarks.throughput import Member
from pool.redis.embedded.server import EmbeddedServer, ServerProgram

WARM_JOBS: Final = 50
LIMIT_S: Final = 60.0  # for anything that is waited for, recoveries apart
_POLL_S: Final = 0.005


@attrs.frozen(kw_only=True)
class Peer:
    """A library that is measured, as its adapter describes itself."""

    name: str
    versions: dict[str, str]
    docs: str
    usual: str
    results: str
    safe: str
    left: Sequence[Sequence[str]]
    has_bulk: bool
    running_max: int
    cannot: dict[str, str]

    @classmethod
    def of(cls, name: str) -> Self:
        """Ask the adapter; it imports the library, so it fails here if anything is missing."""
        with _member(name, "facts", "", "usual", 0) as facts:
            return cls(name=name, **facts.first)

    def why_not(self, metric: str) -> str:
        """Return why a metric cannot be taken, or nothing."""
        whys = (why for part, why in self.cannot.items() if metric.startswith(part))
        return next(whys, "")


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _member(name: str, role: str, url: str, setting: Setting, slots: int) -> Member:
    module = f"benchmarks.peers.{name}"
    return Member(module, role, url, setting, str(slots), python=python_of(name), at=ROOT)


class Stage:
    """Open for one measurement; nothing that another one left is there."""

    def __init__(
        self,
        program: ServerProgram,
        peer: Peer,
        *,
        setting: Setting = "usual",
        slots: Sequence[int] = (0,),
    ) -> None:
        self.peer = peer
        self.setting = setting
        self.slots = slots  # of each worker process
        self._program = program
        self._stack = ExitStack()
        self._numbers = 0
        self.workers: list[Member] = []
        self.started: list[dict[int, list[int]]] = [{} for _ in slots]  # number -> ns, per worker

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            port = free_port()  # some peers speak TCP only, so all do
            server = stack.enter_context(EmbeddedServer.start(self._program, tcp_port=port))
            self.url = server.url
            self.probe = Probe(server.url)
            stack.callback(self.probe.close)
            enter, name = stack.enter_context, self.peer.name
            self.client = enter(_member(name, "client", self.url, self.setting, max(self.slots)))
            for each in self.slots:
                worker = enter(_member(name, "worker", self.url, self.setting, each))
                self.workers.append(worker)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes.  Killed ones: nobody waits for a library to say goodbye."""
        for member in self.workers:
            member.kill()
        self._stack.close()

    # --- asking -----------------------------------------------------------------------------------

    def ask(self, do: str, count: int, /, **more: Any) -> tuple[dict[str, Any], range]:
        """Have the client enqueue so many jobs; return its answer and their numbers."""
        numbers = range(self._numbers, self._numbers + count)
        self._numbers += count
        return self.client.ask(do, first=numbers.start, **more), numbers

    def enqueue(self, do: str, jobs: int) -> tuple[dict[str, Any], range]:
        """Likewise, for what takes a number of jobs."""
        return self.ask(do, jobs, jobs=jobs)

    def fill(self, jobs: int) -> tuple[dict[str, Any], range]:
        """Enqueue in the fastest way there is."""
        return self.enqueue("many" if self.peer.has_bulk else "callers", jobs)

    def work(self, *which: int) -> None:
        """Have workers begin; all of them by default."""
        for index in which or range(len(self.workers)):
            self.workers[index].tell()

    def report(self, index: int) -> dict[str, Any]:
        """Ask a worker what began there, and note it."""
        told = self.workers[index].ask("report")
        for number, ns in told["starts"]:
            self.started[index].setdefault(number, []).append(ns)
        return told

    # --- waiting ----------------------------------------------------------------------------------

    def left(self) -> int:
        """Return how many jobs have not ended."""
        client = self.probe.client
        return sum(_jobs_in(client.execute_command(*words)) for words in self.peer.left)

    def wait_ended(self) -> int:
        """Wait until no job is left; return how many commands it took to ask."""
        end_s, asked = time.monotonic() + LIMIT_S, 0
        while True:
            asked += len(self.peer.left)
            left = self.left()
            if not left:
                return asked
            if time.monotonic() > end_s:
                raise TimeoutError(f"{left} jobs are left after {LIMIT_S:g} s")
            time.sleep(_POLL_S)

    def wait_started(self, numbers: Iterable[int], *which: int) -> dict[int, int]:
        """Wait until all of these have begun; return when each did, for the first time."""
        wanted, end_s = set(numbers), time.monotonic() + LIMIT_S
        while True:
            for index in which or range(len(self.workers)):
                self.report(index)
            first: dict[int, int] = {}
            for index in which or range(len(self.workers)):
                for number in wanted & self.started[index].keys():
                    ns = self.started[index][number][0]
                    first[number] = min(ns, first.get(number, ns))
            if len(first) == len(wanted):
                return first
            if time.monotonic() > end_s:
                raise TimeoutError(f"{len(first)} of {len(wanted)} jobs began in {LIMIT_S:g} s")
            time.sleep(10 * _POLL_S)

    def warm(self) -> None:
        """Have the workers begin and run a few jobs: scripts are loaded, connections made."""
        self.work()
        _, numbers = self.enqueue("one_by_one", WARM_JOBS)
        self.wait_started(numbers)
        self.wait_ended()


def _jobs_in(reply: Any) -> int:
    """Return the jobs in an answer: a number, or what XINFO GROUPS says."""
    if isinstance(reply, int):
        return reply
    fields = reply[0] if isinstance(reply[0], dict) else dict(zip(*[iter(reply[0])] * 2))  # noqa: B905
    return int(fields[b"pending"]) + int(fields[b"lag"] or 0)
