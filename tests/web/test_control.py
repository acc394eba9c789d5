"""The control plane, on both event loops: each call does what the node's own does."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import attrs
import pytest

from pool import Handlers, Job
from pool.errors import WrongProtocol
from pool.ops.web.audit import fitted
from pool.ops.web.routes import ROUTES
from pool.redis.commands.member import PROTOCOL
from pool.testing.proxy import fault_proxy
from pool.version import __version__
from pool.web import Keyring, WebOptions
from tests.impatient import hurry
from tests.nodes import PATIENCE_S, Fleet
from tests.web.gateways import KEYRING, SECRETS, Gate, events_of, path, serving

pytestmark = pytest.mark.anyio
HARD = ("a/b c", "ключ/1", "50%25", "q?x#y&z=1", "..a", "'\"<>", "\U0001f600")


async def until(gate: Gate, path_: str, is_so: Any) -> Any:
    """Ask again until it is so."""
    with anyio.fail_after(PATIENCE_S):
        while True:
            answer = await gate.client.get(path_)
            if answer.status_code == 200 and is_so(told := answer.json()):
                return told
            await anyio.sleep(0.02)


async def test_a_job_is_dispatched_waited_for_and_told_with_its_result(fleet: Fleet) -> None:
    async with serving(fleet) as gate:
        for key in HARD:
            made = await gate.post(
                "/v1/jobs", {"handler": "echo", "key": key, "args": [{"n": key}]}, status=201
            )
            told = await gate.result(key, made["job_id"])
            assert (told["state"], told["result"], told["has_result"]) == ("done", {"n": key}, True)
            assert told["key"] == key
        body = {"handler": "echo", "key": "bytes", "args": ["AAH/"], "encoding": "base64"}
        made = await gate.post("/v1/jobs", body, status=201)
        told = await gate.result("bytes", made["job_id"])
        assert (told["result"], told["encoding"]) == ("AAH/", "base64")


@attrs.frozen
class Reversed:
    """A codec that the gateway does not have."""

    name: str = "reversed"

    def encode(self, value: Any) -> bytes:
        return json.dumps(value).encode()[::-1]

    def decode(self, data: bytes) -> Any:
        return json.loads(data[::-1])


async def test_a_result_of_a_codec_that_is_not_here_is_told_as_such(fleet: Fleet) -> None:
    more, options = Handlers(), {"retention_s": 600}
    for name, codec in (("sealed", Reversed()), ("packed", "msgspec")):

        @more.job(name, codec=codec, **options)  # type: ignore[arg-type]
        async def answers(job: Job) -> list[int]:
            return [7]

    worker = await fleet.node(more)
    async with serving(fleet) as gate:
        ref = await worker.dispatch("sealed", "k")
        told = await gate.result("k", ref.job_id)
        assert (told["state"], told["has_result"]) == ("done", False)
        assert "made by the codec 'reversed'" in told["result_problem"]
        assert told == await gate.get(f"/v1/jobs/k/{ref.job_id}")
        ref = await worker.dispatch("packed", "k")
        told = await gate.result("k", ref.job_id)
        assert (told["result"], told["has_result"], told["result_problem"]) == ([7], True, "")


async def test_a_repeat_is_known_by_its_header_or_by_what_the_body_says(fleet: Fleet) -> None:
    async with serving(fleet) as gate:
        body = {"handler": "echo", "key": "k", "args": [1]}
        headers = {"Idempotency-Key": "order-1"}
        first = await gate.post("/v1/jobs", body, headers=headers)
        assert await gate.post("/v1/jobs", body, headers=headers) == first
        await gate.result("k", first["job_id"])
        assert await gate.post("/v1/jobs", body, headers=headers) == first  # also when it has ended
        other = await gate.post("/v1/jobs", {**body, "args": [2]}, headers=headers, status=409)
        assert other["code"] == "POOLCONFLICT"
        same = {**body, "idempotency_key": "order-1"}
        assert await gate.post("/v1/jobs", same, headers=headers) == first
        for more in ({"job_id": "mine"}, {"idempotency_key": "order-2"}):
            for sent in ({**body, **more}, {"jobs": [body, {**body, **more}]}):
                told = await gate.post("/v1/jobs", sent, headers=headers, status=400)
                assert (told["code"], told["facts"]["header"]) == ("WEBREQUEST", "Idempotency-Key")
                assert told["facts"]["at"].endswith(f".{next(iter(more))}")
        for wrong in ("", "a" * 257):
            named = {"Idempotency-Key": wrong}
            told = await gate.post("/v1/jobs", body, headers=named, status=400)
            assert told["facts"]["header"] == "Idempotency-Key"
        long = {"Idempotency-Key": "a" * 255}  # good, but not with a number behind it
        await gate.post("/v1/jobs", {"jobs": [body, body]}, headers=long, status=400)
        both = {**body, "job_id": "a", "idempotency_key": "b"}
        assert (await gate.post("/v1/jobs", both, status=400))["code"] == "POOLOPTION"


async def test_many_jobs_are_each_accepted_or_refused(fleet: Fleet) -> None:
    async with serving(fleet) as gate:
        jobs = [{"handler": "echo", "key": f"k{i}", "args": [i]} for i in range(20)]
        jobs[3] = {"handler": "nobody", "key": "k3"}
        jobs[7] = {"handler": "echo", "key": "plan:x"}
        jobs[9] = {"handler": "echo", "key": "k9", "args": [9], "then": [jobs[2]]}
        headers = {"Idempotency-Key": "all"}
        told = await gate.post("/v1/jobs", {"jobs": jobs}, headers=headers, status=200)
        assert told["accepted"] == 18
        assert [each["key"] for each in told["jobs"]] == [each["key"] for each in jobs]
        assert told["jobs"][3]["problem"]["code"] == "POOLUNKNOWN"
        assert told["jobs"][7]["problem"]["code"] == "POOLKEY"
        assert await gate.post("/v1/jobs", {"jobs": jobs}, headers=headers) == told
        for i in (0, 9, 19):
            assert (await gate.result(f"k{i}", told["jobs"][i]["job_id"]))["result"] == i


async def test_a_part_of_a_list_may_be_sent_again_in_any_order(fleet: Fleet) -> None:
    """Or who repeats what he has no answer of gets some of them twice."""
    async with serving(fleet) as gate:
        a, b, c = ({"handler": "echo", "key": key, "args": [key]} for key in "abc")
        for each in (a, b, c):
            each |= {"if_exists": "queue"}
        second = {**a, "args": ["second"]}
        headers = {"Idempotency-Key": "these"}

        async def sent(*jobs: Any) -> list[Any]:
            told = await gate.post("/v1/jobs", {"jobs": jobs}, headers=headers, status=200)
            return [each["job_id"] for each in told["jobs"]]

        ids = await sent(a, b, second, c)
        assert len({*zip("abac", ids, strict=True)}) == 4
        assert await sent(c, a, b, second) == [ids[3], ids[0], ids[1], ids[2]]
        assert await sent(b) == [ids[1]]
        assert (await gate.post("/v1/jobs", c, headers=headers))["job_id"] == ids[3]
        told = await gate.post("/v1/jobs", {"jobs": [second]}, headers=headers, status=200)
        assert told["jobs"][0]["problem"]["code"] == "POOLCONFLICT"  # the first of its key
        for like in ("these.1", "these1", "these 1"):  # nobody else's header is known by it
            named = {"Idempotency-Key": like}
            assert (await gate.post("/v1/jobs", second, headers=named))["job_id"] not in ids
        assert (await gate.result("a", ids[2]))["result"] == "second"


async def test_a_time_to_run_at_is_the_servers_and_requeue_has_it_begin(fleet: Fleet) -> None:
    async with serving(fleet) as gate:
        at = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        body = {"handler": "echo", "key": "later", "args": [1], "run_at": at}
        made = await gate.post("/v1/jobs", body)
        told = await gate.get("/v1/jobs/later")
        assert told["state"] == "waiting"
        due = datetime.fromtimestamp(told["waits_until_ms"] / 1000, UTC)
        assert abs(due - datetime.fromisoformat(at)) < timedelta(minutes=5)
        assert (await gate.get("/v1/why/later"))["state"] == "waiting"
        [row] = (await gate.get("/v1/jobs", params={"state": "waiting"}))["jobs"]
        assert row["job_id"] == made["job_id"]
        assert (await gate.post("/v1/jobs/later/requeue"))["done"] == 1
        assert (await gate.result("later", made["job_id"]))["result"] == 1
        again = await gate.post(f"/v1/jobs/later/{made['job_id']}/requeue", status=409)
        assert (again["code"], again["facts"]["state"]) == ("POOLNOTWAITING", "done")
        far = {**body, "run_at": "9999-01-01T00:00:00Z"}
        assert (await gate.post("/v1/jobs", far, status=400))["facts"]["option"] == "run_at"
        twice = {**body, "delay_s": 5}
        assert (await gate.post("/v1/jobs", twice, status=400))["facts"]["option"] == "run_at"


async def test_a_service_is_told_and_stopped(fleet: Fleet) -> None:
    async with serving(fleet) as gate:
        for i, verb in enumerate(("notify", "stop")):
            made = await gate.post("/v1/jobs", {"handler": "listen", "key": "s"})
            await until(gate, "/v1/jobs/s", lambda told: told["state"] == "running")
            assert (await gate.get("/v1/jobs/s", params={"wait_s": 0.01}))["is_ended"] is False
            if verb == "notify":
                await gate.post("/v1/jobs/s/notify", {"value": {"n": i}}, status=202)
                assert (await gate.result("s", made["job_id"]))["result"] == {"n": 0}
            else:
                told = await gate.post("/v1/jobs/s/stop", {"cause": "enough", "wait_s": 30})
                assert told == {"key": "s", "job_id": made["job_id"], "is_ended": True}
                told = await gate.result("s", made["job_id"])
                assert (told["state"], told["cause"]) == ("cancelled", "enough")
        for verb in ("notify", "stop"):
            body = {"value": 1} if verb == "notify" else {}
            told = await gate.post(f"/v1/jobs/s/{verb}", body, status=404)
            assert told["code"] == "POOLNOJOB"
        assert (await gate.get("/v1/jobs/none/at-all", status=404))["code"] == "POOLNOJOB"


async def test_a_dead_letter_is_shown_edited_replayed_and_discarded(fleet: Fleet) -> None:
    async with serving(fleet) as gate:
        for key in ("a/1", "b"):
            made = await gate.post("/v1/jobs", {"handler": "fail", "key": key})
            told = await gate.result(key, made["job_id"])
            assert (told["state"], told["cause"]) == ("parked", "failed")
            at = f"/v1/parked/{path(key)}/{made['job_id']}"
            letter = await gate.get(at)
            assert letter["args"] == []
            assert letter["history"][0]["type"] == "ValueError"
            if key == "b":
                await gate.ask("DELETE", at)
                assert (await gate.get(at, status=404))["code"] == "POOLNOLETTER"
                continue
            await gate.ask("PUT", at, {"args": ["other"]})
            await gate.ask("PUT", at, {})  # what is left out is not kept
            assert (await gate.get(at))["args"] == []
            await gate.ask("PUT", at, {"args": ["better"]})
            [job] = (await gate.get("/v1/parked", params={"prefix": "a/"}))["jobs"]
            assert job["is_edited"]
            anew = await gate.post(f"{at}/replay", status=201)
            assert await gate.post(f"{at}/replay") == anew
            assert anew["handler"] == "fail"
            assert (await gate.result(key, anew["job_id"]))["result"] == "mended"
        assert (await gate.get("/v1/parked"))["jobs"] == []


BYTES_AND_NOT: list[dict[str, Any]] = [
    {"args": ["AAH/"], "encoding": "base64"},
    {"args": ["AAH/"], "encoding": "json"},
    {"args": [{"base64": "AAH/"}], "encoding": "json"},
]


@pytest.mark.parametrize("call", BYTES_AND_NOT)
async def test_what_is_told_of_a_call_can_be_sent_as_it_is(
    fleet: Fleet, call: dict[str, Any]
) -> None:
    """Bytes are told apart from the object that would look like them."""
    async with serving(fleet) as gate:
        made = await gate.post("/v1/jobs", {"handler": "fail", "key": "k"})
        await gate.result("k", made["job_id"])
        at = f"/v1/parked/k/{made['job_id']}"
        await gate.ask("PUT", at, call)
        [before] = fleet.client.hvals(fleet.names.letters)
        told = await gate.get(at)
        assert {name: told[name] for name in call} == call
        await gate.ask("PUT", at, {name: told[name] for name in (*call, "kwargs")})
        assert fleet.client.hvals(fleet.names.letters) == [before]
        body = {"handler": "echo", "key": "s", "every_s": 3600.0, **call}
        kept = await gate.ask("PUT", "/v1/schedules/s", body)
        for told in (kept, await gate.get("/v1/schedules/s")):
            assert {name: told[name] for name in call} == call
        [listed] = (await gate.get("/v1/schedules"))["schedules"]
        assert {name: listed[name] for name in call} == call


async def test_a_batch_is_made_once_waited_for_and_cancelled(fleet: Fleet) -> None:
    async with serving(fleet) as gate:
        jobs = [{"handler": "echo", "key": f"m{i}", "args": [i]} for i in range(5)]
        jobs += [{"handler": "fail", "key": "f"}]
        body = {"id": "b1", "jobs": jobs, "success_min": 5}
        made = await gate.post("/v1/batches", body, status=201)
        assert (made["added"], made["refused"]) == (6, [])
        assert (await gate.post("/v1/batches", body))["id"] == "b1"  # its answer may have been lost
        told = await gate.get("/v1/batches/b1", params={"wait_s": 30})
        assert (told["state"], told["succeeded"], told["failed"]) == ("done", 5, 1)
        lacks = {"id": "b0", "jobs": [{"handler": "no-such", "key": "n"}]}
        [refused] = (await gate.post("/v1/batches", lacks, status=201))["refused"]
        assert (refused["key"], refused["problem"]["code"]) == ("n", "POOLUNKNOWN")
        again = await gate.post("/v1/batches", lacks, status=201)
        assert (again["added"], again["refused"]) == (1, [])  # the page says so
        assert (await gate.get("/v1/batches/b0"))["missing"] == 1
        differs = {**body, "jobs": [{"handler": "echo", "key": "other"}]}
        assert (await gate.post("/v1/batches", differs, status=409))["code"] in {
            "POOLBATCH",
            "POOLSEALED",
        }
        waits = {"handler": "listen", "key": "w"}
        await gate.post("/v1/batches", {"id": "b2", "jobs": [waits]})
        await gate.post("/v1/batches/b2/cancel", {"cause": "enough"}, status=202)
        told = await gate.get("/v1/batches/b2", params={"wait_s": 30})
        assert (told["state"], told["cancelled"]) == ("cancelled", 1)
        names = {each["id"] for each in (await gate.get("/v1/batches"))["batches"]}
        assert names == {"b0", "b1", "b2"}
        assert (await gate.get("/v1/batches/none", status=404))["code"] == "POOLNOBATCH"


async def test_a_schedule_is_made_shown_paused_triggered_and_removed(fleet: Fleet) -> None:
    async with serving(fleet) as gate:
        at = "/v1/schedules/nightly"
        body = {"handler": "echo", "key": "n", "args": [7], "cron": "0 3 * * *", "tz": "UTC"}
        made = await gate.ask("PUT", at, body)
        assert made["when"]["cron"] == "0 3 * * *"
        assert made["args"] == [7]
        told = await gate.get(at, params={"next": 3})
        assert len(told["next_times"]) == 3
        await gate.post(f"{at}/pause")
        told = await gate.get(at)
        assert (told["is_paused"], told["next_times"]) == (True, [])
        await gate.post(f"{at}/resume")
        once = {"Idempotency-Key": "today"}
        job = await gate.post(f"{at}/trigger", headers=once, status=201)
        assert await gate.post(f"{at}/trigger", headers=once) == job
        assert (await gate.result("n", job["job_id"]))["result"] == 7
        assert await gate.post(f"{at}/trigger", headers=once) == job  # also when it has ended
        assert await gate.post(f"{at}/trigger") != job
        [each] = (await gate.get("/v1/schedules", params={"prefix": "night"}))["schedules"]
        assert each["name"] == "nightly"
        job_of = {"handler": "echo", "key": "n"}
        soon = "2099-01-01T00:00:00Z"
        for wrong, option in (
            ({**body, "cron": "never"}, "cron"),
            ({**body, "every_s": 5}, "every_s"),
            ({**body, "tz": "Mars/One"}, "tz"),
            (job_of, "cron"),
            ({**body, "start": soon}, "start"),
            ({**job_of, "every_s": 60, "tz": "UTC"}, "tz"),
            ({**job_of, "at": soon, "tz": "UTC"}, "tz"),
            ({**job_of, "at": soon, "start": soon}, "start"),
            ({**job_of, "at": soon, "jitter_s": 0}, "jitter_s"),
            ({**job_of, "at": soon, "misfire": "once"}, "misfire"),
        ):
            told = await gate.ask("PUT", at, wrong, status=400)
            assert (told["code"], told["facts"]["option"]) == ("POOLOPTION", option)
        for wrong, option, value in (
            ({**job_of, "at": "2020-01-01T00:00:00Z"}, "at", "2020-01-01T00:00:00+00:00"),
            ({**job_of, "at": "9999-01-01T00:00:00Z"}, "at", "9999-01-01T00:00:00+00:00"),
            ({**job_of, "every_s": 5, "start": "9000-01-01T00:00:00Z"}, "start", "9000-01-01T00:"),
        ):
            told = await gate.ask("PUT", at, wrong, status=400)
            assert told["facts"]["option"] == option
            assert told["facts"]["value"].startswith(value)
            assert "not not" not in told["detail"]
        for good in (
            {**job_of, "every_s": 60, "start": soon, "jitter_s": 1, "misfire": "skip"},
            {**job_of, "every_s": 60, "start": None, "misfire_window_s": 5},
            {**job_of, "at": soon, "misfire_window_s": 5},
        ):
            assert (await gate.ask("PUT", at, good))["when"]
        await gate.ask("DELETE", at)
        assert (await gate.get(at, status=404))["code"] == "POOLNOSCHEDULE"


async def test_a_pool_is_paused_and_a_node_drained_in_the_name_of_who_asked(fleet: Fleet) -> None:
    options = WebOptions(keyring=KEYRING)
    async with serving(fleet, options, SECRETS["admin"]) as gate:
        told = await gate.post("/v1/pause", {"handler": "echo", "reason": "look"})
        assert (told["pause"]["handler"], told["missed"]) == ("echo", {})
        made = await gate.post("/v1/jobs", {"handler": "echo", "key": "k", "args": [1]})
        [pause] = (await gate.get("/v1/pauses"))["pauses"]
        assert pause["by"].startswith("adminer, over HTTP")
        assert pause["reason"] == "look"
        assert (await gate.get("/v1/why/k"))["case"].startswith("paused")
        await gate.post("/v1/resume", {"handler": "echo"})
        assert (await gate.result("k", made["job_id"]))["result"] == 1
        for verb in ("pause", "resume"):
            for wrong in ({}, {"all": False}, {"all": True, "key": "k"}):
                told = await gate.post(f"/v1/{verb}", wrong, status=400)
                assert (told["code"], told["facts"]["option"]) == ("POOLOPTION", "all")
        assert (await gate.get("/v1/pauses"))["pauses"] == []
        await gate.post("/v1/pause", {"all": True})
        [pause] = (await gate.get("/v1/pauses"))["pauses"]
        assert (pause["handler"], pause["key"]) == (None, None)
        await gate.post("/v1/resume", {"all": True})
        [client_] = [e for e in (await gate.get("/v1/nodes"))["nodes"] if e["id"] == gate.node.id]
        assert (client_["pid"], client_["version"]) == (os.getpid(), __version__)
        [worker] = (await gate.get("/v1/workers"))["workers"]
        [node] = [each for each in (await gate.get("/v1/nodes"))["nodes"] if each["workers"]]
        assert worker["node"] == node["id"]
        told = await gate.post(f"/v1/workers/{worker['id']}/cordon", {"reason": "r"})
        assert told["workers"] == [worker["id"]]
        assert told["unheard"] == []
        await gate.post(f"/v1/nodes/{node['id']}/cordon")
        told = await gate.post(f"/v1/workers/{worker['id']}/uncordon")
        assert told["kept"]["id"] == node["id"], "it takes no jobs for all that"
        await gate.post(f"/v1/nodes/{node['id']}/uncordon")
        await gate.post(f"/v1/nodes/{node['id']}/drain")
        with anyio.fail_after(PATIENCE_S):
            await gate.node.wait_drained()
        assert (await gate.post("/v1/nodes/nobody/drain", status=404))["code"] == "POOLNOMEMBER"


async def test_what_was_done_stands_in_the_journal_with_who_did_it(fleet: Fleet) -> None:
    """Actions before they are done, also those that come to nothing; dispatches are counted."""
    options = WebOptions(keyring=KEYRING)
    async with serving(fleet, options, SECRETS["operate"]) as gate:
        for i in range(3):
            await gate.post("/v1/jobs", {"handler": "echo", "key": f"k{i}"})
        await gate.post("/v1/jobs/k/one/stop", {"cause": "enough"}, status=404)
        entries, counts = list[Any](), list[Any]()

        def counted() -> int:
            return sum(int(each.detail.rpartition("count=")[2]) for each in counts)

        with anyio.fail_after(PATIENCE_S):
            while counted() < 3 or len(entries) == len(counts):
                found = [each async for each in gate.node.journal()]
                entries = [each for each in found if each.edge == "operator.acted"]
                counts = [each for each in entries if "action=dispatch" in each.detail]
                await anyio.sleep(0.05)
        told = {each.detail.partition(" detail")[0]: each for each in entries}
        stopped = told["by=operateer action=stop"]
        assert (stopped.key, stopped.job_id, stopped.owner) == ("k", "one", gate.node.id)
        assert "enough" in stopped.detail
        assert counted() == 3
        assert {each.handler for each in counts} == {"echo"}


async def test_the_journal_says_what_was_changed_as_whole_json_and_no_value(fleet: Fleet) -> None:
    keyring = Keyring(admin={"a" * 64: [SECRETS["admin"]]})
    key, long = "\u00e9" * 256, "because " * 25
    canary = {"args": ["CANARY"], "kwargs": {"size": "CANARY"}}
    async with serving(fleet, WebOptions(keyring=keyring), SECRETS["admin"]) as gate:
        job = {"handler": "fail", "key": key}
        made = await gate.post("/v1/jobs", job)
        await gate.result(key, made["job_id"])
        # What comes to nothing is noted, too: the handler takes no `size`.
        await gate.ask("PUT", f"/v1/parked/{path(key)}/{made['job_id']}", canary, status=422)
        schedule = {"handler": "echo", "key": key, "every_s": 3600, **canary}
        await gate.ask("PUT", "/v1/schedules/" + "s" * 96, schedule)
        await gate.post("/v1/pause", {"key": key, "reason": long})
        found = {}
        async for each in gate.node.journal():
            if each.edge == "operator.acted":
                assert "CANARY" not in each.detail
                head, _, detail = each.detail.partition(" detail=")
                found[head.rpartition("action=")[2]] = each, json.loads(detail or "{}")
        entry, told = found["edit"]
        assert (entry.key, told) == (key, {"names": "1 by place, size"})
        entry, told = found["schedule"]
        assert (entry.handler, entry.key, told["every_s"]) == ("echo", key, "3600.0")
        assert told["of"].startswith("ssss")
        entry, told = found["pause"]
        assert entry.key == key
        assert long.startswith(told["reason"].removesuffix("..."))
        assert told["reason"].startswith("because because")


async def test_facts_are_made_to_fit_as_whole_json() -> None:
    told = {"of": "x" * 96, "reason": '"\\\n\u00e9\U0001f600' * 40, "all": True, "members": 7}
    for room in range(2, 200):
        text = fitted(told, room)
        assert len(text.encode()) <= room
        assert json.loads(text).keys() <= told.keys()
    assert fitted({"cause": "enough"}, 160) == '{"cause": "enough"}'


async def test_events_begin_at_a_time_or_behind_an_id_and_with_all_that_are_kept(
    fleet: Fleet,
) -> None:
    """The page says so; a span, and a time of whichever zone the gateway is in, are refused."""
    async with serving(fleet) as gate:
        made = await gate.post("/v1/jobs", {"handler": "fail", "key": "k"})
        await gate.result("k", made["job_id"])

        async def ids(**query: str) -> list[str]:
            asked = {"follow": "false", **query}
            answer = await gate.client.get("/v1/events", params=asked)
            assert answer.status_code == 200, answer.text
            return [line for line in answer.text.splitlines() if line.startswith("id: ")]

        every = await ids()
        assert every
        assert await ids(since="2020-01-31T12:00:00Z") == every
        assert await ids(since="2099-01-31T12:00:00+01:00") == []
        assert await ids(since=every[0].removeprefix("id: ")) == every[1:]
        for wrong in ("90s", "all", "2020-01-31T12:00:00", "2020-01-31"):
            told = await gate.get("/v1/events", params={"since": wrong}, status=400)
            assert told["facts"]["option"] == "since"


async def test_events_are_told_and_gone_on_with(fleet: Fleet) -> None:
    async with serving(fleet) as gate:
        for key in ("a", "b"):
            made = await gate.post("/v1/jobs", {"handler": "fail", "key": key})
            await gate.result(key, made["job_id"])

        async def parked(**options: Any) -> list[dict[str, Any]]:
            answer = await gate.client.get("/v1/events", **options)
            assert answer.headers["content-type"].startswith("text/event-stream")
            return [each for each in events_of(answer.text) if each["event"] == "parked"]

        first, second = await parked(params={"follow": False})
        assert (first["key"], second["key"]) == ("a", "b")
        assert first["id"] == first["position"]
        behind = {"Last-Event-ID": first["id"]}
        assert await parked(params={"follow": False}, headers=behind) == [second]
        assert await parked(params={"follow": False, "key": "a"}) == [first]
        told = await gate.get("/v1/events", headers={"Last-Event-ID": "no-position"}, status=400)
        assert told["code"] == "POOLOPTION"


async def test_the_pool_is_told_at_a_glance_and_what_is_wrong_with_it(fleet: Fleet) -> None:
    async with serving(fleet) as gate:
        told = await gate.get("/v1/status")
        assert (told["pool"], len(told["workers"])) == (fleet.pool, 1)
        assert (await gate.get("/v1/findings"))["jobs"] == 0
        assert (await gate.get("/live"))["ok"]
        assert (await gate.get("/ready"))["ok"]
        assert (await gate.get("/metrics", status=404))["code"] == "WEBPATH"
        document = await gate.get("/openapi.json")
        assert document["openapi"] == "3.1.0"
        answer = await gate.client.get("/v1/status")
        assert answer.headers["pool-gateway"] == gate.node.id


async def test_while_the_store_is_away_that_is_told_and_afterwards_it_goes_on(
    fleet: Fleet,
) -> None:
    async with fault_proxy(fleet.url) as proxy:
        async with serving(fleet, url=proxy.url) as gate:
            await gate.post("/v1/jobs", {"handler": "echo", "key": "before", "args": [1]})
            patient_s = gate.node.settings.op_timeout_s
            hurry(gate.node, 0.5)
            proxy.go_silent()
            for method, at in (("GET", "/v1/status"), ("GET", "/v1/jobs/x"), ("POST", "/v1/pause")):
                answer = await gate.client.request(method, at, json={"all": True})
                assert answer.status_code in {503, 504}, answer.text
                assert answer.json()["code"] == "POOLUNAVAILABLE"
            assert (await gate.get("/live"))["ok"]
            hurry(gate.node, patient_s)
            await proxy.heal()
            await until(gate, "/v1/status", lambda _: True)
            await gate.post("/v1/jobs", {"handler": "echo", "key": "after", "args": [1]})
        await fleet.leave(gate.node)  # as long as its server is there


async def test_a_node_that_has_closed_serves_nobody(fleet: Fleet) -> None:
    async with serving(fleet) as gate:
        await fleet.leave(gate.node)
        answer = await gate.client.get("/v1/status")
        assert answer.status_code == 503
        assert answer.json()["code"] == "POOLNOTRUNNING"
        assert int(answer.headers["retry-after"]) >= 1


async def test_a_pool_of_another_protocol_number_is_neither_shown_nor_changed(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each route but those of health, which are about the process."""
    monkeypatch.setattr("pool.ops.web.asked.PROTOCOL_S", 0.0)
    async with serving(fleet) as gate:
        await gate.get("/v1/status")
        fleet.client.hset(fleet.control.config, "protocol", PROTOCOL + 1)
        for route in ROUTES:
            if route.role is not None:
                where = route.path.replace("{", "").replace("}", "")
                told = await gate.ask(route.method, where, {}, status=503)
                assert (told["code"], told["facts"]["protocol"]) == ("POOLPROTOCOL", PROTOCOL + 1)
                assert told["hint"] == WrongProtocol.hint
        fleet.client.hset(fleet.control.config, "protocol", PROTOCOL)
        await gate.get("/v1/status")
