"""Who did what, in the pool's journal.

    an action --note.lua--> the journal --> it is done      no journal, no action: 503
    a dispatch --> counted --each second--> one entry for each handler of each caller

So an action may stand there that was refused afterwards, or whose gateway died before it; none is
done that does not, and what stands there is done though its client has gone (`app.py`).  Of
dispatches, which are ordinary work and would push all else out of the journal, the last second may
be lost with the gateway.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Final

import attrs
from msgspec import UNSET

from pool.core.journal import DETAIL_BYTES_MAX
from pool.events import OperatorActed
from pool.jobs.node import Node
from pool.jobs.noting import FACT_CHARS_MAX
from pool.ops.web.asked import WebRequest
from pool.ops.web.problems import JobSent, JobsTaken, JobTaken
from pool.ops.web.routes import WebRoute

DISPATCH: Final = "dispatch"
EACH_S: Final = 1.0
CALLS_MAX: Final = 1_000  # handlers of callers, counted at a time
_SHORT: Final = 8  # characters of a value that is shortened no more
_CUT: Final = "..."


@attrs.define(eq=False)
class ActsNoted:
    """Writes it."""

    node: Node
    _counts: dict[tuple[str, str], tuple[int, str]] = attrs.field(factory=dict)
    _is_due: bool = False

    async def note(self, route: WebRoute, asked: WebRequest) -> None:
        """Note an action; return once it stands.

        Raises:
            PoolError: It does not.
        """
        if not route.action or route.action == DISPATCH:
            return
        body, path = asked.body, asked.path
        name = path.get("batch") or path.get("schedule") or path.get("member")
        told: dict[str, object] = {"of": name} if name else {}
        for each in route.tells:
            value = getattr(body, each, None)
            if value not in (None, "", False, UNSET):
                told[each] = value if isinstance(value, bool | int) else str(value)
        by, action = asked.caller.name, route.action
        room = min(DETAIL_BYTES_MAX - len(f"by={by} action={action} detail="), FACT_CHARS_MAX)
        await self.node._note_act(
            OperatorActed(
                by=by,
                action=action,
                detail=fitted(told, room) if told else "",
                key=path.get("key") or getattr(body, "key", "") or "",
                job_id=path.get("job_id", ""),
                handler=getattr(body, "handler", "") or "",
            )
        )

    def count(self, asked: WebRequest, told: object) -> None:
        """Count jobs that were dispatched."""
        for each in told.jobs if isinstance(told, JobsTaken) else (told,):
            if isinstance(each, JobTaken) or (isinstance(each, JobSent) and each.job_id):
                of = asked.caller.name, each.handler
                self._counts[of] = self._counts.get(of, (0, ""))[0] + 1, each.key
        if len(self._counts) >= CALLS_MAX:
            self.flush()
        elif not self._is_due:
            self._is_due = True
            later: Callable[..., object] = self.node._open_wiring.context.loop.later
            later(EACH_S, self.flush)

    def flush(self) -> None:
        """Note what was dispatched."""
        self._is_due = False
        counts, self._counts = self._counts, {}
        for (by, handler), (count, key) in counts.items():
            self.node._emit(
                OperatorActed(by=by, action=DISPATCH, handler=handler, count=count, key=key)
            )


def fitted(told: Mapping[str, object], room: int) -> str:
    """Return facts as whole JSON of so many bytes at most: the longest values are cut first."""
    left = dict(told)
    while len((text := json.dumps(left, ensure_ascii=False)).encode()) > room:
        name = max(left, key=lambda each: len(str(left[each])))
        value = str(left[name]).removesuffix(_CUT)
        if len(value) > _SHORT:
            left[name] = value[: max(_SHORT, 3 * len(value) // 4)] + _CUT
        else:
            left.popitem()
    return text
