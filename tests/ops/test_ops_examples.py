"""What operators get in examples/ops: each file is sound by its own schema, and speaks of us.

Prometheus' own tool judges its rules: `make test-ops`.  The other systems are not needed here.
"""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pool import Node
from pool.ops.checkup import PoolFacts
from pool.ops.cli import parser
from pool.ops.cli.config import gather
from pool.ops.endpoints import Endpoints
from pool.ops.metrics import Metrics
from pool.ops.poolwide import of_pool

HERE = Path(__file__).parent
OPS = HERE.parents[1] / "examples" / "ops"
PORT = 9400


def text(name: str) -> str:
    return (OPS / name).read_text("utf-8")


def loaded(name: str) -> Any:
    return yaml.safe_load(text(name))


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all(text(name)))


# --- what we tell -------------------------------------------------------------------------------

# Those of a node that is open; see tests/ops/test_metrics.py, which reads them from one.
OF_A_NODE = {
    *("pool_node_state", "pool_worker_slots", "pool_worker_slots_busy", "pool_jobs_held"),
    *("pool_parts_down", "pool_loop_silent_seconds", "pool_lease_left_seconds"),
}
# As `pool_server_memory_...`, where the server tells them.
OF_A_SERVER = {"pool_server_memory_bytes", "pool_server_memory_max_bytes"}


def known() -> set[str]:
    """Return the names of all series that there are."""
    facts = PoolFacts(pool="p", pool_ttl_ms=10_000, lanes=(), workers={})
    families = [*Metrics().read(), *of_pool(facts, (1, 1.0))]
    found = OF_A_NODE | OF_A_SERVER
    for family in families:
        found.add(family.name)
        if family.kind == "histogram":
            found |= {f"{family.name}_{part}" for part in ("bucket", "sum", "count")}
    return found


JOBS = {each["job_name"] for each in loaded("prometheus.yml")["scrape_configs"]}


def named(expression: str) -> set[str]:
    return set(re.findall(r"\bpool_[a-z_]+", expression))


def test_rules_and_panels_ask_for_what_is_told() -> None:
    asked = set()
    for group in loaded("alerts.yml")["groups"]:
        for rule in group["rules"]:
            is_of_a_scrape = re.match(r'up\{job="([a-z-]+)"\} == 0$', rule["expr"])
            assert named(rule["expr"]) or (is_of_a_scrape and is_of_a_scrape[1] in JOBS)
            asked |= named(rule["expr"])
    board = json.loads(text("dashboard.json"))
    for panel in board["panels"]:
        for target in panel["targets"]:
            assert named(target["expr"]), panel["title"]
            asked |= named(target["expr"])
    [metric] = [d for d in documents("kubernetes.yaml") if d["kind"] == "HorizontalPodAutoscaler"]
    asked |= {each["external"]["metric"]["name"] for each in metric["spec"]["metrics"]}
    assert asked - known() == set()


def test_every_rule_is_tried_and_names_who_it_is_about_and_what_to_do() -> None:
    """Once where it fires, at least; `promtool` says whether it does."""
    rules = [rule for group in loaded("alerts.yml")["groups"] for rule in group["rules"]]
    fires = {
        case["alertname"]
        for test in loaded("alerts_test.yml")["tests"]
        for case in test["alert_rule_test"]
        if case["exp_alerts"]
    }
    assert fires == {rule["alert"] for rule in rules}
    for rule in rules:
        assert "$labels" in rule["annotations"]["summary"]
        for page in re.findall(r"docs/[\w/.-]+\.md", rule["annotations"]["runbook"]):
            assert (HERE.parents[1] / page).exists(), page


# --- by their schemas ---------------------------------------------------------------------------


def checked(*words: str) -> None:
    program = Path(sys.executable).with_name("check-jsonschema")
    done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_fits_its_schema_and_no_panel_lies_on_another() -> None:
    checked("--schemafile", str(HERE / "dashboard.schema.json"), str(OPS / "dashboard.json"))
    board = json.loads(text("dashboard.json"))
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    variables = {each["name"] for each in board["templating"]["list"]}
    asked = set(re.findall(r"\$\{?(\w+)", text("dashboard.json"))) - {"__rate_interval"}
    assert asked <= variables


def test_compose_fits_its_schema_and_mounts_what_is_there() -> None:
    checked("--builtin-schema", "vendor.compose-spec", str(OPS / "compose.yaml"))
    services = loaded("compose.yaml")["services"]
    for volume in services["prometheus"]["volumes"]:
        assert (OPS / volume.partition(":")[0]).exists(), volume
    assert services["worker"]["expose"] == [str(PORT)]


def test_the_kubernetes_objects_hang_together() -> None:
    """Ports and labels are the same ones; probes ask for paths that are there, and no more."""
    deployment, service, scaler = documents("kubernetes.yaml")
    assert (deployment["kind"], deployment["apiVersion"]) == ("Deployment", "apps/v1")
    pod = deployment["spec"]["template"]
    labels = deployment["spec"]["selector"]["matchLabels"]
    assert pod["metadata"]["labels"] == labels == service["spec"]["selector"]
    [container] = pod["spec"]["containers"]
    [port] = container["ports"]
    assert port == {"name": "metrics", "containerPort": PORT}
    environ = {each["name"]: each.get("value", "") for each in container["env"]}
    assert (
        environ["POOL_METRICS_PORT"]
        == str(PORT)
        == pod["metadata"]["annotations"]["prometheus.io/port"]
    )
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
    ready, live = container["readinessProbe"], container["livenessProbe"]
    assert (ready["httpGet"]["path"], live["httpGet"]["path"]) == ("/ready", "/live")
    endpoints = Endpoints(Node("p", "embedded://"))
    for probe in (ready, live):
        assert probe["httpGet"]["port"] == port["name"]
        assert endpoints.answer("GET", probe["httpGet"]["path"]).status in (200, 503)
    assert pod["spec"]["terminationGracePeriodSeconds"] == 45
    target = scaler["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", deployment["metadata"]["name"])
    assert scaler["spec"]["minReplicas"] <= deployment["spec"]["replicas"]
    spread = int(scaler["spec"]["metrics"][0]["external"]["target"]["averageValue"])
    words = container["args"]
    assert 0 < spread < int(words[words.index("--capacity") + 1])


def test_the_image_starts_the_worker_itself_and_asks_it_whether_it_lives() -> None:
    lines = re.sub(r"\\\n\s*", "", text("Dockerfile")).splitlines()
    told = [line.split(" ", 1) for line in lines if line and not line.startswith("#")]
    assert told[0][0] == "FROM"
    by_word = {word: "".join(rest) for word, *rest in told}
    json.loads(by_word["CMD"])  # the list form
    [check] = [rest for word, rest in told if word == "HEALTHCHECK"]
    ask = json.loads(check[check.index("CMD ") + 4 :])
    compile(ask[-1], "healthcheck", "exec")
    assert f"127.0.0.1:{PORT}/live" in ask[-1]
    assert by_word["EXPOSE"] == str(PORT)
    assert f"POOL_METRICS_PORT={PORT}" in by_word["ENV"]
    assert by_word["USER"] != "root"


def commands() -> list[list[str]]:
    """Return each `pool run` that stands in one of these files."""
    dockerfile = re.sub(r"\\\n\s*", "", text("Dockerfile"))
    [image] = re.findall(r"^CMD (.*)$", dockerfile, re.MULTILINE)
    [unit] = re.findall(r"^ExecStart=/usr/bin/env (.*)$", text("pool-worker.service"), re.MULTILINE)
    [container] = documents("kubernetes.yaml")[0]["spec"]["template"]["spec"]["containers"]
    return [json.loads(image), shlex.split(unit), container["args"]]


@pytest.mark.parametrize("words", commands(), ids=["image", "unit", "kubernetes"])
def test_each_command_is_one_of_ours_with_options_that_there_are(words: list[str]) -> None:
    assert words[:2] == ["pool", "run"]
    args = parser.make().parse_args(words[1:])
    said = gather(args, {"POOL_METRICS_PORT": str(PORT), "POOL_METRICS_HOST": "0.0.0.0"})  # noqa: S104
    assert said.problems == []
    assert said.options.metrics_port == PORT


def test_the_unit_says_when_it_is_ready_and_is_stopped_in_order() -> None:
    """By systemd's own judgement, where it is installed."""
    path = OPS / "pool-worker.service"
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(text(path.name))
    service = unit["Service"]
    assert (service["Type"], service["KillMode"], service["Restart"]) == (
        "notify",
        "mixed",
        "on-failure",
    )
    assert int(service["TimeoutStopSec"]) >= 36
    if shutil.which("systemd-analyze") is not None:
        command = ["systemd-analyze", "verify", "--man=no", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        complaints = [line for line in done.stderr.splitlines() if path.name in line]
        assert complaints == []
