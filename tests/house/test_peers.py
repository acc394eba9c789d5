"""The comparison with other libraries: what is said of the figures, and the shape of adapters."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from benchmarks.peers import quiet
from benchmarks.peers.__main__ import BUSY, main
from benchmarks.peers.environments import OURS, PEERS
from benchmarks.peers.metrics import GOALS, METRICS, judged, why_not
from benchmarks.peers.page import page, write
from benchmarks.peers.plot import Bar, chart
from tools import figures

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
    known |= {"protocol", "quiet", "run", "stage", OURS}
    assert {path.stem for path in ADAPTERS.glob("*.py")} - known == set(PEERS)


# --- what is said of the figures ------------------------------------------------------------------


REPEATS = 3


def figure(value: float | list[float | None]) -> dict[str, Any]:
    """What is stored of a metric: of each repetition, or of all the same."""
    each = value if isinstance(value, list) else [value] * REPEATS
    known = [one for one in each if one is not None]
    return {"median": median(known), "min": min(known), "max": max(known), "each": each}


def peer(figures: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "versions": {"x": "1"},
        "docs": "d",
        "usual": "u",
        "results": "",
        "safe": "",
        "cannot": {},
        "errors": {},
        "recoveries": {},
        "figures": {name: figure(value) for name, value in figures.items()},
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
        "quiet": [{"before": "repetition 1", "load": 0.1, "others": 0.3, "waited_s": 30.0}],
        "server": {"name": "valkey", "version": "9"},
        "sizes": {
            "repeats": REPEATS,
            "drain_s": 1,
            "rest_s": 1,
            "recovery_s": 120,
            "watch_s": 1,
        },
        "peers": peers,
        "raw": {"raw_50_connections_per_s": figure(100.0)},
    }


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        (200.0, "met"),
        ([200.0, 200.0, 210.0], "met"),
        ([199.0, 201.0, 240.0], "**missed** in 1 of 3, by 0.5 %"),
        ([100.0, 150.0, 240.0], "**missed** in 2 of 3, by 25 to 50 %"),
        ([None, 300.0, 300.0], "**missed** in 1 of 3; 1 without a figure"),
        ([None, 100.0, 300.0], "**missed** in 2 of 3, by 50 %; 1 without a figure"),
        (None, "not measured"),
    ],
)
def test_a_goal_is_met_if_every_repetition_meets_it(ours: Any, verdict: str) -> None:
    """Twice huey is met with exactly twice; a good median hides no repetition that is not."""
    found = results(
        ours=peer({"drain_1_per_s": ours} if ours else {}), huey=peer({"drain_1_per_s": 100.0})
    )
    first = next(judged(found))
    assert (first.said, first.verdict) == (">= 2 x huey", verdict)


def test_a_repetition_is_judged_beside_the_others_of_the_same_one() -> None:
    """Where all were slow at once nothing is missed; where theirs alone was fast it is."""
    ours = peer({"drain_1_per_s": [200.0, 20.0, 200.0]})
    together = results(ours=ours, huey=peer({"drain_1_per_s": [100.0, 10.0, 100.0]}))
    assert next(judged(together)).verdict == "met"
    apart = results(ours=ours, huey=peer({"drain_1_per_s": [10.0, 100.0, 100.0]}))
    assert next(judged(apart)).verdict == "**missed** in 1 of 3, by 90 %"


def test_the_best_that_acknowledges_is_not_the_best() -> None:
    found = results(
        ours=peer({"drain_1_per_s": 90.0}),
        huey=peer({"drain_1_per_s": 100.0}),
        saq=peer({"drain_1_per_s": [30.0, 30.0, 20.0]}),
        rq=peer({"drain_1_per_s": [10.0, 10.0, 45.0]}),
    )
    [_, acknowledged, *_] = judged(found)
    assert acknowledged.each == [3.0, 3.0, 2.0], "each repetition has its own best"
    assert acknowledged.said.endswith("(saq)")


@pytest.mark.parametrize(("again", "verdict"), [(0, "met"), (1, "**missed** in 1 of 3, by 1")])
def test_a_live_job_that_ran_twice_misses(again: int, verdict: str) -> None:
    told = [
        {"repetition": number, "running": 20, "seconds": 1.0, "live_started_again": each}
        for number, each in enumerate([0, again, 0])
    ]
    [*_, last] = judged(results(ours=peer({}, recoveries={"recovery_20": told})))
    assert last.verdict == verdict


# --- a quiet machine ------------------------------------------------------------------------------


def test_a_busy_machine_is_refused_before_anything_is_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (quiet.LOAD_MAX + 0.01, 0.0, 0.0))
    monkeypatch.setattr(sys, "argv", ["peers", "--json"])
    assert main() == BUSY
    said = capsys.readouterr()
    assert said.out == ""
    assert "its load is 0.51" in said.err
    assert "--busy" in said.err
    assert quiet.refusal(quiet.LOAD_MAX) == ""


@pytest.mark.parametrize("words", [["--busy"], ["--quick"], ["--only", OURS]])
def test_no_page_comes_from_a_part_or_from_a_busy_machine(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["peers", "--out", str(tmp_path / "page.md"), *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "whole run on a quiet machine" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_who_does_not_come_to_rest_is_waited_for_no_longer_than_told_and_noted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = iter([0.9, 0.4, 0.02, 0.7])
    monkeypatch.setattr(quiet, "_others", lambda: next(looks))
    assert quiet.wait_quiet("the first", 60.0)["others"] == 0.02
    assert quiet.wait_quiet("the next", 0.0)["others"] == 0.7
    assert "**others use 0.3 processors**" in page(results(ours=peer({})), "plots")


def test_what_is_missing_has_a_reason() -> None:
    late = [{"seconds": None, "not_in_s": 120.0, "running": 20, "live_started_again": 0}]
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


# --- what other pages quote -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("load", "repeats", "is_quiet"), [(0.5, 5, True), (0.51, 5, False), (0.5, 4, False)]
)
def test_of_single_jobs_pages_quote_a_quiet_run_alone(
    load: float, repeats: int, is_quiet: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = ("drain_1_per_s", "recovery_20_s", "idle_start_p50_us", "idle_result_p50_us")
    told = {name: [each] * repeats for name, each in zip(of, (90.0, 9.0, 98.0, 142.0), strict=True)}
    found = results(ours=peer(told), saq=peer({name: [100.0] * repeats for name in of}))
    found["load_before"], found["sizes"]["repeats"] = [load], repeats
    monkeypatch.setattr(figures, "loaded", lambda _: found)
    readme, page = " ".join(figures.fast().split()), figures.beside()
    assert "drains 0.9 times as many jobs a second" in readme
    assert "begins elsewhere after 9 s; the next best takes 100 s (saq)" in readme
    assert ("0.98 times as long to its start" in readme) == is_quiet
    assert ("1.42 times as long to its result (saq)" in readme) == is_quiet
    assert ("goals" in page and "not quiet enough" not in page) == is_quiet
    assert ("| **missed** in 5 of 5, by 70 % |" in page) == is_quiet  # the drain, of 3 x the best


# --- the harness ----------------------------------------------------------------------------------


def measured(groups: str) -> dict[str, Any]:
    """Run the harness with tiny counts against ourselves and the bare server."""
    words = [sys.executable, "-m", "benchmarks.peers", "--busy", "--tiny", "--only", OURS, "--json"]
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
    for [each] in told.values():
        assert (each["missing"], each["live_started_again"]) == (0, 0)
        assert each["live"] > 0
