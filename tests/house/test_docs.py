"""What the documents say of the code is what the code has, and every page is in the navigation.

That what stands in them can be done is tested in tests/ops/test_pages.py.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import pool
import pool.batches
import pool.letters
import pool.listing
import pool.metrics
import pool.pauses
import pool.plans
import pool.sync
import pool.web
from pool.core.lease import Timing
from pool.ops import findings
from pool.ops.cli import parser as words
from pool.ops.cli.explain import kinds
from pool.ops.doctor import RULES
from pool.runtime.session import CLOSE_BUDGET_S
from pool.settings import Settings
from tools import reference

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))


def name_of(path: Path) -> str:
    return path.relative_to(DOCS).as_posix()


@pytest.mark.parametrize("part", reference.PARTS, ids=lambda part: f"{part.page}-{part.name}")
def test_a_generated_part_is_as_the_code_has_it(part: reference.Part) -> None:
    text = (DOCS / part.page).read_text("utf-8")
    assert reference.renewed(part, text) == text, "run make reference"


@pytest.mark.parametrize("name", reference.FILES)
def test_a_generated_file_is_as_the_code_has_it(name: str) -> None:
    assert (DOCS / name).read_text("utf-8") == reference.FILES[name](), "run make reference"


def test_every_public_name_has_a_page() -> None:
    told = [name for group in reference.API.values() for name in group]
    homes = (
        pool,
        pool.batches,
        pool.codecs,
        pool.letters,
        pool.listing,
        pool.maps,
        pool.metrics,
        pool.middleware,
        pool.schedules,
        pool.pauses,
        pool.plans,
        pool.streams,
        pool.sync,
        pool.web,
    )
    known = {"Event", "JobEvents", "Observer"}.union(*(home.__all__ for home in homes))
    assert sorted([*told, "PoolError", "__version__"]) == sorted(known)
    assert len(told) == len(set(told))


def test_every_family_of_errors_has_a_title() -> None:
    families = {kind.__name__ for kind in kinds() if kind.__mro__[1].__name__ == "PoolError"}
    assert set(reference.FAMILIES) == families


def test_every_page_is_in_the_navigation() -> None:
    """Those of findings are led to from their table."""
    told = re.findall(r"[\w./-]+\.md", yaml.safe_dump(navigation()))
    told += [f"findings/{rule.name}.md" for rule in RULES]
    assert sorted(told) == sorted(name_of(path) for path in PAGES)


def test_every_finding_has_a_section_in_the_runbook_and_no_other_does() -> None:
    """Why it is so, what to do, how to see that it is over; what is left out has no page."""
    text = (ROOT / "pool/ops/runbook.md").read_text("utf-8")
    assert re.findall(r"^# (\S+)$", text, re.MULTILINE) == [rule.name for rule in RULES]
    assert list(findings.pages()) == [rule.name for rule in RULES]
    for page in findings.pages().values():
        for text in (page.why, page.do, page.over):
            assert len(text) > 10, page.name
            assert not re.search(r"^(Why|Do|Over): ", text, re.MULTILINE), page.name


def test_the_runbook_names_verbs_that_there_are() -> None:
    known = set(words.make(is_whole=False).format_help().split())
    text = " ".join((ROOT / "pool/ops/runbook.md").read_text("utf-8").split())
    named = set(re.findall(r"`pool ([a-z]+)", text))
    assert len(named) > 10
    assert named <= known


def test_events_that_are_named_exist() -> None:
    known = {str(each.event) for each in reference._events()}
    families = {name.partition(".")[0] for name in known}
    known.add("job.ended")  # a line of the log on request, and no event
    for path in PAGES:
        if name_of(path) == "track-record.md":
            continue  # it tells of events that are no more
        named = set(re.findall(r"`([a-z]+\.[a-z_]+)`", path.read_text("utf-8")))
        files = {name for name in named if name.endswith((".py", ".go", ".mjs"))}
        events = {name for name in named - files if name.partition(".")[0] in families}
        assert not {name for name in events - known if not is_attribute(name)}, name_of(path)


def test_the_arithmetic_of_a_stop_adds_up() -> None:
    """What a worker may need to leave is less than what the page gives it (G-06)."""
    page = (DOCS / "how-to/containers.md").read_text("utf-8")
    [said] = map(int, re.findall(r"\*\*(\d+) s\*\*", page))
    [given] = map(int, re.findall(r"terminationGracePeriodSeconds: (\d+)", page))
    graces = {int(each) for each in re.findall(r'"--grace-s", "(\d+)"', page)}
    [grace_s], settings = graces, Settings()
    needed_s = grace_s + Timing(10.0).stop_budget_s + 4 * settings.op_timeout_s
    assert needed_s + CLOSE_BUDGET_S <= said < given


def is_attribute(name: str) -> bool:
    """Say whether it is what a `node` or a `job` has, and no event."""
    of, _, what = name.partition(".")
    kind = getattr(pool, of.capitalize(), None)
    return hasattr(kind, what) or what in getattr(kind, "__annotations__", {})


def navigation() -> object:
    return yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]


def test_an_extra_that_is_missing_is_said_by_the_line_that_installs_it() -> None:
    """As a shell takes it: some take brackets for a pattern."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    known = set(extras["optional-dependencies"])
    for path in [*(ROOT / "pool").rglob("*.py"), *(ROOT / "pool").rglob("*.md"), *PAGES]:
        text = path.read_text("utf-8")
        for line in re.findall(r".*keyed-pool\[.*", text):
            named = re.findall(r"pip install (?:-\w+ )*['\"]keyed-pool\[([\w,]+)\]", line)
            assert len(named) == line.count("keyed-pool["), f"{path.name}: {line}"
            assert {extra for each in named for extra in each.split(",")} <= known, line
