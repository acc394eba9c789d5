"""Crash after every step: kill a node right before and right after each command it sends.

A scene is one transition (a dispatch, a settlement, a hand-off ...).  It is played once to count
the commands that its actor sends, and then once for each of them: the process dies when that many
have been carried out, or instead of the last one.  A new process takes its place, the world drains,
and the checker must have nothing to say.

    python -m tests.verify.sim.steps [SCENE ...]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import attrs

from pool import Follower, Node
from pool.core.pauses import Pause
from pool.errors import PoolError
from pool.jobs.client.ref import JobRef
from pool.maps import commands
from pool.names import lane_of
from pool.redis.commands.member import RENEW
from pool.redis.commands.upkeep import RECONCILE
from tests.verify.sim.batched import Members
from tests.verify.sim.config import Config, Plan, digest
from tests.verify.sim.faults import Fuse
from tests.verify.sim.fleet import Boot
from tests.verify.sim.load import stop
from tests.verify.sim.polled import POLLED
from tests.verify.sim.run import Outcome, Simulation
from tests.verify.sim.scenes import ACTOR, OTHER, PLANS, TIMED
from tests.verify.sim.world import Process, sweep

TTL_S: Final = 2.0
_BEGIN_S: Final = 1.0  # when the scene begins; nodes have joined by then
_END_S: Final = 5.0  # until then a node of the scene may be killed
_DOWN_S: Final = 0.5

_SAVING: Final[Plan] = {"trips": [], "s": 0.01, "end": 0.1}
_PLAIN: Final[Plan] = {"s": 0.05, "fails": 0, "how": "raise", "pad": ""}


@attrs.define(eq=False)
class Stage:
    """One world in which a scene is played."""

    simulation: Simulation
    jobs: int = 0
    seen: set[str] = attrs.field(factory=set)
    is_open: bool = True  # what the actor sends counts

    def at(self, after_s: float, fn: Callable[..., object], *args: Any) -> None:
        """Have something happen so long after the scene has begun."""
        self.simulation.world.at(_BEGIN_S + after_s, fn, *args)

    def boot(self, name: str) -> Boot:
        """Return the process of a node."""
        boot = self.simulation.fleet.boots[name]
        assert boot is not None
        return boot

    def do(self, name: str, ask: Callable[[Boot, Node], Any]) -> None:
        """Have a node do something, if it is there."""

        async def op(boot: Boot) -> None:
            if boot.node is not None:
                try:
                    await ask(boot, boot.node)
                except PoolError as error:
                    boot.record("event", extra={"event": "refused", "error": error.code})

        boot = self.simulation.fleet.boots[name]
        if boot is not None and boot.is_open:
            boot.do(op)

    @property
    def now_s(self) -> float:
        """How long ago the scene has begun."""
        return self.simulation.world.now_s - _BEGIN_S

    def leave(self, down_s: float, name: str = ACTOR) -> None:
        """Tell a node to leave, if it is there."""
        if self.simulation.fleet.boots[name] is not None:
            self.simulation.faults.excuse("leave", name, down_s)
            self.simulation.fleet.leave(name, down_s)

    def crash(self, name: str, down_s: float) -> None:
        """Kill a node, if it is there."""
        if self.simulation.fleet.boots[name] is not None:
            self.simulation.faults.excuse("crash", name, down_s)
            self.simulation.fleet.crash(name, down_s)

    def freeze(self, name: str, seconds: float) -> None:
        """Have a node stand still."""
        if self.simulation.fleet.boots[name] is not None:
            self.simulation.faults._hold("pause", name, seconds)

    def dispatch(self, by: str, to: str, name: str = "work", **plan: Any) -> None:
        """Have a node dispatch a job to a key that another node is first for."""
        self._dispatch(by, self.key_of(to), name, plan, {})

    def dispatch_with(self, by: str, to: str, options: Plan, name: str = "work") -> None:
        """Likewise, with options."""
        self._dispatch(by, self.key_of(to), name, {}, options)

    def follow(self, by: str, policy: str, expires_s: float | None = None) -> None:
        """Have a node dispatch another job to the key of the last one."""
        options = {"if_exists": policy, "expires_s": expires_s}
        self._dispatch(by, f"step{self.jobs}", "work", {}, options)

    def lead(self, by: str, to: str, **plan: Any) -> None:
        """Have a node dispatch a job that others follow, both if it is done and otherwise.

        All keys are chosen now: who they are for may have died when it is their turn.
        """
        key, *keys = (self.key_of(name) for name in (to, OTHER, ACTOR, OTHER, ACTOR))
        whole = {**_PLAIN, **plan}
        boot = self.boot(by)
        tokens = [f"t9{self.jobs}.{number}" for number in range(len(keys))]

        def follower(number: int, of: str, when: str, **options: Any) -> Follower:
            token, its = tokens[number], keys[number]
            boot.record("follow", key=its, idem=token, extra={"of": of, "when": when})
            made = Follower("after", its, token, _PLAIN)
            return made.options(takes_result=True, **options)

        async def ask(boot: Boot, node: Node) -> None:
            load = self.simulation.load
            first = f"t{load._tokens + 1}.0"
            last = follower(1, tokens[0], "then")
            then = [follower(0, first, "then", then=last), follower(2, first, "then")]
            options = {"then": then, "otherwise": follower(3, first, "otherwise")}
            await load._dispatch(boot, node, "work", [(key, whole)], options)

        self.do(by, ask)

    def _dispatch(self, by: str, key: str, name: str, plan: Plan, options: Plan) -> None:
        whole = {**_PLAIN, **plan}

        async def ask(boot: Boot, node: Node) -> None:
            await self.simulation.load._dispatch(boot, node, name, [(key, whole)], options)

        self.do(by, ask)

    def key_of(self, name: str) -> str:
        """Return a new key that a node is first for."""
        node = self.boot(name).node
        assert node is not None
        context = node._open_wiring.context
        mine = {worker.id for worker in node.workers if worker.label == name}
        while True:
            self.jobs += 1
            key = f"step{self.jobs}"
            lane = lane_of(key, len(context.lanes))
            first = context.targets(key, "work", lane=lane, limit=1)
            if first and first[0].id in mine:
                return key


Scene = Callable[[Stage], None]


def _dispatch(stage: Stage) -> None:
    stage.at(0.0, stage.dispatch, ACTOR, OTHER)


def _start_and_settle(stage: Stage) -> None:
    stage.at(0.0, stage.dispatch, OTHER, ACTOR)


def _big_payload(stage: Stage) -> None:
    stage.at(0.0, lambda: stage.dispatch(OTHER, ACTOR, pad="x" * 2000))


def _retry(stage: Stage) -> None:
    stage.at(0.0, lambda: stage.dispatch(OTHER, ACTOR, fails=2))


def _park(stage: Stage) -> None:
    stage.at(0.0, lambda: stage.dispatch(OTHER, ACTOR, fails=1, how="park"))


def _time_out(stage: Stage) -> None:
    stage.at(0.0, lambda: stage.dispatch(OTHER, ACTOR, "limited", slow=1))


def _stop(stage: Stage) -> None:
    stage.at(0.0, lambda: stage.dispatch(OTHER, OTHER, s=3.0))
    stage.at(0.5, stage.do, ACTOR, _stop_last(stage))


def _stop_last(stage: Stage) -> Callable[[Boot, Node], Any]:
    async def ask(boot: Boot, node: Node) -> None:
        key = f"step{stage.jobs}"
        job = next((j for j, k in stage.simulation.watch.key_of.items() if k == key), "")
        await stop(boot, node, key, job, lambda: node.stop(key, "as asked", 5.0))

    return ask


def _be_stopped(stage: Stage) -> None:
    stage.at(0.0, lambda: stage.dispatch(OTHER, ACTOR, s=3.0))
    stage.at(0.5, stage.do, OTHER, _stop_last(stage))


def _notify(stage: Stage) -> None:
    stage.at(0.0, lambda: stage.dispatch(OTHER, ACTOR, "feed", trips=[], s=0.01, end=0.1))
    for number in range(3):
        stage.at(0.3 + 0.2 * number, stage.do, ACTOR, tell(stage, number))


def tell(stage: Stage, number: int) -> Callable[[Boot, Node], Any]:
    async def ask(boot: Boot, node: Node) -> None:
        await node.notify(f"step{stage.jobs}", {"seq": number})

    return ask


def _hand_off(stage: Stage) -> None:
    stage.at(0.0, lambda: stage.dispatch(OTHER, ACTOR, "feed", trips=[], s=0.01, end=0.1))
    stage.at(0.3, stage.do, OTHER, tell(stage, 0))
    stage.at(0.6, stage.leave, 0.2)


def _steps(stage: Stage) -> None:
    stage.at(0.0, lambda: stage.dispatch(OTHER, ACTOR, steps=2, fails=1))


def _save(stage: Stage) -> None:
    stage.at(0.0, lambda: stage.dispatch(OTHER, ACTOR, "feed", **_SAVING, saves="each"))
    for number in range(3):
        stage.at(0.3 + 0.2 * number, stage.do, OTHER, tell(stage, number))


def _save_soon(stage: Stage) -> None:
    stage.at(0.0, lambda: stage.dispatch(OTHER, ACTOR, "feed", **_SAVING, saves="soon"))
    for number in range(6):
        stage.at(0.3 + 0.03 * number, stage.do, OTHER, tell(stage, number))
    stage.at(0.6, stage.leave, 0.2)


def _leave(stage: Stage) -> None:
    stage.at(0.0, lambda: stage.dispatch(OTHER, ACTOR, s=0.3))
    stage.at(0.1, stage.leave, 0.2)


def _crash_of_other(stage: Stage) -> None:
    """Have the actor fence and reap."""
    for _ in range(3):
        stage.at(0.0, lambda: stage.dispatch(ACTOR, OTHER, s=1.0))
    stage.at(0.2, stage.crash, OTHER, 4.0)


def _sweep(stage: Stage) -> None:
    async def ask(boot: Boot, node: Node) -> None:
        load = stage.simulation.load
        await load._dispatch(boot, node, "work", [("late", _PLAIN)], {"delay_s": 0.5})

    stage.at(0.0, stage.do, ACTOR, ask)


def _join(stage: Stage) -> None:
    """Have the actor begin anew, with a job waiting for somebody."""
    stage.at(0.0, stage.crash, ACTOR, 0.1)


def _named(stage: Stage) -> None:
    """Dispatch with an idempotency key, and again whatever became of the first."""

    async def ask(boot: Boot, node: Node) -> None:
        via = node.options(idempotency_key="named")
        extra = {"digest": digest(_PLAIN), "kind": "job", "attempts_max": 5, "within_s": 9.0}
        facts: dict[str, Any] = {"key": "named", "idem": "named", "extra": extra}
        if "named" not in stage.seen:
            stage.seen.add("named")
            boot.record("dispatch", "invoke", **facts)
        await via.dispatch("work", "named", "named", _PLAIN)

    for after_s in (0.0, 0.3, 1.5, 3.0):
        stage.at(after_s, stage.do, ACTOR, ask)
        stage.at(after_s + 0.1, stage.do, OTHER, ask)


def _replay(stage: Stage) -> None:
    """Replay a letter that parks again, from two nodes: each letter becomes one job."""

    async def ask(boot: Boot, node: Node) -> None:
        for letter in (await node.parked.list()).jobs:
            await node.parked.replay(letter.key, letter.job_id)

    stage.at(0.0, lambda: stage.dispatch(OTHER, OTHER, fails=1, how="park"))
    for after_s in (0.5, 1.5, 3.0):
        stage.at(after_s, stage.do, ACTOR, ask)
        stage.at(after_s, stage.do, OTHER, ask)


def _queue(stage: Stage) -> None:
    stage.at(0.0, lambda: stage.dispatch(OTHER, OTHER, s=0.5))
    for number in range(2):
        stage.at(0.2 + 0.1 * number, stage.follow, ACTOR, "queue")


def _be_promoted(stage: Stage) -> None:
    """Have the actor end jobs that others are queued behind."""
    stage.at(0.0, lambda: stage.dispatch(OTHER, ACTOR, s=0.3, fails=1, how="park"))
    for number in range(2):
        stage.at(0.1 + 0.05 * number, stage.follow, OTHER, "queue")


def _replace(stage: Stage) -> None:
    stage.at(0.0, lambda: stage.dispatch(OTHER, OTHER, s=3.0))
    stage.at(0.2, stage.follow, OTHER, "queue")
    stage.at(0.4, stage.follow, ACTOR, "replace")


def _be_replaced(stage: Stage) -> None:
    stage.at(0.0, lambda: stage.dispatch(OTHER, ACTOR, s=3.0))
    stage.at(0.4, stage.follow, OTHER, "replace")


def _coalesce(stage: Stage) -> None:
    stage.at(0.0, lambda: stage.dispatch(OTHER, OTHER, s=0.8))
    for number, by in enumerate((OTHER, ACTOR, ACTOR)):
        stage.at(0.2 + 0.1 * number, stage.follow, by, "coalesce")


def _in_time(stage: Stage) -> None:
    stage.at(0.0, stage.dispatch_with, OTHER, ACTOR, {"expires_s": 3.0, "start_timeout_s": 2.0})


def _too_late(stage: Stage) -> None:
    """Have jobs expire, which nobody knows how to do; some have failed before, for that."""
    options = {"expires_s": 1.0, "allow_unknown": True}
    for by, more in ((OTHER, {}), (ACTOR, {"start_timeout_s": 0.4})):
        stage.at(0.0, stage.dispatch_with, by, ACTOR, {**options, **more}, "nobody")


def _too_late_behind(stage: Stage) -> None:
    """Have jobs expire that are queued, and that have their turn too late."""
    stage.at(0.0, lambda: stage.dispatch(OTHER, OTHER, s=0.8))
    for by, expires_s in ((OTHER, 0.3), (ACTOR, 0.3), (OTHER, 3.0), (ACTOR, 0.62)):
        stage.at(0.2, stage.follow, by, "queue", expires_s)


def _too_late_given(stage: Stage) -> None:
    """Have jobs that were given to a node that stands still end without it."""
    stage.at(0.0, lambda: stage.dispatch(ACTOR, OTHER))
    stage.at(0.1, stage.freeze, OTHER, 1.0)
    for options in ({"expires_s": 0.4}, {"start_timeout_s": 0.4}):
        stage.at(0.2, stage.dispatch_with, ACTOR, OTHER, options)


def _stop_queued(stage: Stage) -> None:
    stage.at(0.0, lambda: stage.dispatch(OTHER, OTHER, s=0.8))
    for number in range(2):
        stage.at(0.2 + 0.1 * number, stage.follow, OTHER, "queue")
    stage.at(0.5, stage.do, ACTOR, _stop_behind(stage))


def _stop_behind(stage: Stage) -> Callable[[Boot, Node], Any]:
    async def ask(boot: Boot, node: Node) -> None:
        key = f"step{stage.jobs}"
        job = [j for j, k in stage.simulation.watch.key_of.items() if k == key][1]
        client = node._open_client()
        ref = JobRef[Any](key, job, "work", client)
        await stop(boot, node, key, job, lambda: ref.stop("as asked", 5.0))

    return ask


def _lead(stage: Stage) -> None:
    """Have the actor end a job that others follow, and carry these to their lanes."""
    stage.at(0.0, lambda: stage.lead(OTHER, ACTOR))


def _lead_otherwise(stage: Stage) -> None:
    stage.at(0.0, lambda: stage.lead(OTHER, ACTOR, fails=1, how="park"))


def _lead_and_add(stage: Stage) -> None:
    """Have the actor end a job that adds others, after an attempt that did, too, and failed."""

    def begin() -> None:
        adds = [(f"t99.{number}", stage.key_of(OTHER), _PLAIN) for number in range(2)]
        first = f"t{stage.simulation.load._tokens + 1}.0"
        for token, key, _ in adds:
            extra = {"of": first, "when": "then"}
            stage.boot(OTHER).record("follow", key=key, idem=token, extra=extra)
        stage.dispatch(OTHER, ACTOR, fails=1, adds=adds)

    stage.at(0.0, begin)


def _carry(stage: Stage) -> None:
    """Have the actor carry what another node has left behind."""

    def end() -> None:
        stage.simulation.world.after(0.0, stage.crash, OTHER, 2.0)

    stage.at(0.0, lambda: stage.lead(ACTOR, OTHER))
    stage.simulation.server.keyspace.on_set = _then(stage.simulation.server.keyspace.on_set, end)


def _then(on_set: Any, end: Callable[[], None]) -> Any:
    """Call back right behind the first outcome that is stored."""
    had: list[bytes] = []

    def stored(key: bytes, value: bytes) -> None:
        on_set(key, value)
        if b":result:" in key and not had:
            had.append(key)
            end()

    return stored


def _batch(
    stage: Stage,
    by: str,
    to: str,
    *,
    goes_on: bool = False,
    is_put: bool = False,
    open_s: float = 5.0,
) -> None:
    """Have a node make a batch whose members others run, and maybe another one go on with it.

    Or have the actor put it within another one, and that node go on with this.
    """
    load = stage.simulation.load

    def begin() -> None:
        name = "batch9"
        tokens = [f"t8009.{number}" for number in range(5)]
        keys = [stage.key_of(to) for _ in tokens]
        plans = [{**_PLAIN, "fails": int(n == 1), "how": "park"} for n in range(len(tokens))]
        calls = list(zip(keys, tokens, plans, strict=True))
        then = (stage.key_of(OTHER), "t7009.0", _PLAIN)
        members = Members(
            name=name, chunks=[calls[:2], calls[2:]], then=then, least=3, open_s=open_s
        )
        stage.do(by, lambda boot, node: members.make(boot, node, load._nonces, is_first=True))
        if goes_on:
            other = partial(members.make, nonces=load._nonces, is_first=False)
            stage.simulation.world.after(2.0, stage.do, OTHER, other)
        if is_put:
            put = partial(members.put_within, outer="outer9")
            stage.simulation.world.after(1.5, stage.do, ACTOR, put)
            stage.simulation.world.after(3.0, stage.do, OTHER, put)

    stage.at(0.0, begin)


def _make_a_batch(stage: Stage) -> None:
    _batch(stage, ACTOR, OTHER)


def _go_on_with_a_batch(stage: Stage) -> None:
    _batch(stage, ACTOR, OTHER, goes_on=True)


def _put_a_batch_within(stage: Stage) -> None:
    _batch(stage, OTHER, OTHER, is_put=True)


def _be_members(stage: Stage) -> None:
    """Have the actor end members, and carry that to the batch."""
    _batch(stage, OTHER, ACTOR)


def _tend(stage: Stage) -> None:
    """Have the actor find out that its maker has left a batch, and what is missing."""

    def end() -> None:
        stage.simulation.world.after(0.0, stage.crash, OTHER, 6.0)

    _batch(stage, OTHER, ACTOR, open_s=1.5)
    stage.at(0.03, end)


def _pause(stage: Stage) -> None:
    """Have the actor pause, and resume; whatever becomes of it another one takes that back."""
    _operate(stage, ACTOR, lambda _: Pause())


def _pause_a_key(stage: Stage) -> None:
    _operate(stage, ACTOR, lambda key: Pause(key=key))


def _be_paused(stage: Stage) -> None:
    """Have the actor run what is paused then, and wait for what is dispatched behind that."""
    _operate(stage, OTHER, lambda _: Pause(handler="work"))


def _pause_against_another(stage: Stage) -> None:
    """Have the actor pause what another one resumes just then, and the other way round."""
    _operate(stage, ACTOR, lambda _: Pause(handler="work"), against=OTHER)


def _operate(
    stage: Stage, by: str, what: Callable[[str], Pause], *, against: str | None = None
) -> None:
    world, operators = stage.simulation.world, stage.simulation.operators

    def begin() -> None:
        keys = [stage.key_of(name) for name in (ACTOR, ACTOR, OTHER, ACTOR, OTHER)]
        pause = what(keys[1])

        async def ask_pause(_: Boot, node: Node) -> None:
            await node.pause(handler=pause.handler, key=pause.key)

        async def ask_resume(_: Boot, node: Node) -> None:
            await node.resume(handler=pause.handler, key=pause.key)

        operators._begin("paused", str(pause))
        stage._dispatch(OTHER, keys[0], "work", {"s": 0.3}, {})
        world.after(0.05, stage.do, by, ask_pause)
        for number, key in enumerate(keys[1:]):
            who, plan = (OTHER, ACTOR)[number % 2], {"fails": number % 2}
            world.after(0.3 + 0.05 * number, stage._dispatch, who, key, "work", plan, {})
        world.after(1.0, stage.do, by, ask_resume)
        if against is not None:
            world.after(0.05, stage.do, against, ask_resume)
            world.after(1.0, stage.do, against, ask_pause)
        world.after(2.0, operators.end)

    stage.at(0.0, begin)


def _be_cordoned(stage: Stage) -> None:
    """Have the actor be cordoned while it has a job, and others are dispatched."""
    world, operators = stage.simulation.world, stage.simulation.operators

    def begin() -> None:
        keys = [stage.key_of(name) for name in (ACTOR, ACTOR, OTHER, ACTOR)]
        stage._dispatch(OTHER, keys[0], "work", {"s": 0.6}, {})
        world.after(0.1, operators.cordon, ACTOR)
        for number, key in enumerate(keys[1:]):
            world.after(0.3 + 0.05 * number, stage._dispatch, OTHER, key, "work", {}, {})
        world.after(1.0, operators.uncordon)
        world.after(2.0, operators.end)

    stage.at(0.0, begin)


OPERATORS: Final[dict[str, Scene]] = {
    "pause": _pause,
    "pause a key": _pause_a_key,
    "pause against another": _pause_against_another,
    "be paused": _be_paused,
    "be cordoned": _be_cordoned,
}
BATCHES: Final[dict[str, Scene]] = {
    "make a batch": _make_a_batch,
    "go on with a batch": _go_on_with_a_batch,
    "put a batch within another": _put_a_batch_within,
    "be members": _be_members,
    "tend a batch": _tend,
}
CHAINS: Final[dict[str, Scene]] = {
    "lead": _lead,
    "lead otherwise": _lead_otherwise,
    "lead and add": _lead_and_add,
    "carry": _carry,
}
LINES: Final[dict[str, Scene]] = {
    "queue": _queue,
    "be promoted": _be_promoted,
    "replace": _replace,
    "be replaced": _be_replaced,
    "coalesce": _coalesce,
    "stop a queued one": _stop_queued,
}
SCENES: Final[dict[str, Scene]] = {
    "named": _named,
    "replay": _replay,
    "dispatch": _dispatch,
    "start and settle": _start_and_settle,
    "fetch a payload": _big_payload,
    "retry": _retry,
    "park": _park,
    "time out": _time_out,
    "stop": _stop,
    "be stopped": _be_stopped,
    "notify": _notify,
    "hand off": _hand_off,
    "steps": _steps,
    "begin in time": _in_time,
    "too late": _too_late,
    "too late behind another": _too_late_behind,
    "too late where it was given": _too_late_given,
    "save": _save,
    "save soon": _save_soon,
    "leave": _leave,
    "reap": _crash_of_other,
    "sweep": _sweep,
    "join": _join,
    **LINES,
    **CHAINS,
    **BATCHES,
    **OPERATORS,
    **TIMED,
    **PLANS,
    **POLLED,
}
_IDLE: Final = (RENEW, RECONCILE, commands.PROBE, commands.PAGE)
_RENEW_SHA: Final = RENEW.sha.encode()
_IDLE_SHAS: Final = frozenset(script.sha.encode() for script in _IDLE)


def is_step(words: Sequence[bytes]) -> bool:
    """Say whether a command is a step of something; renewals and reads go on all the time.

    But those of workers that poll, which open and close them: they know of no change of TTL.
    """
    if words[0] == b"EVALSHA":
        is_polled = words[1] == _RENEW_SHA and words[5 + int(words[2])] == b"0"
        return is_polled or words[1] not in _IDLE_SHAS
    return words[0] in (b"XADD", b"XTRIM", b"HGET")


def _config(loops: Any, lanes: int = 1, shapes: tuple[str, ...] = ()) -> Config:
    return Config(
        shapes=shapes,
        seed=1,
        loops=loops,
        nodes=2,
        lanes=lanes,
        capacity=20,
        ttl_s=TTL_S,
        op_timeout_s=0.4,
        chaos_s=_BEGIN_S + _END_S,
        jobs=0,
        services=0,
        keys=1,
        faults=(),
        pace_s=1.0,
    )


class _Actor:
    """Counts what the actor sends while the scene is played, and burns the fuse."""

    def __init__(self, simulation: Simulation, calls: int, *, is_applied: bool) -> None:
        self.sent = 0
        self._simulation = simulation
        self._calls = calls
        self._is_applied = is_applied
        self._has_burnt = False
        simulation.weather.on_command = self._on_command

    def arm(self) -> None:
        """Begin to count."""
        boot = self._simulation.fleet.boots[ACTOR]
        if self._calls and boot is not None and not self._has_burnt:
            self._has_burnt = True
            fuse = Fuse(self._calls, self._is_applied, _DOWN_S, is_step)
            self._simulation.weather.fuses[boot.process] = fuse

    def _on_command(self, process: Process, words: Sequence[bytes]) -> None:
        is_played = _BEGIN_S <= self._simulation.world.now_s < _BEGIN_S + _END_S
        if process.node == ACTOR and is_played and is_step(words):
            self.sent += 1


def play(
    scene: Scene, loops: Any, calls: int, *, is_applied: bool, lanes: int = 1
) -> tuple[Outcome, int]:
    """Play a scene; the actor dies at that command, 0: it lives.  Return what it sent, too."""
    try:
        return _play(scene, loops, calls, is_applied, lanes)
    finally:
        sweep()  # what the scene held until now


def _play(
    scene: Scene, loops: Any, calls: int, is_applied: bool, lanes: int
) -> tuple[Outcome, int]:
    shapes = ("plans",) if scene in PLANS.values() else ()
    simulation = Simulation(_config(loops, lanes, shapes))
    actor = _Actor(simulation, calls, is_applied=is_applied)
    stage = Stage(simulation)
    if scene is _join:
        simulation.world.at(_BEGIN_S + 0.1 + 1e-9, actor.arm)
    else:
        simulation.world.at(_BEGIN_S, actor.arm)
    scene(stage)
    keyspace = simulation.server.keyspace
    outcome = simulation.play()
    if scene is _replay:  # whatever dies: the job that was parked last has its letter
        letters = [len(held) for name, held in keyspace.keys.items() if name.endswith(b":letters")]
        if letters != [1]:
            failures = (*outcome.failures, f"{letters} letters")
            outcome = attrs.evolve(outcome, failures=failures)
    return outcome, actor.sent


def play_all(name: str, loops: Any, stride: int = 1, lanes: int = 1) -> list[str]:
    """Play a scene with a crash at each of its steps, or each so many; return what was wrong."""
    scene, wrong = SCENES[name], []
    outcome, sent = play(scene, loops, 0, is_applied=True, lanes=lanes)
    if not outcome.ok:
        wrong.append(f"{name}, nobody dies: {_told(outcome)}")
    for at in range(0, 2 * sent, stride):
        calls, is_applied = at // 2 + 1, at % 2 == 0
        outcome, _ = play(scene, loops, calls, is_applied=is_applied, lanes=lanes)
        if not outcome.ok:
            when = "after" if is_applied else "before"
            wrong.append(f"{name}, dies {when} command {calls}: {_told(outcome)}")
    return wrong


def _told(outcome: Outcome) -> str:
    texts = [f"{v.invariant}: {v.text}" for v in outcome.report.violations[:3]]
    return "; ".join([*texts, *outcome.failures])


def main(names: Sequence[str]) -> int:
    """Play the scenes named, or all."""
    failed = 0
    for name in names or SCENES:
        for loops, lanes in (("asyncio", 1), ("trio", 1), ("mixed", 4)):
            wrong = play_all(name, loops, lanes=lanes)
            failed += bool(wrong)
            word = "ok" if not wrong else "VIOLATED"
            sys.stdout.write(f"{name:20} {loops:8} {lanes} lanes {word}\n")
            sys.stdout.write("".join(f"    {line}\n" for line in wrong))
            sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
