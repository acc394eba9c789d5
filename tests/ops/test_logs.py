"""Log lines of `pool run`; what is said of rates that are empty, and of a foreign key."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from pool import Handlers, Job, Node, log_observer
from pool.errors import JobParked
from pool.events import Event, JobEvents
from pool.ops.cli.rates import lines
from pool.ops.logs import line as line_of
from pool.ops.rates import RatedMinute
from pool.testing.audit import audit

if TYPE_CHECKING:
    from tests.nodes import Fleet

_APPLICATION = """
import logging, sys, warnings
from pool.ops.logs import configure

shop = logging.getLogger("shop")
handler = logging.StreamHandler(sys.stderr)
handler.setFormatter(logging.Formatter('{"shop": "%(message)s"}'))
shop.addHandler(handler)
configure(sys.stderr, is_json=True)
logging.getLogger("shop.orders").warning("hello")
logging.getLogger("other").warning("others", extra={"tenant": "t-1", "event": "x", "level": 7})
warnings.warn("careful")
"""

_EMBEDDED = """
import sys
from contextlib import suppress
import anyio, structlog
from pool import Handlers, Node
from pool.errors import JobParked

handlers = Handlers()

@handlers.job("fail", attempts_max=1)
async def fail(job):
    raise ValueError("\\x1b[2J")

async def main():
    async with Node(sys.argv[1], sys.argv[2], handlers=handlers) as node:
        with suppress(JobParked):
            await (await node.dispatch(fail, "k")).result()

class Mute(BaseException):
    def __str__(self):
        sys.exit("no text")

def raises(error):
    def processor(*_):
        raise error
    return processor

CONFIGURED = {
    "plain": {},
    "async": {"wrapper_class": structlog.stdlib.AsyncBoundLogger},
    "broken": {"processors": [raises(RuntimeError("no such field"))]},
    "exiting": {"processors": [raises(SystemExit(7))]},
    "interrupted": {"processors": [raises(KeyboardInterrupt())]},
    "mute": {"processors": [raises(Mute())]},
}
if len(sys.argv) > 3:
    structlog.configure(**{
        "processors": [structlog.processors.JSONRenderer()],
        "logger_factory": structlog.PrintLoggerFactory(sys.stdout),
        **CONFIGURED[sys.argv[3]],
    })
anyio.run(main)
"""
_STAMP = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z ")


def _embedded(*words: str) -> tuple[str, str]:
    command = [sys.executable, "-c", _EMBEDDED, *words]
    env = {**os.environ, "TZ": "Asia/Tokyo"}
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=env, timeout=60)
    return ran.stdout, ran.stderr


def test_a_program_that_configured_no_logging_has_the_lines_of_pool_run(
    pool_name: str, pool_url: str
) -> None:
    """On standard error, with times in UTC, and nothing that a terminal would obey."""
    out, err = _embedded(pool_name, pool_url)
    assert out == ""
    assert "attempt.failed" in err
    assert "\x1b" not in err
    stamped = [line for line in err.splitlines() if _STAMP.match(line)]
    assert [line.partition("]")[2].split()[0] for line in stamped] == [
        "node.joined",
        "attempt.failed",
        "node.left",
    ]


@pytest.mark.parametrize("configured", ["plain", "async"])
def test_a_program_that_configured_structlog_has_its_own_lines(
    pool_name: str, pool_url: str, configured: str
) -> None:
    """Also if its logger's methods are coroutines."""
    out, err = _embedded(pool_name, pool_url, configured)
    told = [json.loads(line)["event"] for line in out.splitlines()]
    assert told == ["node.joined", "attempt.failed", "node.left"]
    assert err == ""


@pytest.mark.parametrize(
    ("configured", "reason"),
    [
        ("broken", "'RuntimeError: no such field'"),
        ("exiting", "'SystemExit: 7'"),
        ("interrupted", "'KeyboardInterrupt: '"),
        ("mute", "Mute"),
    ],
)
def test_a_line_that_the_configuration_cannot_write_is_on_standard_error(
    pool_name: str, pool_url: str, configured: str, reason: str
) -> None:
    """Whatever it raises, also what would end the process; the job and the node go on."""
    out, err = _embedded(pool_name, pool_url, configured)
    assert out == ""
    stamped = [line for line in err.splitlines() if _STAMP.match(line)]
    assert len(stamped) == 3
    assert all(f"log_error={reason}" in line for line in stamped)


def test_each_line_is_written_once_and_all_are_json() -> None:
    written = [json.loads(line) for line in _application("")]
    assert [each.get("shop", each.get("event")) for each in written[:2]] == ["hello", "others"]
    assert len(written) == 3
    assert "careful" in written[2]["event"]


def _application(before: str) -> list[str]:
    """Return the lines of an application, of whose configuration `before` is the last part."""
    program = before + _APPLICATION
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return ran.stderr.splitlines()


def test_warnings_are_json_though_the_root_logger_has_a_handler() -> None:
    """What it writes is the application's own choice; Python's warnings are not."""
    root = "import logging\nlogging.basicConfig(format='ROOT %(message)s')\n"
    lines = _application(root)
    assert lines[:3] == ['{"shop": "hello"}', "ROOT hello", "ROOT others"]
    [line] = map(json.loads, lines[3:])
    assert "careful" in line["event"]
    assert line["logger"] == "py.warnings"


def test_warnings_that_the_application_logs_are_left_to_it() -> None:
    root = "import logging\nlogging.basicConfig(format='ROOT %(message)s')\n"
    lines = _application(root + "logging.captureWarnings(True)\n")
    assert "careful" in next(line for line in lines[3:] if line.startswith("ROOT "))
    assert not [line for line in lines if line.startswith("{") and "careful" in line]


def test_a_line_of_logging_names_its_logger_and_has_its_extra_facts() -> None:
    lines = _application("")
    others = json.loads(lines[1])
    assert (others["logger"], others["tenant"]) == ("other", "t-1")
    assert (others["event"], others["level"]) == ("others", "warning")


_ODD = """
import logging, sys
import structlog
from pool.ops.logs import configure

class Bad:
    def __repr__(self):
        raise RuntimeError("no repr")

nan, loop = float("nan"), []
loop.append(loop)
facts = {"a": nan, "b": [nan], "c": {(1, 2): 3}, "d": Bad(), "e": loop, "f": 1.5}
facts |= {"level": 7, "timestamp": 8, "logger": "mine"}
configure(sys.stderr, is_json=sys.argv[1] == "json")
structlog.get_logger().warning("one", **facts)
logging.getLogger("shop").warning("two", extra={"event": "x", **facts})
"""


def _odd(form: str) -> list[str]:
    command = [sys.executable, "-c", _ODD, form]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return ran.stderr.splitlines()


def test_whatever_the_facts_of_a_json_line_are_it_is_json() -> None:
    """No number that JSON lacks, no other text, level or time than the line's own."""

    def refuse(word: str) -> None:
        raise AssertionError(word)

    one, two = (json.loads(line, parse_constant=refuse) for line in _odd("json"))
    for found, event in ((one, "one"), (two, "two")):
        assert (found["event"], found["level"]) == (event, "warning")
        assert found["timestamp"].endswith("Z")
        assert [found[name] for name in "abce"] == ["nan", "[nan]", "{(1, 2): 3}", "[[...]]"]
        assert "Bad" in found["d"]
        assert found["f"] == 1.5
    assert two["logger"] == "shop"


def test_a_value_whose_repr_raises_fails_no_plain_line() -> None:
    lines = _odd("text")
    assert [("Bad: RuntimeError" in line) for line in lines] == [True, True]


def test_the_line_of_dropped_lines_has_a_time_and_a_level_as_all_others() -> None:
    line = json.loads(line_of("warning", "log.dropped", is_json=True, lines=7))
    assert (line["event"], line["level"], line["lines"]) == ("log.dropped", "warning", 7)
    assert line["timestamp"].endswith("Z")
    line = line_of("warning", "log.dropped", is_json=False, lines=7)
    assert _STAMP.match(line)
    assert line.partition(" [")[2].split() == ["warning", "]", "log.dropped", "lines=7"]


@pytest.mark.anyio
async def test_each_pool_of_a_process_has_lines_of_its_own(fleet: Fleet) -> None:
    """The same handler fails with the same text in both: neither is counted as the other's."""
    handlers, heard = Handlers(), list[Event]()

    @handlers.job("fail", attempts_max=1)
    async def fail(job: Job) -> None:
        raise ValueError("the same")

    servers = {fleet.pool: fleet.url, f"{fleet.pool}-2": "embedded://"}
    pools = [*servers]
    observers = (JobEvents(heard.append), log_observer)
    with capture_logs() as logs:
        async with AsyncExitStack() as stack:
            for pool, url in servers.items():
                made = Node(pool, url, handlers=handlers, observers=observers)
                node = await stack.enter_async_context(made)
                with pytest.raises(JobParked):
                    await (await node.dispatch(fail, "k")).result(timeout_s=30)
    failures = [each for each in logs if each["event"] == "attempt.failed"]
    assert [(each["pool"], each.get("times")) for each in failures] == [(p, None) for p in pools]
    assert {each.event for each in heard} >= {"attempt.failed", "job.accepted", "job.started"}
    assert {each.pool for each in heard} == {*pools}


@pytest.mark.parametrize("minutes", [[], [RatedMinute(at_ms=60_000, handlers={})]])
def test_rates_of_nothing_say_what_to_run(minutes: list[RatedMinute]) -> None:
    assert "--metrics-port" in "\n".join(lines("shop", "1h", minutes))


@pytest.mark.anyio
async def test_an_audit_names_a_key_that_somebody_else_wrote(fleet: Fleet) -> None:
    await fleet.node()
    fleet.client.delete(fleet.names.due)
    fleet.client.set(fleet.names.due, "foreign")
    [problem] = audit(fleet.client, fleet.pool)
    assert "somebody else wrote" in problem
    assert f"{fleet.names.due} holds a string" in problem
    fleet.client.delete(fleet.names.due)  # the fleet is audited when it ends


@pytest.mark.parametrize("is_json", [True, False])
def test_the_traceback_of_an_event_can_be_read(*, is_json: bool) -> None:
    """In a terminal it stood in its line, with each line break as two characters and a half."""
    text = 'Traceback (most recent call last):\n  File "jobs.py", line 1\nValueError: x\n'
    found = line_of(
        "warning", "attempt.failed", is_json=is_json, error="ValueError: x", traceback=text
    )
    if is_json:
        assert json.loads(found)["traceback"] == text
    else:
        assert found.endswith(f"\n{text.rstrip()}")
        assert "traceback=" not in found
        assert "traceback=" not in line_of("warning", "attempt.failed", is_json=False, traceback="")
