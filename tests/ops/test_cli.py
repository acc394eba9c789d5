"""The command line, as people and process managers see it: exit codes, output, signals."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
import redis

from pool.batches import BatchStatus
from pool.errors import JobParked
from pool.jobs.handlers import Handlers
from pool.jobs.job import Job
from pool.jobs.node import Node
from pool.names import WORKERS, Control
from pool.ops.cli import FINDING, OK, UNREACHABLE, USAGE, main
from pool.ops.cli.batches import bar
from pool.ops.cli.parser import make
from pool.ops.cli.shapes import SHAPES, faults
from pool.ops.cli.status import fetch
from pool.ops.doctor import RULES
from pool.ops.findings import Finding, Rule
from pool.ops.web.problems import REFUSALS
from pool.redis.acl import rules
from pool.redis.embedded.server import EmbeddedServer
from pool.redis.url import Url
from pool.settings import Settings
from pool.version import __version__
from tests.ops.commands import WAIT_S, running

TTL = "10"  # nothing here waits for a lease to end; a busy machine is late

JOBS = """
import gc
import os
import pathlib
import signal
import anyio
from pool.jobs.handlers import Handlers

handlers, empty, again, other = Handlers(), Handlers(), Handlers(), 17

again.job("wait")(lambda job: None)

@handlers.job("wait")
async def wait(job, path):
    while not pathlib.Path(path).exists():
        await anyio.sleep(0.01)
    return job.attempt

@handlers.job("stay")
async def stay(job):
    await anyio.sleep_forever()

@handlers.job("frozen")
async def frozen(job):
    return gc.get_freeze_count()

@handlers.service("ends")
async def ends(job):
    os.kill(os.getpid(), signal.SIGTERM)
    await anyio.sleep_forever()

@handlers.service("watch")
async def watch(job):
    await anyio.sleep_forever()
"""


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """Return the folder of a module `jobs` with handlers."""
    (tmp_path / "jobs.py").write_text(JOBS)
    (tmp_path / "broken.py").write_text("import nowhere_to_be_found\n")
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit(0)\n")
    (tmp_path / "two.py").write_text("from pool import Handlers\na, b = Handlers(), Handlers()\n")
    return tmp_path


@pytest.fixture(autouse=True)
def _nothing_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the caller's environment out of it, and this process's logging as it is."""
    monkeypatch.setattr("pool.ops.cli.worker.configure", lambda *_, **__: None)
    monkeypatch.delenv("POOL_URL", raising=False)
    monkeypatch.delenv("POOL_NAME", raising=False)


def closed_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


# --- usage ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["dance"],
        ["status", "--pool", "p"],
        ["status", "--url", "redis://localhost"],
        ["status", "--pool", "p", "--url", "localhost"],
        ["status", "--pool", "Not A Name", "--url", "redis://localhost"],
        ["status", "--pool", "p", "--url", "embedded://"],
        ["status", "--pool", "p", "--url", "embedded:///tmp/never/been"],
        ["ttl", "2", "--pool", "p", "--url", "embedded:///tmp/never/been"],
        ["acl", "p", "--db", "-1"],
        ["run", "--pool", "p", "--url", "redis://localhost"],
        ["run", "two", "--pool", "p", "--url", "redis://localhost"],
        ["run", "jobs", "jobs:again", "--pool", "p", "--url", "redis://localhost"],
        ["run", "jobs", "--pool", "p", "--url", "redis://h", "--observer", "jobs:other"],
        ["run", "jobs", "--pool", "p", "--url", "redis://h", "--config", "nowhere.toml"],
        ["check"],
        ["run", "jobs:", "--pool", "p", "--url", "redis://localhost"],
        ["run", "no_such_module:handlers", "--pool", "p", "--url", "redis://localhost"],
        ["run", "broken:handlers", "--pool", "p", "--url", "redis://localhost"],
        ["run", "leaving:handlers", "--pool", "p", "--url", "redis://localhost"],
        ["run", "jobs:missing", "--pool", "p", "--url", "redis://localhost"],
        ["run", "jobs:other", "--pool", "p", "--url", "redis://localhost"],
        ["run", "jobs:empty", "--pool", "p", "--url", "redis://localhost"],
        ["run", "jobs:handlers", "--pool", "p", "--url", "redis://h", "--capacity", "0"],
        ["run", "jobs:handlers", "--pool", "p", "--url", "redis://h", "--lease-ttl-s", "0.1"],
        ["run", "jobs:handlers", "--pool", "p", "--url", "redis://h", "--loop", "curio"],
        ["run", "jobs:handlers", "--pool", "p", "--url", "redis://h", "--weight", "nan"],
        ["dev", "--port", "100000"],
        ["dev", "--dir", "/proc/nothing/here"],
    ],
)
def test_usage_is_exit_code_2_and_no_traceback(
    words: list[str],
    jobs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(jobs)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    assert main(words) == USAGE
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines()[-1].startswith("pool")
    if words[:2] == ["run", "broken:handlers"] or words[:2] == ["run", "leaving:handlers"]:
        return  # those have causes of their own: see below
    assert "Traceback" not in said.err
    assert said.err.count("\n") == 1 or said.err.startswith("usage:")


def test_a_module_that_fails_shows_where(
    jobs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(jobs)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    (jobs / "outer.py").write_text("x = 1\nimport inner_one\n", "utf-8")
    (jobs / "inner_one.py").write_text("\n\nsettings = {}['no such key']\n", "utf-8")
    words = ["run", "outer:handlers", "--pool", "p", "--url", "redis://localhost"]
    assert main(words) == USAGE
    *traceback, last = capsys.readouterr().err.splitlines()
    assert traceback == [
        "Traceback (most recent call last):",
        f'  File "{jobs / "outer.py"}", line 2, in <module>',
        "    import inner_one",
        f'  File "{jobs / "inner_one.py"}", line 3, in <module>',
        "    settings = {}['no such key']",
        *(line for line in traceback[5:-1] if set(line) <= set(" ~^")),
        "KeyError: 'no such key'",
    ]
    assert last.startswith("pool: [POOLHANDLERS]")


def _options(parser: argparse.ArgumentParser, *path: str) -> Iterator[tuple[list[str], str]]:
    """Yield each option that takes a text, and the words of its command."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                yield from _options(command, *path, name)
        elif action.option_strings and action.nargs is None and action.type not in (int, float):
            yield list(path), action.option_strings[0]


# What is empty is as if it were not said, for a script's sake, and loses nothing: where the pool
# is, the page that a listing begins with, and what is judged as JSON.
_DURATIONS = {"--delay", "--wait", "--timeout", "--older-than", "--newer-than"}
_MAY_BE_EMPTY = {"--pool", "--url", "--config", "--cursor", "--args", "--kwargs"}


@pytest.mark.parametrize(
    ("path", "flag"),
    [
        each
        for each in _options(make())
        if each[0][0] not in ("run", "check") and each[1] not in _MAY_BE_EMPTY | _DURATIONS
    ],
    ids=lambda each: each if isinstance(each, str) else "-".join(each),
)
def test_what_bounds_a_command_is_not_widened_by_an_unset_variable(
    path: list[str], flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in `pool parked discard --all --prefix "$UNSET"`."""
    assert main([*path, flag, ""]) == USAGE
    assert f"argument {flag}: it is empty" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["nan", "-1", "1e99", "inf", "soon", ""])
@pytest.mark.parametrize(
    ("path", "flag"),
    [each for each in _options(make()) if each[1] in _DURATIONS and each[0][0] != "batches"],
    ids=lambda each: each if isinstance(each, str) else "-".join(each),
)
def test_a_duration_is_refused_before_anything_is_sent(
    path: list[str], flag: str, seconds: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`pool dispatch HANDLER KEY --wait -1` ran the job, and then said that nothing was sent."""
    assert main([*path, f"{flag}={seconds}"]) == USAGE
    said = f"argument {flag}: '{seconds}' is no number of seconds from 0 to 31,536,000"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("more", [["--yes"], ["--dry-run"], ["--yes", "--handler", "h"]])
@pytest.mark.parametrize("verb", ["replay", "discard"])
def test_all_dead_letters_are_not_meant_where_a_key_is_named(
    verb: str, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """`pool parked discard KEY --all --yes` discarded every dead letter of the pool."""
    words = ["parked", verb, "k", "--all", *more, "--pool", "p", "--url", "redis://localhost:1"]
    assert main(words) == USAGE
    assert "give KEY and ID, or --all" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        ("no_such_module:handlers", "there is no module no_such_module in "),
        ("job:handlers", "nor installed; is it jobs?"),
        ("jobs.py:handlers", "a module is named without .py"),
        ("jobs:handler", "jobs has no handler; there is jobs:again and jobs:empty and jobs:hand"),
        ("jobs:other", "it is of type int, not Handlers; there is jobs:again and jobs:empty and"),
        ("jobs:empty", "it has no handlers"),
        ("two", "two has several Handlers; there is two:a and two:b."),
        ("json", "json has no Handlers."),
        ("jobs:", "it is not of the form module or module:attribute"),
    ],
)
def test_what_was_meant_is_said(
    reference: str,
    problem: str,
    jobs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(jobs)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    assert main(["run", reference, "--pool", "p", "--url", "redis://localhost"]) == USAGE
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize("word", ["POOLFULL", "poolfull", "[POOLFULL]", "PoolFull"])
def test_an_error_is_explained_by_its_code_or_class(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", word]) == OK
    said = capsys.readouterr().out
    assert said.startswith("PoolFull [POOLFULL], a RefusedError\n")
    assert "queued_jobs_max" in said
    assert main(["explain", word, "--json"]) == OK
    told = json.loads(capsys.readouterr().out)
    assert (told["ok"], told["retryable"]) == (True, True)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_finding_is_explained(rule: Rule, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a network, and without the marks of a page."""
    assert main(["explain", rule.name]) == OK
    said = capsys.readouterr().out
    assert said.startswith(f"{rule.name}, a")
    assert "\nIt is over: " in said
    assert "](" not in said
    assert main(["explain", rule.name, "--json"]) == OK
    told = json.loads(capsys.readouterr().out)
    assert (told["finding"], told["severity"]) == (rule.name, rule.severity)
    assert told["why"]
    assert told["do"]


@pytest.mark.parametrize("code", REFUSALS)
def test_what_the_gateway_refuses_is_explained(
    code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", code]) == OK
    said = capsys.readouterr().out
    assert said.startswith(f"[{code}]")
    status, title, hint = REFUSALS[code]
    assert all(each in said for each in (str(status), title, hint))
    assert main(["explain", f"[{code.lower()}]", "--json"]) == OK
    assert json.loads(capsys.readouterr().out)["status"] == status


@pytest.mark.parametrize(
    "words",
    ["acl shop", "completion bash", "explain POOLCONFIG", "explain WEBRATE", "explain no-worker"],
)
def test_what_asks_no_pool_prints_an_object_that_says_that_it_went_well(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`error` is what a call that failed prints."""
    assert main([*words.split(), "--json"]) == OK
    told = json.loads(capsys.readouterr().out)
    assert (told["v"], told["ok"]) == (1, True)
    assert "error" not in told


def test_an_error_that_is_none_is_likened_to_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "POOLFUL"]) == USAGE
    assert "is it POOLFULL" in capsys.readouterr().err
    assert main(["explain", "no-workers"]) == USAGE
    assert "is it no-worker" in capsys.readouterr().err
    assert main(["explain", "WEBRAT"]) == USAGE
    assert "is it WEBRATE" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["status"], ["ttl", "2"]])
def test_who_looks_makes_no_server(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistyped address made a directory, and a server in it that had no pool of that name."""
    typo = tmp_path / "typo"
    for _ in range(2):  # not where there is nothing, and not where there are other things
        assert main([*command, "--pool", "p", "--url", f"embedded://{typo}"]) == USAGE
        assert str(typo) in capsys.readouterr().err
        assert not list(tmp_path.rglob("*.lock"))
        typo.mkdir(exist_ok=True)


def test_a_port_that_is_taken_is_said_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for option in ("port", "web"):
            assert main(["dev", f"--{option}", str(taken.getsockname()[1])]) == USAGE
            said = capsys.readouterr().err
            assert said.count("\n") == 1
            assert f"in use. (setting='{option}')" in said


def test_help_is_exit_code_0(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--help"], ["demo", "--help"], ["dev", "--help"], ["run", "--help"]):
        assert main(words) == OK
    assert "drains" in capsys.readouterr().out


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == OK
    assert capsys.readouterr().out == f"pool {__version__}\n"


def test_the_demo_names_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert main(["demo"]) == USAGE
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert "keyed-pool[demo]" in said.err


# --- the store ------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["status"], ["run", "jobs:handlers"]])
def test_unreachable_is_exit_code_3_and_one_line(
    command: list[str],
    jobs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(jobs)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    url = f"redis://:hunter2@127.0.0.1:{closed_port()}"
    assert main([*command, "--pool", "p", "--url", url]) == UNREACHABLE
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("pool: [POOLUNAVAILABLE]")
    assert said.err.count("\n") == 1
    assert "hunter2" not in said.err


def test_a_password_is_never_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    """Not even that of an address which a mistyped option turned into a stray word."""
    assert main(["status", "--ulr", "redis://me:hunter2@host", "--pool", "p"]) == USAGE
    assert main(["status", "--pool", "p", "--url", "redis://me:hunter2@host:x"]) == USAGE
    assert "hunter2" not in capsys.readouterr().err


def test_url_and_pool_come_from_the_environment(
    pool_url: str,
    pool_name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("POOL_URL", pool_url)
    monkeypatch.setenv("POOL_NAME", pool_name)
    for words in (["status"], ["nodes"], ["doctor"], ["schedules", "list"]):
        assert main([*words, "--json"]) == USAGE, "nobody has ever founded it"
        told = json.loads(capsys.readouterr().out)
        assert f"this server has no pool '{pool_name}'" in told["error"]["told"]


# --- status ---------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_status_shows_the_pool(
    pool_url: str, pool_name: str, jobs: Path, anyio_backend: str
) -> None:
    words = ["--pool", pool_name, "--url", pool_url]
    more = [
        "--loop",
        anyio_backend,
        "--label",
        "left",
        "--capacity",
        "7",
        "--lease-ttl-s",
        TTL,
        "--json",
    ]
    async with running("run", "jobs:handlers", *words, *more, cwd=jobs) as worker:
        ready = await worker.event()
        assert ready["event"] == "ready"
        assert ready["handlers"] == ["ends", "frozen", "stay", "wait", "watch"]
        settings = Settings(lease_ttl_s=float(TTL))
        async with Node(pool_name, pool_url, settings=settings) as client:
            assert await (await client.dispatch("frozen", "f")).result(WAIT_S) > 10_000
            await (await client.dispatch("stay", "img-1")).started(WAIT_S)
            await (await client.dispatch("watch", "room-1")).started(WAIT_S)
            await client.options(delay_s=600.0).dispatch("stay", "img-2")
            async with running("status", *words, "--json", cwd=jobs) as told:
                status = await told.event()
                assert await told.end() == (OK, "")
            async with running("status", *words, cwd=jobs) as told:
                text = [await told.line() for _ in range(3)]
                assert (await told.end())[0] == OK
    assert status["ok"]
    assert status["pool"] == pool_name
    assert status["findings"] == []
    assert status["jobs"]["waiting"] == 1
    assert status["jobs"]["running"] + status["jobs"]["pending"] == 2
    assert {node["id"] for node in status["nodes"]} == {ready["node"], client.id}
    [shown] = status["workers"]
    assert (shown["label"], shown["capacity"], shown["standing"]) == ("left", 7, "live")
    assert shown["running"] + shown["pending"] == 2
    assert shown["lease_s"] > 0
    assert text[0].startswith(f"pool {pool_name} on ")
    assert "1 waiting" in text[1]


class Hex:
    """A codec that the command line has not got."""

    name = "hex"

    def encode(self, value: Any) -> bytes:
        return json.dumps(value).encode().hex().encode()

    def decode(self, data: bytes) -> Any:
        return json.loads(bytes.fromhex(data.decode()))


@pytest.mark.anyio
async def test_a_letter_tells_which_codec_made_its_arguments(
    pool_url: str, pool_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    handlers = Handlers()

    @handlers.job("hex", attempts_max=1, codec=Hex(), version=3, upcast=lambda _, a, k: (a, k))
    async def fails(job: Job, number: int) -> None:
        raise ValueError(number)

    async with Node(pool_name, pool_url, handlers=handlers, observers=()) as node:
        ref = await node.dispatch(fails, "k", 7)
        with pytest.raises(JobParked):
            await ref.result(timeout_s=WAIT_S)
        named = ["k", ref.job_id, "--pool", pool_name, "--url", pool_url]
        assert await anyio.to_thread.run_sync(main, ["parked", "show", *named]) == OK
        said = capsys.readouterr().out
        assert "bytes that cannot be read, made by the codec 'hex', which is not here" in said
        assert "(version 3)" in said
        for given, said in (
            (["--args", "[]"], "cannot be read, so that none can be kept: give both"),
            (["--args", "[]", "--kwargs", "{}"], "POOLCODEC"),
        ):
            assert await anyio.to_thread.run_sync(main, ["parked", "edit", *named, *given]) == USAGE
            assert said in capsys.readouterr().err


@pytest.mark.anyio
async def test_batches_are_listed_waited_for_and_cancelled(
    pool_url: str, pool_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    handlers, gate = Handlers(), anyio.Event()

    @handlers.job("wait")
    async def wait(job: Job) -> None:
        await gate.wait()

    where = ["--pool", pool_name, "--url", pool_url]

    async def told(*words: str, code: int = OK) -> Any:
        capsys.readouterr()
        assert await anyio.to_thread.run_sync(main, ["batches", *words, *where, "--json"]) == code
        found = json.loads(capsys.readouterr().out)
        assert list(faults(found, SHAPES[f"batches {words[0]}"])) == []
        return found

    async with Node(pool_name, pool_url, handlers=handlers, observers=()) as node:
        for name in ("b1", "b2"):
            async with node.batch(name, success_min=1) as batch:
                await batch.add(wait, [f"{name}-{number}" for number in range(3)])
        listed = (await told("list"))["batches"]
        assert [each["id"] for each in listed] == ["b2", "b1"]
        assert (await told("cancel", "b1", "--cause", "enough", "--wait", code=FINDING))[
            "batch"
        ] == (await told("show", "b1"))["batch"]
        gate.set()
        done = (await told("show", "b2", "--wait"))["batch"]
        assert (done["state"], done["succeeded"]) == ("done", 3)
        capsys.readouterr()
        assert await anyio.to_thread.run_sync(main, ["batches", "show", "b1", *where]) == OK
        line, *rest = capsys.readouterr().out.splitlines()
        assert line.endswith(f"b1  cancelled  [{'#' * 30}] 3/3 3 cancelled")
        assert rest == ["0 waiting, 0 running", "1 must succeed", "cause: enough"]
        for words, code in ((["show", "a b"], USAGE), (["show", "b3"], FINDING)):
            assert await anyio.to_thread.run_sync(main, ["batches", *words, *where]) == code
        assert "POOLNOBATCH" in capsys.readouterr().err


def test_a_bar_says_how_far_a_batch_is() -> None:
    facts: dict[str, Any] = {"id": "b", "state": "open", "expected": 6, "waiting": 3, "running": 0}
    facts |= {"succeeded": 2, "failed": 0, "cancelled": 0, "missing": 1, "success_min": None}
    status = BatchStatus(**facts)
    assert bar(status) == f"[{'#' * 15}{'.' * 15}] 3/6 2 succeeded, 1 missing"


@pytest.mark.anyio
async def test_dead_letters_are_listed_mended_replayed_and_discarded(
    pool_url: str, pool_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    handlers = Handlers()

    @handlers.job("add", attempts_max=1)
    async def add(job: Job, one: Any, *, two: int) -> int:
        total: int = one + two
        return total

    where = ["--pool", pool_name, "--url", pool_url]

    async def told(*words: str, code: int = OK) -> Any:
        capsys.readouterr()
        assert await anyio.to_thread.run_sync(main, ["parked", *words, *where, "--json"]) == code
        found = json.loads(capsys.readouterr().out)
        assert list(faults(found, SHAPES[f"parked {words[0]}"])) == []
        return found

    async with Node(pool_name, pool_url, handlers=handlers, observers=()) as node:
        refs: list[Any] = [await node.dispatch("add", f"k{i}", "x", two=i) for i in range(3)]
        for ref in refs:
            with pytest.raises(JobParked):
                await ref.result(timeout_s=WAIT_S)
        listed = await told("list", "--handler", "add", "--count", "2")
        assert [job["key"] for job in listed["jobs"]] == ["k0", "k1"]
        words = ["parked", "list", *where, "--count", "2"]
        assert await anyio.to_thread.run_sync(main, words) == OK
        *_, ended, on = capsys.readouterr().out.splitlines()
        assert ended == "the page ended after looking through 2 letters"
        assert on.partition("--cursor ")[2] == shlex.quote(listed["cursor"])
        rest = await told("list", "--cursor", listed["cursor"])
        assert ([job["key"] for job in rest["jobs"]], rest["cursor"]) == (["k2"], "")
        shown = (await told("show", "k1", refs[1].job_id))["job"]
        assert (shown["args"], shown["kwargs"]) == (["x"], {"two": 1})
        assert "TypeError" in shown["history"][0]["traceback"]
        for words, args, kwargs in (
            (["--kwargs", '{"two": 9}'], ["x"], {"two": 9}),
            (["--args", "[6]"], [6], {"two": 9}),
            (["--args", "[5]", "--kwargs", '{"two": 2}'], [5], {"two": 2}),
        ):  # what is left out stays
            await told("edit", "k1", refs[1].job_id, *words)
            shown = (await told("show", "k1", refs[1].job_id))["job"]
            assert (shown["args"], shown["kwargs"]) == (args, kwargs)
        bare = ["parked", "edit", "k1", refs[1].job_id, *where]
        assert await anyio.to_thread.run_sync(main, bare) == USAGE
        assert "give --args, --kwargs or both" in capsys.readouterr().err
        anew = (await told("replay", "k1", refs[1].job_id))["job_id"]
        assert await (await node.job("k1", anew)).result(timeout_s=WAIT_S) == 7
        assert (await told("discard", "--all", "--prefix", "k2", "--dry-run"))["count"] == 1
        assert (await told("discard", "k2", refs[2].job_id))["count"] == 1
        for verb in ("replay", "discard"):
            words = ["parked", verb, "--all", *where]
            assert await anyio.to_thread.run_sync(main, words) == USAGE
            assert f"1 letters match: say --yes to {verb} them" in capsys.readouterr().err
        assert (await told("replay", "--all", "--yes"))["count"] == 1
        one = (
            ["k", "i", "--dry-run"],
            ["k", "i", "--older-than", "5"],
            ["k", "i", "--handler", "add"],
        )
        for words in one:  # of many: none of them may be taken for leave to act on one
            for verb in ("replay", "discard"):
                wrong = ["parked", verb, *words, *where]
                assert await anyio.to_thread.run_sync(main, wrong) == USAGE
        for wrong in (["replay"], ["replay", "k", "i", "--all"], ["edit", "k", "i", "--args", "5"]):
            assert await anyio.to_thread.run_sync(main, ["parked", *wrong, *where]) == USAGE
        gone = ["parked", "show", "k2", refs[2].job_id, *where]
        assert await anyio.to_thread.run_sync(main, gone) == FINDING


@pytest.mark.anyio
async def test_jobs_that_nobody_can_run_are_a_finding(
    pool_url: str, pool_name: str, tmp_path: Path
) -> None:
    words = ["status", "--pool", pool_name, "--url", pool_url]
    handlers = Handlers()
    handlers.job("left")(lambda _: None)
    async with Node(pool_name, pool_url, handlers=handlers):
        pass
    async with Node(pool_name, pool_url) as client:
        await client.dispatch("left", "img-1")
        await client.options(allow_unknown=True).dispatch("never", "img-2")
        async with running(*words, "--json", cwd=tmp_path) as told:
            status = await told.event()
            assert (await told.end())[0] == FINDING
        async with running(*words, cwd=tmp_path) as told:
            text = [await told.line() for _ in range(4)]
    assert status["jobs"]["unassigned"] == 2
    assert status["oldest"]["key"] == "img-1"
    assert status["oldest"]["state"] == "unassigned"
    assert status["waiting_for"] == {"left": 1, "": 1}
    assert {each["rule"]: each["keys"] for each in status["findings"]} == {
        "no-such-handler": ["img-2"],
        "no-worker": ["img-1"],
    }
    assert text[3].startswith("oldest    img-1 (left) unassigned for ")


@pytest.mark.anyio
async def test_who_has_left_is_gone_at_once_and_a_pool_at_rest_is_well(
    redis_url: str, pool_url: str, pool_name: str
) -> None:
    """F: clients that had ended were listed for ten TTL, and their leases were a finding."""
    handlers, settings = Handlers(), Settings(lease_ttl_s=1.0)

    @handlers.service("serve")
    async def serve(job: Job) -> None:
        await anyio.sleep_forever()

    url = Url.parse(pool_url)
    async with Node(pool_name, pool_url, settings=settings) as stays:
        async with Node(pool_name, pool_url, handlers=handlers, settings=settings) as worker:
            async with Node(pool_name, pool_url, settings=settings):
                assert len((await fetch(pool_name, url)).nodes) == 3
            assert {n.id for n in (await fetch(pool_name, url)).nodes} == {stays.id, worker.id}
            await (await stays.dispatch(serve, "k")).started(WAIT_S)
        status = await fetch(pool_name, url)
        assert [node.id for node in status.nodes] == [stays.id]
        assert [each.rule for each in status.findings] == ["no-worker"]
    for at_s in (0.0, 20.0):  # the second one: when nobody remembers who has left
        with redis.Redis.from_url(redis_url) as client:
            for name, end_ms in client.zrange(
                keepalive := _keepalive(pool_name), 0, -1, False, True
            ):
                client.zadd(keepalive, {name: end_ms - 1000 * at_s})
        status = await fetch(pool_name, url)
        assert (status.nodes, status.jobs["unassigned"]) == ((), 1)
        assert {each.rule for each in status.findings} == {"nobody-here", "no-worker"}


@pytest.mark.anyio
async def test_who_ended_without_leaving_is_a_finding(
    redis_url: str, pool_url: str, pool_name: str
) -> None:
    async with Node(pool_name, pool_url, settings=Settings(lease_ttl_s=1.0)):
        pass
    with redis.Redis.from_url(redis_url) as client:
        client.zadd(_keepalive(pool_name), {"nkilled.1": 1})
    [finding] = (await fetch(pool_name, Url.parse(pool_url))).findings
    assert (finding.rule, finding.where) == ("dead-not-reaped", ("nkilled.1",))


def _keepalive(pool: str) -> str:
    return f"pool:{{{pool}:0}}:keepalive"


@pytest.mark.anyio
@pytest.mark.parametrize("of", ["due", "jobs", "unassigned:left", "handlers", "open", "workers"])
async def test_a_key_of_another_type_is_a_finding_and_hides_nothing_else(
    pool_url: str, redis_url: str, pool_name: str, of: str
) -> None:
    """G-05 excepts such a key because it is shown; it is named, beside all that can be read."""
    handlers = Handlers()
    handlers.job("left")(lambda _: None)
    async with Node(pool_name, pool_url, handlers=handlers):
        sound = await fetch(pool_name, Url.parse(pool_url))
        assert (sound.findings, len(sound.nodes)) == ((), 1)
    key = f"pool:{{{pool_name}:0}}:{of}"
    if of == "workers":
        key = Control(pool_name).map_data(WORKERS)
    with redis.Redis.from_url(redis_url) as client:
        client.delete(key)
        client.set(key, "somebody else's")
    status = await fetch(pool_name, Url.parse(pool_url))
    says = [each.says for each in status.findings if each.rule == "cannot-be-read"]
    assert says
    assert all("WRONGTYPE" in each for each in says)
    assert says[0].startswith("cannot be read: " + ("the map" if of == "workers" else key))


@pytest.mark.anyio
async def test_a_part_that_is_down_is_a_finding(
    pool_url: str, pool_name: str, tmp_path: Path
) -> None:
    """No node looks healthy over a dead part."""
    async with Node(pool_name, pool_url, settings=Settings(lease_ttl_s=1.0)) as node:
        assert node._wiring is not None
        supervisor = node._wiring._supervisor
        restarts = supervisor.restarts()
        supervisor.fell("sweeper", KeyError("k"), restarts)
        assert node.state == "troubled"
        with anyio.fail_after(WAIT_S):
            while True:
                status = await fetch(pool_name, Url.parse(pool_url))
                if status.findings:
                    break
        supervisor.rose("sweeper", restarts)
    [finding] = status.findings
    assert finding.rule == "parts-down"
    assert finding.where[0].startswith(node.id)


@pytest.mark.anyio
async def test_a_worker_whose_loop_hangs_is_a_finding(pool_url: str, pool_name: str) -> None:
    """It takes no jobs, and nobody else can help that."""
    handlers = Handlers()
    found: list[Finding] = []

    @handlers.job("any")
    async def any_job(job: Job) -> None: ...

    def look() -> None:
        until_s = time.monotonic() + WAIT_S
        while not found and time.monotonic() < until_s:
            status = anyio.run(fetch, pool_name, Url.parse(pool_url))
            found.extend(each for each in status.findings if each.rule == "loop-hangs")

    settings = Settings(lease_ttl_s=2.0)
    async with Node(pool_name, pool_url, handlers=handlers, settings=settings) as node:
        looking = threading.Thread(target=look)
        looking.start()
        looking.join()  # blocks the loop until that was seen
        [worker] = node.workers
    assert worker.id in found[0].where[0]
    assert str(os.getpid()) in found[0].command


# --- run ------------------------------------------------------------------------------------


async def nobody_works(client: Node) -> None:
    """Wait until its copy of the map says so: it hears of that by itself."""
    with anyio.fail_after(WAIT_S):
        while client.workers:  # noqa: ASYNC110 - nobody is told
            await anyio.sleep(0.01)


@pytest.mark.anyio
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_the_first_signal_drains(
    pool_url: str, pool_name: str, jobs: Path, anyio_backend: str, number: signal.Signals
) -> None:
    """What runs may end within the grace; the worker then leaves with exit code 0 (G-06)."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # it may be ignored here, and so there (nohup)
    words = ["--pool", pool_name, "--url", pool_url, "--loop", anyio_backend]
    async with Node(pool_name, pool_url, settings=Settings(lease_ttl_s=float(TTL))) as client:
        async with running(
            "run", "jobs:handlers", *words, "--lease-ttl-s", TTL, "--json", cwd=jobs
        ) as worker:
            await worker.event()
            ref = await client.dispatch("wait", "img-1", str(jobs / "go"))
            await ref.started(WAIT_S)
            worker.process.send_signal(number)
            draining = await worker.event()
            assert (draining["event"], draining["why"]) == ("draining", number.name)
            (jobs / "go").touch()
            assert await ref.result(WAIT_S) == 1
            assert (await worker.event())["event"] == "left"
            code, log = await worker.end()
        assert code == OK
        events = [json.loads(line)["event"] for line in log.splitlines()]
        busy = {
            "store.troubled",
            "store.recovered",
        }  # of a machine so busy that the server was late
        assert [event for event in events if event not in busy] == ["node.joined", "node.left"]
        await nobody_works(client)


@pytest.mark.anyio
async def test_a_job_that_tells_its_own_process_to_end_is_parked_after_so_many(
    pool_url: str, pool_name: str, jobs: Path, anyio_backend: str
) -> None:
    """Each process leaves in order, and its neighbour moves on unmarked."""
    words = ["--pool", pool_name, "--url", pool_url, "--loop", anyio_backend]
    async with Node(pool_name, pool_url, settings=Settings(lease_ttl_s=float(TTL))) as client:
        beside = await client.options(allow_unknown=True).dispatch("watch", "beside")
        ref = await client.options(allow_unknown=True).dispatch("ends", "k")
        for _ in range(client.settings.crashes_max + 1):
            assert (await ref.status()).state == "unassigned"
            async with running(
                "run", "jobs:handlers", *words, "--lease-ttl-s", TTL, cwd=jobs
            ) as worker:
                assert (await worker.end())[0] == OK
        status = await ref.status()
        assert (status.state, status.cause) == ("parked", "poison")
        assert "4 times" in status.error
        assert (await beside.status()).crashes == 0


@pytest.mark.anyio
async def test_the_grace_is_bounded_and_burns_no_attempt(
    pool_url: str, pool_name: str, jobs: Path, anyio_backend: str
) -> None:
    words = ["--pool", pool_name, "--url", pool_url, "--loop", anyio_backend]
    async with Node(pool_name, pool_url, settings=Settings(lease_ttl_s=float(TTL))) as client:
        async with running(
            "run", "jobs:handlers", *words, "--lease-ttl-s", TTL, "--grace-s", "0.1", cwd=jobs
        ) as worker:
            assert (await worker.line()).startswith("ready ")
            ref = await client.dispatch("wait", "img-1", str(jobs / "never"))
            await ref.started(WAIT_S)
            worker.process.terminate()
            assert (await worker.line()).startswith("draining ")
            assert (await worker.line()).startswith("left ")
            assert (await worker.end())[0] == OK
        status = await ref.status()
        assert (status.state, status.owner, status.attempt) == ("unassigned", "", 1)


CONFIGURED = """
import logging, structlog, sys
structlog.configure(
    processors=[lambda _, __, event: "mine " + event["event"]],
    logger_factory=structlog.WriteLoggerFactory(sys.stderr),
)
logging.basicConfig(format="other %(message)s", stream=sys.stderr, level="INFO")
"""
BEGINS = {
    "json": '{"',
    "console": "2",  # of the time
    "": "2",
}


@pytest.mark.anyio
@pytest.mark.parametrize("form", ["json", "console", ""])
@pytest.mark.parametrize("has_own", [False, True])
async def test_log_lines_are_in_the_form_that_was_asked_for_or_the_applications_own(
    pool_url: str, pool_name: str, tmp_path: Path, anyio_backend: str, form: str, has_own: bool
) -> None:
    (tmp_path / "logs.py").write_text(
        f"from pool import Handlers\n{CONFIGURED if has_own else 'import logging'}\n"
        "handlers = Handlers()\n"
        "@handlers.job('say')\n"
        "async def say(job):\n"
        "    logging.getLogger('theirs').info('said')\n"
    )
    words = ["--pool", pool_name, "--url", pool_url, "--loop", anyio_backend, "--lease-ttl-s", TTL]
    words += ["--log-format", form] if form else []
    settings = Settings(lease_ttl_s=float(TTL))
    async with (
        Node(pool_name, pool_url, settings=settings) as client,
        running("run", "logs:handlers", *words, cwd=tmp_path) as worker,
    ):
        assert (await worker.line()).startswith("ready ")
        await (await client.dispatch("say", "k")).result(WAIT_S)
        worker.process.send_signal(signal.SIGTERM)
        code, log = await worker.end()
    assert code == OK
    [joined, *_] = [line for line in log.splitlines() if "node.joined" in line]
    [said] = [line for line in log.splitlines() if "said" in line]
    if has_own:
        assert (joined, said) == ("mine node.joined", "other said")
    else:
        assert (joined[: len(BEGINS[form])], said[: len(BEGINS[form])]) == (BEGINS[form],) * 2


@pytest.mark.anyio
@pytest.mark.parametrize("wraps", [False, True])
async def test_ctrl_c_while_the_application_is_imported_is_no_traceback(
    tmp_path: Path, wraps: bool
) -> None:
    interrupted = "raise BaseExceptionGroup('', [KeyboardInterrupt()])" if wraps else "raise"
    (tmp_path / "slow.py").write_text(
        "import signal, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "print('importing', flush=True)\n"
        # In naps: a signal that comes just before a sleep begins is heard when that is over.
        "try:\n    while True:\n        time.sleep(0.01)\n"
        f"except KeyboardInterrupt:\n    {interrupted}\n"
    )
    words = ["run", "slow:handlers", "--pool", "p", "--url", "redis://127.0.0.1:1"]
    async with running(*words, cwd=tmp_path) as worker:
        assert await worker.line() == "importing"
        worker.process.send_signal(signal.SIGINT)
        assert await worker.end() == (128 + signal.SIGINT, "")


@pytest.mark.anyio
async def test_the_second_signal_ends_at_once(
    pool_url: str, pool_name: str, jobs: Path, anyio_backend: str
) -> None:
    words = ["--pool", pool_name, "--url", pool_url, "--loop", anyio_backend]
    async with (
        Node(pool_name, pool_url, settings=Settings(lease_ttl_s=float(TTL))) as client,
        running(
            "run",
            "jobs:handlers",
            *words,
            "--lease-ttl-s",
            TTL,
            "--grace-s",
            "600",
            "--json",
            cwd=jobs,
        ) as worker,
    ):
        await worker.event()
        ref = await client.dispatch("stay", "img-1")
        await ref.started(WAIT_S)
        worker.process.terminate()
        assert (await worker.event())["event"] == "draining"
        worker.process.terminate()
        assert (await worker.end())[0] == -signal.SIGTERM


@pytest.mark.anyio
async def test_a_worker_leaves_when_the_pool_is_shut_down(
    pool_url: str, pool_name: str, jobs: Path, anyio_backend: str
) -> None:
    words = ["--pool", pool_name, "--url", pool_url, "--loop", anyio_backend]
    async with (
        Node(pool_name, pool_url, settings=Settings(lease_ttl_s=float(TTL))) as client,
        running("run", "jobs:handlers", *words, "--lease-ttl-s", TTL, "--json", cwd=jobs) as worker,
    ):
        await worker.event()
        await client.shutdown_pool()
        assert (await worker.event())["why"] == "the pool is shut down"
        assert (await worker.event())["event"] == "left"
        assert (await worker.end())[0] == OK


# --- dev ------------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_dev_serves_until_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    async with running("dev", "--json", cwd=tmp_path) as dev:
        facts = await dev.event()
        with redis.Redis.from_url(facts["url"]) as client:
            assert client.ping()
        assert not facts["keeps_data"]
        dev.process.send_signal(number)
        assert await dev.end() == (OK, "")
    assert not await anyio.Path(facts["directory"]).exists()


@pytest.mark.anyio
async def test_dev_keeps_its_data_where_it_is_told(tmp_path: Path) -> None:
    port = closed_port()
    for found in (None, b"here"):
        async with running("dev", "--dir", "data", "--port", str(port), cwd=tmp_path) as dev:
            assert await dev.line() == f"redis://127.0.0.1:{port}"
            with redis.Redis(port=port) as client:
                assert client.get("k") == found
                client.set("k", "here")
            dev.process.terminate()
            assert (await dev.end())[0] == OK


def test_acl_prints_the_rules_of_a_pools_user_as_a_server_takes_them(
    redis_url: str, pool_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line that ACL SETUSER takes; with it a node works, as nearly all of these tests prove."""
    assert main(["acl", pool_name]) == OK
    words = capsys.readouterr().out.split()
    assert main(["acl", pool_name, "--json"]) == OK
    assert json.loads(capsys.readouterr().out)["rules"] == words
    with redis.Redis.from_url(redis_url) as client:
        client.execute_command("ACL", "SETUSER", f"{pool_name}-cli", *words)
        made: Any = client.acl_getuser(f"{pool_name}-cli")
    assert f"~pool:{{{pool_name}}}:*" in str(made["keys"])
    assert main(["acl", "no pool"]) == USAGE
    assert "no pool" in capsys.readouterr().err


def test_a_command_for_operators_names_the_rules_that_its_user_lacks(
    own_server: EmbeddedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rules of `pool acl NAME` are not those: this user has exactly them."""
    with redis.Redis.from_url(own_server.url) as client:
        words = ("ACL", "SETUSER", "ann", "reset", "on", ">right", *rules("shop"))
        client.execute_command(*words)

    async def found() -> None:
        async with Node("shop", own_server.url, observers=()):
            pass

    anyio.run(found)
    url = f"unix://ann:right@{own_server.url.removeprefix('unix://')}"
    for command in (["maps"], ["streams"], ["purge", "shop"]):
        assert main([*command, "--pool", "shop", "--url", url]) == UNREACHABLE
        assert "Hint: `pool acl NAME --operator`" in capsys.readouterr().err
