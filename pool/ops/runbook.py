"""What is told of each finding: why it is so, what to do, and how to see that it is over.

`runbook.md` has a section for each row of the table, of three paragraphs.  Links in it are as from
the root of the documents.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Final

import attrs

_SECTION: Final = re.compile(
    r"^# (?P<name>\S+)\n\nWhy: (?P<why>.+?)\n\nDo: (?P<do>.+?)\n\nOver: (?P<over>.+?)\n(?=\n#|\Z)",
    re.MULTILINE | re.DOTALL,
)
_LINK: Final = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")


@attrs.frozen(kw_only=True)
class FindingPage:
    """A finding's section; each is markdown, of one paragraph."""

    name: str
    why: str
    do: str
    over: str


@cache
def pages() -> dict[str, FindingPage]:
    """Return all sections by the names of their rules, in the order of the file."""
    text = (files("pool.ops") / "runbook.md").read_text("utf-8")
    return {found["name"]: FindingPage(**found.groupdict()) for found in _SECTION.finditer(text)}


def plain(text: str) -> str:
    """Return a paragraph without links, in one line."""
    return " ".join(_LINK.sub(r"\1", text).split())


def linked(text: str, root: str) -> str:
    """Return a paragraph whose links lead from a page that is `root` away from the others."""
    return _LINK.sub(lambda found: f"[{found[1]}]({root}{found[2]})", text)
