"""Servers of several processes, made of the embedded server: a Cluster, and one with Sentinels.

    Cluster     3 primaries with a third of the slots each, on demand a replica of each
    Sentinels   a primary, replicas of it, and three sentinels that agree by two votes

All listen on loopback, and all end with this process, however it ends: each is a private
`EmbeddedServer`.  Users are made in every process, since no server passes them on to its replicas.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, Self

import attrs
import redis
from redis.cluster import RedisCluster
from redis.sentinel import Sentinel

from pool.redis.embedded.server import EmbeddedServer, ServerProgram
from pool.redis.url import Url

PATIENCE_S: Final = 20.0  # for an election and for what a starting process takes on a busy machine
LOOK_AGAIN_S: Final = 0.02
SLOTS: Final = 16_384
SERVICE: Final = "main"  # what the sentinels call the server
# How long a silent primary is waited for.  Short, because tests wait for it; on a busy machine a
# shorter one would replace primaries that live.
DOWN_AFTER_MS: Final = 1000
Kind = Literal["single", "sentinel", "cluster"]
KINDS: Final[tuple[Kind, ...]] = ("single", "sentinel", "cluster")
ON: Final[Kind] = os.environ.get("POOL_TEST_ON", "single")  # type: ignore[assignment]
assert ON in KINDS, f"POOL_TEST_ON is one of {KINDS}"


# --- clients ------------------------------------------------------------------------------------


def connect(url: str, **options: Any) -> redis.Redis:
    """Return a client for an address of any kind; a Cluster's has the same methods."""
    parsed = Url.parse(url)
    match parsed.kind:
        case "cluster":
            host, port = parsed.hosts[0]
            client: Any = RedisCluster(host=host, port=port, **_who(parsed), **options)
        case "sentinel":
            sentinels = Sentinel(parsed.hosts, socket_timeout=5.0)  # type: ignore[no-untyped-call]
            client = sentinels.master_for(parsed.service, **_who(parsed), **options)  # type: ignore[no-untyped-call]
        case _:
            client = redis.Redis.from_url(url, **options)
    assert isinstance(client, redis.Redis | RedisCluster)
    return client  # type: ignore[return-value]  # what tests use of it, both have


def _who(url: Url) -> dict[str, Any]:
    return {"username": url.username, "password": url.password} if url.password else {}


def with_user(url: str, user: str, password: str) -> str:
    """Return an address as somebody else."""
    scheme, _, place = url.partition("://")
    return f"{scheme}://{user}:{password}@{place.rpartition('@')[2]}"


def until(look: Callable[[], object], what: str, *, within_s: float = PATIENCE_S) -> None:
    """Look again until it is so; a server that cannot be asked says no."""
    deadline_s = time.monotonic() + within_s
    while True:
        with contextlib.suppress(redis.RedisError):
            if look():
                return
        assert time.monotonic() < deadline_s, f"{what}: not within {within_s:g} s"
        threading.Event().wait(LOOK_AGAIN_S)


# --- processes ----------------------------------------------------------------------------------


def _free_ports(count: int) -> list[int]:
    """Return ports that nobody uses: below those that the system gives to outgoing connections."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as taken, contextlib.suppress(OSError):
            taken.bind(("127.0.0.1", port))
            found += [port] if port not in found else []
    return found


def admin(server: EmbeddedServer) -> redis.Redis:
    """Return a client of one process."""
    return redis.Redis.from_url(server.url, socket_timeout=5.0, decode_responses=True)


def refusals(server: EmbeddedServer) -> list[dict[str, Any]]:
    """Return what a process refused to its users."""
    with admin(server) as client:
        found: list[dict[str, Any]] = client.acl_log()
    return found


def freeze(server: EmbeddedServer) -> None:
    """Stop a process without ending it."""
    os.kill(server.pid, signal.SIGSTOP)


def thaw(server: EmbeddedServer) -> None:
    """Let a frozen process go on."""
    os.kill(server.pid, signal.SIGCONT)


def _facts(server: EmbeddedServer, command: str) -> dict[str, str]:
    with admin(server) as client:
        text: Any = client.execute_command(*command.split(" "))
    if isinstance(text, dict):
        return {str(name): str(value) for name, value in text.items()}
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def has_all(replica: EmbeddedServer, primary: EmbeddedServer) -> bool:
    """Say whether a replica has everything that its primary has written until now."""
    written = _facts(primary, "INFO replication")["master_repl_offset"]
    facts = _facts(replica, "INFO replication")
    return (
        facts["role"] == "slave"
        and facts["master_link_status"] == "up"
        and int(facts["slave_repl_offset"]) >= int(written)
    )


# --- with sentinels -----------------------------------------------------------------------------


class _SentinelProcess(EmbeddedServer):
    """A sentinel; its configuration is a file, which it rewrites."""

    def _options(self) -> list[str]:
        path = self.directory / "sentinel.conf"
        path.touch()
        return [str(path), "--sentinel", *super()._options()]


class _Ended:
    """Ends with its `with` block."""

    def stop(self) -> None:
        """End all processes."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@attrs.define(eq=False)
class Sentinels(_Ended):
    """A primary with replicas, and three sentinels."""

    program: ServerProgram
    config: dict[str, str] = attrs.field(factory=dict)
    processes: list[EmbeddedServer] = attrs.field(factory=list)
    sentinels: list[_SentinelProcess] = attrs.field(factory=list)

    @classmethod
    def start(cls, program: ServerProgram, *, replicas: int = 1, **config: str) -> Self:
        """Start all; return once the sentinels know each other and every replica."""
        self = cls(program, {name.replace("_", "-"): value for name, value in config.items()})
        try:
            self._start(replicas)
        except BaseException:
            self.stop()
            raise
        return self

    def _start(self, replicas: int) -> None:
        ports = _free_ports(1 + replicas + 3)
        for port in ports[: 1 + replicas]:
            config = {**self.config, "repl-diskless-sync-delay": "0"}
            if self.processes:
                config["replicaof"] = f"127.0.0.1 {ports[0]}"
            self.processes.append(
                EmbeddedServer.start(self.program, persist=True, tcp_port=port, config=config)
            )
        first = self.processes[0]
        for replica in self.processes[1:]:
            until(lambda r=replica: has_all(r, first), "the replica is there")  # type: ignore[misc]
        for port in ports[1 + replicas :]:
            sentinel = _SentinelProcess.start(self.program, tcp_port=port)
            self.sentinels.append(sentinel)
            with admin(sentinel) as client:
                client.execute_command("SENTINEL", "MONITOR", SERVICE, "127.0.0.1", ports[0], 2)
                for name, value in (
                    ("down-after-milliseconds", DOWN_AFTER_MS),
                    ("failover-timeout", 5000),
                ):
                    client.execute_command("SENTINEL", "SET", SERVICE, name, value)
        until(lambda: all(self._knows_all(each) for each in self.sentinels), "sentinels agree")

    def _knows_all(self, sentinel: _SentinelProcess) -> bool:
        with admin(sentinel) as client:
            state: Any = client.sentinel_master(SERVICE)
        known = (state["num-other-sentinels"], state["num-slaves"])
        return known == (len(self.sentinels) - 1, len(self.processes) - 1)

    @property
    def url(self) -> str:
        places = ",".join(f"127.0.0.1:{each.tcp_port}" for each in self.sentinels)
        return f"redis+sentinel://{places}/{SERVICE}"

    def nodes(self) -> Sequence[EmbeddedServer]:
        return self.processes

    def primary(self, _: str = "") -> EmbeddedServer:
        with admin(self.sentinels[-1]) as client:
            told: Any = client.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", SERVICE)
        _, port = told
        return next(each for each in self.processes if each.tcp_port == int(port))

    def failed_over(self, _: str, before: EmbeddedServer) -> EmbeddedServer:
        """Wait until another process is primary, and says so; returns it."""
        until(
            lambda: (
                (now := self.primary()) is not before
                and _facts(now, "INFO replication")["role"] == "master"
            ),
            "a replica is promoted",
        )
        return self.primary()

    def stop(self) -> None:
        for each in (*self.sentinels, *self.processes):
            each.stop()


# --- a cluster ----------------------------------------------------------------------------------


@attrs.define(eq=False)
class Cluster(_Ended):
    """Three primaries, and perhaps a replica of each."""

    program: ServerProgram
    config: dict[str, str] = attrs.field(factory=dict)
    processes: list[EmbeddedServer] = attrs.field(factory=list)

    @classmethod
    def start(
        cls, program: ServerProgram, *, primaries: int = 3, replicas: bool = False, **config: str
    ) -> Self:
        """Start all; return once every node sees all slots served."""
        self = cls(program, {name.replace("_", "-"): value for name, value in config.items()})
        try:
            self._start(primaries, 2 * primaries if replicas else primaries)
        except BaseException:
            self.stop()
            raise
        return self

    def _start(self, primaries: int, count: int) -> None:
        ports = _free_ports(2 * count)
        buses = {}
        for port, bus in zip(ports[:count], ports[count:], strict=True):
            more, buses[port] = self._config(port, bus)
            config = {
                **self.config,
                **more,
                "cluster-enabled": "yes",
                "cluster-port": str(bus),
                "cluster-node-timeout": str(DOWN_AFTER_MS),
                "repl-diskless-sync-delay": "0",
            }
            self.processes.append(
                EmbeddedServer.start(self.program, persist=True, tcp_port=port, config=config)
            )
        names = [self.name(each) for each in self.processes]
        bounds = [SLOTS * i // primaries for i in range(primaries + 1)]
        for i, each in enumerate(self.processes):
            with admin(each) as client:
                client.execute_command("CLUSTER SET-CONFIG-EPOCH", i + 1)
                if i < primaries:
                    client.execute_command("CLUSTER ADDSLOTSRANGE", bounds[i], bounds[i + 1] - 1)
                if i:
                    client.execute_command("CLUSTER MEET", "127.0.0.1", ports[0], buses[ports[0]])
        until(lambda: all(self._known(each) == count for each in self.processes), "nodes meet")
        for i, each in enumerate(self.processes[primaries:]):
            with admin(each) as client:
                client.execute_command("CLUSTER REPLICATE", names[i])
        until(lambda: all(map(self._is_whole, self.processes)), "all slots are served")
        for i, each in enumerate(self.processes[primaries:]):
            until(lambda e=each, i=i: has_all(e, self.processes[i]), "replicas are there")  # type: ignore[misc]

    def _config(self, port: int, bus: int) -> tuple[dict[str, str], int]:
        """Return more options of a node, and the port at which others reach its bus."""
        del port
        return {}, bus

    @staticmethod
    def name(server: EmbeddedServer) -> str:
        """Return what the cluster calls a process."""
        with admin(server) as client:
            return str(client.execute_command("CLUSTER MYID"))

    @staticmethod
    def _known(server: EmbeddedServer) -> int:
        return int(_facts(server, "CLUSTER INFO")["cluster_known_nodes"])

    def _is_whole(self, server: EmbeddedServer) -> bool:
        facts = _facts(server, "CLUSTER INFO")
        return facts["cluster_state"] == "ok" and facts["cluster_slots_ok"] == str(SLOTS)

    @property
    def url(self) -> str:
        places = ",".join(f"127.0.0.1:{each.tcp_port}" for each in self.processes[:3])
        return f"redis+cluster://{places}"

    def nodes(self) -> Sequence[EmbeddedServer]:
        return self.processes

    def owner(self, key: str, asked: EmbeddedServer) -> EmbeddedServer:
        """Return who has this key, as one of the processes sees it."""
        slot = redis.crc.key_slot(key.encode())
        with redis.Redis.from_url(asked.url, socket_timeout=0.5) as client:
            told: Any = client.execute_command("CLUSTER SLOTS")
        for low, high, (_, port, *_), *_ in told:
            if low <= slot <= high:
                return next(each for each in self.processes if each.tcp_port == port)
        raise AssertionError(f"nobody has {key}")

    def primary(self, key: str) -> EmbeddedServer:
        """Return who has this key, as the first process sees it that answers."""
        for each in self.processes:
            with contextlib.suppress(redis.ConnectionError, redis.TimeoutError):
                return self.owner(key, each)
        raise AssertionError("no process answers")

    def failed_over(self, key: str, before: EmbeddedServer) -> EmbeddedServer:
        """Wait until another process is primary of this key, and all slots are served."""
        until(
            lambda: (now := self.primary(key)) is not before and self._is_whole(now),
            "a replica is promoted",
        )
        return self.primary(key)

    def stop(self) -> None:
        for each in self.processes:
            each.stop()


def start(kind: Kind, program: ServerProgram, **config: Any) -> Cluster | Sentinels:
    """Start servers for tests that want none of them to fail."""
    if kind == "cluster":
        return Cluster.start(program, **config)
    return Sentinels.start(program, **config)
