"""Workers over HTTP: what must be tellable is told, and two gateways do not share a port."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import attrs
import pytest

from pool.errors import ConfigError
from pool.jobs.remote.claims import EndOutcome, StopReason
from pool.ops.cli.web import bound
from pool.ops.web.workers import (
    EndTold,
    JobHanded,
    LostTold,
    MessageTold,
    PollTold,
    StopTold,
    WorkerTold,
)
from tests.nodes import Fleet
from tests.web.gateways import SECRETS, serving
from tests.web.test_workers import OPTIONS, Polling

pytestmark = pytest.mark.anyio


def as_text(worker: Polling, token: str, error: dict[str, Any]) -> str:
    """Return a failure as a client may send it, with whatever stands in it escaped."""
    job = {"token": token, "error": error, "retry": False}
    return json.dumps({"worker_token": worker.token, "jobs": [job]})


async def sent(worker: Polling, what: str, body: bytes, status: int) -> Any:
    secret = f"Bearer {SECRETS['worker']}"
    headers = {"authorization": secret, "content-type": "application/json"}
    path = f"/v1/workers/{what}"
    return await worker.gate.ask("POST", path, content=body, headers=headers, status=status)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        ({"message": "x" * 300_000, "traceback": "y" * 600_000}, "x" * 400),
        ({"type": "T" * 9_000, "message": "no"}, ""),
        ({"message": "half of a \ud83d pair"}, "half of a ? pair"),
        ({"message": "a pair \U0001f600 and \\ud83d, written"}, "a pair \U0001f600 and \\ud83d"),
    ],
    ids=["long", "long type", "half", "whole"],
)
async def test_a_failure_can_always_be_told(fleet: Fleet, error: dict[str, Any], told: str) -> None:
    """A client whose failure is refused would have to keep the job, or run it again."""
    async with serving(fleet, OPTIONS, SECRETS["admin"]) as gate:
        worker = Polling(gate)
        await worker.register("do")
        made = await gate.post("/v1/jobs", {"handler": "do", "key": "k"})
        job = await worker.job()
        ended = await sent(worker, "fail", as_text(worker, job["token"], error).encode(), 200)
        assert ended["jobs"][0]["outcome"] == "parked"
        letter = await gate.get(f"/v1/parked/k/{made['job_id']}")
        [attempt] = letter["history"]
        assert attempt["message"].startswith(told)
        assert len(attempt["type"]) <= 500
        assert len(attempt["message"]) <= 500
        assert len(attempt["traceback"]) <= 4_000


async def test_a_failure_of_bytes_that_are_no_text_is_told(fleet: Fleet) -> None:
    async with serving(fleet, OPTIONS, SECRETS["admin"]) as gate:
        worker = Polling(gate)
        await worker.register("do")
        await gate.post("/v1/jobs", {"handler": "do", "key": "k"})
        token = (await worker.job())["token"]
        text = as_text(worker, token, {"message": "caf!"})
        body = text.encode().replace(b"!", b"\xe9")
        told = await sent(worker, "fail", body, 200)
        assert told["jobs"][0]["outcome"] == "parked"
        await sent(worker, "complete", body, 400)  # of a result each byte counts


def test_the_page_says_all_that_a_worker_is_told() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/http.md").read_text("utf-8")
    page = page.partition("## What a worker is told")[2].partition("## Problems")[0]
    for kind in (WorkerTold, PollTold, JobHanded, StopTold, MessageTold, LostTold, EndTold):
        for field in attrs.fields(kind):
            assert f"`{field.name}`" in page, f"{kind.__name__}.{field.name}"
    for words in (get_args(StopReason), get_args(EndOutcome)):
        for word in words:
            assert f"\n| `{word}` |" in page


def test_of_two_gateways_that_begin_at_once_one_is_refused_its_port() -> None:
    """Before it joins the pool, and by an error that says so: both could be bound there."""
    with bound("127.0.0.1", 0) as first:
        host, port = first.getsockname()
        with pytest.raises(ConfigError, match=r"in use\. \(setting='port'\)"):
            bound(host, port)
    with pytest.raises(ConfigError, match="setting='host'"):
        bound("203.0.113.1", 0)  # no machine has it
