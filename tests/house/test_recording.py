"""The recording of the demo: a terminal of two movements, and texts that come and go."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

from tools.recording import FRAME_S, SPEED, Screen, Span, picture, spans

SVG = Path(__file__).parents[2] / "docs/assets/demo.svg"
BYTES_MAX = 100_000


def test_what_is_painted_anew_replaces_what_stood_there() -> None:
    screen = Screen()
    screen.feed("story\r\nbar 1\r\nnode\r\n")
    screen.feed("\x1b[2F\x1b[Jmore\r\nbar 2\r\n")
    assert screen.lines == ["story", "more", "bar 2", ""]


def test_a_text_stays_from_when_it_came_until_another_takes_its_place() -> None:
    step_s = FRAME_S * SPEED
    pieces = [(0.0, "a\nb 1\n"), (step_s, "\x1b[1F\x1b[Jb 2\n"), (2 * step_s, "c\n")]
    found, length_s = spans(pieces)
    assert Span(1, "b 1", FRAME_S, 2 * FRAME_S) in found
    ends = {span.text for span in found if span.until_s is None}
    assert ends == {"a", "b 2", "c"}
    assert length_s > 2 * FRAME_S


def test_the_picture_is_whole_small_and_asks_nobody_for_anything() -> None:
    text = SVG.read_text("utf-8")
    ET.fromstring(text)  # noqa: S314 - our own file
    assert len(text) <= BYTES_MAX
    assert "every promise was kept" in text
    assert text.count("http") == 1  # the name of the format


def test_texts_are_escaped() -> None:
    ET.fromstring(picture([Span(0, "a < b & c", 0.0, None)], 1.0))  # noqa: S314 - our own text
