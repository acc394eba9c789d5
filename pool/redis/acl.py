"""What a pool's user must be allowed on the server, derived from what the code sends.

A script's commands are checked against the rules of the user who calls it, so they count as well:
they are read from the scripts' sources.  What else is sent stands in `SENT`; a house test compares
it with the code, and the test suite's nodes have no other right than these.

HELLO and AUTH need no rule.  There is no channel: nothing is published.
"""

from __future__ import annotations

import re
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from pool import checks
from pool.names import check_pool, key_patterns
from pool.redis.url import DB_MAX

# SCRIPT LOAD lets its user run any Lua, but that runs under these same rules.  A command without
# subcommands may be narrowed to one first argument: the other sections of INFO tell of others.
_CONNECTION: Final = frozenset(
    {
        *("ping", "info|memory", "script|load", "evalsha", "xread", "xreadgroup"),
        *("cluster|slots", "cluster|nodes"),  # `topology` asks nodes who is the primary
    }
)
_ACTORS: Final = frozenset({"hget", "hkeys", "scard", "xadd", "xlen", "xtrim"})
_WALK: Final = frozenset({"hkeys", "hmget", "smismember", "zmscore"})
# pool status, nodes, workers, jobs, job, why, doctor, maps, streams, ttl
_LOOKING: Final = frozenset(
    {
        *("hgetall", "hlen", "hmget", "hset", "hstrlen", "llen", "time", "xinfo|groups"),
        *("zcard", "zcount", "zmscore", "zrange", "zrank"),
        # What becomes of the data when the server ends, whether a replica has them, what it had to
        # refuse or cut off, and what takes it long.
        *("info|commandstats", "info|persistence", "info|replication"),
        *(
            "info|clients",
            "info|latencystats",
            "info|stats",
            "cluster|info",
            "cluster|nodes",
            "xrevrange",
        ),
    }
)
_LISTING: Final = frozenset({"hget", "hscan", "sscan", "xrange"})  # Node.jobs

_STREAMS: Final = frozenset({"type", "xack", "xdel", "xlen", "xrange"})

# What only `pool maps`, `streams` and `purge` send, for rules of their user's own: SCAN tells the
# names of all keys of a server, those of others too.
OPERATING: Final = frozenset({"scan", "unlink"})

# What `pool doctor` asks for only where its address names no user; no rule allows it.
DEFAULT_ONLY: Final = frozenset({"acl", "config"})

SENT: Final = _CONNECTION | _ACTORS | _WALK | _LOOKING | _LISTING | _STREAMS

_FAMILIES: Final = frozenset({"INFO", "XGROUP", "XINFO"})  # each subcommand has a rule of its own
# At once, for the whole batch (lib/batch.lua), or on a key of any type (lib/typed.lua).
_CALLED: Final = re.compile(r"(?:redis\.p?call|later|typed)\('([A-Z]+)'(?:, '([A-Z]+)')?")


def called() -> frozenset[str]:
    """Return the commands that the scripts call."""
    directory = files("pool.redis") / "lua"
    texts = [_text(each) for place in (directory, directory / "lib") for each in place.iterdir()]
    found = (call for text in texts for call in _CALLED.findall(text))
    return frozenset(
        f"{name}|{sub}".lower() if name in _FAMILIES else name.lower() for name, sub in found
    )


def rules(pool: str, *, db: int = 0, is_operator: bool = False) -> list[str]:
    """Return the words of ACL SETUSER that give a user this pool and nothing else.

    They are the same for Redis 7.0 and all that came after it.

    Args:
        pool: The pool's name; no other pool's keys match its patterns, whatever its name.
        db: The database of the nodes' address; SELECT is allowed for no other.
        is_operator: It may list the names of all keys of the server, too, as `pool purge` must.

    Raises:
        ConfigError: It cannot be a pool's name, or a database's number.
    """
    check_pool(pool)
    db = checks.count("db", db, 0, DB_MAX, refuse=checks.setting)
    chosen = {f"select|{db}"} if db else set()
    allowed = sorted(called() | SENT | chosen | (OPERATING if is_operator else frozenset()))
    keys = [f"~{pattern}" for pattern in key_patterns(pool)]
    return ["resetkeys", "resetchannels", *keys, "-@all", *(f"+{name}" for name in allowed)]


def _text(found: Traversable) -> str:
    return found.read_text("utf-8") if found.name.endswith(".lua") else ""
