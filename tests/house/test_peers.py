"""The comparison with other libraries: what is said of the figures, and the shape of adapters."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.environments import OURS, PEERS
from benchmarks.peers.metrics import GOALS, METRICS, judged, why_not
from benchmarks.peers.page import page, write
from benchmarks.peers.plot import Bar, chart

ROOT = Path(__file__).parents[2]
ADAPTERS = ROOT / "benchmarks/peers"
RUN_S = 240.0
PROTOCOL = "benchmarks.peers.protocol"
# A distribution's modules, where they are not called as it is.
MODULES = {"docket": {"docket"}, "taskiq": {"taskiq", "taskiq_redis"}, "rq": {"rq", "redis"}}


# --- adapters -------------------------------------------------------------------------------------


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)


@pytest.mark.parametrize("name", list(PEERS))
def test_an_adapter_imports_its_library_and_the_protocol_alone(name: str) -> None:
    """It runs where nothing of ours is installed, and knows nothing that others do not."""
    own = MODULES.get(name, {name})
    foreign = {
        module
        for module in imported(ast.parse((ADAPTERS / f"{name}.py").read_text("utf-8")))
        if module != PROTOCOL
        and module.partition(".")[0] not in own
        and module.partition(".")[0] not in sys.stdlib_module_names
    }
    assert not foreign


def test_the_protocol_needs_nothing_but_python() -> None:
    tree = ast.parse((ADAPTERS / "protocol.py").read_text("utf-8"))
    assert {name.partition(".")[0] for name in imported(tree)} <= sys.stdlib_module_names


@pytest.mark.parametrize("name", [OURS, *PEERS])
def test_an_adapter_says_what_it_measures(name: str) -> None:
    """Settings and where they are documented, how its jobs are counted, and all its calls."""
    tree = ast.parse((ADAPTERS / f"{name}.py").read_text("utf-8"))
    [adapter] = [
        node
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        and {base.id for base in node.bases if isinstance(base, ast.Name)}
        & {"AsyncAdapter", "BlockingAdapter"}
    ]
    said = {
        node.target.id
        for node in adapter.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assert {"distributions", "docs", "usual", "left"} <= said
    does = {
        node.name
        for node in adapter.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {"work", "enqueue", "enqueue_held", "result"} <= does
    assert ("has_bulk" in said) == ("enqueue_many" in does)


def test_every_adapter_is_known() -> None:
    known = {"__init__", "__main__", "environments", "measure", "metrics", "page", "plot"}
    known |= {"protocol", "run", "stage", OURS}
    assert {path.stem for path in ADAPTERS.glob("*.py")} - known == set(PEERS)


# --- what is said of the figures ------------------------------------------------------------------


def peer(figures: dict[str, float], **more: Any) -> dict[str, Any]:
    return {
        "versions": {"x": "1"},
        "docs": "d",
        "usual": "u",
        "results": "",
        "safe": "",
        "cannot": {},
        "errors": {},
        "recoveries": {},
        "figures": {
            name: {"median": value, "min": value / 2, "max": value * 2}
            for name, value in figures.items()
        },
        **more,
    }


def results(**peers: dict[str, Any]) -> dict[str, Any]:
    return {
        "date": "today",
        "commit": "abc",
        "seconds": 60.0,
        "machine": {"processor": "p", "cores": 2, "system": "s"},
        "versions": {"pool": "1"},
        "load_before": [0.0],
        "server": {"name": "valkey", "version": "9"},
        "sizes": {
            "repeats": 3,
            "drain_s": 1,
            "rest_s": 1,
            "recovery_s": 120,
            "watch_s": 1,
        },
        "peers": peers,
        "raw": {"raw_50_connections_per_s": {"median": 100.0, "min": 1.0, "max": 200.0}},
    }


@pytest.mark.parametrize(
    ("ours", "verdict"), [(200.0, "met"), (199.0, "**missed**"), (None, "not measured")]
)
def test_a_goal_is_judged_at_its_bound(ours: float | None, verdict: str) -> None:
    """Twice huey is met with exactly twice."""
    found = results(
        ours=peer({"drain_1_per_s": ours} if ours else {}), huey=peer({"drain_1_per_s": 100.0})
    )
    first = next(judged(found))
    assert (first.said, first.verdict) == (">= 2 x huey", verdict)


def test_the_best_that_acknowledges_is_not_the_best() -> None:
    found = results(
        ours=peer({"drain_1_per_s": 90.0}),
        huey=peer({"drain_1_per_s": 100.0}),
        saq=peer({"drain_1_per_s": 30.0}),
    )
    [_, acknowledged, *_] = judged(found)
    assert acknowledged.reached == 3.0
    assert acknowledged.said.endswith("(saq)")


@pytest.mark.parametrize(("again", "verdict"), [(0, "met"), (1, "**missed**")])
def test_a_live_job_that_ran_twice_misses(again: int, verdict: str) -> None:
    told = {"running": 20, "seconds": 1.0, "live_started_again": again}
    [*_, last] = judged(results(ours=peer({}, recoveries={"recovery_20": told})))
    assert last.verdict == verdict


def test_what_is_missing_has_a_reason() -> None:
    late = {"seconds": None, "not_in_s": 120.0, "running": 20, "live_started_again": 0}
    found = results(
        a=peer({}, cannot={"recovery": "it pops"}),
        b=peer({}, errors={"recovery_20": "KeyError: x"}),
        c=peer({}, recoveries={"recovery_20": late}),
        d=peer({}, errors={"environment": "pip failed"}),
        e=peer({}),
    )
    metric = METRICS["recovery_20_s"]
    assert [why_not(found, name, metric) for name in "abcde"] == [
        "it pops",
        "failed: KeyError: x",
        "not in 120 s",
        "failed: pip failed",
        "not measured in this run",
    ]


def test_goals_name_metrics_and_peers() -> None:
    for goal in GOALS:
        assert set(goal.metrics) <= METRICS.keys()
        assert goal.to in {"", *PEERS} or goal.to.startswith("the best peer")


def test_a_chart_is_xml_and_shows_why_a_bar_is_missing() -> None:
    bars = [
        Bar(name="ours", median=2.0, low=1.0, high=300.0, is_ours=True),
        Bar(name="saq", missing="a < b"),
    ]
    root = ET.fromstring(chart("R & D", bars))  # noqa: S314  (our own)
    said = " ".join(text for text in root.itertext() if text)
    assert "R & D (log scale)" in said
    assert "a < b" in said
    assert "prefers-color-scheme: dark" in said


def test_a_page_has_a_plot_for_each_metric(tmp_path: Path) -> None:
    found = results(ours=peer({"drain_1_per_s": 90.0}), huey=peer({"drain_1_per_s": 100.0}))
    write(found, tmp_path / "peers.md")
    text = (tmp_path / "peers.md").read_text("utf-8")
    for name in METRICS:
        assert f"(peers/{name}.svg)" in text
        assert (tmp_path / f"peers/{name}.svg").is_file()
    assert page(json.loads((tmp_path / "peers/results.json").read_text("utf-8")), "peers") == text


# --- the harness ----------------------------------------------------------------------------------


def measured(groups: str) -> dict[str, Any]:
    """Run the harness with tiny counts against ourselves and the bare server."""
    words = [sys.executable, "-m", "benchmarks.peers", "--tiny", "--only", OURS, "--json"]
    done = subprocess.run(
        [*words, "--metrics", groups],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


RECOVERY = {metric.name for metric in METRICS.values() if "recovery" in metric.part}


@pytest.mark.long
def test_the_harness_measures_us_and_the_bare_server() -> None:
    found = measured("dispatch,drain,latency,load,rest")
    assert found["peers"][OURS]["figures"].keys() >= METRICS.keys() - RECOVERY
    assert {metric.yardstick for metric in METRICS.values()} - {""} <= found["raw"].keys()


@pytest.mark.long
def test_the_harness_measures_our_recovery() -> None:
    """The survivor starts all that the killed worker ran, and nothing of its own again (G-06)."""
    told = measured("recovery")["peers"][OURS]["recoveries"]
    assert told.keys() == {"recovery_20", "recovery_safe_20"}
    for each in told.values():
        assert (each["missing"], each["live_started_again"]) == (0, 0)
        assert each["live"] > 0
