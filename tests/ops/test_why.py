"""`pool why`: for every state of every feature, in words, with the command that helps next."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import attrs
import pytest

from pool import Handlers, Job, Park
from pool.core.crash_marks import Marks
from pool.core.options import Options
from pool.core.pauses import Cordon, Pause
from pool.core.plans import handler_of, plan_key, planned_id
from pool.core.record import Attempt, Outcome, Record, pack_more
from pool.core.schedules import job_id as fired_id
from pool.errors import JobCancelled, JobParked
from pool.names import WORKERS, Control
from pool.ops.cli import FINDING, OK, USAGE, main
from pool.ops.cli.why import fetch, lines
from pool.ops.keyfacts import KeyFacts
from pool.ops.why import CASES, Why, span, why
from pool.redis.url import Url
from tests.ops.facts import MARKED, NOW_MS, TOSSED, TTL_MS, owner, record, worker

if TYPE_CHECKING:
    from tests.nodes import Fleet

# --- the table: one planted state for each row ---------------------------------------------------


def ended(word: Any, cause: str = "", **changes: Any) -> Outcome:
    facts: dict[str, Any] = {"word": word, "epoch": 5, "owner": "wA.1", "attempt": 2}
    facts |= {"ended_ms": NOW_MS - 60_000, "cause": cause, "body": b"", "more": "hh"}
    return Outcome(**{**facts, **changes})


def facts(of: Record | Outcome | None = None, /, **changes: Any) -> KeyFacts:
    given: dict[str, Any] = {"pool": "p", "key": "my key", "job_id": "j1" if of else ""}
    given |= {"now_ms": NOW_MS, "ttl_ms": TTL_MS, "options": Options(), "workers": (worker(),)}
    given |= {"ranked": (owner(),)}
    if isinstance(of, Record):
        given |= {"record": of, "owner": owner() if of.owner else None}
    else:
        given |= {"ended": of}
    return KeyFacts(**{**given, **changes})


DEAD = owner(claim="n9.1|5|1|0", lease_s=1.0)
HUNG = owner(takes=None)
LATE = {"pending_ms": NOW_MS - TTL_MS - 1}

ROWS = [
    ("lost", facts(is_lost=True), "none of the data", "pool status"),
    ("unreadable", facts(is_unreadable=True), "cannot be read", "pool doctor"),
    (
        "parked",
        facts(ended("parked", "failed", body=b"ValueError: x")),
        "ValueError",
        "parked show",
    ),
    ("parked", facts(ended("parked", more="hh,yj9")), "replayed as job j9", "pool parked show"),
    ("expired", facts(ended("cancelled", "not started in time")), "had begun it", "pool status"),
    ("superseded", facts(ended("cancelled", "superseded by j9")), "superseded by j9", ""),
    ("cancelled", facts(ended("cancelled", "the night is over")), "the night is over", ""),
    ("done", facts(ended("done")), "ended 60.0 s ago: done, by wA.1 in attempt 2", ""),
    ("done", facts(ended("done", crashes=1)), "ended 60.0 s ago: done, by wA.1 in attempt 2", ""),
    ("unknown", facts(looked=5, of=9), "looked at the newest 5 of 9", ""),
    ("ending", facts(record("queued", intent="ssuperseded by j9")), "out of the line", ""),
    (
        "queued",
        facts(record("queued"), position=2, queue_length=3, live_id="j0"),
        "number 2 of 3 behind job j0 of its key, for 5.0 s",
        "pool why 'my key'",
    ),
    (
        "held",
        facts(record("waiting", flags="dh", marks=MARKED, since_ms=NOW_MS + 4_000)),
        "2 worker crashes and held for 4.0 s more",
        "",
    ),
    (
        "tossed",
        facts(record("waiting", marks=TOSSED, since_ms=NOW_MS + 4_000)),
        "a coin holds it for 4.0 s more",
        "",
    ),
    ("overdue", facts(record("waiting", since_ms=NOW_MS - 30_000)), "due for 30.0 s", "doctor"),
    ("due", facts(record("waiting", since_ms=NOW_MS - 1)), "about to be given away", ""),
    (
        "retry",
        facts(
            record("waiting", since_ms=NOW_MS + 3_000, attempt=2),
            history=(Attempt(1, NOW_MS, "wA.1", "ValueError", "no", "Traceback\n  here"),),
        ),
        "3.0 s more for attempt 2 of 5; the one before failed with ValueError: no",
        "",
    ),
    ("delayed", facts(record("waiting", since_ms=NOW_MS + 600_000)), "lasts 10 min more", ""),
    (
        "paused",
        facts(record("unassigned"), paused=Pause(handler="h", by="me", reason="a test")),
        "handler h is paused by me: a test; it has waited",
        "pool resume --handler h",
    ),
    ("paused", facts(record("unassigned"), paused=Pause()), "the whole pool", "pool resume"),
    ("unregistered", facts(record("unassigned"), options=None), "no node has ever", "pool run"),
    ("nobody", facts(record("unassigned"), workers=()), "no worker knows", "pool run"),
    (
        "cordoned",
        facts(record("unassigned"), cordoned=Cordon(id="n1", by="me", reason="a look")),
        "its workers are cordoned, by me: a look",
        "pool uncordon n1",
    ),
    (
        "closed",
        facts(record("unassigned"), ranked=(owner(takes=0), HUNG)),
        "wA.1 is closed, wA.1 is hung",
        "pool doctor",
    ),
    (
        "full",
        facts(record("unassigned"), ranked=(owner(takes=2),), position=4, queue_length=7),
        "all slots for 'h' are taken (first for this key is wA.1): it is number 4 of 7",
        "pool status",
    ),
    ("full", facts(record("unassigned")), "will pull it", "pool status"),
    (
        "unread",
        facts(record("unassigned", more=pack_more(left="wA.1/wB.2"), error="UnknownVersion: 2")),
        "2 workers could not read it, and no other one that knows 'h' has a free slot (UnknownV",
        "pool status",
    ),
    ("stopping", facts(record("pending", intent="sno")), "ends it without beginning it", ""),
    ("owner-dead", facts(record("pending"), owner=DEAD), "is dead", ""),
    (
        "owner-silent",
        facts(record("pending"), owner=owner(lease_s=-1.0)),
        "not renewed",
        "pool doctor",
    ),
    (
        "owner-hung",
        facts(record("pending"), owner=HUNG, pending_ms=NOW_MS + 7_000),
        "another one gets in 7.0 s",
        "ssh alpha kill -9 41",
    ),
    ("suspect", facts(record("pending", flags="a", marks=MARKED)), "2 worker crashes", ""),
    ("owner-closed", facts(record("pending"), owner=owner(takes=0)), "takes nothing more", ""),
    ("unacknowledged", facts(record("pending"), **LATE), "10.0 s ago: it is alive", "pool status"),
    ("pending", facts(record("pending")), "wA.1 (pid 41 on alpha) was given it, and has not", ""),
    ("owner-dead", facts(record("running"), owner=DEAD), "is dead", ""),
    ("owner-dead", facts(record("running"), owner=owner(lease_s=None)), "is dead", ""),
    (
        "owner-silent",
        facts(record("running"), owner=owner(lease_s=-1.0)),
        "not renewed",
        "pool doctor",
    ),
    ("owner-hung", facts(record("running"), owner=HUNG), "event loop hangs", "kill -9 41"),
    ("stopping", facts(record("running", intent="sno more")), "(no more)", "kill -9 41"),
    ("timed-out", facts(record("running", intent="t")), "time is over", "kill -9 41"),
    (
        "too-long",
        facts(record("running"), options=Options(timeout_s=4.0)),
        "it has run for 5.0 s, longer than its timeout_s",
        "",
    ),
    (
        "no-progress",
        facts(record("running"), options=Options(progress_timeout_s=4.0)),
        "no progress",
        "",
    ),
    (
        "hand-off",
        facts(record("running", kind="service"), owner=owner(info=worker(is_draining=True))),
        "leaves, and hands it over",
        "",
    ),
    (
        "moving",
        facts(
            record("running", kind="service", owner="wB.1"),
            owner=owner("wB.1"),
            workers=(worker("wA"), worker("wB", handlers=("other",))),
        ),
        "to hand it over to wA.1",
        "",
    ),
    ("suspect", facts(record("running", marks=MARKED)), "suspected of 2 worker crashes", ""),
    (
        "suspect",  # which stays where it is, though another worker is first for its key
        facts(
            record("running", kind="service", owner="wB.1", marks=MARKED),
            owner=owner("wB.1"),
            workers=(worker("wA"), worker("wB", handlers=("other",))),
        ),
        "suspected of 2 worker crashes",
        "",
    ),
    (
        "runs-long",
        facts(record("running", since_ms=NOW_MS - 61_000), usual_s=6.0),
        "for 61.0 s, and 99 of 100 runs of its handler take 6.0 s at most",
        "pool stop 'my key'",
    ),
    (
        "runs-long",
        facts(record("running", since_ms=NOW_MS - 86_401_000)),
        "and nothing says how long its handler usually takes",
        "pool stop 'my key'",
    ),
    ("running", facts(record("running", since_ms=NOW_MS - 50_000), usual_s=5.0), "50.0 s", ""),
    ("running", facts(record("running")), "(pid 41 on alpha) has run attempt 1 of 5 for 5.0 s", ""),
]


@pytest.mark.parametrize(("case", "given", "words", "command"), ROWS)
def test_each_state_is_told_in_words_with_what_helps(
    case: str, given: KeyFacts, words: str, command: str
) -> None:
    told = why(given)
    assert (told.case, told.key) == (case, "my key")
    assert words in told.says
    assert command in told.next
    assert bool(command) == bool(told.next)
    json.dumps(attrs.asdict(told))
    assert not any(line.endswith(":") for line in map(str.rstrip, lines(told)))
    text = "\n".join(lines(told))
    assert told.says in text
    assert told.next in text


def test_every_row_of_the_table_has_been_seen() -> None:
    """But the last one, which is for states that nobody knows yet."""
    assert [each.name for each in CASES if each.name not in {row[0] for row in ROWS}] == ["unnamed"]


def test_a_job_says_which_plan_or_schedule_it_is_of() -> None:
    mine = planned_id("feeds", "0123456789abcdef")
    told = why(facts(record("running", id=mine), job_id=mine))
    assert (told.plan, told.schedule) == ("feeds", "")
    assert any(line.endswith("  feeds: pool plans show feeds") for line in lines(told))
    assert why(facts(record("running", more=pack_more(lineage=mine)))).plan == "feeds"
    kept = facts(record("running", handler=handler_of("feeds", "plan", 2)), key=plan_key("feeds"))
    assert why(kept).plan == "feeds"
    for job_id in (fired_id("nightly", NOW_MS), "nightly@trigger-0123"):
        told = why(facts(record("running", id=job_id), job_id=job_id))
        assert (told.plan, told.schedule) == ("", "nightly")
        assert any("nightly: pool schedules show nightly (until" in line for line in lines(told))
    told = why(facts(record("running")))
    assert (told.plan, told.schedule) == ("", "")


def test_a_member_of_a_batch_says_of_which() -> None:
    told = why(facts(record("running", more="b3/0/77/night-1")))
    assert told.batch == "night-1"
    assert any(line.split() == ["batch", "night-1"] for line in lines(told))
    assert why(facts(record("running"))).batch == ""


def test_what_would_become_of_it_is_what_would_be_decided() -> None:
    def told(**changes: Any) -> str:
        trial = changes.pop("trial", "")
        return why(facts(record("running", **changes), trial=trial)).if_owner_died

    assert "attempt 1 would begin again elsewhere at most 11.0 s after" in told()
    assert "suspected of 1" in told()
    assert told(intent="sno") == "it would end as cancelled (no), and not run again"
    assert "attempt 2 would begin elsewhere after a delay" in told(intent="t")
    many = Marks(3, 150, 150)
    assert "parked as poison" in told(marks=many, trial=f"{(NOW_MS - 5_000) * 1000}.90|my key")
    assert "parked as poison" not in told(marks=many)


def test_lengths_of_time_are_told_as_people_say_them() -> None:
    assert [span(s) for s in (-1, 0.25, 119, 120, 7_200, 200_000)] == [
        *("0.0 s", "0.2 s", "119.0 s", "2 min", "2 h", "2 d")
    ]


# --- a pool at work ------------------------------------------------------------------------------

handlers = Handlers()


@handlers.job("stay")
async def stay(job: Job) -> None:
    await anyio.sleep_forever()


@handlers.job("fails", attempts_max=2, backoff_s=600.0, backoff_max_s=600.0)
async def fails(job: Job) -> None:
    raise ValueError(f"no such address: {job.attempt}")


@handlers.job("gives-up")
async def gives_up(job: Job) -> None:
    raise Park("no such customer")


@handlers.job("quick")
async def quick(job: Job) -> int:
    return job.attempt


@handlers.job("shielded")
async def shielded(job: Job, gate: str) -> None:
    with anyio.CancelScope(shield=True):
        await GATES[gate].wait()


GATES: dict[str, anyio.Event] = {}


async def ask(fleet: Fleet, key: str, job_id: str = "") -> Why:
    return await fetch(fleet.pool, Url.parse(fleet.url), key, job_id)


async def until(fleet: Fleet, key: str, case: str) -> Why:
    async def is_so() -> Why | None:
        told = await ask(fleet, key)
        return told if told.case == case else None

    await fleet.until(is_so)
    return await ask(fleet, key)


@pytest.mark.anyio
async def test_why_of_a_pool_at_work(fleet: Fleet) -> None:
    node = await fleet.node(handlers, capacity=2, label="left", version="v7")
    ref = await node.dispatch(stay, "runs")
    await ref.started(timeout_s=30)
    told = await ask(fleet, "runs")
    assert (told.case, told.state, told.handler, told.job_id) == (
        *("running", "running", "stay"),
        ref.job_id,
    )
    assert told.owner is not None
    assert (told.owner.node, told.owner.pid) == (node.id, os.getpid())
    assert (told.owner.label, told.owner.version, told.owner.standing) == ("left", "v7", "live")
    assert told.owner.lease_s is not None
    assert 0 < told.owner.lease_s <= 3.0
    assert told.would_go_to == (told.owner.worker,)

    behind = [await node.options(if_exists="queue").dispatch(stay, "runs") for _ in range(2)]
    told = await ask(fleet, "runs")
    assert [each.job_id for each in told.line] == [each.job_id for each in behind]
    told = await ask(fleet, "runs", behind[1].job_id)
    assert (told.case, told.position, told.of) == ("queued", 2, 2)
    assert ref.job_id in told.says

    await node.options(delay_s=600.0).dispatch(stay, "delayed")
    told = await ask(fleet, "delayed")
    assert told.case == "delayed"
    assert told.wait_s is not None
    assert 500 < told.wait_s <= 600

    await node.dispatch(fails, "fails")
    told = await until(fleet, "fails", "retry")
    assert (told.attempt, told.attempts_max) == (2, 2)
    assert "ValueError: no such address: 1" in told.says
    assert "in fails" in told.history[-1].traceback
    assert "in fails" in "\n".join(lines(told))

    await node.options(allow_unknown=True).dispatch("never", "never")
    assert (await ask(fleet, "never")).case == "unregistered"

    parked = await node.dispatch(gives_up, "given up")
    with pytest.raises(JobParked):
        await parked.result(timeout_s=30)
    told = await ask(fleet, "given up")
    assert (told.case, told.job_id) == ("parked", parked.job_id)
    assert told.next == f"pool parked show 'given up' {parked.job_id}"

    done = await node.dispatch(quick, "done")
    assert await done.result(timeout_s=30) == 1
    assert (await ask(fleet, "done", done.job_id)).case == "done"
    told = await ask(fleet, "done")
    assert (told.case, told.job_id) == ("done", done.job_id)

    late = await node.options(delay_s=600.0).dispatch(quick, "cancelled")
    await late.stop(cause="the night is over", timeout_s=30)
    told = await ask(fleet, "cancelled")
    assert told.case == "cancelled"
    assert "the night is over" in told.says
    told = await ask(fleet, "nobody knows this")
    assert (told.case, told.state) == ("unknown", "unknown")

    GATES["g"] = fleet.gate()
    held = await node.dispatch(shielded, "held", "g")
    await held.started(timeout_s=30)
    waits = await node.dispatch(quick, "waits")  # both slots are taken
    told = await until(fleet, "waits", "full")
    assert (told.position, told.of) == (1, 1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_stopped, held)
        told = await until(fleet, "held", "stopping")
        assert told.next.endswith(f"kill -9 {os.getpid()}")
        assert "would end as cancelled" in told.if_owner_died
        GATES["g"].set()
    assert await waits.result(timeout_s=30) == 1
    await node.stop_all(timeout_s=30)


async def _stopped(ref: Any) -> None:
    await ref.stop(cause="enough", timeout_s=30)


@pytest.mark.anyio
async def test_what_was_not_started_in_time_and_what_a_newer_one_replaced(fleet: Fleet) -> None:
    client = await fleet.node()
    late = await client.options(allow_unknown=True, expires_s=0.05).dispatch("never", "late")
    with pytest.raises(JobCancelled):
        await late.result(timeout_s=30)
    told = await ask(fleet, "late")
    assert (told.case, told.next) == ("expired", "pool status")
    options = client.options(allow_unknown=True, if_exists="coalesce")
    refs = [await options.dispatch("never", "k") for _ in range(3)]
    with pytest.raises(JobCancelled):
        await refs[1].result(timeout_s=30)
    told = await ask(fleet, "k", refs[1].job_id)
    assert (told.case, told.state) == ("superseded", "cancelled")
    assert (await ask(fleet, "k")).job_id == refs[0].job_id
    await client.stop_all(timeout_s=30)


@pytest.mark.anyio
async def test_data_that_are_gone_or_spoilt_are_told_of(fleet: Fleet) -> None:
    fleet.is_audited = False
    node = await fleet.node(handlers)
    await node.options(delay_s=600.0).dispatch(stay, "k")
    await fleet.leave(node)
    fleet.client.hset(fleet.names.jobs, "spoilt", "this is no record")
    assert (await ask(fleet, "spoilt")).case == "unreadable"
    assert (await ask(fleet, "k")).case == "delayed"
    fleet.client.delete(Control(fleet.pool).map_data(WORKERS))
    fleet.client.set(Control(fleet.pool).map_data(WORKERS), "somebody else's")
    told = await ask(fleet, "k")
    assert told.case == "delayed"
    assert "the map of workers" in told.unread[0]
    fleet.client.delete(fleet.names.lane)
    assert (await ask(fleet, "k")).case == "lost"


@pytest.mark.anyio
async def test_the_command_says_it_and_exits_by_what_it_found(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--pool", fleet.pool, "--url", fleet.url]

    async def run(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        code = await anyio.to_thread.run_sync(main, ["why", *words])
        return code, capsys.readouterr().out

    assert (await run("k", *where))[0] == USAGE  # no node has ever joined
    node = await fleet.node(handlers)
    await node.options(delay_s=600.0).dispatch(stay, "k")
    code, said = await run("k", "--json", *where)
    told = json.loads(said)
    assert (code, told["v"], told["case"], told["pool"]) == (OK, 1, "delayed", fleet.pool)
    code, said = await run("k", *where)
    assert code == OK
    assert said.splitlines()[1].startswith("  its delay lasts ")
    assert (await run("unknown", *where))[0] == FINDING
    assert (await run("", *where))[0] == USAGE
    assert (await run("k", "--id", "a b", *where))[0] == USAGE
    await node.stop("k", timeout_s=30)


def test_the_page_names_every_case() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/looking.md").read_text("utf-8")
    told = page.partition("<!-- cases -->")[2].partition("<!-- /cases -->")[0]
    named = [word for line in told.splitlines() for word in re.findall(r"`([\w-]+)`", line[:90])]
    assert sorted(set(named) - {"case"}) == sorted({case.name for case in CASES})
