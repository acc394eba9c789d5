"""Figures and health: what is counted is what happened, and nobody who asks is a threat."""

from __future__ import annotations

import gc
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import attrs
import httpx
import prometheus_client
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pool import Handlers, Job, Node, Retry
from pool.errors import ConfigError, PoolError
from pool.events import ActorCrashed, AttemptFailed, Event, JobSettled, JobStarted, LeaseResumed
from pool.metrics import MetricFamily, Metrics, MetricsApp, health
from pool.ops.endpoints import Endpoints, HttpAnswer
from pool.ops.httpd import CONNECTIONS_MAX, HEAD_BYTES_MAX, LOOPBACK, HttpServer
from pool.ops.metrics import CAUSES_MAX, HANDLERS_MAX, OTHER, _cause
from pool.redis.io.scribe import Hush
from pool.runtime import observers
from pool.testing.proxy import fault_proxy
from tests.nodes import PATIENCE_S as BOUND_S

if TYPE_CHECKING:
    from tests.nodes import Fleet

SECRET = "tenant-of-a-secret-name"


def values(families: list[MetricFamily], name: str) -> dict[tuple[str, ...], float]:
    """Return a family's values by its labels but the pool."""
    [family] = [each for each in families if each.name == name]
    return {
        tuple(v for k, v in sample.labels.items() if k != "pool"): sample.value
        for sample in family.samples
    }


def taken(families: list[MetricFamily], name: str, *labels: str) -> int:
    """Return how many a histogram holds."""
    [family] = [each for each in families if each.name == name]
    [sample] = [s for s in family.samples if set(labels) <= set(s.labels.values())]
    return sample.buckets[-1][1]


handlers = Handlers()


@handlers.job("do")
async def do(_: Job, how: str = "") -> None:
    if how == "fail":
        raise ValueError(SECRET)
    if how == "wait":
        await anyio.sleep_forever()


@handlers.job("twice", attempts_max=2, backoff_s=0.01, backoff_max_s=0.01)
async def twice(job: Job) -> None:
    if job.attempt == 1:
        raise Retry(after_s=0.0, cause="not yet")
    raise LookupError(SECRET)


# --- what is counted ----------------------------------------------------------------------------


@pytest.mark.anyio
async def test_what_is_counted_is_what_happened(fleet: Fleet) -> None:
    metrics = Metrics()
    node = await fleet.node(handlers, observers=[metrics])
    for number in range(3):
        await (await node.dispatch(do, f"{SECRET}-{number}")).result(BOUND_S)
    with pytest.raises(PoolError):
        await (await node.dispatch(twice, SECRET)).result(BOUND_S)
    stopped = await node.dispatch(do, f"{SECRET}-4", "wait")
    await stopped.started(BOUND_S)
    await node.stop(f"{SECRET}-4")
    told = metrics.read()
    settled = values(told, "pool_jobs_settled_total")
    assert settled["do", "done"] == 3
    assert settled["do", "cancelled"] == 1
    assert settled["twice", "parked"] == 1
    assert values(told, "pool_runs_continued_total")["twice", "retried"] == 1
    assert values(told, "pool_runs_started_total") == {("do",): 4, ("twice",): 2}
    assert values(told, "pool_jobs_accepted_total") == {("do",): 4, ("twice",): 1}
    failed = values(told, "pool_attempts_failed_total")
    assert failed["twice", "LookupError"] == 1
    assert sum(failed.values()) == 2
    assert taken(told, "pool_run_duration_seconds", "do") == 4
    assert taken(told, "pool_job_start_delay_seconds", "twice") == 1  # of its second attempt none
    assert values(told, "pool_node_state") == {("open",): 1}
    assert values(told, "pool_worker_slots") == {(): 100}
    assert values(told, "pool_parts_down") == {(): 0}
    assert values(told, "pool_events_total")["node.joined",] == 1
    await fleet.until(lambda: taken(metrics.read(), "pool_loop_lag_seconds"))
    assert taken(metrics.read(), "pool_renewal_duration_seconds") > 0
    gc.collect()
    assert taken(metrics.read(), "pool_collector_pause_seconds") > 0
    await fleet.leave(node)
    assert not any(getattr(each, "__self__", None) is metrics for each in gc.callbacks)
    assert values(metrics.read(), "pool_node_state") == {("closed",): 1}


@pytest.mark.anyio
async def test_no_key_and_no_text_of_users_is_a_label(fleet: Fleet) -> None:
    """Keys, messages and causes in free words are as many as there are jobs."""
    metrics = Metrics()
    node = await fleet.node(handlers, observers=[metrics])
    with pytest.raises(PoolError):
        await (await node.dispatch(twice, SECRET)).result(BOUND_S)
    registry = prometheus_client.CollectorRegistry()
    metrics.register(registry)
    text = prometheus_client.generate_latest(registry).decode()
    assert "LookupError" in text
    assert SECRET not in text
    assert "not yet" not in text
    labels = {label for family in metrics.read() for s in family.samples for label in s.labels}
    assert labels <= {"pool", "handler", "outcome", "cause", "event", "state"}


def test_labels_are_bounded() -> None:
    metrics = Metrics()
    for number in range(3 * HANDLERS_MAX):
        metrics(settled(f"h{number}"))
        metrics(failed("h0", f"E{number}: x"))
    told = metrics.read()
    by_handler = values(told, "pool_jobs_settled_total")
    assert by_handler[OTHER, "done"] == 2 * HANDLERS_MAX
    assert len({handler for handler, _ in by_handler}) == HANDLERS_MAX + 1
    causes = {c: n for (h, c), n in values(told, "pool_attempts_failed_total").items() if h == "h0"}
    assert len(causes) == CAUSES_MAX + 1
    assert causes[OTHER] == 3 * HANDLERS_MAX - CAUSES_MAX


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("ValueError: no such thing", "ValueError"),
        ("app.errors.Odd: x", "app.errors.Odd"),
        ("KeyError", "KeyError"),
        ("ran longer than timeout_s", "timeout"),
        ("made no progress for progress_timeout_s", "progress"),
        ("because I say so", OTHER),
        ("", OTHER),
        (f"{'X' * 80}: x", OTHER),
    ],
)
def test_an_attempt_fails_by_one_of_few_causes(error: str, cause: str) -> None:
    assert _cause(error) == cause


def test_what_ended_without_a_run_is_no_run_of_no_time() -> None:
    heard = list[str]()
    metrics = Metrics(callback=lambda name, *_: heard.append(name))
    metrics(attrs.evolve(settled("h", 0.0), worker="", attempt=0, outcome="cancelled"))
    assert values(metrics.read(), "pool_jobs_settled_total")["h", "cancelled"] == 1
    assert metrics._by_handler["h"].ran.counts == [0] * len(metrics._by_handler["h"].ran.counts)
    assert heard == ["pool_jobs_settled_total"]


def settled(handler: str, ran_s: float = 0.002) -> JobSettled:
    return JobSettled(
        handler=handler,
        key="k",
        job_id="i",
        attempt=1,
        epoch=1,
        worker="w.1",
        outcome="done",
        waited_s=0.0,
        ran_s=ran_s,
        took_s=0.0,
    )


def started(handler: str, waited_s: float, *, is_again: bool = False) -> JobStarted:
    return JobStarted(
        handler=handler,
        key="k",
        job_id="i",
        attempt=1,
        epoch=1,
        worker="w.1",
        waited_s=waited_s,
        is_again=is_again,
    )


def failed(handler: str, error: str) -> AttemptFailed:
    return AttemptFailed(key="k", handler=handler, attempt=1, error=error, follows="parked")


def test_a_duration_on_a_bound_is_within_it() -> None:
    metrics = Metrics()
    for ran_s in (0.001, 0.0011, 1800.0, 1800.1):
        metrics(settled("h", ran_s))
    [family] = [each for each in metrics.read() if each.name == "pool_run_duration_seconds"]
    upto = dict(family.samples[0].buckets)
    assert (upto[0.001], upto[0.0025], upto[1800.0], upto[float("inf")]) == (1, 2, 3, 4)
    assert family.samples[0].value == pytest.approx(3600.1021)


def test_what_goes_on_after_a_takeover_is_no_late_start() -> None:
    """A service that ran for days before its worker died has not waited for days."""
    metrics = Metrics()
    metrics(started("h", 0.2))
    metrics(started("h", 300_000.0, is_again=True))
    assert taken(metrics.read(), "pool_job_start_delay_seconds", "h") == 1
    assert values(metrics.read(), "pool_runs_started_total") == {("h",): 2}


def test_names_follow_the_conventions_of_prometheus() -> None:
    """Counters end in _total, times are in seconds, and what is scraped can be parsed."""
    metrics = Metrics()
    metrics(settled("h"))
    metrics(started("h", 0.1))
    metrics(failed("h", "E: x"))
    registry = prometheus_client.CollectorRegistry()
    metrics.register(registry)
    text = prometheus_client.generate_latest(registry).decode()
    found = {family.name: family.type for family in text_string_to_metric_families(text)}
    for family in metrics.read():
        assert re.fullmatch(r"pool_[a-z_]+", family.name)
        assert family.help.endswith(".")
        assert family.name.endswith("_total") == (family.kind == "counter"), family.name
        assert family.kind != "histogram" or family.name.endswith("_seconds")
        assert found[family.name.removesuffix("_total")] == family.kind


def test_a_callback_hears_of_each_thing_and_may_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it raises is logged: no job and no count is touched by it."""
    monkeypatch.setattr(observers, "_hush", hush := Hush(lambda line: line()))
    heard: list[tuple[str, float]] = []

    def hear(name: str, value: float, labels: object) -> None:
        heard.append((name, value))
        if len(heard) == 1:
            raise RuntimeError(labels)

    metrics = Metrics(callback=hear)
    metrics(settled("h", 0.5))
    metrics(failed("h", "E: x"))
    metrics.turned(0.25)
    metrics.renewed(0.1, 1, 2)
    assert ("pool_jobs_settled_total", 1) in heard
    assert ("pool_run_duration_seconds", 0.5) in heard
    assert ("pool_attempts_failed_total", 1) in heard
    assert ("pool_loop_lag_seconds", 0.25) in heard
    assert ("pool_renewals_failed_total", 1) in heard
    assert values(metrics.read(), "pool_jobs_settled_total")["h", "done"] == 1
    assert values(metrics.read(), "pool_renewals_total") == {(): 2}
    with pytest.raises(ConfigError):
        Metrics(callback=anyio.sleep)  # type: ignore[arg-type]
    hush.end()


@pytest.mark.anyio
async def test_a_node_has_one_and_one_is_of_one_open_node(fleet: Fleet) -> None:
    with pytest.raises(ConfigError, match="at most one"):
        Node("p", "embedded://", observers=[Metrics(), Metrics()])
    metrics = Metrics()
    node = await fleet.node(observers=[metrics])
    with pytest.raises(ConfigError, match="one for each node"):
        await fleet.node(observers=[metrics])
    await fleet.leave(node)
    await fleet.node(observers=[metrics])  # it may go on with another
    assert values(metrics.read(), "pool_events_total")["node.joined",] == 2


# --- health -------------------------------------------------------------------------------------


def parts(node: Node) -> dict[str, bool]:
    return {part.name: part.is_moving for part in health(node).parts}


@pytest.mark.anyio
async def test_every_part_moves_or_progress_says_which_does_not(fleet: Fleet) -> None:
    """A part that has crashed, a loop that hangs: seen from another thread, while it does."""
    seen: list[dict[str, bool]] = []

    def look(event: Event) -> None:
        if isinstance(event, ActorCrashed):
            seen.append(parts(node))

    async def crashing() -> None:
        raise RuntimeError("a bug")

    node = await fleet.node(handlers, observers=[look])
    await fleet.until(lambda: health(node).is_moving)
    assert health(node).is_ready
    fleet.workers(node)[0].spawn(crashing)
    await fleet.until(lambda: seen)
    assert seen[0]["actors"] is False
    assert seen[0]["node"] is False
    await fleet.until(lambda: health(node).is_moving)
    hung: list[dict[str, bool]] = []
    is_over = threading.Event()

    def watch() -> None:
        for _ in range(int(BOUND_S / 0.05)):
            if not parts(node)["loop"]:
                hung.append(parts(node))
                break
            time.sleep(0.05)  # noqa: TID251
        is_over.set()

    threading.Thread(target=watch, daemon=True).start()
    is_over.wait()  # and the loop with us
    assert hung
    assert hung[0]["node"]
    await fleet.until(lambda: parts(node)["loop"])


@pytest.mark.anyio
async def test_without_the_store_it_lives_and_does_not_move(fleet: Fleet) -> None:
    """An outage must not have a fleet restarted; renewals that fail are counted."""
    metrics = Metrics()
    async with fault_proxy(fleet.url) as proxy:
        node = await fleet.node(handlers, url=proxy.url, observers=[metrics, fleet.events.note])
        await fleet.until(lambda: health(node).is_moving)
        await proxy.refuse()
        await fleet.until(lambda: not parts(node)["lanes"])
        assert not parts(node)["renewals"]
        assert health(node).is_live
        assert not health(node).is_ready
        assert values(metrics.read(), "pool_renewals_failed_total")[()] > 0
        await proxy.listen()
        await fleet.seen(LeaseResumed)
        await fleet.until(lambda: health(node).is_moving)
        await fleet.leave(node)
    assert not health(node).is_live
    assert not health(node).is_ready


def test_a_node_that_was_never_opened_is_not_ready() -> None:
    node = Node("p", "embedded://")
    assert health(node).is_live
    assert not health(node).is_ready
    assert not health(node).is_moving


# --- over HTTP ----------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_asgi_tells_of_a_node(fleet: Fleet) -> None:
    metrics = Metrics()
    node = await fleet.node(handlers, observers=[metrics])
    await (await node.dispatch(do, "k")).result(BOUND_S)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(MetricsApp(node, metrics)),
        base_url="http://pool",
    ) as client:
        for path in ("/live", "/ready", "/progress"):
            answer = await client.get(path)
            assert (path, answer.status_code, answer.json()["ok"]) == (path, 200, True)
        told = (await client.get("/metrics")).text
        assert f'outcome="done",pool="{fleet.pool}"' in told
        names = {family.name for family in text_string_to_metric_families(told)}
        assert {"pool_jobs_settled", "pool_loop_lag_seconds"} <= names
        assert (await client.post("/live")).status_code == 405
        nothing = await client.get("/keys")
        assert nothing.status_code == 404
        assert "/metrics/pool" in nothing.json()["paths"]
        head = await client.head("/metrics")
        assert (head.status_code, head.content) == (200, b"")


@pytest.mark.anyio
async def test_asgi_without_metrics_tells_of_health_alone(fleet: Fleet) -> None:
    node = await fleet.node()
    app = MetricsApp(node)
    answers: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        answers.append(message)

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "lifespan.startup"} if not answers else {"type": "lifespan.shutdown"}

    await app({"type": "lifespan"}, receive, send)
    assert [each["type"] for each in answers] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
    ]
    mounted = {"type": "http", "method": "GET", "path": "/pool/metrics", "root_path": "/pool"}
    await app(mounted, receive, send)
    assert answers[2]["status"] == 404
    await app({**mounted, "path": "/pool/live"}, receive, send)
    assert answers[4]["status"] == 200
    with pytest.raises(ConfigError):
        await app({"type": "websocket"}, receive, send)
    with pytest.raises(ConfigError):
        MetricsApp("node")  # type: ignore[arg-type]


@pytest.mark.anyio
async def test_the_pool_is_told_of_with_the_age_of_its_queue(fleet: Fleet) -> None:
    """What waits, for how long, and what doctor finds; asked again at once nobody looks again."""
    metrics = Metrics()
    node = await fleet.node(handlers, capacity=1, observers=[metrics])
    blocking = await node.dispatch(do, "first", "wait")
    await blocking.started(BOUND_S)
    for number in range(3):
        await node.dispatch(do, f"{SECRET}-{number}", "wait")
    endpoints = Endpoints(node, metrics)
    answer = await anyio.to_thread.run_sync(endpoints.answer, "GET", "/metrics/pool")
    assert answer.status == 200, answer.body
    text = answer.body.decode()
    assert SECRET not in text
    told = {
        (s.name, *(v for k, v in sorted(s.labels.items()) if k != "pool")): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }
    assert told["pool_queue_jobs", "do"] == 3
    assert told["pool_queue_age_seconds", "do"] > 0
    assert told["pool_jobs", "unassigned"] == 3
    assert told["pool_jobs", "owned"] == 1
    assert (told["pool_slots",], told["pool_slots_wanted",]) == (1, 4)
    assert told["pool_server_scripts_total",] > 0
    assert {value for key, value in told.items() if key[0] == "pool_findings"} >= {0.0}
    assert await anyio.to_thread.run_sync(endpoints.answer, "GET", "/metrics/pool") is answer
    await node.stop_all()


@contextmanager
def served(
    answer: Callable[[str, str], HttpAnswer], patience_s: float = BOUND_S
) -> Iterator[tuple[str, int]]:
    server = HttpServer(LOOPBACK, 0, answer, patience_s=patience_s)
    server.start()
    host, _, port = server.address.rpartition(":")
    try:
        yield host, int(port)
    finally:
        server.close()


def ok(_: str, path: str) -> HttpAnswer:
    return HttpAnswer(200, "text/plain", path.encode())


def said(line: socket.socket) -> bytes:
    text = b""
    while came := line.recv(65_536):
        text += came
    return text


def talk(where: tuple[str, int], request: bytes) -> bytes:
    with socket.create_connection(where, BOUND_S) as line:
        line.sendall(request)
        return said(line)


GET = b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n"


def test_who_is_slow_or_says_too_much_is_cut_and_all_others_are_answered() -> None:
    """However many hold a connection without a whole request, the next one is answered."""
    with served(ok, patience_s=1.0) as where:
        idle = [socket.create_connection(where, BOUND_S) for _ in range(3 * CONNECTIONS_MAX)]
        assert talk(where, GET).endswith(b"/live")
        assert said(idle[0]) == b""  # it was cut for those who came later
        for line in idle:
            with line:
                assert said(line) == b""  # the others when their time was up
        with socket.create_connection(where, BOUND_S) as line:
            try:
                line.sendall(b"GET /live HTTP/1.1\r\nX: " + b"x" * (4 * HEAD_BYTES_MAX))
                assert said(line) == b""
            except ConnectionError:
                assert len(idle) > CONNECTIONS_MAX  # it was cut while it still sent
        assert talk(where, GET).endswith(b"/live")


def test_who_sends_a_byte_now_and_then_is_cut() -> None:
    """Its time is for the whole request, however it comes."""
    with (
        served(ok, patience_s=0.5) as where,
        socket.create_connection(where, BOUND_S) as line,
    ):
        until_s = time.monotonic() + BOUND_S
        line.settimeout(0.05)
        while time.monotonic() < until_s:
            try:
                line.sendall(b"G")
                if line.recv(100) == b"":
                    return
            except TimeoutError:
                continue
            except OSError:
                return
        pytest.fail("it was not cut")


@pytest.mark.parametrize(
    "request_", [b"\r\n\r\n", b"GET\r\n\r\n", b"GET / SPDY/3\r\n\r\n", b"\xff\xfe\x00 \n\n"]
)
def test_what_is_no_request_is_answered_so(request_: bytes) -> None:
    with served(ok) as where:
        assert talk(where, request_).startswith(b"HTTP/1.1 400 ")
        assert talk(where, GET).startswith(b"HTTP/1.1 200 ")


def test_who_answers_may_fail_and_the_server_goes_on() -> None:
    def broken(_: str, path: str) -> HttpAnswer:
        if path == "/broken":
            raise RuntimeError(SECRET)
        return ok("", path)

    with served(broken) as where:
        answer = talk(where, b"GET /broken HTTP/1.0\n\n")
        assert answer.startswith(b"HTTP/1.1 500 ")
        assert SECRET.encode() not in answer
        assert talk(where, GET).startswith(b"HTTP/1.1 200 ")


def test_a_port_that_is_taken_is_refused_or_waited_for() -> None:
    """A process that replaces another one takes the port over when that one has left."""
    first = HttpServer(LOOPBACK, 0, ok)
    first.start()
    port = int(first.address.rpartition(":")[2])
    with pytest.raises(ConfigError, match="metrics_port"):
        HttpServer(LOOPBACK, port, ok).start()
    second = HttpServer(
        LOOPBACK, port, lambda _, __: HttpAnswer(200, "text/plain", b"second"), True
    )
    second.start()
    assert second.address == ""
    first.close()
    deadline_s = time.monotonic() + BOUND_S
    while not second.address:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)  # noqa: TID251
    assert talk((LOOPBACK, port), GET).endswith(b"second")
    second.close()


@pytest.mark.anyio
async def test_the_server_tells_while_the_loop_hangs(fleet: Fleet) -> None:
    """It has threads of its own, and no answer waits for the loop."""
    metrics = Metrics()
    node = await fleet.node(handlers, observers=[metrics])
    await fleet.until(lambda: health(node).is_moving)
    with served(Endpoints(node, metrics).answer) as where:
        deadline_s = time.monotonic() + BOUND_S
        while True:  # and the loop with us
            head, _, body = talk(where, b"GET /progress HTTP/1.1\r\n\r\n").partition(b"\r\n\r\n")
            if not json.loads(body)["parts"]["loop"]["ok"]:
                break
            assert time.monotonic() < deadline_s
        assert head.startswith(b"HTTP/1.1 503 ")
        assert talk(where, GET).startswith(b"HTTP/1.1 200 ")
        assert b"pool_loop_silent_seconds" in talk(where, b"GET /metrics HTTP/1.1\r\n\r\n")
    await fleet.until(lambda: taken(metrics.read(), "pool_loop_lag_seconds"))
