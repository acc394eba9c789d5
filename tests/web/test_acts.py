"""What stands in the journal is done, though its client has gone; only waiting ends with it."""

from __future__ import annotations

import asyncio  # noqa: TID251 - what is its own alone, a task that is cancelled, is tested
import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, Literal, TypeAlias

import anyio
import anyio.lowlevel
import attrs
import pytest

from pool import Handlers, Job
from pool.errors import JobLost, NotRunning, StoreUnavailable
from pool.jobs.client.pausing import Operator
from pool.jobs.node import Node
from pool.ops.web import jobs
from pool.ops.web.problems import WebRefusal
from pool.ops.web.routes import ROUTES
from pool.web import WebOptions
from tests.nodes import PATIENCE_S, Fleet
from tests.web.gateways import KEYRING, SECRETS, Gate, handlers, serving

pytestmark = pytest.mark.anyio
Going: TypeAlias = Literal["hangs up", "is cancelled", "is cancelled by asyncio"]
LATER: Final = {"handler": "echo", "key": "k", "args": [1], "delay_s": 3600, "job_id": "j"}
SERVICE: Final = {"handler": "listen", "key": "k", "job_id": "j"}
LETTER: Final = {"handler": "fail", "key": "k", "job_id": "j"}
SCHEDULE: Final = {"handler": "echo", "key": "k", "cron": "0 3 1 1 *"}
BATCH: Final = {"id": "b", "jobs": [{"handler": "listen", "key": "k"}]}


@attrs.frozen
class Act:
    """An action: what has to be there, what is sent, and where it can be seen that it was done."""

    before: tuple[tuple[str, str, Any], ...]
    body: Any
    at: str
    is_done: Callable[[Any], Any]
    wanted: Callable[[Any], Any] = bool  # what has to be seen before


def _is(name: str, *values: Any) -> Callable[[Any], Any]:
    return lambda told: told.get(name) in values


_SENT = ("POST", "/v1/jobs", LATER)
_SERVICE = ("POST", "/v1/jobs", SERVICE)
_LETTER = ("POST", "/v1/jobs", LETTER)
_SCHEDULE = ("PUT", "/v1/schedules/s", SCHEDULE)
_ALL = {"all": True}
JOB, LETTER_AT = "/v1/jobs/k/j", "/v1/parked/k/j"
ENDED, RUNS, PARKED = _is("is_ended", True), _is("state", "running"), _is("state", "parked")
STOPS = _is("state", "cancelled", "stopping")
GONE = _is("code", "POOLNOLETTER", "POOLNOSCHEDULE")
STOP = Act((_SERVICE,), {"cause": "enough", "wait_s": 30}, JOB, STOPS, RUNS)
BEGIN = Act((_SENT,), {}, JOB, ENDED, _is("state", "waiting"))
PAUSES = "/v1/pauses"


def _cordons(verb: str, of: str) -> Act:
    member, body = f"/v1/{of}/MEMBER", {"wait_s": 30}
    if verb == "cordon":
        return Act((), body, PAUSES, lambda told: told["cordons"])
    if verb == "uncordon":
        before = (("POST", f"{member}/cordon", {"wait_s": 0}),)
        return Act(before, body, PAUSES, lambda told: not told["cordons"], _is_cordoned)
    return Act((), body, "/v1/workers", lambda told: not _live(told))


def _is_cordoned(told: Any) -> Any:
    return told["cordons"]


def _live(told: Any) -> list[Any]:
    return [w for w in told["workers"] if w["node"] == told["member"] and w["standing"] == "live"]


ACTS: Final[dict[tuple[str, str], Act]] = {
    ("POST", "/v1/jobs"): Act((), LATER, JOB, _is("state", "waiting")),
    ("POST", "/v1/jobs/{key}/stop"): STOP,
    ("POST", "/v1/jobs/{key}/{job_id}/stop"): STOP,
    ("POST", "/v1/jobs/{key}/requeue"): BEGIN,
    ("POST", "/v1/jobs/{key}/{job_id}/requeue"): BEGIN,
    ("POST", "/v1/jobs/{key}/notify"): Act((_SERVICE,), {"value": 1}, JOB, ENDED, RUNS),
    ("PUT", "/v1/parked/{key}/{job_id}"): Act(
        (_LETTER,), {"args": ["x"]}, LETTER_AT, _is("args", ["x"]), PARKED
    ),
    ("POST", "/v1/parked/{key}/{job_id}/replay"): Act((_LETTER,), {}, LETTER_AT, GONE, PARKED),
    ("DELETE", "/v1/parked/{key}/{job_id}"): Act((_LETTER,), None, LETTER_AT, GONE, PARKED),
    ("POST", "/v1/batches"): Act((), BATCH, "/v1/batches/b", _is("state", "sealed")),
    ("POST", "/v1/batches/{batch}/cancel"): Act(
        (("POST", "/v1/batches", BATCH),), {}, "/v1/batches/b", _is("state", "cancelled")
    ),
    ("PUT", "/v1/schedules/{schedule}"): Act((), SCHEDULE, "/v1/schedules/s", _is("name", "s")),
    ("POST", "/v1/schedules/{schedule}/pause"): Act(
        (_SCHEDULE,), {}, "/v1/schedules/s", _is("is_paused", True)
    ),
    ("POST", "/v1/schedules/{schedule}/resume"): Act(
        (_SCHEDULE, ("POST", "/v1/schedules/s/pause", {})),
        *({}, "/v1/schedules/s", _is("is_paused", False)),
    ),
    ("POST", "/v1/schedules/{schedule}/trigger"): Act(
        (("PUT", "/v1/schedules/s", {**SCHEDULE, "handler": "listen"}),),
        *({}, "/v1/jobs/k", _is("handler", "listen")),
    ),
    ("DELETE", "/v1/schedules/{schedule}"): Act((_SCHEDULE,), None, "/v1/schedules/s", GONE),
    ("POST", "/v1/pause"): Act((), _ALL, PAUSES, lambda told: told["pauses"]),
    ("POST", "/v1/resume"): Act(
        (("POST", "/v1/pause", _ALL),), _ALL, PAUSES, lambda told: not told["pauses"]
    ),
    **{
        ("POST", f"/v1/{of}/{{member}}/{verb}"): _cordons(verb, of)
        for of in ("nodes", "workers")
        for verb in ("cordon", "uncordon", "drain")
    },
}


async def test_the_head_of_a_stream_is_answered_and_the_stream_not_begun(fleet: Fleet) -> None:
    async with serving(fleet) as gate:
        with anyio.fail_after(PATIENCE_S):
            head = await gate.client.head("/v1/events")
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"].startswith("text/event-stream")


def test_all_that_acts_is_here_and_nothing_that_acts_ends_with_its_client() -> None:
    acting = [route for route in ROUTES if route.action]
    assert {(route.method, route.path) for route in acting} == ACTS.keys()
    assert not [route for route in acting if route.waits]


async def leave_behind(
    gate: Gate, method: str, at: str, body: Any, going: Going, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ask for something, and be gone: once it was sent, or cancelled once it stands as noted.

    By asyncio as often as there is something to be cancelled: what was asked for ends first.
    """
    raw = json.dumps(body).encode() if body is not None else b""
    received = [{"type": "http.request", "body": raw, "more_body": False}]
    note = Node._note_act

    async def receive() -> Any:
        return received.pop() if received else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        pass

    async def noted(node: Node, event: Any) -> None:
        await note(node, event)
        if going == "is cancelled":
            scope.cancel()
        while going == "is cancelled by asyncio" and len(cancelled) < 3:
            request.cancel()
            cancelled.append(len(cancelled))
            await anyio.lowlevel.checkpoint()

    names = {
        "host": "localhost",
        "content-type": "application/json",
        "authorization": f"Bearer {SECRETS['admin']}",
    }
    asked = {
        "type": "http",
        "method": method,
        "path": at,
        "raw_path": at.encode(),
        "query_string": b"",
        "client": ("127.0.0.1", 1),
        "headers": [(name.encode(), value.encode()) for name, value in names.items()],
    }
    with monkeypatch.context() as patch, anyio.fail_after(PATIENCE_S):
        with anyio.CancelScope() as scope:
            if going != "hangs up":
                patch.setattr(Node, "_note_act", noted)
            if going != "is cancelled by asyncio":
                await gate.app(asked, receive, send)
                return
            cancelled = list[int]()
            request = asyncio.ensure_future(gate.app(asked, receive, send))
            done, _ = await asyncio.wait([request])
            assert done == {request}
            assert request.cancelled() or not cancelled


async def until(look: Callable[[], Awaitable[Any]], is_so: Callable[[Any], Any]) -> None:
    told: Any = None
    try:
        with anyio.fail_after(PATIENCE_S):
            while not is_so(told := await look()):  # noqa: ASYNC110
                await anyio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"it stays {told}") from None


async def clean(gate: Gate) -> None:
    """Leave nothing for the next action."""
    await gate.post("/v1/resume", _ALL)
    await gate.client.delete("/v1/schedules/s")
    for cordon in (await gate.get(PAUSES))["cordons"]:
        if not cordon["is_drain"]:
            await gate.post(f"/v1/nodes/{cordon['id']}/uncordon")
    for kind in ("jobs", "parked"):
        for each in (await gate.get(f"/v1/{kind}"))["jobs"]:
            at = f"/v1/{kind}/{each['key']}/{each['job_id']}"
            if kind == "parked":
                await gate.ask("DELETE", at)
            else:
                await gate.post(f"{at}/stop", {"wait_s": 30})


@pytest.mark.parametrize("going", ["hangs up", "is cancelled", "is cancelled by asyncio"])
async def test_what_is_noted_is_done_though_its_client_has_gone(
    fleet: Fleet, anyio_backend_name: str, going: Going, monkeypatch: pytest.MonkeyPatch
) -> None:
    if going == "is cancelled by asyncio" and anyio_backend_name != "asyncio":
        pytest.skip("trio has nothing that goes through a shield")
    options = WebOptions(keyring=KEYRING)
    async with serving(fleet, options, SECRETS["admin"]) as gate:
        for number, ((method, path), act) in enumerate(ACTS.items()):
            other = await fleet.node(handlers()) if "{member}" in path else None
            member = "" if other is None else other.id
            if other is not None and "/workers/" in path:
                member = await worker_of(gate, other)
            route = next(r for r in ROUTES if (r.method, r.path) == (method, path))
            named = {"key": "k", "job_id": f"j{number}", "member": member}
            named |= {"batch": f"b{number}", "schedule": "s"}

            def at(text: str, named: dict[str, str] = named, number: int = number) -> str:
                text = text.replace("/v1/jobs/k/j", f"/v1/jobs/k/j{number}")
                text = text.replace("/v1/parked/k/j", f"/v1/parked/k/j{number}")
                text = text.replace("/v1/batches/b", f"/v1/batches/b{number}")
                for name, value in named.items():
                    text = text.replace(f"{{{name}}}", value)
                return text.replace("MEMBER", named["member"])

            def of(body: Any, number: int = number) -> Any:
                own = {"job_id": f"j{number}", "id": f"b{number}"}
                return body and {name: own.get(name, value) for name, value in body.items()}

            async def look(
                act: Act = act, at: Callable[[str], str] = at, other: Any = other
            ) -> Any:
                told = (await gate.client.get(at(act.at))).json()
                return told | {"member": other.id if other else ""}

            for words in act.before:
                await gate.ask(words[0], at(words[1]), of(words[2]))
            if act.wanted in (RUNS, PARKED):
                await until(partial(_told, gate, at(JOB)), act.wanted)
            else:
                await until(look, act.wanted)
            await leave_behind(gate, method, at(path), of(act.body), going, monkeypatch)
            await until(look, act.is_done)
            assert await count_of(gate, route.action) >= 1
            if other is not None:
                await fleet.leave(other)
            await clean(gate)


@pytest.mark.parametrize(
    "error",
    [
        StoreUnavailable(problem="it is away", maybe_done=True),
        NotRunning(state="closed"),
        WebRefusal("WEBBUSY", "4000 requests wait here already"),
        RuntimeError("a fault"),
        JobLost(key="k", job_id="j"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_what_was_done_is_told_though_it_cannot_be_waited_for(
    fleet: Fleet, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a job that is lost is told as that: there is nothing else to be said of its stop."""

    async def fail(*_args: Any, **_options: Any) -> Any:
        await anyio.lowlevel.checkpoint()
        raise error

    found, may_end = Handlers(), fleet.gate()

    @found.job("stubborn")
    async def stubborn(job: Job) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await may_end.wait()

    monkeypatch.setattr(jobs, "wait_stopped", fail)
    heard = Operator.heard

    async def fail_unless_at_once(*args: Any, **options: Any) -> Any:
        wait_s = args[-1]
        return await (fail() if wait_s else heard(*args, **options))

    monkeypatch.setattr(Operator, "heard", fail_unless_at_once)
    await fleet.node(found)
    async with serving(fleet, WebOptions(keyring=KEYRING), SECRETS["admin"]) as gate:
        sent = {"handler": "stubborn", "key": "k", "job_id": "j", "allow_unknown": True}
        await gate.post("/v1/jobs", sent)
        await until(partial(_told, gate, JOB), RUNS)
        stop = await gate.client.post(f"{JOB}/stop", json={"wait_s": 30})
        cordon = await gate.client.post(f"/v1/nodes/{gate.node.id}/cordon", json={"wait_s": 30})
        may_end.set()
        if isinstance(error, JobLost):
            assert (stop.status_code, stop.json()["code"]) == (404, error.code)
        else:
            assert (stop.status_code, stop.json()["job_id"]) == (202, "j")
            assert (cordon.status_code, "unheard" in cordon.json()) == (200, True)
        await until(partial(_told, gate, JOB), ENDED)


async def _told(gate: Gate, at: str) -> Any:
    return (await gate.client.get(at)).json()


async def worker_of(gate: Gate, node: Node) -> str:
    """Return the worker of a node."""
    found = list[str]()

    async def look() -> Any:
        told = (await gate.get("/v1/workers"))["workers"]
        found[:] = [each["id"] for each in told if each["node"] == node.id]
        return found

    await until(look, bool)
    return found[0]


async def count_of(gate: Gate, action: str) -> int:
    """Return how many entries of an action stand in the journal; dispatches come soon."""
    entries = list[Any]()
    with anyio.fail_after(PATIENCE_S):
        while not entries:
            found = [each async for each in gate.node.journal()]
            entries = [e for e in found if f"action={action}" in e.detail.split()]
            await anyio.sleep(0.01)
    return len(entries)
