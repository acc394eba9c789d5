"""What a node says of what ails it: from where on, for how long, and as which text."""

from __future__ import annotations

import pytest

from pool.core.ailing import (
    BEATS_MIN,
    BUSY_BEATS_MIN,
    SPAN_S,
    WELL,
    Ails,
    Numbers,
    Recent,
)

WELL_SEEN = {
    "down": 0,
    "lag": Numbers(),
    "busy": Numbers(),
    "pause_s": 0.0,
    "renewals": Numbers(100),
    "copies": 0,
}
HALF = BUSY_BEATS_MIN // 2


def seen(*values: float) -> Numbers:
    return Numbers(len(values), sum(values), max(values))


@pytest.mark.parametrize(
    ("changes", "ails"),
    [
        ({}, WELL),
        ({"down": 1}, Ails(down=1)),
        ({"copies": 2}, Ails(copies=2)),
        ({"lag": seen(*[0.25] * BEATS_MIN)}, Ails(lag_ms=250)),
        ({"lag": seen(*[0.24] * BEATS_MIN)}, WELL),
        ({"lag": seen(*[9.0] * (BEATS_MIN - 1))}, WELL),  # it has hardly begun
        ({"lag": seen(3.0, *[0.01] * 99)}, WELL),  # once: a hang is told of by itself
        ({"busy": seen(*[0.0, 1.0] * HALF)}, Ails(busy=50)),
        ({"busy": seen(0.0, 0.0, *[0.0, 1.0] * HALF)}, WELL),
        ({"busy": seen(*[1.0] * (BUSY_BEATS_MIN - 1))}, WELL),  # it has hardly begun
        (
            {"busy": seen(*[1.0] * 2 * HALF), "lag": seen(*[0.25] * BEATS_MIN)},
            Ails(lag_ms=250),  # one finding of one loop
        ),
        ({"pause_s": 0.25}, Ails(pause_ms=250)),
        ({"pause_s": 0.24}, WELL),
        ({"renewals": Numbers(10, 3.0, 1.0)}, Ails(failed=3)),
        ({"renewals": Numbers(10, 2.0, 1.0)}, WELL),
        ({"renewals": Numbers(16, 3.0, 1.0)}, WELL),  # less than a fifth
    ],
)
def test_it_says_what_is_beyond_its_threshold(changes: dict[str, object], ails: Ails) -> None:
    given: dict[str, object] = {**WELL_SEEN, **changes}
    assert Ails.of(**given) == ails  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ails", "text"),
    [
        (WELL, "0"),
        (Ails(down=2), "2"),
        (Ails(lag_ms=300), "0,300"),
        (Ails(down=1, lag_ms=2, pause_ms=3, failed=4, copies=5), "1,2,3,4,5"),
        (Ails(copies=1), "0,0,0,0,1"),
        (Ails(busy=80), "0,0,0,0,0,80"),
    ],
)
def test_its_text_leaves_out_what_is_nothing_and_is_read_again(ails: Ails, text: str) -> None:
    assert ails.pack() == text
    assert Ails.parse(text.encode()) == ails


@pytest.mark.parametrize("text", [b"", b",", b"1,", b"x", b"1,-2", b"1,2.5", b"9" * 17])
def test_what_no_node_says_is_nothing(text: bytes) -> None:
    assert Ails.parse(text) is None


def test_a_later_version_may_say_more() -> None:
    said = Ails(down=1, lag_ms=2, pause_ms=3, failed=4, copies=5, busy=6)
    assert Ails.parse(b"1,2,3,4,5,6,7") == said


def test_numbers_are_kept_for_one_to_two_spans() -> None:
    recent = Recent()
    assert recent.read(1000.0) == Numbers()
    recent.add(3.0, 1000.0)
    recent.add(1.0, 1001.0)
    assert recent.read(1001.0) == Numbers(2, 4.0, 3.0)
    recent.add(2.0, 1000.0 + SPAN_S)  # the next span
    assert recent.read(1001.0 + SPAN_S) == Numbers(3, 6.0, 3.0)
    assert recent.read(1000.0 + 2 * SPAN_S) == Numbers(1, 2.0, 2.0)  # the first one is over
    assert recent.read(1000.0 + 3 * SPAN_S) == Numbers()
    recent.add(5.0, 1000.0 + 9 * SPAN_S)
    assert recent.read(1000.0 + 9 * SPAN_S) == Numbers(1, 5.0, 5.0)
