"""README is short, and what it says is so.

That its programs and commands can be carried out is tested in tests/ops/test_pages.py.
"""

from __future__ import annotations

import re
from pathlib import Path

from pool.ops.cli.explain import kinds
from tests.ops.pages import blocks

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text("utf-8")
PROMISES = (ROOT / "docs/explanation/promises.md").read_text("utf-8")
LINES_MAX = 160
NUMBERS = [f"G-{number:02}" for number in range(1, 11)]


def test_it_can_be_read_in_five_minutes() -> None:
    assert len(TEXT.splitlines()) <= LINES_MAX


def test_the_first_program_is_short_and_says_what_it_prints() -> None:
    first, second, *_ = blocks(TEXT)
    assert first.kind == "python"
    assert len([line for line in first.text.splitlines() if line]) <= 20
    assert second.before.strip().endswith("prints")


def test_links_lead_somewhere() -> None:
    for page in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"):
        text = (ROOT / page).read_text("utf-8")
        for target in re.findall(r"\]\(([^)\s#]+)", text):
            assert target.startswith("https://") or (ROOT / target).is_file(), f"{page}: {target}"


def test_commands_of_make_exist() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    contributing = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    targets = set(re.findall(r"`make ([\w-]+)", TEXT + contributing))
    assert {"demo", "test", "docs"} <= targets
    for target in targets:
        assert re.search(rf"^([\w -]+ )?{target}( [\w -]+)?:", makefile, re.MULTILINE), target


def test_every_guarantee_has_a_line_here_and_an_entry_there() -> None:
    assert re.findall(r"^\| (G-\d\d) \|", TEXT, re.MULTILINE) == NUMBERS
    assert re.findall(r"^## (G-\d\d) ", PROMISES, re.MULTILINE) == NUMBERS


def test_every_example_is_shown() -> None:
    page = (ROOT / "docs/examples.md").read_text("utf-8")
    for path in (ROOT / "examples").glob("*.py"):
        assert f'--8<-- "examples/{path.name}"' in page


def test_errors_that_documents_name_exist() -> None:
    """A name in code that looks like an error of ours is one."""
    known = {kind.code for kind in kinds()}
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        if path.name != "track-record.md":
            unknown = set(re.findall(r"\bPOOL[A-Z]{3,}\b", path.read_text("utf-8"))) - known
            assert not unknown, path
