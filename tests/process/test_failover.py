"""Fleets on several servers: a Cluster, or a primary with Sentinels, of real processes.

The guarantees are the same as on one server; these are the short forms.  All of this folder's
stories, and those of `actors`, run there too: `make test-cluster`, `make test-sentinel`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import anyio
import pytest
import redis

from pool.names import Control, Names, lane_of
from pool.redis.io.system import SystemIO
from pool.redis.pipeline import Pipeline
from pool.redis.url import Url
from tests.process.conftest import BACK_S, POOL, Fleet, fleet_users
from tests.servers import (
    SLOTS,
    Cluster,
    Sentinels,
    admin,
    freeze,
    has_all,
    thaw,
    until,
)

if TYPE_CHECKING:
    from pool.redis.embedded.server import EmbeddedServer, ServerProgram
    from tests.process.conftest import Figures, Member

pytestmark = pytest.mark.one_server  # they bring their own
Kind = Literal["sentinel", "cluster"]
LANES = {"sentinel": 2, "cluster": 3}
OP_TIMEOUT_S = 10.0  # longer than a failover: what is asked meanwhile is answered after it
KINDS = pytest.mark.parametrize("kind", ["sentinel", "cluster"])


class OnSeveral(Protocol):
    """What makes a fleet on servers of its own."""

    def __call__(self, kind: Kind, *, replicas: bool = False) -> Fleet: ...


@pytest.fixture
def on_several(program: ServerProgram, tmp_path: Path) -> Iterator[OnSeveral]:
    """Yield what makes fleets on several servers; all are ended afterwards."""
    with contextlib.ExitStack() as stack:

        def make(kind: Kind, *, replicas: bool = False) -> Fleet:
            users = fleet_users(tmp_path)
            place = (
                Cluster.start(program, replicas=replicas, aclfile=users)
                if kind == "cluster"
                else Sentinels.start(program, aclfile=users)
            )
            stack.enter_context(place)
            fleet = Fleet(place, tmp_path, lanes=LANES[kind])
            stack.callback(fleet.close)
            return fleet

        yield make


def in_each_lane(fleet: Fleet, name: str, *, each: int) -> list[str]:
    """Return keys, so many of each lane."""
    keys: list[str] = []
    for lane in range(fleet.lanes):
        found = (f"{name}-{i}" for i in range(10_000))
        mine = (key for key in found if lane_of(key, fleet.lanes) == lane)
        keys += [next(mine) for _ in range(each)]
    return keys


def begun(fleet: Fleet) -> tuple[Member, list[Member], list[str]]:
    """Start a client and two workers, and services in all lanes."""
    client = fleet.start("client", is_client=True, op_timeout_s=OP_TIMEOUT_S)[0]
    workers = fleet.start("a", "b", op_timeout_s=OP_TIMEOUT_S)
    clocks = in_each_lane(fleet, "clock", each=4)
    fleet.dispatch(client, "clock", clocks)
    fleet.are_running(clocks)
    return client, workers, clocks


def epochs_never_fall(fleet: Fleet) -> None:
    """G-02: whoever is started later has the higher number, whatever a server forgot."""
    for key in {run.key for run in fleet.runs()}:
        epochs = [run.epoch for run in fleet.runs([key])]
        assert epochs == sorted(epochs), (key, epochs)


def all_have_results(fleet: Fleet, client: Member, jobs: dict[str, str]) -> None:
    results = fleet.results(client, jobs, within_s=2 * OP_TIMEOUT_S)
    assert all(isinstance(result, dict) for result in results.values()), results


@KINDS
def test_a_fleet_on_several_servers_is_a_fleet(
    kind: Kind, on_several: OnSeveral, figures: Figures
) -> None:
    """Join, dispatch, result, take over after SIGKILL, leave: in all lanes (G-01, G-02, G-06)."""
    fleet = on_several(kind)
    client, (victim, survivor), clocks = begun(fleet)
    jobs = fleet.dispatch(client, "nap", in_each_lane(fleet, "nap", each=20), 0.01)
    all_have_results(fleet, client, jobs)
    lost = [key for key, run in fleet.alive(clocks).items() if run.node == victim.name]
    assert {lane_of(key, fleet.lanes) for key in lost}
    at_s = fleet.kill(victim)
    figures("takeover", fleet.took_over(lost, at_s, victim, within_s=fleet.ttl_s + BACK_S))
    [late] = fleet.start("late")
    at_s = fleet.leave(survivor)
    assert {run.node for run in fleet.are_running(clocks).values()} == {late.name}
    epochs_never_fall(fleet)
    fleet.is_sound()


@KINDS
def test_a_failover_loses_nothing_that_was_replicated(
    kind: Kind, on_several: OnSeveral, figures: Figures
) -> None:
    """kill -9 of a primary, a replica is promoted: every job ends, nobody is stuck (G-01, G-05)."""
    fleet = on_several(kind, replicas=True)
    place = fleet.place
    assert isinstance(place, Sentinels | Cluster)
    gate = fleet.directory / "gate"
    client, _, clocks = begun(fleet)
    held = fleet.dispatch(client, "held", in_each_lane(fleet, "held", each=8), str(gate))
    fleet.are_running(held)
    key = Names(POOL, 0).prefix
    before = place.primary(key)
    is_replica = _replica_of(place, before)
    until(lambda: has_all(is_replica, before), "all is replicated")

    before.kill()
    killed_s = time.monotonic()
    # Asked while nobody answers for lane 0: they wait for the new primary.
    asked = client.tell(
        "dispatch",
        handler="nap",
        calls=[[key, 0.01] for key in in_each_lane(fleet, "late", each=3)],
        delay_s=0.0,
    )
    place.failed_over(key, before)
    promoted_s = time.monotonic()
    gate.touch()
    all_have_results(fleet, client, held)
    late: Any = fleet.answer(asked, within_s=2 * OP_TIMEOUT_S)
    assert not [job for job in late if job.startswith("!")], late
    all_have_results(fleet, client, {job: job for job in late})
    back = fleet.are_running(clocks, within_s=OP_TIMEOUT_S)
    figures("failover, server", [promoted_s - killed_s])
    figures("failover, services", [max(run.began_s for run in back.values()) - killed_s])
    epochs_never_fall(fleet)

    # The former primary is back as a replica: nobody's calls go there.
    before.restart()

    def follows() -> EmbeddedServer | None:
        # It is asked each time who it is: where the machine is busy one may take over once more.
        primary = place.primary(key)
        replica = is_replica if primary is before else before
        return replica if has_all(replica, primary) else None

    # A sentinel asks every 10 s what a server is, and mends it when that was wrong for 8 s.
    until(follows, "the former primary follows", within_s=60)
    # Who connects anew may ask it who has his slots, and goes on to where it says.
    until(
        lambda: (replica := follows()) is not None and not _clients_of_ours(replica),
        "nobody stays there",
    )
    fleet.is_sound()


def _clients_of_ours(server: EmbeddedServer) -> list[str]:
    with admin(server) as client:
        told: Any = client.client_list()
    return [each["name"] for each in told if each["name"].startswith("pool-")]


def _replica_of(place: Sentinels | Cluster, primary: EmbeddedServer) -> EmbeddedServer:
    if isinstance(place, Sentinels):
        return next(each for each in place.processes if each is not primary)
    return place.processes[place.processes.index(primary) + 3]


def test_a_primary_that_hangs_holds_up_its_own_lanes_only(on_several: OnSeveral) -> None:
    """G-03, G-05: elsewhere no service stops and no job waits; there they go on afterwards."""
    fleet = on_several("cluster")
    place = fleet.place
    assert isinstance(place, Cluster)
    client, _, clocks = begun(fleet)
    hung = place.primary(Names(POOL, 0).prefix)
    there = [n for n in range(3) if place.primary(Names(POOL, n).prefix) is hung]
    elsewhere = [n for n in range(3) if n not in there]
    assert elsewhere, "all lanes of this pool's name are on one primary"
    assert place.primary(Control(POOL).prefix) is not hung
    is_there = {key: lane_of(key, 3) in there for key in clocks}
    before = fleet.alive(clocks)
    jobs = [key for key in in_each_lane(fleet, "nap", each=10) if lane_of(key, 3) in elsewhere]

    freeze(hung)
    try:
        # Its lanes' handlers stop before their leases can end, as far as anybody knows.
        fleet.until(lambda: not [k for k in fleet.alive(clocks) if is_there[k]], what="stopped")
        all_have_results(fleet, client, fleet.dispatch(client, "nap", jobs, 0.01))
        untouched = {key: run for key, run in fleet.alive(clocks).items() if not is_there[key]}
    finally:
        thaw(hung)
    assert untouched == {key: run for key, run in before.items() if not is_there[key]}
    after = fleet.are_running(clocks)
    assert {key: run.epoch for key, run in after.items()} == {
        key: run.epoch for key, run in before.items()
    }
    fleet.is_sound()


@pytest.mark.parametrize("how", ["key by key", "at once"])
def test_a_slot_moves_under_traffic(how: str, on_several: OnSeveral, figures: Figures) -> None:
    """ASK, TRYAGAIN, MOVED: its lane waits while it moves, and nothing is lost (G-01, G-05)."""
    fleet = on_several("cluster")
    place = fleet.place
    assert isinstance(place, Cluster)
    client, _, clocks = begun(fleet)
    calls = [[key, 0.01] for key in in_each_lane(fleet, "job", each=40)]
    asked = client.tell("one_by_one", handler="nap", calls=calls, every_s=0.01)
    fleet.until(lambda: len(fleet.said("end", how="returned")) >= 20)
    tag = Names(POOL, 0).prefix
    source = place.primary(tag)
    target = next(each for each in place.processes if each is not source)
    began_s = time.monotonic()
    if how == "at once" and not _move_at_once(source, target, tag):
        pytest.skip("this server moves slots key by key only")
    if how == "key by key":
        # Half of the keys are here, half there: nobody's renewals are answered.
        refused = partial(fleet.until, partial(_refused_for, fleet, "TRYAGAIN"), what="TRYAGAIN")
        _move_by_key(place, source, target, tag, meanwhile=refused)
    until(lambda: all(place.owner(tag, each) is target for each in place.processes), "told")
    figures(f"slot moved {how}", [time.monotonic() - began_s])
    jobs: Any = fleet.answer(asked, within_s=3 * OP_TIMEOUT_S)
    assert isinstance(jobs, list), jobs
    all_have_results(fleet, client, {job: job for job in jobs})
    fleet.are_running(clocks)
    epochs_never_fall(fleet)
    fleet.is_sound()


def _refused_for(fleet: Fleet, word: str) -> bool:
    """Say whether some node was refused so; one that was in trouble before tells no second one."""
    troubles = fleet.events("store.troubled")
    is_told = any(word in event["facts"]["problem"] for event in troubles)
    return is_told or len(troubles) > len(fleet.events("store.recovered"))


def _move_at_once(source: EmbeddedServer, target: EmbeddedServer, key: str) -> bool:
    """Have the servers move a slot by themselves, as Valkey can from 9.0 on."""
    slot = redis.crc.key_slot(key.encode())
    with admin(source) as client:
        try:
            client.execute_command(
                "CLUSTER MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", Cluster.name(target)
            )
        except redis.ResponseError as error:
            if "nknown subcommand" not in str(error):
                raise
            return False
    return True


def _move_by_key(
    place: Cluster,
    source: EmbeddedServer,
    target: EmbeddedServer,
    key: str,
    *,
    meanwhile: Callable[[], object] = lambda: None,
) -> None:
    """Move a slot as `redis-cli --cluster reshard` does; for a while it is on both nodes.

    Its lane's own key goes first, if there is one: who needs more than it is refused from then on.
    """
    slot = redis.crc.key_slot(key.encode())
    assert 0 <= slot < SLOTS
    names = {each.tcp_port: Cluster.name(each) for each in (source, target)}
    with admin(source) as old, admin(target) as new:
        run: Callable[..., Any] = old.execute_command
        lane = f"{key}lane"
        keys = [lane] if old.exists(lane) else run("CLUSTER GETKEYSINSLOT", slot, 3)
        run_new: Callable[..., Any] = new.execute_command
        run_new("CLUSTER SETSLOT", slot, "IMPORTING", names[source.tcp_port])
        run("CLUSTER SETSLOT", slot, "MIGRATING", names[target.tcp_port])
        while keys:
            run("MIGRATE", "127.0.0.1", target.tcp_port, "", 0, 5000, "KEYS", *keys)
            meanwhile()
            keys = run("CLUSTER GETKEYSINSLOT", slot, 3)
        for each in (target, *place.processes):
            with admin(each) as client:
                tell: Callable[..., Any] = client.execute_command
                tell("CLUSTER SETSLOT", slot, "NODE", names[target.tcp_port])


# --- the pipeline, by hand
# ----------------------------------------------------------------------------


def _appended(url: str, key: str, *, meanwhile: Callable[[], object] = lambda: None) -> Any:
    """Append to a list twice, by calls that are never repeated; returns the second reply."""

    async def append() -> Any:
        pipeline = await Pipeline.open(SystemIO(), Url.parse(url).at(key), op_timeout_s=2.0)
        try:
            assert await pipeline.execute("RPUSH", key, "one") == 1
            await anyio.to_thread.run_sync(meanwhile)
            return await pipeline.execute("RPUSH", key, "two")
        finally:
            await pipeline.aclose(1.0)

    return anyio.run(append)


def test_a_call_after_its_slot_has_moved_is_done_once_and_told_of_nothing(
    program: ServerProgram,
) -> None:
    """MOVED says that nothing was done: also what may not be repeated goes to the new node."""
    key = "pool:{p:0}:list"
    with Cluster.start(program) as place:
        source = place.primary(key)
        target = next(each for each in place.processes if each is not source)
        move = partial(_move_by_key, place, source, target, key)
        assert _appended(place.url, key, meanwhile=move) == 2


@KINDS
def test_a_sentinel_or_node_that_hangs_cannot_use_up_the_time_of_a_connection(
    kind: Kind, program: ServerProgram
) -> None:
    """The one that is asked first does not answer: the next one is asked, within the deadline."""
    key = "pool:{p:0}:list"
    with Sentinels.start(program) if kind == "sentinel" else Cluster.start(program) as place:
        guides = place.sentinels if isinstance(place, Sentinels) else place.processes
        first = next(each for each in guides if each is not place.primary(key))
        address = f"127.0.0.1:{first.tcp_port},"
        before, _, hosts = place.url.partition("://")
        freeze(first)
        try:
            assert _appended(f"{before}://{address}{hosts}", key) == 2
        finally:
            thaw(first)


def test_a_primary_that_needs_more_than_its_share_of_the_time_is_asked_once_more(
    program: ServerProgram,
) -> None:
    """It was asked first, in vain; then the others say that it has our slot."""
    key, op_timeout_s = "pool:{p:0}:list", 3.0  # of which it has a third as one of three

    async def push(url: str) -> object:
        pipeline = await Pipeline.open(
            SystemIO(), Url.parse(url).at(key), op_timeout_s=op_timeout_s
        )
        try:
            return await pipeline.execute("RPUSH", key, "x")
        finally:
            await pipeline.aclose(1.0)

    with Cluster.start(program) as place:
        slow = place.primary(key)
        others = [each for each in place.processes if each is not slow]
        hosts = ",".join(f"127.0.0.1:{each.tcp_port}" for each in (slow, *others))
        freeze(slow)
        thawing = threading.Timer(op_timeout_s / 2, thaw, [slow])
        thawing.start()
        try:
            assert anyio.run(push, f"redis+cluster://{hosts}") == 1
        finally:
            thawing.join()
