"""What is there and how it is, as operators see it; and pausing, cordoning, draining."""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from typing import Any

import anyio.to_thread

from pool.errors import NoSuchJob
from pool.jobs.client.pausing import CordonReport, PauseReport, named
from pool.ops import checkup, keyfacts, members, summary
from pool.ops.doctor import examine
from pool.ops.endpoints import HttpAnswer
from pool.ops.web.answers import (
    AskedTold,
    FindingsTold,
    NodesTold,
    WorkersTold,
)
from pool.ops.web.asked import WebAnswer, WebRequest
from pool.ops.web.problems import WebRefusal
from pool.ops.why import why


async def explain(asked: WebRequest) -> Any:
    """Say why a key is as it is."""
    gateway, key = asked.gateway, asked.path["key"]
    job_id = asked.query.job_id or ""
    told = why(await keyfacts.read(gateway.pipeline, await gateway.found(), key, job_id))
    if told.state == "unknown":
        raise NoSuchJob(key=key, job_id=job_id)
    return told


async def status(asked: WebRequest) -> Any:
    """Tell the pool at a glance."""
    return await summary.status(asked.gateway.pipeline, asked.node.pool)


async def nodes(asked: WebRequest) -> NodesTold:
    """Tell its nodes."""
    told = await members.read(asked.gateway.pipeline, await asked.gateway.found())
    return NodesTold(nodes=told.nodes, unread=told.unread)


async def workers(asked: WebRequest) -> WorkersTold:
    """Tell its workers."""
    told = await members.read(asked.gateway.pipeline, await asked.gateway.found())
    return WorkersTold(workers=told.workers, unread=told.unread)


async def findings(asked: WebRequest) -> FindingsTold:
    """Say what is wrong with the pool."""
    records_max = None if asked.query.all else checkup.RECORDS_MAX
    gateway = asked.gateway
    facts = await checkup.gather(gateway.pipeline, await gateway.found(), records_max=records_max)
    found = examine(facts)
    return FindingsTold(
        is_well=all(each.severity == "note" for each in found),
        looked=facts.looked,
        jobs=facts.jobs,
        findings=tuple(found),
    )


# --- health -----------------------------------------------------------------------------------


async def health(what: str, asked: WebRequest) -> WebAnswer:
    """Tell how this gateway is, as `pool run` does."""
    told: HttpAnswer = await anyio.to_thread.run_sync(
        partial(asked.gateway.endpoints.answer, "GET", what)
    )
    if told.status == HTTPStatus.NOT_FOUND:
        hint = "pip install 'keyed-pool[metrics]', and give WebApp its Metrics"
        raise WebRefusal("WEBPATH", "this gateway counts nothing", hint)
    return WebAnswer(status=told.status, body=told.body, media_type=told.kind)


# --- operating --------------------------------------------------------------------------------


async def pause(asked: WebRequest) -> PauseReport:
    """Give no more jobs to workers: of a handler, a key, or the whole pool."""
    meant = named(asked.body.handler, asked.body.key)
    return await asked.operator.pause(meant, asked.body.reason)


async def resume(asked: WebRequest) -> PauseReport:
    """Give them to workers again."""
    return await asked.operator.resume(named(asked.body.handler, asked.body.key))


async def asked_for(asked: WebRequest) -> AskedTold:
    """Tell what is paused, and who is cordoned."""
    operator = asked.operator
    return AskedTold(pauses=await operator.pauses(), cordons=await operator.cordons())


async def cordon(asked: WebRequest) -> CordonReport:
    """Have a node, or a worker, take no more keys, and keep those that it has."""
    return await _cordon(asked, is_drain=False)


async def drain(asked: WebRequest) -> CordonReport:
    """Have it give up what it has, and leave."""
    return await _cordon(asked, is_drain=True)


async def _cordon(asked: WebRequest, *, is_drain: bool) -> CordonReport:
    return await asked.operator.cordon(
        asked.path["member"], asked.body.reason, is_drain=is_drain, wait_s=asked.body.wait_s
    )


async def uncordon(asked: WebRequest) -> CordonReport:
    """Have it take keys again."""
    return await asked.operator.uncordon(asked.path["member"], wait_s=asked.body.wait_s)
