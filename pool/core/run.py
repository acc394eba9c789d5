"""A worker's run as a pure machine: (phase, why) and an event in, both anew and an effect out.

    queued --prepare--> preparing --prepared--> queued --begin--> running --ended--> settling
                                                  ^                 |                    |
                                                  |       cancelled for the lease      settled
                                                  +---resume--- suspended                v
                                                                         lost: ------> gone

Phases: where it is.  `gone` is for good: whatever is heard of it afterwards changes nothing.
Why: what it was told to end for, if anything; the first order stands.

    ""     nothing                       lease   its lease ends: it may go on, or be told to end
    stop, timeout, release: orders       lost    the job is not ours: overrules all, settles nothing

              ""             lease         an order      lost
    queued    waits          -             -             -
    preparing waits          -             ends soon     -
    running   runs           is to end     is to end     its handler alone is left
    suspended -              waits         -             -
    settling  by its ending  by its ending by its order  -
    gone      anything

Events and what they do (what is not here is refused: production never sends it):

    prepare     queued "" -> preparing
    prepared    preparing "" -> queued: QUEUE; told to end -> settling: SETTLE
    begin       queued "" -> running
    an order    queued, suspended -> settling: SETTLE; preparing "" notes it: GIVE_UP;
                running "" or lease notes it: END; elsewhere nothing: the first one stands
    stopped     the store answers a start with a stop: preparing -> settling: SETTLE; else `stop`
    lease       running "" notes it: END; elsewhere nothing
    lost        running notes it: LOSE; else -> gone: FORGET
    deadline    running "": its own run-time limit is why it was cancelled
    struck      running "": all tasks here were cancelled, and it is released for that
    ended       running lost -> gone: FORGET; else -> settling: SETTLE
    cancelled   likewise, of a handler that did not end by itself; lease -> suspended: SUSPEND
    again       running "": it did not really begin, or was hit by a stranger -> queued
    resume      suspended -> queued
    timed_out   settling: the store says that it ran too long, and that is how it ends: SETTLE
    settled     settling -> gone: FORGET
    crashed     its worker's tasks are gone: settling SEND, lost -> gone: FORGET, else QUEUE anew

Who performs: `worker.py` and `executor.py`.  Nobody else assigns `phase` or `why`.  A run lives in
memory alone: whatever its process dies after, the record is the job's owner's, and is reaped.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

Phase: TypeAlias = Literal["queued", "preparing", "running", "suspended", "settling", "gone"]
Order: TypeAlias = Literal["stop", "timeout", "release"]
RunWhy: TypeAlias = Literal["", "lease", "stop", "timeout", "release", "lost"]
Event: TypeAlias = Literal[
    "prepare",
    "prepared",
    "begin",
    "stop",
    "timeout",
    "release",
    "stopped",
    "lease",
    "lost",
    "deadline",
    "struck",
    "ended",
    "cancelled",
    "again",
    "resume",
    "timed_out",
    "settled",
    "crashed",
]
Effect: TypeAlias = Literal[
    "",  # nothing is to be done
    "queue",  # it waits for a slot, before the others
    "give_up",  # what it fetches is needed no more, if that has not begun
    "end",  # cancel its handler
    "lose",  # likewise; its key may be another's while that ends
    "suspend",  # let others have its slot; it goes on if nobody takes the key
    "settle",  # by the edge that its ending and `why` make
    "send",  # the edge by which it was settled, again
    "forget",
]
State: TypeAlias = tuple[Phase, RunWhy]
Transition: TypeAlias = tuple[Phase, RunWhy, Effect]

EVENTS: Final[tuple[Event, ...]] = get_args(Event)
ORDERS: Final[tuple[Order, ...]] = get_args(Order)
WHYS: Final[tuple[RunWhy, ...]] = get_args(RunWhy)
# The states in which a run may be; as `gone` it keeps what it had.
STATES: Final[tuple[State, ...]] = (
    ("queued", ""),
    *(("preparing", why) for why in WHYS if why not in ("lease", "lost")),
    *(("running", why) for why in WHYS),
    ("suspended", "lease"),
    *(("settling", why) for why in WHYS if why != "lost"),
    *(("gone", why) for why in WHYS),
)
_OF_THE_LIVING: Final = ("prepare", "begin", "again", "resume", "crashed")


class _Table(dict[tuple[Phase, RunWhy, Event], Transition]):
    def __missing__(self, asked: tuple[Phase, RunWhy, Event]) -> Transition:
        phase, why, event = asked
        raise AssertionError(f"a run that is {phase} ({why or 'nothing'}) was told {event!r}")


def _rows(phase: Phase, why: RunWhy) -> dict[Event, Transition]:
    """Return what each event does in a state; see above."""
    settling: Phase = "settling"
    gone: Phase = "gone"
    same: Transition = (phase, why, "")
    rows: dict[Event, Transition] = {}
    if phase == gone:
        return {event: same for event in EVENTS if event not in _OF_THE_LIVING}
    # What may come at any time:
    is_lost, is_free = why == "lost", why in ("", "lease")
    for order in ORDERS:
        match phase:
            case "queued" | "suspended":
                rows[order] = (settling, order, "settle")
            case "preparing" if is_free:
                rows[order] = (phase, order, "give_up")
            case "running" if is_free:
                rows[order] = (phase, order, "end")
            case _:
                rows[order] = same
    rows["lease"] = (phase, "lease", "end") if (phase, why) == ("running", "") else same
    if phase != "running":
        rows["lost"] = (gone, "lost", "forget")
    else:
        rows["lost"] = same if is_lost else (phase, "lost", "lose")
    if phase == settling:
        rows["crashed"] = (phase, why, "send")
    else:
        rows["crashed"] = (gone, why, "forget") if is_lost else ("queued", "", "queue")
    # What comes in one phase alone:
    match phase:
        case "queued":
            rows["prepare"] = ("preparing", why, "")
            rows["begin"] = ("running", why, "")
        case "preparing":
            rows["prepared"] = (settling, why, "settle") if why else ("queued", why, "queue")
            rows["stopped"] = (settling, why or "stop", "settle")
        case "running":
            end: Transition = (gone, why, "forget") if is_lost else (settling, why, "settle")
            rows["ended"] = end
            rows["cancelled"] = ("suspended", why, "suspend") if why == "lease" else end
            rows["stopped"] = (phase, "stop", "end") if is_free else same
            rows["deadline"] = (phase, why or "timeout", "")
            rows["struck"] = (phase, why or "release", "")
            if not why:
                rows["again"] = ("queued", why, "queue")
        case "suspended":
            rows["resume"] = ("queued", "", "queue")
        case "settling":
            rows["timed_out"] = (phase, "timeout", "settle")
            rows["settled"] = (gone, why, "forget")
    return rows


TABLE: Final = _Table(
    {(*state, event): moved for state in STATES for event, moved in _rows(*state).items()}
)


class Life:
    """What becomes of a run, whatever else it is."""

    phase: Phase
    why: RunWhy

    def step(self, event: Event) -> Effect:
        """Take an event; return what is to be done about it."""
        self.phase, self.why, effect = TABLE[self.phase, self.why, event]
        return effect

    @property
    def is_lost(self) -> bool:
        """Whether it is nobody's any more: its key may be another's, and only its handler is left.

        It is not compared with what we own, nor counted, nor started again.
        """
        return self.why == "lost"
