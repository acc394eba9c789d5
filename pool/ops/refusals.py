"""Calls of a pool's users that a server has refused for want of a right, as its ACL LOG has them.

The log names users of other pools, too, so the pool's own users have no right to it: it is asked
for only where the address of `doctor` names no user.  A user is the pool's if a pattern of its keys
leads to the pool's; one that may touch all keys counts for what our own connections were refused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

import attrs

from pool.errors import PoolError
from pool.names import Control, Names
from pool.redis.io.system import Reply
from pool.redis.pipeline import Pipeline

ENTRIES: Final = 128  # the newest; as many as a server keeps by default
AGE_S: Final = 3_600.0  # what was refused longer ago is over
# Of a missing right.  A wrong password is none: any client can send one.
REASONS: Final = frozenset({"command", "key", "channel"})
_ANY: Final = "*"
_OURS: Final = " name=pool-"  # of each connection that we make


@attrs.frozen(kw_only=True)
class Refusal:
    """What a user was refused lately."""

    user: str
    objects: tuple[str, ...]  # commands, keys and channels, the newest first
    count: int
    ago_s: float  # since the last one


async def refusals_of(pipeline: Pipeline, pool: str) -> tuple[Refusal, ...]:
    """Return what users of a pool were refused within `AGE_S`; nothing where we may not ask."""
    if not pipeline.is_default_user:
        return ()
    [entries] = await pipeline.replies_to([("ACL", "LOG", ENTRIES)])
    if isinstance(entries, PoolError):
        return ()
    recent = [each for each in map(_facts, entries) if _is_recent(each)]
    users = sorted({each["username"] for each in recent})
    told = await pipeline.replies_to([("ACL", "GETUSER", user) for user in users]) if users else []
    patterns = {user: _patterns(reply) for user, reply in zip(users, told, strict=True)}
    by_user = defaultdict[str, list[Mapping[str, str]]](list)
    for each in recent:
        if _is_of_pool(each, patterns[each["username"]], pool):
            by_user[each["username"]].append(each)
    return tuple(
        Refusal(
            user=user,
            objects=tuple(dict.fromkeys(each["object"] for each in found)),
            count=sum(int(each["count"]) for each in found),
            ago_s=min(float(each["age-seconds"]) for each in found),
        )
        for user, found in by_user.items()
    )


def _is_recent(entry: Mapping[str, str]) -> bool:
    return entry["reason"] in REASONS and float(entry["age-seconds"]) < AGE_S


def _is_of_pool(entry: Mapping[str, str], patterns: Sequence[str], pool: str) -> bool:
    keys = (Control(pool).config, Names(pool, 0).lane)
    mine = [each for each in patterns if any(fnmatchcase(key, each) for key in keys)]
    return bool(mine) and (mine != [_ANY] or _OURS in entry["client-info"])


def _facts(flat: Reply) -> dict[str, str]:
    texts = [_text(each) for each in flat]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def _text(value: Reply) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _patterns(reply: Reply) -> list[str]:
    """Return the patterns of keys of ACL GETUSER; none of a user that is no more."""
    if not isinstance(reply, list):
        return []
    words = dict(zip([_text(each) for each in reply[::2]], reply[1::2], strict=True))
    keys = words.get("keys", b"")
    told = " ".join(map(_text, keys)) if isinstance(keys, list) else _text(keys)
    return [word.partition("~")[2] or word for word in told.split()]
