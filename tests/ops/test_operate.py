"""`pool pause`, `resume`, `cordon`, `uncordon`, `drain`: from a shell, while nodes run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import anyio
import anyio.to_thread
import pytest

from pool import Handlers, Job, Node
from pool.core.lifecycle import State
from pool.ops.cli import FINDING, OK, USAGE, main
from pool.ops.cli.parser import _STANDINGS, _STATES
from pool.ops.keyfacts import Standing
from tests.ops.commands import running

pytestmark = pytest.mark.anyio


async def test_operators_pause_close_and_drain_from_the_command_line(
    pool_url: str, pool_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    handlers = Handlers()

    @handlers.job("work")
    async def work(job: Job) -> str:
        return job.key

    where = ["--pool", pool_name, "--url", pool_url]

    async def said(*words: str, code: int = OK) -> str:
        capsys.readouterr()
        assert await anyio.to_thread.run_sync(main, [*words, *where]) == code
        out, err = capsys.readouterr()
        return out + err

    async def told(*words: str, code: int = OK) -> Any:
        return json.loads(await said(*words, "--json", code=code))

    async with (
        Node(pool_name, pool_url, handlers=handlers, observers=()) as node,
        Node(pool_name, pool_url, observers=()) as client,
    ):
        assert "jobs that have not begun: add --yes" in await said("pause", code=USAGE)
        assert await client.pauses() == ()
        text = await said("pause", "--yes", "--reason", "a test")
        assert text == "the whole pool is paused in 1 of 1 lanes\n"
        ref = await client.dispatch("work", "a key")
        status = await told("status", code=FINDING)
        assert [each["reason"] for each in status["paused"]] == ["a test"]
        assert "paused    the whole pool, by " in await said("status", code=FINDING)
        why = await told("why", "a key", code=OK)
        assert (why["case"], why["next"]) == ("paused", "pool resume")
        found = await told("doctor", code=FINDING)
        rules = {each["rule"]: each for each in found["findings"]}
        assert rules["paused"]["command"] == "pool resume"
        assert rules["paused"]["count"] == 1
        assert "half-paused" not in rules
        assert (await told("resume"))["ok"]
        assert await ref.result(timeout_s=30.0) == "a key"
        assert (await told("pause", "--key", "a key"))["pause"]["key"] == "a key"
        assert "not changed" not in await said("pause", "--handler", "work", "--reason", "\udcc3")
        text = await said("resume", "--key", "a key")
        assert text.splitlines() == [
            "key a key is resumed in 1 of 1 lanes",
            "handler work stays paused: run pool resume --handler work",
        ]
        others = (await told("resume", "--key", "a key"))["others"]
        assert [each["handler"] for each in others] == ["work"]
        text = await said("resume", "--handler", "work")
        assert text == "handler work is resumed in 1 of 1 lanes\n"
        await said("pause", "--key", "k", "--handler", "work", code=USAGE)
        cordoned = await told("cordon", node.id, "--reason", "a look")
        assert cordoned["cordon"]["reason"] == "a look"
        assert f"cordoned  {node.id}, by " in await said("status")
        assert " cordoned " in await said("workers")
        again = await said("cordon", node.id, "--reason", "another look")
        assert "the reason was not changed: " in again
        assert again.endswith(" had given a look\n")
        assert "not changed" not in await said("cordon", node.id, "--reason", "a look")
        for who in ("nodes", "workers"):
            [row] = (await told(who, "--standing", "cordoned"))[who]
            assert node.id in (row["id"], row.get("node"))
        assert "takes jobs: 1 workers" in await said("uncordon", node.id)
        await said("cordon", "n0x0", code=FINDING)
        await said("cordon", node.id, "--timeout", "nan", code=USAGE)
        assert "drains: 1 workers have heard it" in await said("drain", node.id)
        with anyio.fail_after(30.0):
            await node.wait_drained()
        assert node.state == "drained"


async def test_a_worker_of_pool_run_ends_when_it_is_drained_from_afar(
    pool_url: str, pool_name: str, tmp_path: Path
) -> None:
    """As for SIGTERM: what it runs is given up in order, and its exit code is that of an end in
    peace; of the whole pool nothing is said."""
    text = "from pool import Handlers\nhandlers = Handlers()\n@handlers.job('work')\n"
    (tmp_path / "shop.py").write_text(f"{text}async def work(job):\n    return job.key\n", "utf-8")
    where = ["--pool", pool_name, "--url", pool_url]
    async with running("run", "shop", "--json", *where, cwd=tmp_path) as worker:
        ready = await worker.until("ready")
        async with Node(pool_name, pool_url, observers=()) as client:
            assert await (await client.dispatch("work", "k")).result(timeout_s=30.0) == "k"
            assert (await client.drain_member(ready["node"], timeout_s=30.0)).is_complete
        assert (await worker.until("draining"))["why"] == "an operator has it drain"
        await worker.until("left")
        code, log = await worker.end()
        assert code == OK, log


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["pause", "quick"], "say what: --handler NAME or --key KEY"),
        (["pause", "--handler", "a", "--handler", "b"], "one at a time"),
        (["resume", "--key", "a", "--key", "b"], "one at a time"),
        (["cordon", "n1", "n2"], "one node or worker at a time"),
        (["resume", "--yes"], "`resume` has no such option"),
        (["nodes", "--standing", "foo"], "choose from live, closed"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_says_how_it_is_said(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--pool", "p", "--url", "unix:///nowhere"]) == USAGE
    assert told in capsys.readouterr().err.replace("'", "")


def test_who_may_be_looked_for_by_standing_is_whoever_can_stand_so() -> None:
    assert set(_STANDINGS) == set(get_args(Standing))


def test_jobs_may_be_looked_for_by_each_state_that_they_can_have() -> None:
    assert set(_STATES) == set(get_args(State))
