"""Jobs that kill their process, among others that only stand beside them; and hosts that freeze."""

from __future__ import annotations

import math
import signal
from collections.abc import Collection, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from pool.core.crash_marks import LOOP_GAPS, ROUND_GAPS, ROUND_S, ROUNDS_MAX
from pool.jobs.trials import SPAN_S, SPAN_TTLS
from tests.process.conftest import BACK_S
from tests.process.member import HOLD_S
from tests.verify.view import Bounds

if TYPE_CHECKING:
    from tests.process.conftest import Figures, Fleet, MakeFleet, Member


OUTLIVE_S = 900.0  # where all processes die together, 40 rounds of three gaps between deaths


def replaced(
    fleet: Fleet, workers: list[Member], labels: Sequence[str] = (), **settings: Any
) -> int:
    """Do what a supervisor of processes does: start one for each that died; returns how many."""
    dead = [member for member in workers if member.process.poll() is not None]
    for member in dead:
        at = workers.index(member)
        name, label = f"w{len(fleet.members)}", labels[at] if labels else ""
        [workers[at]] = fleet.start(name, is_mortal=True, label=label, **settings)
    return len(dead)


def outlive(
    fleet: Fleet,
    client: Member,
    job: str,
    workers: list[Member],
    labels: Sequence[str] = (),
    **settings: Any,
) -> int:
    """Replace who dies until a job is parked; returns how many processes it ended."""
    deaths = 0

    def is_parked() -> bool:
        nonlocal deaths
        deaths += replaced(fleet, workers, labels, **settings)
        [status] = fleet.ask(client, "status", jobs=[job])
        return bool(status["state"] == "parked")

    fleet.until(is_parked, within_s=OUTLIVE_S, what="it is parked")
    # Whoever it has ended is counted, and nobody dies of it any more.
    began_s = fleet.now_s()
    while fleet.now_s() < began_s + 2 * fleet.ttl_s:
        deaths += replaced(fleet, workers, labels, **settings)
        fleet.passes(fleet.now_s(), 0.05)
    return deaths


def back_in_time(
    fleet: Fleet, guilty: str, innocent: Collection[str], *, is_late: bool
) -> list[float]:
    """Check that after each death all others ran again in time; returns how long the last took.

    Where late deaths come faster than processes begin, a coin may hold them for a round.  Where
    processes are slow to start, so are the workers that take over beside them.
    """
    dead = {m.name for m in fleet.members.values() if m.process.poll() is not None}
    fatal = [run for run in fleet.runs([guilty]) if run.node in dead]
    killed_s = {run.node: run.began_s for run in fatal}
    took = []
    for key in innocent:
        runs = fleet.runs([key])
        for before, after in pairwise(runs):
            died_s = killed_s.get(before.node)
            if died_s is not None:
                # Another worker may have died before it had its turn there.
                since_s = max(at_s for at_s in killed_s.values() if at_s < after.began_s)
                took.append(fleet.took_s(max(died_s, since_s), after.began_s))
    young_s = min(SPAN_S, SPAN_TTLS * fleet.ttl_s)  # which processes spread their suspects over
    gaps = (later - before for before, later in pairwise(sorted(killed_s.values())))
    round_s = min(ROUND_S, ROUND_GAPS * max(gaps, default=0.0)) if is_late else 0.0
    within_s = fleet.ttl_s + BACK_S + young_s + round_s + fleet.slowest_start_s
    assert max(took, default=0.0) < within_s, (max(took), within_s)
    return took


def at_once(fleet: Fleet, jobs: int, crashes_max: int) -> int:
    """Return how many processes one of so many jobs ends at most, if it kills at once."""
    return Bounds(ttl_s=fleet.ttl_s, crashes_max=crashes_max).deaths_at_once(jobs)


@pytest.mark.parametrize(
    ("how", "after_s", "crashes_max"),
    [
        ("exit", 0.0, 3),
        pytest.param("kill", 0.0, 1, marks=pytest.mark.long),
        ("segv", 0.0, 1),
        pytest.param("exit", 0.02, 3, marks=pytest.mark.long),
    ],
)
def test_a_job_that_kills_its_process_at_once_is_parked_when_that_is_proved(
    make_fleet: MakeFleet, figures: Figures, how: str, after_s: float, crashes_max: int
) -> None:
    """However it kills, before its acknowledgement or after; in processes that are young."""
    fleet = make_fleet(ttl_s=2.0)
    client = fleet.start("client", is_client=True, crashes_max=crashes_max)[0]
    workers = fleet.start("w1", "w2", is_mortal=True, crashes_max=crashes_max)
    jobs = fleet.dispatch(client, "deadly", ["poison"], how, after_s)
    deaths = outlive(fleet, client, jobs["poison"], workers, crashes_max=crashes_max)
    figures("deaths", [deaths])
    assert crashes_max + 1 <= deaths <= at_once(fleet, 1, crashes_max)
    assert len(fleet.runs(jobs)) == deaths
    assert fleet.results(client, jobs) == {"poison": "!POOLPARKED"}
    fleet.is_sound()


def test_a_job_that_keeps_the_interpreter_is_parked_like_one_that_kills(
    make_fleet: MakeFleet,
) -> None:
    """Each time it costs its node the lease; no process dies, and none of them stood still."""
    fleet = make_fleet(ttl_s=HOLD_S / 2)
    client = fleet.start("client", is_client=True, crashes_max=1)[0]
    workers = fleet.start("w1", "w2", crashes_max=1)
    beside = fleet.dispatch(client, "perilous", [f"key-{i}" for i in range(10)], "")
    fleet.are_running(beside)
    jobs = fleet.dispatch(client, "deadly", ["poison"], "hold")
    assert fleet.results(client, jobs, within_s=200.0) == {"poison": "!POOLPARKED"}
    assert 2 <= len(fleet.runs(jobs)) <= at_once(fleet, 11, 1)
    fleet.are_running(beside, within_s=fleet.ttl_s + HOLD_S + BACK_S)
    fleet.is_sound(frozen=workers)


def poison_among(
    fleet: Fleet,
    count: int,
    crashes_max: int,
    figures: Figures,
    *,
    after_s: float = 0.0,
    labels: Sequence[str] = (),
) -> None:
    """Run services of which one kills at once, or after a time, each time."""
    client = fleet.start("client", is_client=True, crashes_max=crashes_max)[0]
    workers: list[Member] = []
    for name, label in zip(("w1", "w2", "w3", "w4"), labels or ("",) * 4, strict=True):
        workers += fleet.start(name, is_mortal=True, label=label, crashes_max=crashes_max)
    keys = [f"innocent-{i}" for i in range(count - 1)]
    services = fleet.dispatch(client, "perilous", keys[: count // 2], "")
    poison = fleet.dispatch(client, "perilous", ["poison"], "exit", after_s)["poison"]
    services |= fleet.dispatch(client, "perilous", keys[count // 2 :], "")
    deaths = outlive(fleet, client, poison, workers, labels, crashes_max=crashes_max)
    # A late killer is told from the others by dice, or by a coin where its deaths come faster than
    # processes begin: a fleet of one finds it within 40 rounds, and three deaths make a loop.
    late = ROUNDS_MAX + LOOP_GAPS[0] + 1
    assert deaths <= (late if after_s else at_once(fleet, count, crashes_max))
    figures("deaths", [deaths])
    round_s = ROUND_S if after_s else 0.0  # a coin may hold some of them still
    fleet.are_running(keys, within_s=fleet.ttl_s + BACK_S + round_s)
    figures("innocent again", back_in_time(fleet, "poison", keys, is_late=after_s > 0))

    def have_said_so() -> bool:
        statuses = fleet.ask(client, "status", jobs=list(services.values()), within_s=30.0)
        return {status["state"] for status in statuses} == {"running"}

    fleet.until(have_said_so, what="the store knows that they run")
    fleet.is_sound()


@pytest.mark.parametrize("crashes_max", [1, pytest.param(3, marks=pytest.mark.long)])
def test_poison_among_sixty_services_is_parked_alone(
    make_fleet: MakeFleet, figures: Figures, crashes_max: int
) -> None:
    """Its neighbours are marked with it, and are up again after each of its deaths."""
    poison_among(make_fleet(ttl_s=2.0), 60, crashes_max, figures)


@pytest.mark.long
def test_poison_among_two_hundred_services_is_parked_alone(
    make_fleet: MakeFleet, figures: Figures
) -> None:
    """Whatever their number (G-06)."""
    poison_among(make_fleet(ttl_s=2.0), 200, 3, figures)


@pytest.mark.parametrize(
    "labels",
    [
        pytest.param((), id="nameless", marks=pytest.mark.long),
        pytest.param(("a", "b", "c", "d"), id="labelled"),
    ],
)
def test_slow_poison_among_twenty_services_is_parked_alone(
    make_fleet: MakeFleet, figures: Figures, labels: Sequence[str]
) -> None:
    """Nobody sees it kill: after each death its neighbours go to other nodes than it, but for few.

    Also where a process comes back under the label of the one that died.
    """
    poison_among(make_fleet(ttl_s=1.0), 20, 3, figures, after_s=1.5, labels=labels)


@pytest.mark.long
@pytest.mark.parametrize("labels", [(), ("a", "b", "c", "d")], ids=["nameless", "labelled"])
def test_slow_poison_among_two_hundred_services_is_parked_alone(
    make_fleet: MakeFleet, figures: Figures, labels: Sequence[str]
) -> None:
    """Each of its deaths tells it from two of three that stand beside it (G-06)."""
    poison_among(make_fleet(ttl_s=1.0), 200, 3, figures, after_s=1.5, labels=labels)


def test_healthy_services_outlive_any_number_of_kills_from_outside(
    make_fleet: MakeFleet, figures: Figures
) -> None:
    """K1: three workers, each replaced before it is killed; 11 of 11 runs parked one of them."""
    fleet = make_fleet(ttl_s=1.0)
    client = fleet.start("client", is_client=True)[0]
    workers = fleet.start("w1", "w2", "w3", is_mortal=True)
    services = fleet.dispatch(client, "perilous", [f"key-{i}" for i in range(30)], "")
    fleet.are_running(services)
    most = 0.0
    for number in range(12):
        workers += fleet.start(f"r{number}", is_mortal=True)
        killed(fleet, workers.pop(0))
        fleet.are_running(services, within_s=fleet.ttl_s + 2 * BACK_S)
        most = max(most, *crashes(fleet, client, services))
    figures("crashes of one", [most])
    assert most >= 5, "none was aboard often enough to be suspected"
    fleet.is_sound()


def test_services_of_a_process_that_is_killed_soon_after_its_start_are_innocent(
    make_fleet: MakeFleet,
) -> None:
    """K9: a fleet of one, killed half a second after it runs something; 4 of 5 runs parked one."""
    fleet = make_fleet(ttl_s=1.0)
    client = fleet.start("client", is_client=True)[0]
    [worker] = fleet.start("w", is_mortal=True)
    services = fleet.dispatch(client, "perilous", [f"key-{i}" for i in range(5)], "")
    for number in range(12):
        began = partial(has_begun, fleet, worker)
        fleet.until(began, within_s=fleet.ttl_s + 2 * BACK_S, what="something runs there")
        fleet.passes(fleet.now_s(), 0.5)
        killed(fleet, worker)
        [worker] = fleet.start(f"w{number}", is_mortal=True)
    fleet.are_running(services, within_s=fleet.ttl_s + 2 * BACK_S)
    crashes(fleet, client, services)
    fleet.is_sound()


def killed(fleet: Fleet, worker: Member) -> None:
    """Kill a process from outside, and wait for its end."""
    worker.signal(signal.SIGKILL)
    fleet.until(lambda: worker.died_s < math.inf, what="it has ended")


def has_begun(fleet: Fleet, worker: Member) -> bool:
    """Say whether anything has begun in a process."""
    return any(run.node == worker.name for run in fleet.runs())


def crashes(fleet: Fleet, client: Member, jobs: dict[str, str]) -> list[float]:
    """Return what each job is suspected of."""
    statuses = fleet.ask(client, "status", jobs=list(jobs.values()))
    assert {status["state"] for status in statuses} <= {"running", "pending", "unassigned"}
    return [status["crashes"] for status in statuses]


def test_who_comes_back_from_a_freeze_leaves_no_mark(make_fleet: MakeFleet) -> None:
    """Its jobs were taken over and marked; nobody killed it, as it says itself."""
    fleet = make_fleet(ttl_s=1.5)
    client = fleet.start("client", is_client=True)[0]
    victim, _ = fleet.start("a", "b")
    services = fleet.dispatch(client, "perilous", [f"key-{i}" for i in range(10)], "")
    before = fleet.are_running(services)
    its = [key for key, run in before.items() if run.node == victim.name]
    frozen_s = victim.signal(signal.SIGSTOP)
    fleet.took_over(its, frozen_s, victim, within_s=fleet.ttl_s + BACK_S)
    assert sum(crashes(fleet, client, services)) == len(its)
    victim.signal(signal.SIGCONT)
    fleet.until(lambda: fleet.events("worker.fenced", node=victim.name), what="it knows")
    fleet.until(lambda: not sum(crashes(fleet, client, services)), what="no mark is left")
    fleet.is_sound(frozen=[victim])


def run_since(fleet: Fleet, keys: Collection[str], since_s: float) -> bool:
    """Say whether all of these have begun since then, and run."""
    alive = fleet.alive(keys)
    return set(alive) == set(keys) and all(run.began_s > since_s for run in alive.values())


def test_all_nodes_frozen_together_three_times_give_nobody_up(
    make_fleet: MakeFleet, figures: Figures
) -> None:
    """Each time the client, which lives, takes all of them for dead; nobody stays down for long."""
    fleet = make_fleet(ttl_s=2.0)
    client = fleet.start("client", is_client=True, crashes_max=1)[0]
    workers = fleet.start("a", "b", "c", crashes_max=1)
    services = fleet.dispatch(client, "perilous", [f"key-{i}" for i in range(60)], "")
    fleet.are_running(services)
    took = []
    for _ in range(3):  # more often than `crashes_max` allows
        frozen_s = min([member.signal(signal.SIGSTOP) for member in workers])
        fleet.passes(frozen_s, 2.5)
        for member in workers:
            member.signal(signal.SIGCONT)
        within_s = fleet.ttl_s + BACK_S - 2.5
        fleet.until(partial(run_since, fleet, services, frozen_s), within_s=within_s)
        took.append(fleet.now_s() - frozen_s)
    figures("all again", took)
    assert crashes(fleet, client, services) == [0.0] * len(services)
    fleet.is_sound(frozen=workers)
