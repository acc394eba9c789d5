"""What the page about the terminal shows is what verbs print, but for ids, times and numbers."""

from __future__ import annotations

import pytest

from tools import captures


@pytest.mark.one_server
def test_the_page_shows_what_is_printed_now() -> None:
    page = captures.PAGE.read_text("utf-8")
    for verb, text in captures.captures().items():
        assert captures.like(captures.captured(page, verb)) == captures.like(text), (
            f"{verb}: run make captures"
        )


def test_what_differs_is_only_what_a_run_says_of_itself() -> None:
    one = "wkg6asj6jb03  live  8.7  2 running\noldest  4.7 s\n      File x\n"
    assert captures.like(one) == captures.like("w0g6asj6jb0f live 10.0 4 running\noldest 2 min\n")
    assert captures.like(one) != captures.like(one.replace("live", "hung"))
    page = captures.PAGE.read_text("utf-8")
    assert captures.captured(captures.put(page, "why", "because\n"), "why") == "because\n"
