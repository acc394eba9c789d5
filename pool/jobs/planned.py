"""An entry of a plan's answer that says its own handler."""

from __future__ import annotations

from typing import Any, ParamSpec

from pool.jobs.handlers import Handler
from pool.names import check_handler, check_new_key

P = ParamSpec("P")


class Planned:
    """A key that should run, as a producer of a plan returns it.

    Args:
        handler: As for `Node.dispatch()`.
        key: Likewise.
        *args: The function's own arguments; where they change, the job is replaced.
        **kwargs: Likewise.
    """

    __slots__ = ("args", "handler", "key", "kwargs")

    def __init__(
        self, handler: Handler[..., Any] | str, key: str, /, *args: Any, **kwargs: Any
    ) -> None:
        if not issubclass(type(handler), Handler):
            check_handler(handler)
        check_new_key(key)
        self.handler: Handler[..., Any] | str = handler
        self.key: str = key
        self.args: tuple[Any, ...] = args
        self.kwargs: dict[str, Any] = kwargs

    def __repr__(self) -> str:
        name = self.handler if isinstance(self.handler, str) else self.handler.name
        return f"Planned({name!r}, {self.key!r}, ...)"
