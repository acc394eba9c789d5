"""Whether a node lives, takes jobs, and moves: asked from any thread, and answered at once.

    live      nothing is lost by leaving it alone.  It does not look at the store: an outage must
              not have a whole fleet restarted, which mends nothing
    ready     jobs come to it: it is open, and in some lane it has a lease
    moving    every part moves: the node, its actors, the event loop, its renewals, its lanes

What is asked reads a few fields of the node's and waits for nothing, so it may be asked while the
event loop hangs; a thread that sees them change meanwhile sees one or the other.
"""

from __future__ import annotations

from typing import Final

import attrs

from pool import checks
from pool.jobs.context import LaneState
from pool.jobs.node import Node
from pool.jobs.wiring import Wiring
from pool.runtime.hang import HUNG_S

LIVE_S: Final = 60.0  # a loop that hangs for longer is not expected to go on
_OVER: Final = ("closed", "forked")


@attrs.frozen(kw_only=True)
class HealthPart:
    """One part of a node: `node`, `actors`, `loop`, `renewals` or `lanes`, and what is with it."""

    name: str
    is_moving: bool
    says: str = ""


@attrs.frozen(kw_only=True)
class Health:
    """How a node is."""

    is_live: bool
    is_ready: bool
    parts: tuple[HealthPart, ...]

    @property
    def is_moving(self) -> bool:
        """Whether every part moves."""
        return all(part.is_moving for part in self.parts)


def health(node: Node) -> Health:
    """Return how a node is at this moment; from any thread, and whatever hangs.

    Raises:
        InvalidOption: `node` is no `Node`.
    """
    checks.instance("node", node, Node)
    state, wiring = node.state, node._wiring
    at_work = HealthPart(name="node", is_moving=state == "open", says=state)
    if wiring is None or state in (*_OVER, "new", "opening"):
        return Health(is_live=state not in _OVER, is_ready=False, parts=(at_work,))
    silent_s = wiring.silent_s()
    return Health(
        is_live=silent_s < LIVE_S,
        is_ready=state == "open" and silent_s < HUNG_S and any(map(_has_lease, _known(wiring))),
        parts=(
            at_work,
            _part("actors", "down: ", wiring.down),
            HealthPart(
                name="loop", is_moving=silent_s < HUNG_S, says=f"silent for {silent_s:.1f} s"
            ),
            _part("renewals", "none in time in lanes ", _late(wiring)),
            _part("lanes", "without a lease: ", _missing(wiring)),
        ),
    )


def _part(name: str, says: str, wrong: tuple[str, ...]) -> HealthPart:
    return HealthPart(name=name, is_moving=not wrong, says=says + ", ".join(wrong) if wrong else "")


def _known(wiring: Wiring) -> list[LaneState]:
    return list(wiring.context.lanes)


def _has_lease(state: LaneState) -> bool:
    return bool(state.lane.generation) and state.lease.phase == "held"


def _late(wiring: Wiring) -> tuple[str, ...]:
    """Return the lanes where no renewal has succeeded for half of a lease."""
    context = wiring.context
    since_s = context.io.clock() - context.timing.ttl_s / 2
    return tuple(
        str(state.number)
        for state in _known(wiring)
        if state.lane.generation and wiring.renewed_s(state) < since_s
    )


def _missing(wiring: Wiring) -> tuple[str, ...]:
    """Return the lanes that were not joined, or whose lease has ended, as far as is known here."""
    return tuple(str(state.number) for state in _known(wiring) if not _has_lease(state))
