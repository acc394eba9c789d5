"""A job's life: its states, and the table of what may happen in each.

    state       in Redis it is
    pending     granted to its owner, in the owner's stream, not yet acknowledged
    running     acknowledged by its owner
    waiting     in `due`, without an owner: delayed, or before its next attempt
    unassigned  in `unassigned:H`, without an owner: no worker had room
    queued      in the line behind the live job of its key, which is none of the states above
    done, parked, cancelled      only an outcome is left

Owner and lease are not states, and what shall become of a job (its intent) stands in a record that
still has its owner.  `advance` goes by this very table (see `redis/commands/edges.py`).
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

State: TypeAlias = Literal["pending", "running", "waiting", "unassigned", "queued"]
EndState: TypeAlias = Literal["done", "parked", "cancelled"]

ACKNOWLEDGE, LIMIT, SEEN, DONE, CANCEL, PARK, WAIT, GRANT = "a", "l", "s", "d", "c", "x", "w", "g"
SAVE, STEP, NOTE = "v", "t", "n"
ENDS = frozenset((DONE, CANCEL, PARK))
OVER = "o"

# (state, edge) -> states it may lead to.  A stop that was asked for turns WAIT and GRANT into
# cancelled; every pair that is not here is refused.
TABLE: Final[dict[tuple[State, str], tuple[State | EndState, ...]]] = {
    ("pending", ACKNOWLEDGE): ("running",),
    ("pending", SEEN): ("pending",),
    ("pending", SAVE): ("pending",),
    ("pending", STEP): ("pending",),
    ("pending", NOTE): ("pending",),
    ("pending", DONE): ("done",),
    ("pending", CANCEL): ("cancelled",),
    ("pending", PARK): ("parked",),
    ("pending", WAIT): ("waiting", "cancelled"),
    ("pending", GRANT): ("pending", "unassigned", "cancelled"),
    ("running", ACKNOWLEDGE): ("running",),  # a repeat, its first answer was lost
    ("running", LIMIT): ("running",),
    ("running", SEEN): ("running",),
    ("running", SAVE): ("running",),
    ("running", STEP): ("running",),
    ("running", NOTE): ("running",),
    ("running", OVER): ("running",),
    ("running", DONE): ("done",),
    ("running", CANCEL): ("cancelled",),
    ("running", PARK): ("parked",),
    ("running", WAIT): ("waiting", "cancelled"),
    ("running", GRANT): ("pending", "unassigned", "cancelled"),
    ("waiting", CANCEL): ("cancelled",),
    ("waiting", PARK): ("parked",),
    ("waiting", GRANT): ("pending", "unassigned", "cancelled"),
    ("unassigned", CANCEL): ("cancelled",),
    ("queued", CANCEL): ("cancelled",),
    ("unassigned", PARK): ("parked",),
    ("unassigned", WAIT): ("waiting", "cancelled"),  # no worker had begun it in time
    ("unassigned", GRANT): ("pending", "unassigned", "cancelled"),
}

OWNED: Final = frozenset(state for state, edge in TABLE if edge == ACKNOWLEDGE)

EDGE_NAMES: Final = {
    ACKNOWLEDGE: "acknowledge",
    LIMIT: "limit",
    SEEN: "seen",
    SAVE: "save",
    STEP: "step",
    NOTE: "progress",
    OVER: "over",
    DONE: "done",
    CANCEL: "cancel",
    PARK: "park",
    WAIT: "retry",
    GRANT: "grant",
}


def diagram() -> str:
    """Return the life of a job as a Mermaid state diagram, for the docs."""
    lines = ["stateDiagram-v2", "    [*] --> pending: dispatch", "    [*] --> unassigned: dispatch"]
    lines.append("    [*] --> waiting: dispatch with a delay")
    for (state, edge), outcomes in TABLE.items():
        for outcome in outcomes:
            if outcome != state:
                name = "stop" if outcome == "cancelled" else EDGE_NAMES[edge]
                line = f"    {state} --> {outcome}: {name}"
                if line not in lines:
                    lines.append(line)
    ends = (f"    {ended} --> [*]" for ended in ("done", "parked", "cancelled"))
    return "\n".join([*lines, *ends])
