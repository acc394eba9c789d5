"""Foreign values in the places of our keys: which keys it is, once an answer has spoken of one.

A server that refuses a command does not say which of its keys was the wrong one, and nobody asks
before each call: whoever was refused looks here, sets aside what belongs to those keys, and looks
again until they are free.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pool.errors import PoolError
from pool.redis.io.system import Reply
from pool.redis.pipeline import Pipeline

STREAM = b"stream"
HASH = b"hash"


def look_for_foreign(
    pipeline: Pipeline, kinds: Mapping[str, bytes], on_found: Callable[[dict[str, str]], object]
) -> None:
    """Ask of what type these keys are; `on_found` gets those of another one, with what they are.

    It is not called where there was no answer.
    """
    found: dict[str, str] = {}
    left = {*kinds}

    def on_reply(key: str, reply: Reply) -> None:
        if isinstance(reply, PoolError):
            return
        left.discard(key)
        if reply not in (kinds[key], b"none"):
            found[key] = reply.decode(errors="backslashreplace")
        if not left:
            on_found(found)

    for key in kinds:

        def take(reply: Reply, key: str = key) -> None:
            on_reply(key, reply)

        try:
            pipeline.send(("TYPE", key), take)
        except PoolError:
            return
