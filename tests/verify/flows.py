"""Followers, batches and schedules of a campaign, and what the store's last state says of them.

Nobody is told that their jobs were accepted: no call of anybody's has done that.  So each is known
by what it alone has, in the last state or where it has run:

    follower            its key: `f-TOKEN`
    member of a batch   its id, which is made of the batch's nonce and its place
    firing              its id: schedule and time

and `account()` tells of its dispatch, as of right before it began.  What ran and is known by none
of these was asked for by nobody (I9), and what ran under two ids was made twice (I12).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import anyio
import attrs

from pool import Call, Follower, Node, PoolError, names
from pool.core.batches import member_id
from pool.core.schedules import schedule_of
from pool.errors import NoSuchSchedule
from pool.schedules import Cron, Every
from tests.verify.history import Event, Recorder, digest_of

STORE: Final = "store"  # who tells of these dispatches
TIMED: Final = {"ms": 10}  # what a firing does
# name -> seconds between two times, and when it is due; what a step of the clock brings is bounded.
SCHEDULES: Final[dict[str, tuple[int, Every | Cron]]] = {
    "each": (1, Every(1, misfire="all", window_s=20.0)),
    "latest": (2, Every(2, misfire="once", window_s=20.0, jitter_s=0.5)),
    "cron": (3, Cron("*/3 * * * * *", misfire="skip", window_s=20.0)),
}
FOLLOWED: Final = 0.2  # share of jobs
DEPTH_MAX: Final = 2
OPEN_S: Final = 8.0  # longer than a maker's successor takes to come
LOOK_S: Final = 1.0
GOES_ON_S: Final = 10.0  # after the campaign, so that it shows whether somebody comes for schedules


@attrs.define(eq=False)
class Flows:
    """What one producer asks for."""

    node: Node
    record: Recorder
    dice: random.Random
    _batches: int = 0

    # --- followers ---

    def followers(self, call: str) -> dict[str, Any]:
        """Draw what follows a dispatch, as its options have it, and write that down."""
        return self._of(call, 1) if self.dice.random() < FOLLOWED else {}

    def _of(self, of: str, depth: int) -> dict[str, Any]:
        count = 0
        found: dict[str, list[Follower]] = {"then": [], "otherwise": []}
        for when, followers in found.items():
            for _ in range(self.dice.choice((0, 1, 1, 2))):
                count += 1
                followers.append(self._one(of, f"{of}.{count}", when, depth))
        return dict(found)

    def _one(self, of: str, token: str, when: str, depth: int) -> Follower:
        key, spec = key_of(token), self._spec()
        extra = {"of": of, "when": when, "digest": digest_of(spec)}
        self.record("follow", key=key, idem=token, extra=extra)
        takes_result = self.dice.random() < 0.5
        follower = Follower("after" if takes_result else "work", key, token, spec)
        chain = self._of(token, depth + 1) if depth < DEPTH_MAX else {}
        return follower.options(takes_result=takes_result, **chain)

    def _spec(self) -> dict[str, Any]:
        return {"ms": self.dice.choice((0, 20, 200)), "fails": self.dice.choice((0, 0, 0, 1, 9))}

    # --- batches ---

    def batch(self, name: str, keys: int) -> dict[str, Any]:
        """Draw a batch, for `make()`; some of its keys are others', and may be refused."""
        self._batches += 1
        tokens = [f"{name}.{number}" for number in range(self.dice.choice((1, 5, 12)))]
        members = [
            (f"k{self.dice.randrange(keys)}" if self.dice.random() < 0.2 else f"m-{token}", token)
            for token in tokens
        ]
        return {
            "key": name,
            "members": [[*member, self._spec()] for member in members],
            "then": [f"{name}.then", self._spec()],
            "least": self.dice.choice((0, len(tokens) // 2, len(tokens))),
            "at_once": self.dice.choice((1, 3, 100)),
        }

    # --- schedules ---

    async def keep(self, name: str, over: anyio.Event) -> None:
        """Have a schedule there, whatever is lost, until that is over; then pause it."""
        when = SCHEDULES[name][1]
        while not over.is_set():
            with suppress(PoolError):  # the store is hurt on purpose
                try:
                    await self.node.schedules.show(name)
                except NoSuchSchedule:
                    options = self.node.options(if_exists="queue", queue_max=1000)
                    await options.schedule(name, when, "timed", f"z-{name}", TIMED)
            with anyio.move_on_after(LOOK_S):
                await over.wait()
        while True:
            try:
                await self.node.schedules.pause(name)
            except NoSuchSchedule:
                return
            except PoolError:
                await anyio.sleep(LOOK_S)
            else:
                return


def key_of(token: str) -> str:
    """Return the key of a follower."""
    return f"f-{token}"


async def make(node: Node, record: Recorder, plan: Mapping[str, Any]) -> None:
    """Make a batch, or go on with it: whoever made it before may have died."""
    name, (token, spec), at_once = plan["key"], plan["then"], plan["at_once"]
    facts = [[key, each, digest_of(its)] for key, each, its in plan["members"]]
    extra = {"then": token, "least": plan["least"], "members": facts, "digest": digest_of(spec)}
    record("batch", "invoke", key=name, extra=extra)
    calls = [Call(*member) for member in plan["members"]]
    then = Follower("work", key_of(token), token, spec)
    made = node.batch(name, then=then, success_min=plan["least"], open_s=OPEN_S)
    async with made as batch:
        record("batch", key=name, nonce=batch._nonce)
        for at in range(0, len(calls), at_once):
            await batch.add("work", calls[at : at + at_once])


# --- the account --------------------------------------------------------------------------------


def account(events: Sequence[Event]) -> list[Event]:
    """Return the dispatches that nobody could tell of."""
    final = [event for event in events if event.f == "final_state"][-1:]
    starts: dict[str, Event] = {}
    for event in events:
        if event.f == "start":
            starts.setdefault(event.job, event)
    there = {job: event.key for job, event in starts.items()}
    for event in final:
        there |= {job: said["key"] for job, said in event.extra["outcomes"].items()}
        there |= {job: names.key_of(name) for name, (job, *_) in event.extra["jobs"].items()}
    known = _Known.of_events(events)
    told: list[Event] = []
    for job, key in there.items():
        facts = known.of(job, key)
        if facts is None:
            continue
        token, digest = facts
        start = starts.get(job)
        at = start.t - 1e-6 if start is not None else final[0].t
        extra = {"digest": digest, "kind": "job", "handler": ""}
        for said, its in (("invoke", ""), ("ok", job)):
            told.append(
                Event(
                    n=len(told), t=at, p=STORE, type=said, f="dispatch",  # type: ignore[arg-type]
                    key=key, job=its, idem=token, extra=extra,
                )
            )  # fmt: skip
    return told


@attrs.define(eq=False)
class _Known:
    """By what such jobs are known: token, and digest of what they were given."""

    by_key: dict[str, tuple[str, str]] = attrs.field(factory=dict)
    by_id: dict[str, tuple[str, str]] = attrs.field(factory=dict)

    @classmethod
    def of_events(cls, events: Iterable[Event]) -> _Known:
        known, members = cls(), dict[str, list[list[str]]]()
        for event in events:
            if event.f == "follow":
                known.by_key[event.key] = event.idem, event.extra["digest"]
            elif event.f == "batch" and event.type == "invoke":
                members[event.key] = event.extra["members"]
                token = event.extra["then"]
                known.by_key[key_of(token)] = token, event.extra["digest"]
            elif event.f == "batch" and event.type == "ok":
                for index, (_, token, digest) in enumerate(members[event.key]):
                    known.by_id[member_id(event.nonce, index)] = token, digest
        return known

    def of(self, job: str, key: str) -> tuple[str, str] | None:
        if schedule_of(job) in SCHEDULES:
            return job, digest_of(TIMED)
        return self.by_id.get(job) or self.by_key.get(key)


def looks(heads: Mapping[str, Any], wall_ms: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what a look at the schedules' heads says of each, as the history has it."""
    for name, head in heads.items():
        if name in SCHEDULES:
            yield (
                name,
                {
                    "late_ms": wall_ms - head.due_ms,
                    "paused": head.is_paused,
                    "look": [head.next_ms, head.fired, head.missed],
                    "every_ms": 1000 * SCHEDULES[name][0],
                    "wall_ms": wall_ms,
                },
            )
