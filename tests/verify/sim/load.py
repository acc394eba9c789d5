"""What is asked of a simulated pool: jobs and services, messages for them, stops; from any node."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeAlias

import anyio
import attrs

from pool import Call, Dispatching, Node
from pool.errors import (
    IdempotencyConflict,
    NotStopped,
    PoolError,
    StoreFault,
    StoreLost,
    StoreUnavailable,
)
from pool.jobs.handlers import Handler
from tests.verify.sim import versions
from tests.verify.sim.batched import Members
from tests.verify.sim.chains import Chains
from tests.verify.sim.config import ATTEMPTS_MAX, Config, Plan, digest
from tests.verify.sim.fleet import Boot, Op, SimFleet
from tests.verify.sim.world import World
from tests.verify.view import TERMINAL_ERRORS

_AGAIN_S: Final = 0.5  # when no node can be asked
_CROWD_S: Final = (0.0, 0.0, 0.0, 0.002, 0.01, 0.02, 0.05, 0.4)  # what jobs of a crowd take
_RESULT_S: Final = 40.0
_STOP_S: Final = 10.0
_LAST_S: Final = (0.0, 0.0, 0.001, 0.003, 0.01, 0.1, 1.0)  # after a node was told to leave
_MESSAGES_MAX: Final = 25
_BATCHES: Final = 3
_GO_ON_S: Final = 6.0  # then another node goes on with a batch, whatever became of its maker
_REPLAYS: Final = 6  # rounds of them
_LETTERS: Final = 10  # of each round
_EXPIRES_S: Final = (0.01, 0.05, 0.3, 0.3, 1.0, 3.0)  # limits on when a job must begin
_POLICIES: Final = ("queue", "queue", "queue", "replace", "coalesce")
POISON_JOBS: Final = 2
LINE_MAX: Final = 4  # jobs queued behind one
_ILL: Final = (
    *("base", "exit", "generator", "group", "interrupt", "cancelled", "self-cancel"),
    *("late-cancel", "shared", "shared", "open", "open-shield"),
)
_BLOCKS: Final = (0.5, 0.9, 1.5, 3.0)  # TTL that a handler blocks its loop for

_ASKED: Final = {  # in a history -> as a dispatch has it
    "policy": "if_exists",
    "delay_s": "delay_s",
    "expires_s": "expires_s",
    "start_s": "start_timeout_s",
}

Ask: TypeAlias = Callable[[Boot, Node], Coroutine[Any, Any, None]]


@attrs.define(eq=False)
class _Service:
    """One service and where its messages are."""

    key: str
    job: str = ""
    seq: int = 0  # of the next message
    last: int = 0  # how many there shall be
    is_told: bool = False  # nothing more is sent: it has ended, or an outcome is unknown
    boot: Boot | None = None  # who sends for it now

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be sent."""
        return self.is_told or (self.boot is not None and self.boot.is_gone)


class Load:
    """All that is asked in one seed."""

    def __init__(self, config: Config, world: World, fleet: SimFleet) -> None:
        self._config = config
        self._world = world
        self._fleet = fleet
        self.services: list[_Service] = []
        self.asking: dict[int, Boot] = {}  # dispatches that have not returned
        self._tokens = 0
        self._last = world.dice("last calls")
        self._lines = world.dice("lines")
        self._chains = Chains(world.dice("chains"), config.keys, self._chain_plan)
        self._late = world.dice("late")
        self._begun: set[str] = set()  # batches that somebody makes
        self._nonces: dict[str, str] = {}  # of these
        fleet.last_calls = self._last_calls

    def plan(self) -> None:
        """Put everything on the world's calendar."""
        config = self._config
        for number in range(config.jobs):
            dice = self._world.dice(f"job/{number}")
            at_s = dice.uniform(0.1, config.chaos_s)
            self._world.at(at_s, self._jobs, dice)
        for number in range(config.services):
            dice = self._world.dice(f"service/{number}")
            service = _Service(f"s{number}", last=dice.randint(0, _MESSAGES_MAX))
            self.services.append(service)
            self._world.at(dice.uniform(0.1, config.chaos_s / 2), self._serve, service, dice)
        for number in range(_REPLAYS if "letters" in config.shapes else 0):
            dice = self._world.dice(f"letters/{number}")
            self._world.at(dice.uniform(1.0, config.chaos_s), self._replay, dice)
        for number in range(_BATCHES if "batches" in config.shapes else 0):
            dice = self._world.dice(f"batch/{number}")
            members = self._members(f"batch{number}", dice)
            at_s = dice.uniform(0.1, config.chaos_s)
            self._world.at(at_s, self._batch, members, dice)
            self._world.at(at_s + _GO_ON_S, self._batch, members, dice, 1)
        for number in range(versions.JOBS if "versions" in config.shapes else 0):
            dice = self._world.dice(f"versioned/{number}")
            self._world.at(dice.uniform(0.1, config.chaos_s), self._versioned, f"v{number}", dice)
        for number in range(POISON_JOBS if "poison" in config.shapes else 0):
            dice = self._world.dice(f"poison/{number}")
            at_s = dice.uniform(0.1, config.chaos_s / 2)
            self._world.at(at_s, self._poison, f"p{number}", dice)

    @property
    def is_over(self) -> bool:
        """Whether everything that was asked has been answered, as far as its asker lives."""
        has_asked = all(boot.is_gone for boot in self.asking.values())
        return has_asked and all(service.is_over for service in self.services)

    # --- whom ---

    def _ask(self, dice: random.Random, ask: Ask, on_nobody: Callable[[], object]) -> Boot | None:
        """Ask a node, if one is there; it may be gone before it hears of it."""
        boots = self._fleet.open_boots()
        if not boots:
            self._world.after(_AGAIN_S, on_nobody)
            return None
        boot = dice.choice(boots)

        async def op(boot: Boot) -> None:
            if boot.node is not None:
                await ask(boot, boot.node)

        boot.do(op)
        return boot

    # --- jobs ---

    def _poison(self, key: str, dice: random.Random) -> None:
        down_s = self._config.ttl_s * dice.uniform(0.02, 0.5)
        # Where other processes end, too, who kills late is not always told from whom those hit; so
        # there is one of them at most, and nothing else that ends any (seed 314 had two).
        slow_s = 0.3 if self._config.faults or key != "p0" else 2 * self._config.ttl_s
        plan: Plan = {"s": dice.choice((0.0, 0.0, 0.001, 0.3, slow_s)), "down_s": down_s}

        async def ask(boot: Boot, node: Node) -> None:
            await self._dispatch(boot, node, "poison", [(key, plan)], {})

        self._ask(dice, ask, lambda: self._poison(key, dice))

    def _versioned(self, key: str, dice: random.Random) -> None:
        """Dispatch what only some nodes can read."""
        name = dice.choice((versions.NEWER, versions.CODED))
        plan: Plan = {"s": dice.choice((0.0, 0.01, 0.3)), "fails": 0, "how": "raise", "pad": ""}
        readers = versions.needs(self._config, name)

        async def ask(boot: Boot, node: Node) -> None:
            handler = versions.newest()[name]
            await self._dispatch(boot, node, handler, [(key, plan)], {}, readers)

        self._ask(dice, ask, lambda: self._versioned(key, dice))

    def _replay(self, dice: random.Random) -> None:
        """Have one node, or two at once, replay the letters that are there."""

        async def ask(boot: Boot, node: Node) -> None:
            try:
                for letter in (await node.parked.list(count=_LETTERS)).jobs:
                    try:
                        await node.parked.replay(letter.key, letter.job_id)
                    except PoolError as error:  # its key has a job, or another one was first
                        self._fleet.watch.seen.add(f"replay: {error.code}")
                    else:
                        self._fleet.watch.seen.add("letter replayed")
            except PoolError as error:
                boot.record("event", extra={"event": "refused", "error": error.code})

        for _ in range(dice.choice((1, 1, 2))):
            self._ask(dice, ask, lambda: None)

    def _members(self, name: str, dice: random.Random) -> Members:
        """Draw a batch; some of its keys are others', so that some members are refused."""
        count, chunks = 0, []
        for _ in range(dice.choice((1, 2, 3))):
            chunk = []
            for _ in range(dice.choice((1, 2, 6))):
                key = f"k{dice.randrange(self._config.keys)}"
                if dice.random() < 0.7:
                    key = f"{name}.{count}"
                chunk.append(
                    (key, f"{name.replace('batch', 't800')}.{count}", self._chain_plan(dice))
                )
                count += 1
            chunks.append(chunk)
        then = (f"k{dice.randrange(self._config.keys)}", f"{name.replace('batch', 't700')}.0")
        least = dice.choice((0, count // 2, count))
        return Members(name=name, chunks=chunks, then=(*then, self._chain_plan(dice)), least=least)

    def _batch(self, members: Members, dice: random.Random, again: int = 0) -> None:
        async def ask(boot: Boot, node: Node) -> None:
            if again and members.name not in self._begun:
                return  # nobody was there to make it
            self._begun.add(members.name)
            await members.make(boot, node, self._nonces, is_first=not again)

        self._ask(dice, ask, lambda: self._batch(members, dice, again))

    def _jobs(self, dice: random.Random) -> None:
        config = self._config
        is_crowd = "crowd" in config.shapes
        count = dice.choice((1, 8, 40) if is_crowd else (1, 1, 1, 1, 2, 8))
        name = dice.choice(("work", "work", "limited"))
        calls = [
            (f"k{dice.randrange(config.keys)}", _job_plan(dice, name, config.ttl_s))
            for _ in range(count)
        ]
        for _, plan in calls:
            _make_ill(plan, dice if config.shapes else None, config.shapes)
            if "keeps" in config.shapes:
                plan["steps"] = dice.choice((0, 1, 3))
            if is_crowd:
                plan |= {"s": dice.choice(_CROWD_S), "fails": 0, "slow": 0}
        options: dict[str, Any] = {}
        if dice.random() < 0.15:
            options["delay_s"] = round(dice.uniform(0.1, 3.0), 3)
        if dice.random() < 0.15:
            options |= {"if_exists": "attach", "attach_any": True}
        if "lines" in config.shapes and self._lines.random() < 0.7:
            options |= {"if_exists": self._lines.choice(_POLICIES), "queue_max": LINE_MAX}
            calls = [(f"q{self._lines.randrange(2)}", plan) for _, plan in calls]
        if "in-time" in config.shapes:
            options |= self._limits(options.get("delay_s", 0.0))
        wants_result, stops = dice.random() < 0.5, dice.random() < 0.12
        stop_s = dice.uniform(0.0, 2.0)

        gives_up_s = 1000.0
        if "calls" in config.shapes and dice.random() < 0.2:
            gives_up_s = dice.choice((0.0, 0.001, 0.01, 1.0))

        async def ask(boot: Boot, node: Node) -> None:
            refs: list[Any] = []
            with anyio.move_on_after(gives_up_s):
                refs = await self._dispatch(boot, node, name, calls, options)
            if stops and refs:
                await anyio.sleep(stop_s)
                await _stop(boot, node, refs[0])
            if wants_result:
                for ref in refs:
                    await _result(boot, ref)

        self._ask(dice, ask, lambda: self._jobs_again(dice, ask))

    def _chain_plan(self, dice: random.Random) -> Plan:
        plan = _job_plan(dice, "work", self._config.ttl_s)
        return {**plan, "s": min(plan["s"], 0.3)}

    def _limits(self, delay_s: float) -> dict[str, float]:
        """Return by when a job must begin, if it must; by dice of their own."""
        dice, limits = self._late, dict[str, float]()
        if dice.random() < 0.6:
            limits["expires_s"] = round(delay_s + dice.choice(_EXPIRES_S), 3)
        if dice.random() < 0.4:
            most_s = limits.get("expires_s", 10.0)
            limits["start_timeout_s"] = round(min(most_s, dice.choice(_EXPIRES_S)), 3)
        return limits

    def _last_calls(self) -> list[Op]:
        """Return what is asked of a node while it leaves, and when it has left."""
        return [self._last_call(at_s) for at_s in self._last.choices(_LAST_S, k=6)]

    def _last_call(self, at_s: float) -> Op:
        key = f"k{self._last.randrange(self._config.keys)}"
        plan: Plan = {"s": self._last.choice((0.0, 0.3)), "fails": 0, "how": "raise", "pad": ""}

        async def op(boot: Boot) -> None:
            node = boot.current
            assert node is not None
            await anyio.sleep(at_s)
            for ref in await self._dispatch(boot, node, "work", [(key, plan)], {}):
                await _result(boot, ref)

        return op

    def _jobs_again(self, dice: random.Random, ask: Ask) -> None:
        self._ask(dice, ask, lambda: self._jobs_again(dice, ask))

    async def _dispatch(
        self,
        boot: Boot,
        node: Node,
        name: str | Handler[..., Any],
        calls: Sequence[tuple[str, Plan]],
        options: dict[str, Any],
        readers: Sequence[str] = (),  # nodes that can read it; empty: all can
    ) -> list[Any]:
        self._tokens += 1
        batch = self._tokens
        self.asking[batch] = boot
        tokens = [f"t{batch}.{i}" for i in range(len(calls))]
        if self._is_followed(name, calls, options):
            more = self._chains.options(boot, batch, tokens[0], calls[0][1])
            options = {**options, **more}
        asked = {name: options[of] for name, of in _ASKED.items() if options.get(of)}
        if readers:
            asked["readers"] = [*readers]
        kind = "service" if name == "feed" else "job"
        attempts_max = 0 if name == "feed" else ATTEMPTS_MAX
        for token, (key, plan) in zip(tokens, calls, strict=True):
            extra = {"digest": digest(plan), "kind": kind, "attempts_max": attempts_max, **asked}
            extra["within_s"] = node.settings.op_timeout_s
            boot.record("dispatch", "invoke", key=key, idem=token, extra=extra)
        is_named = self._is_named(batch, calls, options)
        if is_named:
            options = {**options, "idempotency_key": tokens[0]}
        via = node.options(**options)
        answers: list[Any] = []
        try:
            if len(calls) == 1:
                answers = [await via.dispatch(name, calls[0][0], tokens[0], calls[0][1])]
            else:
                made = [Call(k, t, p) for t, (k, p) in zip(tokens, calls, strict=True)]
                answers = await via.dispatch_many(name, made)
        except PoolError as error:
            answers = [error] * len(calls)
        except anyio.get_cancelled_exc_class():
            for token, (key, _) in zip(tokens, calls, strict=True):
                boot.give_up("dispatch", key=key, idem=token)
            raise
        finally:
            self.asking.pop(batch, None)
        accepted = []
        for token, (key, plan), answer in zip(tokens, calls, answers, strict=True):
            facts: dict[str, Any] = {"key": key, "idem": token}
            extra = {"digest": digest(plan), "kind": kind, "attempts_max": attempts_max, **asked}
            if isinstance(answer, PoolError):
                unknown = _is_unknown(answer)
                boot.record(
                    "dispatch", "info" if unknown else "fail", err=answer.code, extra=extra, **facts
                )
            elif options.get("if_exists") == "attach" and self._is_foreign(answer, token):
                boot.record("dispatch", "fail", err="ATTACHED", extra=extra, **facts)
            else:
                boot.record("dispatch", "ok", job=answer.job_id, extra=extra, **facts)
                accepted.append(answer)
        is_unknown = isinstance(answers[0], PoolError) and _is_unknown(answers[0])
        if is_named and (accepted or is_unknown):
            await self._repeat(via, name, tokens[0], calls[0], accepted)
        return accepted

    def _is_followed(
        self,
        name: str | Handler[..., Any],
        calls: Sequence[tuple[str, Plan]],
        options: dict[str, Any],
    ) -> bool:
        has_chains = "chains" in self._config.shapes and name in ("work", "limited")
        return has_chains and len(calls) == 1 and options.get("if_exists") != "attach"

    def _is_named(
        self, batch: int, calls: Sequence[tuple[str, Plan]], options: dict[str, Any]
    ) -> bool:
        """Say whether a dispatch has an idempotency key; by dice of its own."""
        is_alone = len(calls) == 1 and "if_exists" not in options
        return is_alone and random.Random(f"named/{self._config.seed}/{batch}").random() < 0.3

    async def _repeat(
        self, via: Dispatching, name: Any, token: str, call: tuple[str, Plan], accepted: list[Any]
    ) -> None:
        """Dispatch again what was, or may have been, accepted: it is the same job."""
        try:
            again = await via.dispatch(name, call[0], token, call[1])
        except PoolError as error:
            if isinstance(error, IdempotencyConflict):
                self._fleet.watch.problems.append(f"{token}: {error}")
            return
        self._fleet.watch.seen.add("named dispatch repeated")
        if accepted and accepted[0].job_id != again.job_id:
            ids = f"{accepted[0].job_id} and {again.job_id}"
            self._fleet.watch.problems.append(f"{token} was made two jobs: {ids}")

    def _is_foreign(self, ref: Any, token: str) -> bool:
        made_by = self._fleet.watch.token_of.get((ref.key, ref.job_id))
        return made_by != token

    # --- services ---

    def _serve(self, service: _Service, dice: random.Random) -> None:
        plan = {
            "s": dice.choice((0.0, 0.01, 0.2)),
            "trips": sorted(dice.sample(range(_MESSAGES_MAX), dice.choice((0, 0, 2)))),
            "end": dice.choice((0.0, 0.05, 0.2)),  # what it takes when cancelled
        }
        if "keeps" in self._config.shapes:
            plan["saves"] = self._world.dice(f"saves/{service.key}").choice(("", "each", "soon"))
        pace_s = self._config.chaos_s / 2 / (service.last + 1)
        bursts = self._world.dice(f"bursts/{service.key}") if self._config.bursts else None
        if bursts is not None:
            plan["pad"] = "x" * bursts.choice((0, 1500))  # one that is fetched before the start

        async def ask(boot: Boot, node: Node) -> None:
            service.boot, service.is_told = boot, True  # unless it goes on below
            refs = await self._dispatch(boot, node, "feed", [(service.key, plan)], {})
            if refs:
                service.is_told = False
                service.job = refs[0].job_id
                first_s = 0.0 if bursts is not None else pace_s
                self._world.after(first_s, self._notify, service, dice, pace_s, bursts)

        service.boot = self._ask(dice, ask, lambda: self._serve(service, dice))

    def _notify(
        self,
        service: _Service,
        dice: random.Random,
        pace_s: float,
        bursts: random.Random | None,
    ) -> None:
        if service.seq >= service.last or service.is_told:
            service.is_told = True
            return

        def later(seconds: float) -> None:
            self._world.after(seconds, self._notify, service, dice, pace_s, bursts)

        boots = self._fleet.open_boots()
        if not boots:
            later(_AGAIN_S)
            return
        boot, seq = dice.choice(boots), service.seq
        service.boot = boot
        is_stop = dice.random() < 0.02
        next_s = dice.uniform(0.0, 2 * pace_s)
        if bursts is not None and bursts.random() < 0.7:
            next_s = 0.0
        service.seq += 1

        async def op(boot: Boot) -> None:
            service.is_told = True  # unless it goes on below
            if boot.node is None:
                return
            if is_stop:
                await _stop_key(boot, boot.node, service)
                return
            facts: dict[str, Any] = {"key": service.key, "job": service.job, "extra": {"seq": seq}}
            asked = {**facts, "extra": {"seq": seq, "within_s": boot.node.settings.op_timeout_s}}
            boot.record("notify", "invoke", **asked)
            try:
                await boot.node.notify(service.key, {"seq": seq})
            except anyio.get_cancelled_exc_class():
                boot.give_up("notify", **facts)
                raise
            except PoolError as error:
                unknown = _is_unknown(error)
                boot.record("notify", "info" if unknown else "fail", err=error.code, **facts)
                if unknown:
                    return  # nothing more: it may arrive behind those that follow
            else:
                boot.record("notify", **facts)
            service.is_told = False
            later(next_s)

        boot.do(op)


def _job_plan(dice: random.Random, name: str, ttl_s: float) -> Plan:
    plan: Plan = {
        "s": dice.choice((0.0, 0.0, 0.01, 0.3, 0.3, 1.0, 0.4 * ttl_s)),
        "fails": dice.choice((0, 0, 0, 0, 1, 2, ATTEMPTS_MAX)),
        "how": dice.choice(("raise", "raise", "retry", "park", "cancel")),
        "pad": "x" * dice.choice((0, 0, 0, 1500)),
    }
    if name == "limited":
        plan["s"] = min(plan["s"], 0.3)
        plan["slow"] = dice.choice((0, 0, 1, 2, ATTEMPTS_MAX))
    return plan


def _make_ill(plan: Plan, dice: random.Random | None, shapes: Sequence[str]) -> None:
    """Have some handlers misbehave, where this seed has such."""
    if dice is None or "how" not in plan:
        return
    if "ill" in shapes and dice.random() < 0.3:
        plan["how"], plan["fails"] = dice.choice(_ILL), max(1, plan["fails"])
    elif "blocks" in shapes and dice.random() < 0.1:
        plan["how"], plan["fails"], plan["s"] = "block", 1, dice.choice((0.0, 0.0, 0.3))
        plan["blocks"] = dice.choice(_BLOCKS)


async def _result(boot: Boot, ref: Any) -> None:
    facts: dict[str, Any] = {"key": ref.key, "job": ref.job_id}
    boot.record("result", "invoke", extra={"within_s": _RESULT_S}, **facts)
    try:
        value = await ref.result(timeout_s=_RESULT_S)
    except anyio.get_cancelled_exc_class():
        boot.give_up("result", **facts)
        raise
    except PoolError as error:
        is_told = error.code in TERMINAL_ERRORS
        boot.record("result", "fail" if is_told else "info", err=error.code, **facts)
    except TimeoutError:
        boot.record("result", "info", err="TIMEOUT", **facts)
    else:
        boot.record("result", result=value, **facts)


async def _stop(boot: Boot, node: Node, ref: Any) -> None:
    await stop(boot, node, ref.key, ref.job_id, lambda: ref.stop("as asked", _STOP_S))


async def _stop_key(boot: Boot, node: Node, service: _Service) -> None:
    key = service.key
    await stop(boot, node, key, service.job, lambda: node.stop(key, "as asked", _STOP_S))


async def stop(
    boot: Boot, node: Node, key: str, job: str, call: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    """Stop a job, and write down what was said of it: refused is what surely was not done."""
    facts: dict[str, Any] = {"key": key, "job": job}
    boot.record(
        "cancel", "invoke", extra={"within_s": _STOP_S + node.settings.op_timeout_s}, **facts
    )
    try:
        await call()
    except NotStopped as error:
        boot.record("cancel", "info", err=error.code, **facts)
    except PoolError as error:
        boot.record("cancel", "info" if _is_unknown(error) else "fail", err=error.code, **facts)
    except anyio.get_cancelled_exc_class():
        boot.give_up("cancel", **facts)
        raise
    else:
        boot.record("cancel", **facts)


def _is_unknown(error: object) -> bool:
    """Say whether what was asked may have been done: what was answered cannot be read, or lost."""
    return isinstance(error, (StoreFault, StoreUnavailable, StoreLost)) and error.maybe_done
