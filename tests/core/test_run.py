"""The life of a run: every state with every event."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.core.run import (
    EVENTS,
    ORDERS,
    STATES,
    TABLE,
    Effect,
    Event,
    Life,
    Phase,
    RunWhy,
    State,
)

STRENGTH: dict[RunWhy, int] = {"": 0, "lease": 1, **dict.fromkeys(ORDERS, 2), "lost": 3}
# What an event does in a phase, `why` by `why` as it stands in STATES: a word for what is to be
# done, `-` for nothing, `!` where production never sends it.
DONE = """
              prepare  prepared            begin  stop      timeout   release   stopped  lease
    queued    -        !                   -      settle    settle    settle    !        -
    preparing !        queue,settle*3      !      give_up,-*3  give_up,-*3  give_up,-*3  settle  -
    running   !        !                   !      end*2,-*4 end*2,-*4 end*2,-*4 end*2,-*4 end,-*5
    suspended !        !                   !      settle    settle    settle    !        -
    settling  !        !                   !      -         -         -         !        -
    gone      !        -                   !      -         -         -         -        -

              lost      deadline struck ended            cancelled                   again
    queued    forget    !        !      !                !                           !
    preparing forget    !        !      !                !                           !
    running   lose*5,-  -        -      settle*5,forget  settle,suspend,settle*3,forget  queue,!*5
    suspended forget    !        !      !                !                           !
    settling  forget    !        !      !                !                           !
    gone      -         -        -      -                -                           !

              resume timed_out settled crashed
    queued    !      !         !       queue
    preparing !      !         !       queue
    running   !      !         !       queue*5,forget
    suspended queue  !         !       queue
    settling  !      settle    forget  send
    gone      !      -         -       !
"""


def expected() -> dict[tuple[Phase, RunWhy, Event], str]:
    """Return the table above, unfolded."""
    found: dict[tuple[Phase, RunWhy, Event], str] = {}
    for block in DONE.strip("\n").split("\n\n"):
        head, *rows = [line.split() for line in block.splitlines()]
        for phase, *cells in rows:
            whys = [why for each, why in STATES if each == phase]
            for event, cell in zip(head, cells, strict=True):
                words: list[str] = []
                for part in cell.split(","):
                    word, _, times = part.partition("*")
                    words += [word] * int(times or 1)
                if len(words) == 1:
                    words *= len(whys)
                for why, word in zip(whys, words, strict=True):
                    found[phase, why, event] = word  # type: ignore[index]
    return found


class Lived(Life):
    """A run that is nothing but its life."""

    def __init__(self, phase: Phase = "queued", why: RunWhy = "") -> None:
        self.phase, self.why = phase, why

    @property
    def state(self) -> State:
        """Where it is."""
        return self.phase, self.why


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", STATES, ids="-".join)
def test_every_event_in_every_state(state: State, event: Event) -> None:
    run, word = Lived(*state), expected()[(*state, event)]
    if word == "!":
        with pytest.raises(AssertionError, match=event):
            run.step(event)
        assert run.state == state
    else:
        effect: Effect = run.step(event)
        assert effect == ("" if word == "-" else word)
        assert run.state in STATES


@pytest.mark.parametrize(
    ("before", "event", "after"),
    [
        (("queued", ""), "prepare", ("preparing", "")),
        (("queued", ""), "begin", ("running", "")),
        (("queued", ""), "stop", ("settling", "stop")),
        (("preparing", ""), "prepared", ("queued", "")),
        (("preparing", "stop"), "prepared", ("settling", "stop")),
        (("preparing", ""), "release", ("preparing", "release")),
        (("preparing", ""), "stopped", ("settling", "stop")),
        (("preparing", "timeout"), "stopped", ("settling", "timeout")),
        (("running", ""), "deadline", ("running", "timeout")),
        (("running", "lease"), "deadline", ("running", "lease")),
        (("running", ""), "struck", ("running", "release")),
        (("running", "lease"), "struck", ("running", "lease")),
        (("running", ""), "stopped", ("running", "stop")),
        (("running", "lease"), "ended", ("settling", "lease")),
        (("running", "lease"), "cancelled", ("suspended", "lease")),
        (("running", "lost"), "cancelled", ("gone", "lost")),
        (("running", ""), "again", ("queued", "")),
        (("suspended", "lease"), "resume", ("queued", "")),
        (("suspended", "lease"), "release", ("settling", "release")),
        (("settling", "lease"), "timed_out", ("settling", "timeout")),
        (("settling", "stop"), "settled", ("gone", "stop")),
        (("settling", "stop"), "crashed", ("settling", "stop")),
        (("preparing", "stop"), "crashed", ("queued", "")),
        (("running", "release"), "crashed", ("queued", "")),
        (("running", "lost"), "crashed", ("gone", "lost")),
    ],
)
def test_where_it_leads(before: State, event: Event, after: State) -> None:
    run = Lived(*before)
    run.step(event)
    assert run.state == after


# --- any life -----------------------------------------------------------------------------------


@given(st.lists(st.sampled_from(EVENTS), max_size=60))
def test_whatever_a_run_is_told(events: list[Event]) -> None:
    """What is gone stays so; a lost one never settles; why only grows stronger, but anew."""
    run, settles = Lived(), 0
    for event in events:
        before = run.state
        if (*before, event) not in TABLE:
            continue
        effect = run.step(event)
        assert run.state in STATES
        if before[0] == "gone":
            assert (run.state, effect) == (before, "")
        if before[1] == "lost" or event == "lost":
            assert effect not in ("settle", "send", "suspend", "queue")
        if effect == "queue":
            assert run.state == ("queued", "")
        elif event != "timed_out":  # said by the store, of what has ended already
            assert STRENGTH[run.why] > STRENGTH[before[1]] or run.why == before[1]
        assert (run.phase == "gone" and before[0] != "gone") == (effect == "forget")
        settles += run.phase == "settling" and before[0] != "settling"
    assert settles <= 1


def test_every_state_can_come_about() -> None:
    seen: set[State] = {("queued", "")}
    new = [*seen]
    while new:
        state = new.pop()
        for (was, told, _), (phase, why, _) in TABLE.items():
            if (was, told) == state and (phase, why) not in seen:
                seen.add((phase, why))
                new.append((phase, why))
    assert seen == set(STATES)
