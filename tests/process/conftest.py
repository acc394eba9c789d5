"""Fleets of real processes on a real server, and the ledger that tells what they did.

A test starts members (`member.py`), hurts them or their server, and waits for what the ledger must
say in time.  Half of the members run on asyncio, half on trio.  Tests run on each kind of server
that is here: the wheel's, and a Redis on PATH.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import attrs
import pytest
import redis

import pool
from pool.core.record import Record
from pool.names import Names, lane_of
from pool.redis.acl import rules
from pool.redis.commands.lane import Lane
from pool.redis.embedded.server import EmbeddedServer, ServerProgram, find_servers
from pool.testing.audit import audit
from tests.servers import ON, Cluster, Sentinels, connect, refusals, start, with_user
from tests.stopwatch import Stopwatch

PATIENCE_S = 60.0  # for what has no deadline of its own; nothing takes that long
START_S = 120.0  # for a process to start and join: only that nothing hangs
LOOK_AGAIN_S = 0.01
BACK_S = 6.0  # within the TTL and so long all begin again that may have killed their worker (G-06)
POOL = "fleet"  # of all fleets, and the name of the user whom their members come as
MEMBER = Path(__file__).with_name("member.py")
PACKAGE = Path(pool.__file__).parent
LANES = 3 if ON == "cluster" else 1

T = TypeVar("T")


def _programs() -> list[ServerProgram]:
    """Return the program that all tests use, and the first Redis on PATH if there is one."""
    found = list(find_servers("wheel", []))
    return found[:1] + [other for other in found[1:] if other.name == "redis"][:1]


@pytest.fixture(scope="module", params=_programs(), ids=lambda found: found.name)
def program(request: pytest.FixtureRequest) -> ServerProgram:
    """Return each server program in turn."""
    assert isinstance(request.param, ServerProgram)
    return request.param


class NotInTimeError(AssertionError):
    """What the ledger had to say was not there in time."""


@attrs.frozen(kw_only=True)
class Run:
    """One run of a handler, as the ledger tells it; `ended_s` is infinite while it runs."""

    key: str
    job: str
    node: str
    epoch: int
    attempt: int
    began_s: float
    began_with: int  # a clock's ticks
    ended_s: float = float("inf")
    ended_with: int = 0
    how: str = ""


@attrs.define(eq=False)
class Member:
    """One process of a fleet."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    is_expected_to_live: bool = True
    died_s: float = float("inf")
    _asks: Iterator[int] = attrs.field(factory=lambda: itertools.count(1))

    def tell(self, do: str, **arguments: Any) -> str:
        """Send a command; returns the name of its answer."""
        ask = f"{self.name}/{next(self._asks)}"
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"ask": ask, "do": do, **arguments}).encode() + b"\n")
        self.process.stdin.flush()
        return ask

    def note_end(self) -> None:
        """Wait for the end, and write down when it was."""
        self.process.wait()
        self.died_s = time.monotonic()

    def signal(self, number: signal.Signals) -> float:
        """Send a signal; returns when."""
        if number == signal.SIGTERM:
            self.is_expected_to_live = False
        at_s = time.monotonic()
        self.process.send_signal(number)
        return at_s


@attrs.define(eq=False)
class Fleet:
    """The processes of one pool, its server, and the ledger."""

    place: EmbeddedServer | Cluster | Sentinels
    directory: Path
    package: Path = PACKAGE
    pool: str = POOL
    ttl_s: float = 1.0
    lanes: int = 1
    lines: list[dict[str, Any]] = attrs.field(factory=list)
    members: dict[str, Member] = attrs.field(factory=dict)
    slowest_start_s: float = 0.0
    _watch: Stopwatch = attrs.field(init=False, factory=lambda: Stopwatch().start())
    _read_bytes: int = 0

    # --- processes ---

    def start(
        self,
        *names: str,
        trap: str = "",
        is_client: bool = False,
        is_mortal: bool = False,
        capacity: int = 100,
        label: str = "",
        **settings: Any,
    ) -> list[Member]:
        """Start members at the same time; returns when all have joined, and know one another.

        Of one that is mortal, its end is noted whenever it comes.
        """
        usual = {
            "lease_ttl_s": self.ttl_s,
            "grace_s": 2.0,
            "settle_delay_s": 0.3,
            "lanes": self.lanes,
        }
        begun = []
        since_s = time.monotonic()
        for name in names:
            cast = {
                "name": name,
                "url": with_user(self.place.url, POOL, "any"),
                "pool": self.pool,
                "ledger": str(self._ledger),
                "loop": ("asyncio", "trio")[len(self.members) % 2],
                "settings": {**usual, **settings},
                "capacity": capacity,
                "label": label,
                "is_client": is_client,
                "trap": trap,
            }
            log = self.directory / f"{name}.log"
            with log.open("wb") as errors:
                process = subprocess.Popen(
                    [sys.executable, MEMBER, json.dumps(cast)],
                    stdin=subprocess.PIPE,
                    stdout=errors,
                    stderr=errors,
                    env={**os.environ, "PYTHONPATH": str(self.package.parent)},
                )
            lasts = not (trap or is_mortal)
            self.members[name] = member = Member(name, process, log, is_expected_to_live=lasts)
            begun.append(member)
            if is_mortal:
                threading.Thread(target=member.note_end, daemon=True).start()
        for name in names:
            self.until(partial(self._has_joined, name), within_s=START_S, what=f"{name} has joined")
        self.slowest_start_s = max(self.slowest_start_s, time.monotonic() - since_s)
        # Else a service might be placed by a node that lacks a worker, and move a little later.
        lasting = {m.name: m for m in self.members.values() if m.is_expected_to_live}
        joined = [said for said in self.said("ready") if said["node"] in lasting]
        workers = [worker for said in joined for worker in said["worker"]]
        for member in lasting.values():
            self.ask(member, "knows", workers=workers)
        return begun

    def _has_joined(self, name: str) -> bool:
        member = self.members[name]
        is_over = not member.is_expected_to_live and member.process.poll() is not None
        return is_over or bool(self.said("ready", node=name))

    def kill(self, member: Member) -> float:
        """SIGKILL; returns when."""
        member.is_expected_to_live = False
        at_s = member.signal(signal.SIGKILL)
        member.process.wait()
        member.died_s = time.monotonic()
        return at_s

    def died(self, member: Member) -> float:
        """Wait for a member that ends by itself; returns when it was seen."""
        member.process.wait(PATIENCE_S)
        member.died_s = time.monotonic()
        return member.died_s

    def leave(self, member: Member) -> float:
        """SIGTERM; returns when, once the process has ended in peace."""
        at_s = member.signal(signal.SIGTERM)
        self.has_left(member)
        return at_s

    def has_left(self, member: Member) -> None:
        """Wait for the end of a member that was told to leave."""
        code = member.process.wait(PATIENCE_S)
        member.died_s = time.monotonic()
        assert code == 0, f"{member.name} ended with {code}: {member.log.read_text()[-2000:]}"

    def close(self) -> None:
        """End everything that runs."""
        self._watch.end()
        for member in self.members.values():
            if member.process.poll() is None:
                member.process.kill()
            member.process.wait()
            assert member.process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                member.process.stdin.close()

    # --- commands ---

    def ask(
        self, member: Member, do: str, *, within_s: float = PATIENCE_S, **arguments: Any
    ) -> Any:
        """Send a command and return its answer."""
        return self.answer(member.tell(do, **arguments), within_s=within_s)

    def answer(self, ask: str, *, within_s: float = PATIENCE_S) -> Any:
        """Wait for the answer to a command."""
        said = self.until(lambda: self.said("reply", ask=ask), within_s=within_s, what=ask)
        return said[0]["value"]

    def dispatch(
        self, member: Member, handler: str, keys: Iterable[str], *args: Any, delay_s: float = 0.0
    ) -> dict[str, str]:
        """Dispatch a job for each key; returns key -> job id, all of them accepted."""
        calls = [[key, *args] for key in keys]
        jobs = self.ask(member, "dispatch", handler=handler, calls=calls, delay_s=delay_s)
        assert not [job for job in jobs if job.startswith("!")], jobs
        return dict(zip((key for key, *_ in calls), jobs, strict=True))

    def results(
        self, member: Member, jobs: Mapping[str, str], *, within_s: float = PATIENCE_S
    ) -> dict[str, Any]:
        """Return key -> what the store has as its job's result."""
        values = self.ask(
            member,
            "results",
            jobs=list(jobs.values()),
            timeout_s=within_s,
            within_s=within_s + 1.0,
        )
        return {key: values[job] for key, job in jobs.items()}

    # --- the ledger ---

    @property
    def _ledger(self) -> Path:
        return self.directory / "ledger"

    def read(self) -> list[dict[str, Any]]:
        """Return all lines; one that is being written is left for the next time."""
        if self._ledger.exists():
            with self._ledger.open("rb") as file:
                file.seek(self._read_bytes)
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._read_bytes += len(whole)
            self.lines += map(json.loads, whole.splitlines())
        return self.lines

    def said(self, what: str, **facts: Any) -> list[dict[str, Any]]:
        """Return the lines that say this."""
        return [
            line
            for line in self.read()
            if line["what"] == what and all(line.get(k) == v for k, v in facts.items())
        ]

    def events(self, event: str, **facts: Any) -> list[dict[str, Any]]:
        """Return the events of this name; those of our own nodes only."""
        return self.said("event", event=event, **facts)

    def until(self, look: Callable[[], T], *, within_s: float = PATIENCE_S, what: str = "") -> T:
        """Look again and again until it is there; returns it.

        Raises:
            NotInTimeError: It was not there within `within_s`, or a member died meanwhile.
        """
        since_s = time.monotonic()
        while not (found := look()):
            if self._is_over(since_s, within_s):
                raise NotInTimeError(f"{what or 'it'}: not within {within_s:.2f} s\n{self._tail()}")
            for member in self.members.values():
                if member.is_expected_to_live and member.process.poll() is not None:
                    raise NotInTimeError(f"{member.name} died:\n{member.log.read_text()[-3000:]}")
            threading.Event().wait(LOOK_AGAIN_S)
        return found

    @staticmethod
    def now_s() -> float:
        """Return the time by the clock of the ledger."""
        return time.monotonic()

    def took_s(self, since_s: float, until_s: float | None = None) -> float:
        """Return how long it took, but for what the machine was late; `None`: until now.

        Leases last longer by the time in which nobody's renewal was answered, and nobody is fenced
        for one TTL after another server answered (G-06): the lanes say so, whichever process or
        server stood still, and both are taken off.
        """
        until_s = time.monotonic() if until_s is None else until_s
        return self._watch.took_s(since_s, until_s) - self._held_s(since_s, until_s)

    def _is_over(self, since_s: float, within_s: float) -> bool:
        raw_s = time.monotonic() - since_s
        if raw_s > within_s + PATIENCE_S:  # a lane that holds everybody for ever is no excuse
            return True
        # The server is asked only if all depends on it.
        return self._watch.took_s(since_s) > within_s < self.took_s(since_s)

    def _held_s(self, since_s: float, until_s: float) -> float:
        """Return for how long leases stood still or held, in the lane where it was longest.

        A server that does not answer has told of nothing.
        """
        to_ours_s = time.monotonic() - time.time()
        from_ms, held_s = round(1000 * (since_s - to_ours_s)), [0.0]
        with contextlib.suppress(redis.RedisError), self.client() as client:
            for names in self.all_names:
                told: Any = client.hmget(names.lane, ["seen", "lease", "silences"])
                seen, lease, silences = told
                behind = now_behind = int(seen or 0) - int(lease or 0)  # pool time of lease time
                for each in reversed((silences or b"").split()):
                    _, before, latest = map(int, each.split(b"|"))
                    behind = before if latest >= from_ms else behind
                counted_s, over_s = (now_behind - behind) / 1000, since_s
                entries: Any = client.xrange(
                    names.journal, max(0, from_ms - round(1000 * self.ttl_s))
                )
                for entry_id, entry in entries:
                    if entry[b"edge"] == b"server":
                        at_s = int(entry_id.split(b"-")[0]) / 1000 + to_ours_s
                        begun_s = max(over_s, at_s)
                        over_s = max(over_s, min(until_s, at_s + self.ttl_s))
                        counted_s += max(0.0, over_s - begun_s)
                held_s.append(counted_s)
        return max(held_s)

    def passes(self, since_s: float, seconds: float) -> None:
        """Let time pass that the fault itself takes."""
        threading.Event().wait(max(0.0, since_s + seconds - time.monotonic()))

    def _tail(self) -> str:
        shown = [line for line in self.read() if line["what"] != "reply"][-40:]
        logs = [m.log.read_text()[-1500:] for m in self.members.values() if m.log.stat().st_size]
        return "\n".join([*map(json.dumps, shown), *logs, *self.problems()])

    # --- what happened ---

    def runs(self, keys: Iterable[str] = ()) -> list[Run]:
        """Return all runs of handlers, of these keys or of all, in the order of their starts."""
        wanted = set(keys)
        runs: dict[tuple[str, int], Run] = {}
        for line in self.read():
            if line["what"] not in ("start", "end") or (wanted and line["key"] not in wanted):
                continue
            number = (line["node"], line["run"])
            if line["what"] == "start":
                runs[number] = Run(
                    key=line["key"],
                    job=line["job"],
                    node=line["node"],
                    epoch=line["epoch"],
                    attempt=line["attempt"],
                    began_s=line["at_s"],
                    began_with=line["count"],
                )
            else:
                runs[number] = attrs.evolve(
                    runs[number],
                    ended_s=line["at_s"],
                    ended_with=line["count"],
                    how=line["how"],
                )
        return list(runs.values())

    def alive(self, keys: Iterable[str] = ()) -> dict[str, Run]:
        """Return key -> the run that is under way now, in a process that lives."""
        return {
            run.key: run
            for run in self.runs(keys)
            if not run.how and self.members[run.node].died_s == float("inf")
        }

    def are_running(self, keys: Iterable[str], *, within_s: float = PATIENCE_S) -> dict[str, Run]:
        """Wait until all these keys run; returns their runs."""
        wanted = set(keys)

        def all_of_them() -> dict[str, Run]:
            alive = self.alive(wanted)
            return alive if alive.keys() == wanted else {}

        return self.until(all_of_them, within_s=within_s, what=f"{len(wanted)} keys run")

    def took_over(
        self, keys: Iterable[str], since_s: float, but: Member, *, within_s: float
    ) -> list[float]:
        """Wait until all these keys were started elsewhere; returns after how long each."""
        wanted = set(keys)

        def first_starts() -> dict[str, float]:
            starts: dict[str, float] = {}
            for run in self.runs(wanted):
                if run.node != but.name and run.began_s > since_s:
                    starts.setdefault(run.key, run.began_s - since_s)
            return starts if starts.keys() == wanted else {}

        took = self.until(
            first_starts, within_s=within_s, what=f"{len(wanted)} keys of {but.name} elsewhere"
        )
        return sorted(took.values())

    def overlaps(self, *, frozen: Sequence[Member] = ()) -> list[tuple[Run, Run]]:
        """Return the runs of one key that were under way at the same time (G-02).

        A killed process ended its handlers when it died.  Those of a frozen one are left out: that
        is the residual window of G-03.
        """
        left_out = {member.name for member in frozen}
        by_key: dict[str, list[Run]] = defaultdict(list)
        for run in self.runs():
            if run.node not in left_out:
                by_key[run.key].append(run)
        return [
            (before, after)
            for runs in by_key.values()
            for before, after in itertools.combinations(runs, 2)
            if min(before.ended_s, self.members[before.node].died_s) > after.began_s
        ]

    # --- the store ---

    @property
    def server(self) -> EmbeddedServer:
        """The server, where there is one."""
        assert isinstance(self.place, EmbeddedServer)
        return self.place

    @property
    def all_names(self) -> list[Names]:
        """The keys of each lane."""
        return [Names(self.pool, number) for number in range(self.lanes)]

    @property
    def lane(self) -> Lane:
        """The operations of the only lane, for what a test does by hand."""
        assert self.lanes == 1
        with self.client() as client:
            made: Any = client.hget(Names(self.pool, 0).lane, "incarnation")
        return Lane(Names(self.pool, 0), made.decode())

    @contextlib.contextmanager
    def client(self) -> Iterator[redis.Redis]:
        """A connection of the test's own."""
        with connect(self.place.url, socket_timeout=5.0) as client:
            yield client

    def record(self, key: str) -> Record | None:
        """Return the record of a key's live job."""
        with self.client() as client:
            text: Any = client.hget(Names(self.pool, lane_of(key, self.lanes)).jobs, key)
        return Record.parse(text) if text is not None else None

    def owners(self) -> dict[str, str]:
        """Return key -> the identity that owns it now, if any does."""
        with self.client() as client:
            lanes: list[Any] = [client.hgetall(names.jobs) for names in self.all_names]
        texts = {key.decode(): text for lane in lanes for key, text in lane.items()}
        records = {key: Record.parse(text) for key, text in texts.items()}
        return {key: record.owner for key, record in records.items() if record and record.owner}

    def counter(self, name: str) -> int:
        """Return one of the counters, of all lanes together."""
        with self.client() as client:
            texts: list[Any] = [client.hget(names.lane, name) for names in self.all_names]
        return sum(int(text or 0) for text in texts)

    def problems(self) -> list[str]:
        """Return what the auditor finds."""
        with self.client() as client:
            return audit(client, self.pool)

    def is_sound(self, *, frozen: Sequence[Member] = ()) -> None:
        """Check what holds at the end of every story: nothing ran twice, the store is in order.

        And the members were refused nothing: their user has the rights that `pool acl` prints.
        """
        nodes = [self.place] if isinstance(self.place, EmbeddedServer) else self.place.nodes()
        assert not [each for node in nodes for each in refusals(node)]
        assert not self.overlaps(frozen=frozen)
        crashed = self.events("actor.crashed")
        assert not crashed, crashed
        self.until(lambda: not self.problems(), within_s=2 * self.ttl_s, what="the store is sound")


class MakeFleet(Protocol):
    """What makes fleets."""

    def __call__(
        self, *, ttl_s: float = 1.0, package: Path = PACKAGE, lanes: int = LANES
    ) -> Fleet: ...


class Figures(Protocol):
    """What takes the figures of a test, in seconds unless named otherwise."""

    def __call__(self, name: str, values: Sequence[float], /) -> None: ...


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Figures:
    """Return what keeps figures for the end of the run; pytest's own refuses to in some reports."""

    def keep(name: str, values: Sequence[float], /) -> None:
        text = f"p50 {statistics.median(values):.3f}, max {max(values):.3f}"
        request.node.user_properties.append((name, f"{text} of {len(values)}"))

    return keep


def fleet_users(directory: Path) -> str:
    """Write the file of the user whom a fleet's members come as; returns its path."""
    # A file, because the servers of a fleet are killed and restarted.
    users = directory / "users.acl"
    users.write_text(f"user {POOL} on nopass {' '.join(rules(POOL))}\n")
    return str(users)


def fleet_server(program: ServerProgram, directory: Path) -> EmbeddedServer:
    """Start a server that keeps its data and knows the user of a fleet."""
    config = {"aclfile": fleet_users(directory)}
    return EmbeddedServer.start(program, persist=True, config=config)


@pytest.fixture
def make_fleet(program: ServerProgram, tmp_path: Path) -> Iterator[MakeFleet]:
    """Yield what makes fleets, each with a server of its own; all are ended afterwards."""
    with contextlib.ExitStack() as stack:
        numbers = itertools.count()

        def make(*, ttl_s: float = 1.0, package: Path = PACKAGE, lanes: int = LANES) -> Fleet:
            directory = tmp_path / str(next(numbers))
            directory.mkdir()
            place: EmbeddedServer | Cluster | Sentinels
            if ON == "single":
                place = fleet_server(program, directory)
            else:
                place = start(ON, program, aclfile=fleet_users(directory))
            stack.enter_context(place)
            fleet = Fleet(place, directory, package=package, ttl_s=ttl_s, lanes=lanes)
            stack.callback(fleet.close)
            return fleet

        yield make


@pytest.fixture
def fleet(make_fleet: MakeFleet) -> Fleet:
    """Return a fleet without members, on a server of its own."""
    return make_fleet()
