"""A node with a worker, and its control plane without a network between."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import attrs
import httpx

from pool import Handlers, Job, Node
from pool.web import Keyring, WebApp, WebOptions
from tests.nodes import PATIENCE_S, Fleet

SECRETS = {role: f"{role}-secret-0123456789" for role in ("read", "operate", "admin", "worker")}
KEYRING = Keyring(**{role: {f"{role}er": [secret]} for role, secret in SECRETS.items()})


@attrs.frozen
class Gate:
    """What tests ask."""

    client: httpx.AsyncClient
    node: Node
    app: WebApp

    async def ask(
        self, method: str, path: str, body: Any = None, *, status: int | None = None, **options: Any
    ) -> Any:
        """Return what is answered, which has that status; without one, what is no problem."""
        if body is not None:
            options["json"] = body
        answer = await self.client.request(method, path, **options)
        if status is None:
            assert answer.status_code < 400, answer.text
        else:
            assert answer.status_code == status, answer.text
        if answer.status_code >= 400:
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json()["status"] == answer.status_code
        return answer.json()

    async def get(self, path: str, **options: Any) -> Any:
        return await self.ask("GET", path, **options)

    async def post(self, path: str, body: Any = None, **options: Any) -> Any:
        return await self.ask("POST", path, {} if body is None else body, **options)

    async def result(self, key: str, job_id: str) -> Any:
        """Wait for the end of a job; return it."""
        with anyio.fail_after(PATIENCE_S):
            while True:
                told = await self.get(f"/v1/jobs/{path(key)}/{job_id}", params={"wait_s": 10})
                if told["is_ended"]:
                    return told


def private(at: Path, text: str) -> Path:
    """Write a file that nobody else can read; return it."""
    at.write_text(text, "utf-8")
    at.chmod(0o600)
    return at


def path(key: str) -> str:
    """Return a key as a path has it."""
    return quote(key, safe="")


def handlers() -> Handlers:
    """Return what the worker has: each stands for a way in which jobs go."""
    found = Handlers()

    @found.job("echo")
    async def echo(job: Job, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and not kwargs else [list(args), kwargs]

    @found.job("fail", attempts_max=1)
    async def fail(job: Job, *args: Any) -> Any:
        if args:
            return "mended"
        raise ValueError("never")

    @found.job("retry", backoff_s=600.0, backoff_max_s=600.0)
    async def retry(job: Job) -> str:
        if job.attempt == 1:
            raise ValueError("the first time")
        return "the second time"

    @found.service("listen")
    async def listen(job: Job) -> Any:
        async for message in job.notifications():
            return message
        return None

    return found


@asynccontextmanager
async def serving(
    fleet: Fleet, options: WebOptions | None = None, secret: str = "", **settings: Any
) -> AsyncIterator[Gate]:
    """Yield a gateway whose node has a worker."""
    node = await fleet.node(handlers(), **settings)
    app = WebApp(node, options)
    headers = {"authorization": f"Bearer {secret}"} if secret else {}
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://localhost", headers=headers, timeout=PATIENCE_S
    ) as client:
        yield Gate(client, node, app)
    app.close()


def events_of(text: str) -> list[dict[str, Any]]:
    """Return what a stream of server-sent events has told."""
    found = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
        if "data" in lines:
            found.append(
                {"id": lines.get("id"), "event": lines["event"], **json.loads(lines["data"])}
            )
    return found
