"""`pool plans`: what a plan is, what it would do, and what it may."""

from __future__ import annotations

import json
from typing import Any

import anyio
import anyio.to_thread
import pytest

from pool import Handlers, Job, Node
from pool.ops.cli import FINDING, OK, USAGE, main
from pool.ops.cli.shapes import SHAPES, faults
from pool.plans import PlanRef


@pytest.mark.anyio
async def test_a_plan_is_looked_at_tried_and_confirmed(
    pool_url: str,
    pool_name: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handlers, wanted = Handlers(), list("abc")

    @handlers.service("follow")
    async def follow(job: Job) -> None:
        await anyio.sleep_forever()

    @handlers.plan("feeds", follow, every_s=3600)
    async def feeds(_: Job) -> list[str]:
        return list(wanted)

    where = ["--pool", pool_name, "--url", pool_url]

    async def said(*words: str, code: int = OK) -> str:
        capsys.readouterr()
        assert await anyio.to_thread.run_sync(main, ["plans", *words, *where]) == code
        return capsys.readouterr().out

    async def told(*words: str, code: int = OK) -> Any:
        found = json.loads(await said(*words, "--json", code=code))
        assert list(faults(found, SHAPES[f"plans {words[0]}"])) == []
        return found

    async with Node(pool_name, pool_url, handlers=handlers, observers=()) as node:
        with anyio.fail_after(60):
            while "feeds" not in await node.plans():  # noqa: ASYNC110 - it comes by itself
                await anyio.sleep(0.01)
        last = (await told("apply", "feeds"))["plan"]["last"]
        assert (last["wanted"], last["kept"] + last["started"]) == (3, 3)
        assert [each["plan"] for each in (await told("list"))["plans"]] == ["feeds"]
        assert "feeds  version 1  running  kept by w" in await said("list")
        await node.dispatch(follow, "other")
        del wanted[1:]
        wanted.extend(("new", "other"))
        text = await said("diff", "feeds", code=FINDING)
        assert text.splitlines()[0] == "3 wanted, 1 kept"
        assert "stop 2: 'b', 'c'" in text or "stop 2: 'c', 'b'" in text
        assert "start 1: 'new'" in text
        assert "! 1 keys have jobs of others: 'other'" in text
        assert "! held: it would stop 2" in await said("apply", "feeds", code=FINDING)
        shown = await said("show", "feeds", code=FINDING)
        token = (await told("show", "feeds", code=FINDING))["plan"]["last"]["token"]
        assert f"pool plans confirm feeds --token {token}" in shown
        done = (await told("confirm", "feeds", "--token", token))["plan"]["last"]
        assert (done["stopped"], done["started"], done["held"]) == (2, 1, 0)
        wanted.clear()
        assert (await told("apply", "feeds", code=FINDING))["ok"] is False
        assert (await told("confirm", "feeds", "--anything"))["plan"]["last"]["stopped"] == 2
        assert (await told("diff", "feeds"))["diff"]["kept"] == 0
        assert await said("show", "nothing", code=FINDING) == ""
        for wrong in ([], ["--token", "t", "--anything"], ["--token", ""]):
            capsys.readouterr()
            words = ["plans", "confirm", "feeds", *wrong, *where]
            assert await anyio.to_thread.run_sync(main, words) == USAGE
            assert "give --token, as `pool plans show` tells it, or --anything" in (
                capsys.readouterr().err
            )
        assert (await said("list")).splitlines()[0] == "1 plan"
        wanted[:] = ["a", "b", "c", "d"]
        await told("apply", "feeds")
        wanted[:] = ["a"]
        assert (
            "! old is not the token of what it would stop now: nothing was stopped"
            in await said("confirm", "feeds", "--token", "old", code=FINDING)
        )
        monkeypatch.setattr(PlanRef, "confirm", lambda plan, _, timeout_s: plan.apply(timeout_s))
        anew = "! it has begun anew meanwhile, so this is what another one would stop: nothing was"
        assert anew in await said("confirm", "feeds", "--anything", code=FINDING)


@pytest.mark.anyio
async def test_what_has_not_come_in_time_is_one_line_and_an_object(
    pool_url: str, pool_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of every verb that waits, and has no state of its own for that."""
    handlers, begun = Handlers(), anyio.Event()

    @handlers.plan("feeds", every_s=3600)
    async def feeds(_: Job) -> list[str]:
        begun.set()
        await anyio.sleep_forever()
        return []

    @handlers.service("deaf")
    async def deaf(job: Job) -> None:
        await job.save(None)  # so that its start is acknowledged, too
        deafened.set()
        with anyio.CancelScope(shield=True):
            await ended.wait()

    deafened, ended = anyio.Event(), anyio.Event()
    where = ["--pool", pool_name, "--url", pool_url, "--timeout", "0.1"]
    async with Node(pool_name, pool_url, handlers=handlers, observers=()) as node:
        try:
            await node.dispatch(deaf, "k")
            with anyio.fail_after(60):
                await begun.wait()
                await deafened.wait()
            for words, code in (
                (("plans", "apply", "feeds"), "POOLNOTINTIME"),
                (("plans", "confirm", "feeds", "--anything"), "POOLNOTINTIME"),
                (("plans", "diff", "feeds"), "POOLNOTINTIME"),
                (("stop", "k"), "POOLNOTSTOPPED"),
            ):
                capsys.readouterr()
                assert await anyio.to_thread.run_sync(main, [*words, *where, "--json"]) == FINDING
                told = capsys.readouterr()
                assert json.loads(told.out)["ok"] is False
                assert json.loads(told.out)["error"]["code"] == code
                assert told.err.startswith(f"pool: [{code}]")
                assert len(told.err.splitlines()) == 1
        finally:
            ended.set()
