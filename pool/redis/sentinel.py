"""Who is master, asked of one sentinel.  The one module that imports redis-py.

That brings sixty modules and 21,000 objects, so it is imported by whoever has sentinels to ask, in
the thread that asks them, and by nobody else.
"""

from __future__ import annotations

from typing import Any

from redis import exceptions
from redis import sentinel as _redis_sentinel
from redis.backoff import NoBackoff
from redis.retry import Retry

from pool.redis.errors import Unanswered

# redis-py does not annotate this module in a way that a strict checker takes.
_sentinels: Any = _redis_sentinel


def ask(
    guide: tuple[str, int], service: str, *, timeout_s: float, connect_timeout_s: float
) -> tuple[str, int]:
    """Return host and port of the master that the sentinel `guide` names.

    Raises:
        TimeoutError: It did not answer in time.
        Unanswered: It gave no answer, or knows no master; why is its cause.
    """
    options = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": connect_timeout_s,
        "retry": Retry(NoBackoff(), 0),  # by itself redis-py asks again and again
        "protocol": 2,
    }
    sentinel = _sentinels.Sentinel([guide], sentinel_kwargs=options)
    try:
        host, port = sentinel.discover_master(service)
    except exceptions.TimeoutError as error:
        raise TimeoutError from error
    except exceptions.RedisError as error:
        # Of the one that was asked; before it stands how redis-py shows its own objects.
        why = str(error).rpartition(" - ")[2]
        told = f"no sentinel names a master {service!r}"
        raise Unanswered from RuntimeError(f"{told} ({why})" if "<" not in why else told)
    finally:
        sentinel.close()
    return str(host), int(port)
