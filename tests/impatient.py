"""Calls that have little time, on what was opened with patience: a busy machine needs some."""

from __future__ import annotations

from typing import Any

from pool import Node, Settings
from pool.redis.io.system import SystemIO
from pool.redis.pipeline import Pipeline
from pool.redis.url import Url

_OPENS_S = 20.0


async def opened(
    url: str, *, op_timeout_s: float, longest_s: float | None = None, **options: Any
) -> Pipeline:
    """Return an open pipeline; the two limits are those of its calls from then on."""
    pipeline = await Pipeline.open(SystemIO(), Url.parse(url), op_timeout_s=_OPENS_S, **options)
    limit(pipeline, op_timeout_s=op_timeout_s, longest_s=longest_s)
    return pipeline


def hurry(node: Node, op_timeout_s: float) -> None:
    """Have the calls of an open node come to another deadline from now on."""
    assert node._wiring is not None
    limit_all(node._wiring.context.settings, node._wiring.context.pipeline, op_timeout_s)


def limit_all(settings: Settings, pipeline: Pipeline, op_timeout_s: float) -> None:
    """Likewise of whatever goes by these settings, which must be nobody else's."""
    object.__setattr__(settings, "op_timeout_s", op_timeout_s)
    for each in (pipeline, *pipeline._others.values()):
        limit(each, op_timeout_s=op_timeout_s, longest_s=settings.longest_s)


def limit(pipeline: Pipeline, *, op_timeout_s: float, longest_s: float | None = None) -> None:
    """Have the calls of an open pipeline so much time from now on."""
    limited = Pipeline(
        pipeline.io,
        pipeline._url,
        op_timeout_s=op_timeout_s,
        longest_s=longest_s,
        name="limits",
        queued_max=1,
        care=None,
    )
    for name in ("_op_timeout_s", "_longest_s", "_reply_s"):
        setattr(pipeline, name, getattr(limited, name))
