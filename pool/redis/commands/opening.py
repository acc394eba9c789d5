"""The pool itself: how it was made, and whose data these are."""

from __future__ import annotations

from typing import Final

import attrs

from pool.core.digits import number_or
from pool.errors import WrongProtocol
from pool.redis.commands.plain import typed
from pool.redis.connection import Reply
from pool.redis.scripts import Script

PROTOCOL: Final = 8  # of what stands in Redis; raised when older nodes could not work beside it


@attrs.frozen(kw_only=True)
class PoolConfig:
    """What a pool is made as."""

    protocol: int
    lanes: int
    generation: str
    ttl_ms: int
    now_ms: int
    is_named: bool  # some node's settings name the TTL, or `pool ttl` has set it
    wrote: bool  # by this call: of several at once one
    was_gone: bool = False  # and a lane knew how it had been made


def check_protocol(pool: str, protocol: int) -> None:
    """Compare the number that stands in a pool with ours.

    Raises:
        WrongProtocol: It is another one, so nobody knows how the rest is to be read.
    """
    if protocol != PROTOCOL:
        raise WrongProtocol(pool=pool, protocol=protocol, ours=PROTOCOL)


def generation_of_pool(lanes: str) -> str:
    """Return the pool's generation of which a lane's is."""
    return lanes.rpartition(".")[0]


def new_generation(drawn: str, lanes: int) -> str:
    """Return a pool's generation: of how many lanes it is stands in it, and so in each lane."""
    return f"{drawn}.{lanes}"


def lanes_of_pool(generation: str) -> int:
    """Return how many lanes the pool of this generation has; 0 if it does not say."""
    return number_or(0, generation.rpartition(".")[2], digits_max=3)


def pool_config(reply: Reply) -> PoolConfig:
    """Read the reply of `FOUND`."""
    protocol, lanes, made, ttl, now, wrote, is_named = reply
    return PoolConfig(
        protocol=number_or(-1, protocol),  # none is made with that
        lanes=number_or(-1, lanes),
        generation=(made or b"").decode(errors="replace"),
        ttl_ms=number_or(-1, ttl),
        now_ms=int(now),
        is_named=typed(is_named, int) == 1,
        wrote=typed(wrote, int) == 1,
    )


OPEN_POOL: Final = Script.load(
    "open_pool", keys="config", args="protocol lanes generation ttl_ms named_ms", reads=pool_config
)
