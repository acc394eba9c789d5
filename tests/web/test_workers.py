"""Workers over HTTP, on both event loops: what a client in any language does, step by step."""

from __future__ import annotations

import inspect
from typing import Any

import anyio
import attrs
import httpx
import pytest

from pool import Handlers, Job
from pool.ops.web.bodies import OfferBody
from pool.web import WebApp, WebOptions
from tests.nodes import PATIENCE_S, Fleet
from tests.web.gateways import KEYRING, SECRETS, Gate, serving

pytestmark = pytest.mark.anyio
OPTIONS = WebOptions(keyring=KEYRING, signing=("signing-secret-0123456789",))


@attrs.define
class Polling:
    """A client that polls, and keeps what it was told."""

    gate: Gate
    token: str = ""
    told: dict[str, Any] = attrs.field(factory=dict)

    async def ask(self, what: str, status: int | None = None, **body: Any) -> Any:
        headers = {"authorization": f"Bearer {SECRETS['worker']}"}
        path = f"/v1/workers/{what}" if what else "/v1/workers"
        if what:
            body = {"worker_token": self.token, **body}
        return await self.gate.ask("POST", path, body, headers=headers, status=status)

    async def register(self, *handlers: Any, **how: Any) -> Any:
        told = await self.ask("", 201, handlers=list(handlers), **how)
        self.token = told["token"]
        return told

    async def poll(self, *held: Any, jobs_max: int = 1, wait_s: float = 20.0) -> Any:
        return await self.ask("poll", 200, held=list(held), jobs_max=jobs_max, wait_s=wait_s)

    async def job(self, *held: Any) -> Any:
        """Poll until there is one."""
        with anyio.fail_after(PATIENCE_S):
            while not (jobs := (await self.poll(*held))["jobs"]):
                continue
        return jobs[0]

    async def until(self, what: str, *held: Any) -> Any:
        """Poll until something of that kind is told."""
        with anyio.fail_after(PATIENCE_S):
            while not (told := (await self.poll(*held, jobs_max=0, wait_s=1.0))[what]):
                continue
        return told


async def ends(polling: Polling, what: str, token: str, **how: Any) -> Any:
    """End a job; return what became of it."""
    [told] = (await polling.ask(what, 200, jobs=[{"token": token, **how}]))["jobs"]
    return told["outcome"]


async def test_a_job_is_polled_for_and_ended_once(fleet: Fleet) -> None:
    async with serving(fleet, OPTIONS, SECRETS["admin"]) as gate:
        worker = Polling(gate)
        told = await worker.register("resize", capacity=2, label="it", host="h", pid=7)
        assert 0 < told["heartbeat_s"] < told["expires_in_s"]
        body = {"handler": "resize", "key": "a/b", "args": [{"n": 1}], "kwargs": {"size": 2}}
        made = await gate.post("/v1/jobs", body)
        job = await worker.job()
        assert (job["key"], job["id"], job["handler"]) == ("a/b", made["job_id"], "resize")
        assert (job["args"], job["kwargs"], job["attempt"]) == ([{"n": 1}], {"size": 2}, 1)
        assert (await worker.job())["token"] == job["token"]  # its answer may have been lost
        beat = {"token": job["token"], "progress": {"done": 1, "total": 2, "note": "half"}}
        await worker.ask("heartbeat", 200, held=[beat])
        status = await gate.get(f"/v1/jobs/a%2Fb/{made['job_id']}")
        assert (status["state"], status["progress"]["note"]) == ("running", "half")
        [row] = [w for w in (await gate.get("/v1/workers"))["workers"] if w["label"] == "it"]
        assert (row["host"], row["pid"], row["running"]) == ("h", 7, 1)
        assert await ends(worker, "complete", job["token"], result={"ok": True}) == "done"
        assert await ends(worker, "complete", job["token"], result={"ok": True}) == "repeated"
        assert (await gate.result("a/b", made["job_id"]))["result"] == {"ok": True}
        assert await worker.ask("leave", 200) == {"released": 0}


async def test_bytes_go_in_base64(fleet: Fleet) -> None:
    async with serving(fleet, OPTIONS, SECRETS["admin"]) as gate:
        worker = Polling(gate)
        await worker.register("raw")
        body = {"handler": "raw", "key": "k", "args": ["AAH/"], "encoding": "base64"}
        made = await gate.post("/v1/jobs", body)
        job = await worker.job()
        assert (job["args"], job["encoding"]) == (["AAH/"], "base64")
        wrong = [{"token": job["token"], "result": "*", "encoding": "base64"}]
        assert (await worker.ask("complete", 400, jobs=wrong))["code"] == "POOLOPTION"
        done = await ends(worker, "complete", job["token"], result="AAD/", encoding="base64")
        assert done == "done"
        assert (await gate.result("k", made["job_id"]))["result"] == "AAD/"


async def test_bytes_of_messages_and_states_are_told_from_objects(fleet: Fleet) -> None:
    """A state comes back as it was sent."""
    async with serving(fleet, OPTIONS, SECRETS["admin"]) as gate:
        worker = Polling(gate)
        await worker.register({"name": "watch", "kind": "service"})
        await gate.post("/v1/jobs", {"handler": "watch", "key": "s"})
        job = await worker.job()
        for number, sent in enumerate(({"base64": "AAH/"}, "AAH/"), start=1):
            encoding = "json" if isinstance(sent, dict) else "base64"
            await gate.post("/v1/jobs/s/notify", {"value": sent, "encoding": encoding})
            [told] = await worker.until("messages", job["token"])
            assert (told["value"], told["encoding"]) == (sent, encoding)
            save = {"number": number, "state": sent, "encoding": encoding, "seen": told["id"]}
            await worker.ask("save", 200, token=job["token"], **save)
            assert await ends(worker, "release", job["token"]) == "released"
            job = await worker.job()
            assert (job["state"], job["state_encoding"]) == (sent, encoding)


async def test_an_attempt_that_failed_is_tried_again_and_then_parked(fleet: Fleet) -> None:
    async with serving(fleet, OPTIONS, SECRETS["admin"]) as gate:
        worker = Polling(gate)
        await worker.register({"name": "try", "attempts_max": 2, "backoff_s": 0.01})
        made = await gate.post("/v1/jobs", {"handler": "try", "key": "k"})
        error = {"type": "Oops", "message": "no", "traceback": "at line 1"}
        for attempt, outcome in ((1, "retried"), (2, "parked")):
            job = await worker.job()
            assert job["attempt"] == attempt
            assert await ends(worker, "fail", job["token"], error=error) == outcome
        letter = await gate.get(f"/v1/parked/k/{made['job_id']}")
        assert [each["type"] for each in letter["history"]] == ["Oops", "Oops"]
        assert letter["history"][1]["traceback"] == "at line 1"
        made = await gate.post("/v1/jobs", {"handler": "try", "key": "never"})
        job = await worker.job()
        assert await ends(worker, "fail", job["token"], retry=False) == "parked"


async def test_a_service_is_told_of_messages_stops_and_saves_its_state(fleet: Fleet) -> None:
    async with serving(fleet, OPTIONS, SECRETS["admin"]) as gate:
        worker = Polling(gate)
        await worker.register({"name": "watch", "kind": "service"}, capacity=2)
        made = await gate.post("/v1/jobs", {"handler": "watch", "key": "s"})
        job = await worker.job()
        token = job["token"]
        await gate.post("/v1/jobs/s/notify", {"value": {"n": 1}})
        [message] = await worker.until("messages", token)
        assert (message["token"], message["value"]) == (token, {"n": 1})
        saved = {"token": token, "number": 1, "state": {"at": 1}, "seen": message["id"]}
        [told] = (await worker.ask("save", 200, **saved))["jobs"]
        assert told["outcome"] == "saved"
        seen = {"token": token, "seen": message["id"]}
        assert (await worker.poll(seen, jobs_max=0, wait_s=0))["messages"] == []
        assert await ends(worker, "release", token) == "released"
        again = await worker.job()
        assert (again["key"], again["state"]) == ("s", {"at": 1})
        await gate.post("/v1/jobs/s/stop", {"cause": "enough"})
        [stop] = await worker.until("stop", again["token"])
        assert (stop["reason"], stop["token"]) == ("stop", again["token"])
        assert await ends(worker, "release", again["token"]) == "cancelled"
        assert (await gate.result("s", made["job_id"]))["state"] == "cancelled"


async def test_a_late_copy_of_a_save_changes_nothing_at_any_gateway(fleet: Fleet) -> None:
    """Its client has repeated it elsewhere, and saved on; then the first gateway wakes."""
    async with (
        serving(fleet, OPTIONS, SECRETS["admin"]) as gate,
        serving(fleet, OPTIONS, SECRETS["admin"]) as other,
    ):
        worker = Polling(gate)
        await worker.register("sum")
        await gate.post("/v1/jobs", {"handler": "sum", "key": "k"})
        job = await worker.job()
        token = job["token"]
        assert (job["state"], job["saves"]) == (None, 0)
        for n in range(3):
            await gate.post("/v1/jobs/k/notify", {"value": n})
        ids = list[str]()
        with anyio.fail_after(PATIENCE_S):
            while len(ids) < 3:
                told = await worker.poll(token, jobs_max=0, wait_s=1.0)
                ids = [each["id"] for each in told["messages"]]

        async def saves(number: int, seen: str) -> Any:
            body = {"token": token, "number": number, "state": {"sum": number}, "seen": seen}
            [told] = (await worker.ask("save", 200, **body))["jobs"]
            return told["outcome"]

        assert await saves(1, ids[0]) == "saved"
        assert await saves(1, ids[0]) == "saved"  # a repeat, and nothing since
        worker.gate = other
        assert await saves(2, ids[1]) == "saved"
        worker.gate = gate
        assert await saves(1, ids[2]) == "repeated"
        again = await worker.job()  # handed out again: it goes on from the newest
        assert (again["token"], again["state"], again["saves"]) == (token, {"sum": 2}, 2)
        told = await worker.poll(token, jobs_max=0, wait_s=0)
        assert [each["id"] for each in told["messages"]] == ids[2:]
        refused = await worker.ask("save", 400, token=token, state={})
        assert "number" in refused["detail"]
        assert await ends(worker, "release", token) == "released"
        heir = await worker.job()  # of another epoch: it counts from the beginning
        assert (heir["state"], heir["saves"]) == ({"sum": 2}, 0)
        late = {"token": token, "number": 9, "state": {}}
        assert (await worker.ask("save", 409, **late))["jobs"][0]["problem"]["code"] == "POOLCLAIM"
        token = heir["token"]
        assert await saves(1, ids[0]) == "saved"
        assert await ends(worker, "complete", token) == "done"


async def test_any_gateway_goes_on_with_a_worker_of_another(fleet: Fleet) -> None:
    async with (
        serving(fleet, OPTIONS, SECRETS["admin"]) as gate,
        serving(fleet, OPTIONS, SECRETS["admin"]) as other,
    ):
        worker = Polling(gate)
        await worker.register("echo-there")
        made = await gate.post("/v1/jobs", {"handler": "echo-there", "key": "k"})
        job = await worker.job()
        await fleet.leave(gate.node)  # it is gone: whoever asks it is told so
        answer = await worker.ask("heartbeat", 503, held=[job["token"]])
        assert answer["code"] == "POOLNOTRUNNING"
        worker.gate = other
        assert (await worker.poll(job["token"], jobs_max=0, wait_s=0))["lost"] == []
        assert await ends(worker, "complete", job["token"], result=1) == "done"
        assert (await other.result("k", made["job_id"]))["result"] == 1


async def test_tokens_are_the_gateways_own_and_of_one_worker(fleet: Fleet) -> None:
    async with serving(fleet, OPTIONS, SECRETS["admin"]) as gate:
        worker, second = Polling(gate), Polling(gate)
        await worker.register("do")
        await gate.post("/v1/jobs", {"handler": "do", "key": "k"})
        token = (await worker.job())["token"]
        await second.register("do", label="other")
        for wrong in ("x", token, f"{worker.token}x", worker.token[:-2], "\u00e4" * 9, "a" * 9000):
            forged = Polling(gate, wrong)
            told = await forged.ask("poll", 410)
            assert told["code"] == "WEBWORKER"
        for wrong in ("x", worker.token, f"{token}x", "." * 99):
            told = await worker.ask("complete", 409, jobs=[{"token": wrong, "result": 1}])
            assert told["code"] == "WEBTOKEN"
            assert told["jobs"][0]["token"] == wrong
            [lost] = (await worker.poll(wrong, jobs_max=0, wait_s=0))["lost"]
            assert lost["token"] == wrong
        assert (await second.poll(token, jobs_max=0, wait_s=0))["lost"][0]["token"] == token
        assert (await second.ask("complete", 409, jobs=[{"token": token}]))["code"] == "WEBTOKEN"
        mixed = [{"token": "x"}, {"token": token, "result": 5}]
        one, two = (await worker.ask("complete", 200, jobs=mixed))["jobs"]
        assert (one["problem"]["status"], two["outcome"]) == (409, "done")


async def test_each_kind_of_handler_has_its_own_options(fleet: Fleet) -> None:
    names = [name for name in OfferBody.__struct_fields__ if name not in {"name", "kind"}]
    words = {"park_on": ["timeout"], "if_exists": "queue"}
    async with serving(fleet, OPTIONS, SECRETS["admin"]) as gate:
        worker = Polling(gate)
        for kind in ("job", "service"):
            register = getattr(Handlers(), kind)
            for name in names:
                offer = {"name": "h", "kind": kind, name: words.get(name, 1)}
                if name in inspect.signature(register).parameters:
                    await worker.register(offer)
                else:
                    told = await worker.ask("", 400, handlers=[offer])
                    assert (told["code"], told["facts"]["option"]) == ("POOLOPTION", name)


async def test_tokens_are_read_with_the_old_secret_while_the_new_one_signs(fleet: Fleet) -> None:
    old, new = "old-signing-secret-0123", "new-signing-secret-0123"
    async with serving(fleet, attrs.evolve(OPTIONS, signing=(old,)), SECRETS["admin"]) as gate:
        worker = Polling(gate)
        await worker.register("do")
        for signing, is_good in (((new, old), True), ((new,), False)):
            app = WebApp(gate.node, attrs.evolve(OPTIONS, signing=signing))
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url=gate.client.base_url) as at:
                anew = Polling(Gate(at, gate.node, app), worker.token)
                await anew.ask("poll", 200 if is_good else 410)


async def test_a_lapsed_worker_is_gone_and_its_job_goes_on_elsewhere(fleet: Fleet) -> None:
    async with serving(fleet, OPTIONS, SECRETS["admin"], lease_ttl_s=1.0) as gate:
        worker = Polling(gate)
        await worker.register("do")
        made = await gate.post("/v1/jobs", {"handler": "do", "key": "k"})
        job = await worker.job()
        handlers = Handlers()

        @handlers.job("do")
        async def do(job: Job) -> str:
            return "elsewhere"

        await fleet.node(handlers, lease_ttl_s=1.0)
        told = await gate.result("k", made["job_id"])  # nobody beats: the reaper takes it over
        assert told["result"] == "elsewhere"
        answer = await gate.client.post(
            "/v1/workers/complete",
            json={"worker_token": worker.token, "jobs": [{"token": job["token"], "result": 1}]},
            headers={"authorization": f"Bearer {SECRETS['worker']}"},
        )
        assert answer.status_code in {409, 410}
        assert answer.json()["code"] in {"POOLCLAIM", "POOLWORKERGONE"}
        await worker.ask("poll", 410)


async def test_a_worker_that_is_drained_is_told_so(fleet: Fleet) -> None:
    async with serving(fleet, OPTIONS, SECRETS["admin"]) as gate:
        worker = Polling(gate)
        told = await worker.register("do")
        body = {"wait_s": 0}
        await gate.post(f"/v1/workers/{told['worker']}/drain", body)
        with anyio.fail_after(PATIENCE_S):
            while not (await worker.poll(wait_s=1.0))["drain"]:
                continue
        await worker.ask("leave", 200)
