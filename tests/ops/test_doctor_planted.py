"""One pool with many troubles at once: each is found, and mended by doing what is advised.

Two real processes, one of them killed and one with a loop that hangs, so that nobody is left who
would mend anything by itself; and what only a hand or a defect can do to the data.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest
import redis

from pool import Handlers, Node
from pool.errors import JobParked, NotStopped
from pool.names import Names, lane_of
from pool.ops import doctor
from pool.ops.cli import main
from pool.testing.audit import audit
from tests.ops.commands import WAIT_S, running
from tests.ops.facts import BUSY

if TYPE_CHECKING:
    from pathlib import Path

TTL_S = 3.0
LANES = 2

JOBS = """
import pathlib
import time

import anyio
from pool import Handlers, Park, Retry

handlers, blocking = Handlers(), Handlers()
gate = pathlib.Path(__file__).parent / "gate"

@handlers.service("stay")
async def stay(job):
    await anyio.sleep_forever()

@handlers.job("fails", attempts_max=9)
async def fails(job):
    raise Retry(after_s=0.01 if job.attempt < 4 else 600)

@handlers.job("gives-up")
async def gives_up(job):
    raise Park("no such customer")

@handlers.job("stubborn", timeout_s=0.2, attempts_max=2)
async def stubborn(job):
    while not gate.exists():
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.05)

@blocking.job("blocks")
async def blocks(job):
    while not gate.exists():
        time.sleep(0.1)
"""


async def _said(*words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    capsys.readouterr()
    code = await anyio.to_thread.run_sync(main, list(words))
    said = capsys.readouterr()
    return code, said.out + said.err


class Operator:
    """Somebody who does what is advised, and nothing else."""

    def __init__(self, pool: str, url: str, redis_url: str, folder: Path, capsys: Any) -> None:
        self.where = ["--pool", pool, "--url", url]
        self.pool, self.url, self.redis_url = pool, url, redis_url
        self.folder, self.capsys = folder, capsys
        self.done: list[str] = []
        self.stop: set[str] = set()  # keys whose jobs are to be stopped
        self.wants_worker = False

    async def look(self) -> dict[str, list[dict[str, Any]]]:
        _, text = await _said("doctor", "--json", *self.where, capsys=self.capsys)
        by_rule: dict[str, list[dict[str, Any]]] = {}
        for each in json.loads(text)["findings"]:
            if each["severity"] != "note" and each["rule"] not in BUSY:
                by_rule.setdefault(each["rule"], []).append(each)
        return by_rule

    async def obey(self, finding: dict[str, Any]) -> None:
        rule, command = finding["rule"], shlex.split(finding["command"], comments=True)
        match command:
            case ["ssh", _, "kill", "-9", pid]:
                with suppress(ProcessLookupError):  # it was killed for what stood before this
                    os.kill(int(pid), signal.SIGKILL)
            case ["pool", "run", "MODULE"]:
                self.wants_worker = True
            case ["pool", "parked", "list"]:
                assert (await self._run(*command[1:]))[0] == 0
                assert (await self._run("parked", "discard", "--all", "--yes"))[0] == 0
            case ["pool", "why", key, *_]:
                assert (await self._run(*command[1:]))[0] == 0
                self.stop.add(key)
            case ["redis-cli", "TYPE", key] if rule == "cannot-be-read":
                with redis.Redis.from_url(self.redis_url) as client:
                    client.delete(key)
            case ["pool", *words]:
                await self._run(*words)
            case _:
                raise AssertionError(finding)

    async def _run(self, *words: str) -> tuple[int, str]:
        return await _said(*words, *self.where, capsys=self.capsys)


def _key(name: str, lane: int = 0) -> str:
    return next(key for n in range(1000) if lane_of(key := f"{name}-{n}", LANES) == lane)


async def _plant_jobs(node: Node, pids: list[int]) -> dict[str, str]:
    """Dispatch what will be in trouble; return the keys by what they are for."""
    keys = {
        name: _key(name)
        for name in (
            *("stays", "fails", "parked", "stubborn", "stopping", "inbox", "blocks", "late"),
            *("typo", "left", "queued", "lost", "due"),
        )
    }
    for name in ("stays", "inbox", "queued"):
        await (await node.dispatch("stay", keys[name])).started(WAIT_S)
    for _ in range(doctor.INBOX):
        await node.notify(keys["inbox"], "hello")
    await node.options(if_exists="queue").dispatch("stay", keys["queued"])
    with pytest.raises(JobParked):
        await (await node.dispatch("gives-up", keys["parked"])).result(WAIT_S)
    for name in ("stubborn", "stopping"):
        await (await node.dispatch("stubborn", keys[name])).started(WAIT_S)
    with pytest.raises(NotStopped):
        await node.stop(keys["stopping"], timeout_s=1.0)
    failing = await node.dispatch("fails", keys["fails"])
    with anyio.fail_after(WAIT_S):
        while (await failing.status()).attempt < 5:  # noqa: ASYNC110 - nobody is told
            await anyio.sleep(0.02)
    await node.options(allow_unknown=True).dispatch("typo", keys["typo"])
    await node.dispatch("left", keys["left"])
    for name in ("lost", "due"):
        await node.options(delay_s=600.0).dispatch("stay", keys[name])
    await (await node.dispatch("blocks", keys["blocks"])).started(WAIT_S)
    os.kill(pids[0], signal.SIGSTOP)  # what it is given now it does not acknowledge
    await node.dispatch("stay", keys["late"])
    return keys


def _plant_data(client: redis.Redis, pool: str, keys: dict[str, str]) -> None:
    """Do to the data what a hand does, or a defect."""
    n = Names(pool, 0)
    client.zrem(n.due, f"k:{keys['lost']}")
    client.zadd(n.due, {f"k:{keys['due']}": 1000.0, "o:1": 1000.0, "b:ghost": 1000.0})
    client.hset(Names(pool, lane_of("spoilt", LANES)).jobs, "spoilt", "no record")
    client.hset(Names(pool, 1).lane, "ttl", "9000")
    client.set(n.unassigned("other"), "somebody else's")


@pytest.mark.anyio
@pytest.mark.one_server
async def test_all_of_it_is_found_and_mended_by_following_the_advice(
    pool_url: str,
    redis_url: str,
    pool_name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "QUEUED_S", 0.0)
    (tmp_path / "jobs.py").write_text(JOBS)
    others = Handlers()
    others.job("left")(lambda _: None)
    others.job("other")(lambda _: None)
    operator = Operator(pool_name, pool_url, redis_url, tmp_path, capsys)
    words = [*operator.where, "--json"]
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        made = ["--lanes", str(LANES), "--lease-ttl-s", str(TTL_S), *words]
        dies = await enter(running("run", "jobs:handlers", *made, cwd=tmp_path, wait_s=180))
        report = ["--on-overrun", "report", *made]
        hangs = await enter(running("run", "jobs:blocking", *report, cwd=tmp_path, wait_s=180))
        for each in (dies, hangs):
            await each.event()
        async with Node(pool_name, pool_url, observers=()) as node:
            async with Node(pool_name, pool_url, handlers=others, observers=()):
                pass
            keys = await _plant_jobs(node, [dies.process.pid])
        dies.process.kill()
        with redis.Redis.from_url(redis_url) as client:
            _plant_data(client, pool_name, keys)

        wanted: dict[str, set[str]] = {
            "dead-not-reaped": set(),
            "start-at-dead": {keys["late"]},
            "loop-hangs": set(),
            "no-worker": {keys["left"]},
            "no-such-handler": {keys["typo"]},
            "failing": {keys["fails"]},
            "too-long": {keys["stubborn"]},
            "stopping": {keys["stopping"]},
            "queued-long": {keys["queued"]},
            "inbox": {keys["inbox"]},
            "parked": {keys["parked"]},
            "astray": {keys["lost"]},
            "due-late": {keys["due"]},
            "not-carried": set(),
            "batch-late": {"ghost"},
            "unreadable-records": {"spoilt"},
            "cannot-be-read": set(),
            "ttl-apart": set(),
        }
        with anyio.fail_after(WAIT_S):
            while wanted.keys() - (found := await operator.look()).keys():  # noqa: ASYNC110
                await anyio.sleep(0.2)
        for rule, named in wanted.items():
            assert named <= {key for each in found[rule] for key in each["keys"]}, found[rule]
            assert all(each["advice"] and each["command"] for each in found[rule]), found[rule]
        assert str(hangs.process.pid) in found["loop-hangs"][0]["where"][0]
        assert str(dies.process.pid) in str(found["dead-not-reaped"][0]["where"])

        mended: Any = None
        until_s = anyio.current_time() + WAIT_S
        while found := await operator.look():  # the lease of who was killed ends some time
            assert anyio.current_time() < until_s, found
            by_command = {
                x["command"] or x["rule"]: x for findings in found.values() for x in findings
            }
            operator.done += found
            for finding in by_command.values():
                await operator.obey(finding)
            if operator.wants_worker and mended is None:
                (tmp_path / "more.py").write_text(MORE)
                (tmp_path / "gate").touch()  # the handler that did not end is mended, too
                modules = ["jobs:handlers", "jobs:blocking", "more:handlers"]
                mended = await enter(running("run", *modules, *words, cwd=tmp_path, wait_s=180))
                await mended.event()
            await _stop(operator)
            await anyio.sleep(0.2)
        assert wanted.keys() <= {*operator.done, "start-at-dead", "stopping", "too-long"}
        with redis.Redis.from_url(redis_url) as client:
            assert audit(client, pool_name) == []
        mended.process.terminate()
        await mended.end()


MORE = """
from pool import Handlers

handlers = Handlers()
for name in ("left", "typo"):
    @handlers.job(name)
    async def quick(job):
        return None
"""


async def _stop(operator: Operator) -> None:
    if not operator.stop:
        return
    async with Node(operator.pool, operator.url, observers=()) as node:
        for key in operator.stop:
            await node.stop_all(prefix=key, timeout_s=20)
    operator.stop.clear()
