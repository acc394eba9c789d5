"""Short forms of what `make chaos`, `make verify` and `make soak` do at length."""

from __future__ import annotations

import json
import random
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest

from pool.redis.embedded.server import ServerProgram
from tests.verify.chaos import Plan, run
from tests.verify.faults import FAULTS
from tests.verify.proofs import PROOFS, prove
from tests.verify.soak import FAULTS_OF_SOAK, Fit, fit
from tests.verify.world import STARVED_X, World

# Those that no test of `tests/process` is.
SHORT = (
    "no double grant under 50 dispatchers of one key",
    "retry, backoff and dead letter",
    "dispatch and settle once, though replies are lost",
)
HOUR_S = 3600.0


@pytest.mark.parametrize("name", SHORT)
def test_a_proof_holds(name: str, program: ServerProgram) -> None:
    is_proved, said, _ = prove(name, program, "asyncio")
    assert is_proved, said


def test_a_mixed_campaign_is_clean(program: ServerProgram, tmp_path: Path) -> None:
    """Real processes under a mixture of faults: no invariant is violated, and the page is whole."""
    # How long things take is judged by `make chaos`: here other tests may need the machine too.
    plan = Plan(seed=17, seconds=6.0, nodes=3, per_s=20.0, program=program, slack_s=2.0, lanes=4)
    verdict = run(plan, tmp_path)
    assert verdict.ok, f"{verdict.troubles}\n{verdict.report.text()}"
    assert verdict.injected
    assert verdict.report.judged["I1"] > 100
    for name in ("I61", "I62", "I63"):  # of followers, batches and schedules
        assert verdict.report.judged[name]
    told = json.loads((tmp_path / plan.name / "verdict.json").read_text("utf-8"))
    assert told["ok"]
    assert told["not injected"]
    page = Tags()
    page.feed((tmp_path / plan.name / "report.html").read_text("utf-8"))
    assert page.open == []
    assert page.seen >= {"svg", "table", "path", "rect"}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("starved_s", "comes_after_s", "is_in_time"),
    [(0.0, 3, True), (0.0, 6, False), (0.5, 6, True), (0.5, 12, False), (1.0, 99, False)],
)
async def test_time_without_a_processor_is_not_counted(
    starved_s: float, comes_after_s: int, is_in_time: bool
) -> None:
    """Of each second so much; the limit is 4 s, and no more than ten times that is added to it."""
    world = SimpleNamespace(waited_s=0.0, now_s=0.0)
    world.record = SimpleNamespace(clock=lambda: world.now_s)

    def look() -> bool:
        is_there: bool = world.now_s == comes_after_s
        world.now_s += 1.0
        world.waited_s += starved_s
        return is_there

    assert await World.until(world, look, 4.0) is is_in_time  # type: ignore[arg-type]
    assert world.now_s <= 4.0 * (1 + STARVED_X)


class Tags(HTMLParser):
    """Follows the tags of a page that must be closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: object) -> None:  # noqa: ARG002 - its caller's form
        self.seen.add(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: object) -> None:  # noqa: ARG002
        self.seen.add(tag)


def test_a_soak_takes_faults_that_exist() -> None:
    assert set(FAULTS_OF_SOAK) <= set(FAULTS)
    assert set(PROOFS) >= set(SHORT)


def fitted(name: str, *, per_hour: float, noise: float, level: float = 100_000.0) -> Fit:
    dice = random.Random(1)
    times = [2.0 * i for i in range(300)]
    return fit(
        name, [(t, level + per_hour * t / HOUR_S + dice.uniform(-noise, noise)) for t in times]
    )


@pytest.mark.parametrize(
    ("per_hour", "noise", "grows"),
    [(0.0, 2000.0, False), (6_000.0, 2000.0, False), (60_000.0, 2000.0, True)],
)
def test_growth_is_told_from_noise(per_hour: float, noise: float, *, grows: bool) -> None:
    """100 MB that grow by 60 MB an hour leak; by 6, they do not yet in ten minutes."""
    found = fitted("n1/1: rss_kb", per_hour=per_hour, noise=noise)
    assert found.grows is grows
    assert abs(found.per_hour - per_hour) <= 3 * found.confidence


def test_a_leak_of_one_descriptor_a_minute_is_seen() -> None:
    assert fitted("n1/1: descriptors", per_hour=60.0, noise=1.0, level=20.0).grows
