"""A bench for scripts: one lane on a real server, on which each call may touch its KEYS only.

The commands that it may call are those of a pool's user, see `pool/redis/acl.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import pytest
import redis

from pool.core.options import Options
from pool.core.pooltime import Told
from pool.core.record import Outcome, Record
from pool.names import Names, queued
from pool.redis.acl import rules
from pool.redis.commands.admission import Admission
from pool.redis.commands.calls import Target
from pool.redis.commands.edges import AdvanceGuard, Edge
from pool.redis.commands.lane import Lane
from pool.redis.commands.member import renewal
from pool.redis.commands.recovery import Claim, fenced
from pool.redis.commands.talk import Missing, More, looked
from pool.redis.commands.upkeep import Owned, owned
from pool.redis.embedded.server import EmbeddedServer, ServerProgram, find_servers
from pool.redis.scripts import ScriptCall
from pool.testing.audit import audit
from tests.edges import WireEdge

GENERATION = "inc-1.1"
PENDING_S = 10.0
TTL_S = 10.0
TTL_MS = 10_000
LONG_MS = 60_000

NODE = Target("n1", 1)
W1 = Target("w1", 1)
W2 = Target("w2", 1)

_COMMANDS = [word for word in rules("any") if word[0] in "+-"]
_SPECIAL = re.compile(r"([*?\[\]\\])")


@attrs.define
class Bench:
    """One lane; every script call runs as a user who has the call's KEYS and nothing else."""

    client: redis.Redis
    pool: str
    number: int = 0
    names: Names = attrs.field(init=False)
    lane: Lane = attrs.field(init=False)
    user: str = attrs.field(init=False)
    _limited: redis.Redis = attrs.field(init=False)
    _count: int = 0
    _renewals: int = 0

    def __attrs_post_init__(self) -> None:
        self.names = Names(self.pool, self.number)
        self.lane = Lane(self.names, GENERATION)
        self.user = f"only-{self.pool}"
        self.do("ACL", "SETUSER", self.user, "reset", "on", "nopass", *_COMMANDS)
        kwargs = self.client.connection_pool.connection_kwargs
        made = self.client.connection_pool.connection_class
        pool = redis.ConnectionPool(connection_class=made, max_connections=1, **kwargs)
        self._limited = redis.Redis(connection_pool=pool, single_connection_client=True)
        self._do(self._limited, "AUTH", self.user, "any")

    def close(self) -> None:
        self._limited.close()
        self._limited.connection_pool.disconnect()
        self.do("ACL", "DELUSER", self.user)

    # --- the server ---

    def do(self, *words: Any) -> Any:
        """Run one command as a user who may do everything."""
        return self._do(self.client, *words)

    def _do(self, client: redis.Redis, *words: Any) -> Any:
        return client.execute_command(*words)  # type: ignore[no-untyped-call]

    def load(self, call: ScriptCall) -> None:
        self.do("SCRIPT", "LOAD", call.script.source)

    def run(self, call: ScriptCall) -> Any:
        """Run a script; touching a key that it does not declare is an error (NOPERM)."""
        self.load(call)
        # A pattern may not hold blanks; `?` stands for any one character.
        names = (_SPECIAL.sub(r"\\\1", key) for key in {*call.keys})
        patterns = ["~" + re.sub(r"\s", "?", name) for name in names]
        self.do("ACL", "SETUSER", self.user, "resetkeys", *patterns)
        return self._do(self._limited, *call.words())

    def refused(self, call: ScriptCall) -> str:
        """Run a script that must refuse, and check that it has written nothing."""
        before = self.dump()
        with pytest.raises(redis.ResponseError) as refused:
            self.run(call)
        assert self.dump() == before, f"{call.script.name} refused, but has written"
        return str(refused.value)

    def key_names(self) -> list[str]:
        found = self.client.scan_iter(match=f"{self.names.prefix}*", count=1000)
        return sorted(key.decode() for key in found)

    def dump(self) -> dict[str, Any]:
        """Return all that stands in the lane, to be compared.

        Not DUMP: its bytes follow the order of a hash table, which a mere look may change.
        """
        keys = self.key_names()
        with self.client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.type(key)
            for key, kind in zip(keys, pipe.execute(), strict=True):
                match kind:
                    case b"hash":
                        pipe.hgetall(key)
                    case b"zset":
                        pipe.zrange(key, 0, -1, withscores=True)
                    case b"set":
                        pipe.smembers(key)
                    case b"list":
                        pipe.lrange(key, 0, -1)
                    case b"stream":
                        pipe.xrange(key)
                    case _:
                        pipe.get(key)
            return dict(zip(keys, pipe.execute(), strict=True))

    def save(self) -> dict[str, bytes]:
        """Return the whole lane, to be restored."""
        keys = self.key_names()
        with self.client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.dump(key)
            return dict(zip(keys, pipe.execute(), strict=True))

    def restore(self, saved: dict[str, bytes]) -> None:
        with self.client.pipeline(transaction=False) as pipe:
            for key in self.key_names():
                pipe.delete(key)
            for key, value in saved.items():
                pipe.restore(key, 0, value)
            pipe.execute()

    def now_ms(self) -> int:
        seconds, us = self.client.time()
        return int(seconds) * 1000 + int(us) // 1000

    def stamp(self) -> int:
        return int(self.do("HGET", self.names.lane, "stamp") or 0)

    def counter(self, name: str) -> int:
        return int(self.do("HGET", self.names.lane, name) or 0)

    def audit(self) -> list[str]:
        return audit(self.client, self.pool)

    def entries(self, stream: str) -> list[dict[str, str]]:
        """Return the fields of a stream's entries."""
        entries: Any = self.client.xrange(stream)
        return [
            {name.decode(): value.decode() for name, value in fields.items()}
            for _, fields in entries
        ]

    def journal(self) -> list[dict[str, str]]:
        return self.entries(self.names.journal)

    # --- the lane ---

    def join(
        self, workers: dict[Target, int] | None = None, *, node: Target = NODE, is_new: bool = True
    ) -> Bench:
        """Register a node, its workers (10 keys each) and the handlers h and other."""
        call = self.lane.join(
            node,
            {W1: 10, W2: 10} if workers is None else workers,
            {"h": Options(), "other": Options()},
            is_new=is_new,
            not_after_ms=self.now_ms() + LONG_MS,
            pool_ttl_ms=round(1000 * TTL_S),
        )
        self.do("HSETNX", self.names.lane, "incarnation", GENERATION)
        self.run(call)
        if not self.do("HEXISTS", self.names.lane, "lease"):
            # As if this server had answered a renewal long ago: nobody is held.
            run = self.client.info("server")["run_id"]
            now_ms = self.now_ms()
            for field, value in (("seen", now_ms), ("lease", now_ms), ("run", run)):
                self.do("HSET", self.names.lane, field, value)
        return self

    def renew_call(
        self, takes: dict[str, int], *, seq: int = 0, is_hung: bool = False, **options: Any
    ) -> ScriptCall:
        """Renew these identities, each of which takes so many keys; -1: a node.

        The caller expects what the server says, and has counted all along, unless told otherwise.
        """
        self._renewals += 1
        options.setdefault("told", Told(self.now_ms(), 1))
        return self.lane.renew(
            takes,
            options.pop("handlers", {"h": Options()}),
            seq=seq or self._renewals,
            is_hung=is_hung,
            **{"term": 0} | options,
        )

    def take(self, worker: Target, keys: int) -> None:
        """Have a worker take so many keys."""
        assert renewal(self.run(self.renew_call({worker.name: keys}))).counts != (-1,)

    def opening(self, worker_id: str) -> str:
        """Return what `open` says; empty if it says nothing."""
        return (self.do("HGET", self.names.open, worker_id) or b"").decode()

    def admission(self, key: str, **changes: Any) -> Admission:
        self._count += 1
        given: dict[str, Any] = {"id": f"id{self._count}", "handler": "h", "kind": "job"}
        given |= {"payload": b"payload of " + key.encode(), "ranked": [1]}
        return Admission(key=key, **given | changes)

    def dispatch_call(
        self,
        *items: Admission,
        targets: Sequence[Target] = (W1,),
        queued_jobs_max: int = 100,
        refused_s: float = 0.0,
    ) -> ScriptCall:
        return self.lane.dispatch(
            items,
            targets,
            pending_s=PENDING_S,
            queued_jobs_max=queued_jobs_max,
            refused_s=refused_s,
        )

    def dispatch(self, *items: Admission, **options: Any) -> list[str]:
        return [status.decode() for status in self.run(self.dispatch_call(*items, **options))]

    def put(
        self, key: str, state: str, *, payload: bytes = b"payload", handler: str = "h"
    ) -> Record:
        """Make a job in a state (its letter), owned by W1 where a state has an owner."""
        changes: dict[str, Any] = {"payload": payload, "handler": handler}
        if state == "W":
            changes["delay_s"] = 60.0
        elif state == "U":
            changes |= {"ranked": (), "unassigned": True}
        if state == "Q":
            if self.text(key) is None:
                self.put(key, "R")
            item = self.admission(key, policy="q9", **changes)
            assert self.dispatch(item) == ["QUEUED 0"]
            return self.record(queued(key, item.id))
        (status,) = self.dispatch(self.admission(key, **changes))
        assert status.startswith("OK ")
        if state == "R":
            (status,) = self.advance("own", W1.name, self.edge("a", key))
            assert status.startswith("OK ")
        return self.record(key)

    def text(self, key: str) -> bytes | None:
        found: bytes | None = self.do("HGET", self.names.jobs, key)
        return found

    def record(self, key: str) -> Record:
        record = Record.parse(self.text(key) or b"")
        assert record is not None, f"{key!r} has no record that can be read"
        return record

    def edge(self, letter: str, key: str, **changes: Any) -> WireEdge:
        """Return an edge that fits the key's present record, if it has one."""
        record = Record.parse(self.text(key) or b"")
        given: dict[str, Any] = {"ttl_ms": LONG_MS, "epoch": 0, "id": "none", "handler": "h"}
        if record is not None:
            given |= {"epoch": record.epoch, "id": record.id, "handler": record.handler}
        match letter:
            case "l":
                given["x"] = 30_000
            case "s":
                given["x"] = self.stamp()
            case "v":
                given |= {"x": b"state", "y": "", "z": 1}
            case "t":
                given |= {"x": "step", "y": b"returned"}
            case "n":
                given["x"] = "1/2/half of it"
            case "d":
                given["x"] = b"result"
            case "c":
                given["x"] = "because"
            case "x":
                given |= {"x": "gave up", "y": "last error"}
            case "w":
                given |= {"x": 5_000, "y": 2, "z": "boom"}
            case "g":
                given["x"] = "1"
        return WireEdge(key, letter=letter, **given | changes)

    def advance_call(
        self,
        guard: AdvanceGuard,
        source: str,
        *edges: Edge,
        targets: Sequence[Target] = (),
        claim: str = "",
    ) -> ScriptCall:
        return self.lane.advance(
            guard, source, edges, pending_s=PENDING_S, targets=targets, claim=claim
        )

    def advance(self, guard: AdvanceGuard, source: str, *edges: Edge, **options: Any) -> list[str]:
        unassigned, *statuses = self.run(self.advance_call(guard, source, *edges, **options))
        assert unassigned == self.counter("unassigned")
        return [status.decode() for status in statuses]

    def look(self, key: str, job_id: str = "", *, node: str = "") -> Record | Outcome | Missing:
        [found] = looked(self.run(self.lane.look([(key, job_id)], node=node)))
        assert not isinstance(found, More), "one alone may be larger"
        return found

    def outcome(self, job_id: str) -> Outcome:
        [name] = self.client.scan_iter(match=f"{self.names.prefix}result:{job_id} *", count=1000)
        key = name.decode().partition(f":result:{job_id} ")[2]
        [found] = looked(self.run(self.lane.look([(key, job_id)])))
        assert isinstance(found, Outcome)
        return found

    def owned(self, worker: str, *asked: str) -> Owned:
        """Return all that a worker owns, page by page, and those asked for."""
        found = Owned(running={}, starts=[], unreadable={}, lost={})
        items, at, after = [(key.encode(), "") for key in asked], "0", "0"
        while at or after or items:
            page = owned(self.run(self.lane.reconcile(worker, items, at=at, after=after)))
            found = attrs.evolve(
                page,
                running={**found.running, **page.running},
                strays=[*found.strays, *page.strays],
                starts=[*found.starts, *page.starts],
                unreadable={**found.unreadable, **page.unreadable},
                lost={**found.lost, **page.lost},
            )
            at, after = page.at, page.after
            items = [(key, "") for key in page.names]
            items += [(key, entry) for entry, key in page.entries]
        return found

    def end_lease(self, *identities: str) -> None:
        """Let leases end now."""
        for identity in identities:
            self.do("ZADD", self.names.keepalive, 1, identity)

    def fence_call(self, **changes: Any) -> ScriptCall:
        given: dict[str, Any] = {"holder": NODE.name, "reap_s": 1.0}
        given |= {"claims_max": 10}
        return self.lane.fence(**given | changes)

    def fence(self, **changes: Any) -> list[Claim]:
        return fenced(self.run(self.fence_call(**changes))).claims

    def fenced(self, worker: Target) -> Claim:
        """Fence a worker, and return the claim on what it owns."""
        self.end_lease(worker.name)
        (claim,) = self.fence()
        assert claim.identity == worker.name
        return claim


def _programs() -> list[ServerProgram]:
    """Return the program that all tests use, and the first Redis on PATH if there is one."""
    found = list(find_servers("wheel", []))
    return found[:1] + [other for other in found[1:] if other.name == "redis"][:1]


@pytest.fixture(scope="module", params=_programs(), ids=lambda found: found.name)
def server_to_fill(request: pytest.FixtureRequest) -> Iterator[EmbeddedServer]:
    """Yield a server of each kind, for tests that fill or measure it."""
    with EmbeddedServer.start(request.param) as embedded:
        yield embedded


@pytest.fixture
def bench(redis_url: str, pool_name: str) -> Iterator[Bench]:
    """Yield a lane in which a node and two workers have joined."""
    with redis.Redis.from_url(redis_url, protocol=2) as client:
        bench = Bench(client, pool_name)
        yield bench.join()
        bench.close()
