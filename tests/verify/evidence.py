"""Outside deaths by the hundred thousand, through the decision that gives jobs up.

    python -m tests.verify.evidence --seed 1            innocents given up, and how soon killers are

A world is a fleet of some processes and many services, and something that kills processes as it
likes, looking at everything but our dice.  Each death goes through `recover()`, as a reaper and a
sweeper call it: jobs are dealt anew, judged, held, and parked.  No job is given up for a death
from outside.  A job that kills is given up after about as many deaths as the evidence needs.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import attrs

from pool.core.crash_marks import NO_MARKS, Deaths, Marks, trial_tenths
from pool.core.options import Options
from pool.core.record import Record
from pool.core.settlement import (
    Deal,
    Death,
    Grant,
    Judgement,
    Lineup,
    ParkJob,
    Wait,
    is_hold,
    recover,
    suspicion,
)
from pool.jobs.trials import LIVED_S, OLD_S, SENDING_S, SPAN_S, SPAN_TRIALS, TRIAL_GROWTH, TRIAL_S

TTL_MS: Final = 10_000
PERIOD_MS: Final = 2_000
WINDOW_S: Final = 600.0
CRASHES_MAX: Final = 3
OPTIONS: Final = Options()
RUN_MS: Final = 2_000  # how much longer a run lasts that does not kill
CAUSED_MAX: Final = 3_000  # deaths of a world; who is not found by then is not
FULL: Final = 20  # services of a process, from where on one more or less makes no difference


@attrs.define(eq=False)
class Service:
    """A job as its record has it, and the process it is in."""

    name: int
    after_ms: int | None = None  # how long after its start it kills; None: never
    share: float = 1.0  # of its runs
    place: str = ""
    since_ms: int = 0
    marks: Marks = NO_MARKS
    flags: str = ""
    kills_ms: float = math.inf  # when its present run ends its process
    deaths: int = 0  # that were its own
    is_over: bool = False
    epoch: int = 0

    def record(self, state: str = "running") -> Record:
        owner = f"w{self.place}1.1" if state == "running" else ""
        return Record(
            state=state,  # type: ignore[arg-type]
            kind="service",
            id=f"j{self.name}",
            handler="serve",
            owner=owner,
            epoch=self.epoch,
            attempt=1,
            flags=self.flags,
            intent="",
            marks=Marks.parse(self.marks.pack()),
            requeues=0,
            accepted=1,
            since_ms=self.since_ms,
            waiters=(),
            error="",
        )


@attrs.define(eq=False)
class Event:
    """Processes that end at once from outside, and how."""

    victims: Sequence[str]
    is_drain: bool = False
    is_frozen: bool = False
    is_replaced_before: bool = True


Kill: TypeAlias = Callable[["World"], tuple[float, Event]]  # in how many ms, and which


@attrs.define(eq=False)
class World:
    """One fleet, as the judging code sees it."""

    dice: random.Random
    size: int
    services: list[Service]
    kill: Kill | None
    hosts: dict[str, int] = attrs.field(factory=dict)
    born_ms: dict[str, int] = attrs.field(factory=dict)
    now_ms: int = 1_000_000
    deaths: dict[str, int] = attrs.field(factory=dict)
    aboard: dict[str, list[Service]] = attrs.field(factory=dict)
    parked: list[Service] = attrs.field(factory=list)
    delayed: list[tuple[int, Service]] = attrs.field(factory=list)  # by a coin, until when
    events: int = 0
    granted: int = 0  # the last epoch
    crowded: float = 0.1  # how often the process that was dealt has no room
    restless: float = 0.02  # how often a job is moved between deaths

    def __attrs_post_init__(self) -> None:
        for _ in range(self.size):
            self.join()
        for service in self.services:
            self.granted += 1
            service.epoch = self.granted
            self.put(service, self.dice.choice(list(self.aboard)))

    def join(self, host: int | None = None, age_ms: int = 0) -> str:
        name = f"{self.dice.getrandbits(48):010x}"[:10].ljust(10, "0")
        self.aboard[name], self.born_ms[name] = [], self.now_ms - age_ms
        self.hosts[name] = self.dice.randrange(1 + self.size // 8) if host is None else host
        return name

    def put(self, service: Service, place: str, at_ms: int | None = None) -> None:
        service.place = place
        service.since_ms = max(self.now_ms, at_ms or 0)
        self.aboard[place].append(service)
        if service.after_ms is None:
            return
        while self.dice.random() >= service.share:  # that run ends, and another one begins here
            service.since_ms += service.after_ms + RUN_MS
        service.kills_ms = service.since_ms + service.after_ms

    def judgement(self) -> Judgement:
        return Judgement(
            crash_window_s=WINDOW_S,
            crashes_max=CRASHES_MAX,
            hold_s=TTL_MS / 1000,
            deaths=Deaths(dict(self.deaths), PERIOD_MS),
            jobs=sum(map(len, self.aboard.values())),
        )

    def next_event(self) -> None:
        """Let what kills next kill: a job, or something outside."""
        in_ms, outside = self.kill(self) if self.kill is not None else (math.inf, Event(()))
        killers = [s for s in self.services if s.after_ms is not None and not s.is_over]
        while True:
            guilty = min(killers, key=lambda s: s.kills_ms, default=None)
            fatal_ms = self.now_ms + in_ms
            fatal_ms = min(fatal_ms, guilty.kills_ms) if guilty is not None else fatal_ms
            if not self.delayed or self.delayed[0][0] > fatal_ms:
                break
            due_ms, service = self.delayed.pop(0)
            was_ms = self.now_ms
            self.now_ms = max(self.now_ms, due_ms)
            in_ms -= self.now_ms - was_ms
            self.come_due(service)
        if guilty is not None and guilty.kills_ms <= self.now_ms + in_ms:
            self.now_ms = max(self.now_ms, math.ceil(guilty.kills_ms))
            guilty.deaths += 1
            self.die(Event((guilty.place,), is_replaced_before=self.dice.random() < 0.5))
        elif math.isfinite(in_ms):
            self.now_ms += round(in_ms)
            self.events += 1
            self.die(outside)

    def culprit(self, process: str) -> tuple[int, int]:
        """Return the epoch of the suspect on trial when a process died, and its bits; as `Trials`.

        The suspects of the process begin one after another, the first one late by chance.
        """
        suspects = [s for s in self.aboard[process] if "a" in s.flags]
        for service in suspects:
            if service.since_ms <= self.now_ms < service.since_ms + self.trial_ms(service):
                return service.epoch, self.bits(service)
        return 0, 0

    def trial_ms(self, service: Service) -> float:
        longer: int = TRIAL_GROWTH ** min(8, service.marks.grown)
        return 1000 * min(LIVED_S, TRIAL_S * longer)

    def span_s(self, service: Service) -> float:
        return max(SPAN_S, SPAN_TRIALS * self.trial_ms(service) / 1000)

    def age_s(self, service: Service) -> float:
        return (service.since_ms - self.born_ms.get(service.place, self.now_ms)) / 1000

    def bits(self, service: Service) -> int:
        age_s = self.age_s(service)
        age_s = age_s if age_s >= OLD_S else self.span_s(service)
        return trial_tenths(age_s, self.trial_ms(service) / 1000 + SENDING_S)

    def die(self, event: Event) -> None:
        lost = [(p, self.aboard[p], self.culprit(p)) for p in event.victims]
        for process, _, _ in lost:
            if event.is_replaced_before:
                self.join(self.hosts[process])
            del self.aboard[process]
        dead_ms = self.now_ms
        self.now_ms += TTL_MS
        for process, _, _ in lost:  # fenced one after another, judged as they are
            if not event.is_drain:
                self.note(process, dead_ms - self.dice.randrange(PERIOD_MS // 2))
        late = self.dice.random() < 0.5 and len(lost) > 1
        hidden = {p: self.deaths.pop(p) for p, _, _ in lost[1:] if late and p in self.deaths}
        held: list[Service] = []
        for at, (process, jobs, culprit) in enumerate(lost):
            if process in hidden and at:
                self.deaths[process] = hidden.pop(process)
            held += self.reap(process, jobs, culprit, dead_ms)
        if event.is_frozen:
            for process, _, _ in lost:
                self.deaths.pop(process, None)
        if not event.is_replaced_before:
            for _ in lost:
                self.join()
        for service in held:
            self.come_due(service)
        for jobs in list(self.aboard.values()):
            for service in list(jobs):
                if self.dice.random() < self.restless:
                    jobs.remove(service)
                    self.put(service, self.dice.choice(list(self.aboard)))

    def note(self, process: str, at_ms: int) -> None:
        """Do what `fence.lua` does once per process."""
        self.deaths = {p: ms for p, ms in self.deaths.items() if ms > self.now_ms - 1000 * WINDOW_S}
        while len(self.deaths) >= 256:
            del self.deaths[min(self.deaths, key=self.deaths.__getitem__)]
        self.deaths[process] = at_ms

    def reap(
        self, process: str, jobs: list[Service], culprit: tuple[int, int], dead_ms: int
    ) -> list[Service]:
        able, held, judgement = list(self.aboard), list[Service](), self.judgement()
        epoch, bits = culprit
        death = Death(identity=f"w{process}1.1", alive_ms=dead_ms, culprit=epoch, bits=bits)
        waiting: dict[str, list[Service]] = {}
        lineup = Lineup()
        for service in jobs:
            lineup.see(str(service.name), suspicion(service.record(), death, judgement))
        # As `Scatter` deals: rounds, each in an order of its own.
        order: list[str] = []
        for service in self.dice.sample(jobs, len(jobs)):
            order = order or self.dice.sample(able, len(able))
            place = order.pop() if order else ""
            deal = Deal(place, max(1, len(able)))
            decision = recover(
                service.record(),
                OPTIONS,
                self.dice,
                judgement=judgement,
                death=death,
                deal=deal,
                rival=lineup.rival(str(service.name)),
            )
            if is_hold(decision):
                letters, _, text = decision.mark.partition("=")
                service.marks, service.flags = Marks.parse(text), letters.strip("m")
                held.append(service)
                continue
            service.kills_ms = math.inf
            if isinstance(decision, Wait):
                letters, _, text = decision.mark.partition("=")
                service.marks, service.flags = Marks.parse(text), "a" if "a" in letters else ""
                self.delayed.append((self.now_ms + round(1000 * decision.delay_s), service))
                self.delayed.sort(key=lambda each: each[0])
                continue
            assert isinstance(decision, Grant), decision
            letters = decision.mark.partition("=")[0]
            service.marks = decision.marks
            service.flags = "a" if "a" in letters else ""
            self.granted += 1
            service.epoch = self.granted
            if not place or self.dice.random() < self.crowded:
                place = self.dice.choice(able) if able else self.join()
                able = able or list(self.aboard)
            if service.flags:
                waiting.setdefault(place, []).append(service)
            else:
                self.put(service, place)
        for place, suspects in waiting.items():  # each process tries its suspects in turn
            u, at_ms = self.dice.random(), float(self.now_ms)
            is_young = self.now_ms - self.born_ms[place] < 1000 * OLD_S
            for service in sorted(suspects, key=lambda s: s.marks.grown):
                if is_young:
                    at_ms = max(at_ms, self.now_ms + 1000 * u * self.span_s(service))
                self.put(service, place, round(at_ms))
                at_ms += self.trial_ms(service)
        return held

    def come_due(self, service: Service) -> None:
        """Do what the sweeper does with a job at the end of its hold."""
        decision = recover(
            service.record("waiting"), OPTIONS, self.dice, judgement=self.judgement()
        )
        if isinstance(decision, ParkJob):
            service.is_over = True
            self.parked.append(service)
            return
        assert isinstance(decision, Grant)
        service.marks = decision.marks
        service.flags = "a" if decision.mark.startswith("r") else ""
        self.put(service, self.dice.choice(list(self.aboard) or [self.join()]))


# --- what kills from outside ------------------------------------------------------------------


def _gap(world: World, mean_s: float = 20.0) -> float:
    return 1000 * world.dice.expovariate(1 / mean_s)


def uniform(world: World) -> tuple[float, Event]:
    """One process at a time, any."""
    return _gap(world), Event([world.dice.choice(list(world.aboard))])


def fullest(world: World) -> tuple[float, Event]:
    """The process with the most jobs.  Each job adds to that, so there must be many of them."""
    victim = max(world.aboard, key=lambda p: (len(world.aboard[p]), p))
    return _gap(world), Event([victim], is_replaced_before=world.dice.random() < 0.7)


def flaky_host(world: World) -> tuple[float, Event]:
    """Always a process of the first host, to which its label and its keys return."""
    mine = [p for p, host in world.hosts.items() if host == 0 and p in world.aboard]
    victim = world.dice.choice(mine or list(world.aboard))
    for jobs in list(world.aboard.values()):  # by rank, what bears its label goes back there
        for service in [s for s in jobs if s.name % world.size == 0 and not s.marks.deaths]:
            jobs.remove(service)
            world.put(service, victim)
    return _gap(world), Event([victim])


def hosts(world: World) -> tuple[float, Event]:
    """Whole hosts of eight."""
    host = world.hosts[world.dice.choice(list(world.aboard))]
    victims = [p for p in world.aboard if world.hosts[p] == host]
    return _gap(world, 40.0), Event(victims[: max(1, len(world.aboard) - 1)])


def waves(world: World) -> tuple[float, Event]:
    """Spot instances: some at once, in bursts, replaced late."""
    count = world.dice.randrange(1, 1 + len(world.aboard))
    victims = world.dice.sample(list(world.aboard), count)
    pause = world.dice.choice((3.0, 12.0, 120.0))
    return _gap(world, pause), Event(victims, is_replaced_before=world.dice.random() < 0.3)


def drains(world: World) -> tuple[float, Event]:
    """Deployments whose grace is too short, between other deaths."""
    is_drain = world.dice.random() < 0.7
    return _gap(world, 10.0), Event([world.dice.choice(list(world.aboard))], is_drain=is_drain)


def frozen(world: World) -> tuple[float, Event]:
    """Processes that come back after they were judged."""
    event = Event([world.dice.choice(list(world.aboard))], is_frozen=world.dice.random() < 0.6)
    return _gap(world), event


def by_age(world: World) -> tuple[float, Event]:
    """Each process is killed at the same age, whatever it runs: in its first second, or later."""
    age_ms = (500, 800, 2_000, 11_000, 40_000)[world.size % 5]
    victim = min(world.aboard, key=lambda p: (world.born_ms[p], p))
    in_ms: float = world.born_ms[victim] + age_ms - world.now_ms
    if in_ms < 0:  # it should have died while others were taken over
        in_ms = world.dice.uniform(0.0, TTL_MS)
    return in_ms, Event([victim])


KINDS: Final[dict[str, Kill]] = {
    kill.__name__.replace("_", "-"): kill
    for kill in (uniform, fullest, flaky_host, hosts, waves, drains, frozen, by_age)
}


# --- the campaign -----------------------------------------------------------------------------


@attrs.define
class Result:
    """What came of some worlds."""

    events: dict[str, int] = attrs.field(factory=dict)
    innocents: list[str] = attrs.field(factory=list)


def outside(
    seed: int, events: int, *, per_world: int = 200, jobs_max: int = 1000, sizes: int = 13
) -> Result:
    """Kill from outside only; nobody may be given up."""
    result, number = Result(), 0
    while sum(result.events.values()) < events:
        kind = list(KINDS)[number % len(KINDS)]
        dice = random.Random(f"{kind}/{seed}/{number}")
        size = dice.randrange(1, sizes)
        least = FULL * size if kind == "fullest" else 1
        count = round(math.exp(dice.uniform(math.log(least), math.log(max(least, jobs_max)))))
        world = World(dice, size, [Service(n) for n in range(count)], KINDS[kind])
        # The more jobs, the longer a world takes; all kinds have their share of each.
        for _ in range(per_world):
            world.next_event()
        result.events[kind] = result.events.get(kind, 0) + world.events
        for service in world.parked:
            result.innocents.append(f"{kind}/{seed}/{number}: {service.marks.pack()}")
        number += 1
    return result


def goal(jobs: int, dealt: int) -> float:
    """Return how many of its deaths may go by before one late killer is given up.

    Where one process only may take it, each round is as one death of two.
    """
    return CRASHES_MAX + 2 + math.log2(jobs * 10**6) / math.log2(max(2, dealt))


def found_after(
    seed: int,
    dealt: int,
    jobs: int,
    *,
    killers: int = 1,
    after_ms: int = 16_000,
    share: float = 1.0,
) -> list[int]:
    """Return after how many deaths of its own each of some killers is given up.

    Those that are not within `CAUSED_MAX` deaths are left out.
    """
    dice = random.Random(f"late/{seed}/{dealt}/{jobs}/{killers}/{after_ms}")
    services = [
        Service(n, after_ms=after_ms if n < killers else None, share=share) for n in range(jobs)
    ]
    # Replaced before the reaping: as many processes as before may take what died.
    world = World(dice, dealt, services, None, crowded=0.0, restless=0.0)
    if dealt > 1:
        world.join()  # one is dead while the others are dealt to
    found, caused = list[Service](), 0
    while len(found) < killers and caused < CAUSED_MAX:
        world.next_event()
        caused += 1
        for service in world.parked:
            if service.after_ms is not None and service not in found:
                found.append(service)
    innocent = [s.name for s in world.parked if s.after_ms is None]
    assert not innocent, f"innocents were given up: {innocent}"
    return [service.deaths for service in found]


def _say(**facts: object) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the campaign of one seed, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--worlds", type=int, default=20, help="per row of late killers")
    given = parser.parse_args(argv)
    began_s = time.monotonic()
    result = outside(given.seed, given.events)
    _say(events=result.events, innocents=len(result.innocents), first=result.innocents[:5])
    for killers in (1, 2):
        for dealt in (1, 2, 3, 6, 12):
            for jobs in (10, 100, 1000) if killers == 1 else (60,):
                worlds = given.worlds if jobs < 1000 else max(3, given.worlds // 5)
                tried = [
                    found_after(given.seed * 1000 + n, dealt, jobs, killers=killers)
                    for n in range(worlds)
                ]
                counts = sorted(max(each) for each in tried if len(each) == killers)
                _say(
                    killers=killers,
                    m=dealt,
                    jobs=jobs,
                    deaths=counts[len(counts) // 2] if counts else None,
                    most=counts[-1] if counts else None,
                    never=worlds - len(counts),
                    goal=round(goal(jobs, dealt), 1),
                )
    _say(took_s=round(time.monotonic() - began_s))
    return bool(result.innocents)


if __name__ == "__main__":
    sys.exit(main())
