"""A pipeline whose calls have little time, opened with patience: a busy machine needs some."""

from __future__ import annotations

from typing import Any

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
    for each in ("_op_timeout_s", "_longest_s", "_reply_s"):
        setattr(pipeline, each, getattr(limited, each))
