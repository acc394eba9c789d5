"""A pool over HTTP in processes: a server, gateways, and workers in several languages.

Gateways are `pool web`; workers are the clients of examples/http with handlers that write down
what they do (`members/`), in the form of tests/verify/history.py.  What a client itself prints, a
line of JSON for each job, says what became of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeAlias

import anyio
import attrs
import httpx

from pool import Node, Settings
from pool.redis.embedded.server import EmbeddedServer, ServerProgram
from tests.languages.toolchain import EXAMPLES, MEMBERS, Toolchain
from tests.verify.history import Event, Recorder, file_sink, read

Language: TypeAlias = Literal["javascript", "go", "shell"]
LANGUAGES: Final[tuple[Language, ...]] = ("javascript", "go", "shell")
POOL: Final = "languages"
PATIENCE_S: Final = 60.0  # for what has no deadline of its own; nothing takes that long
LOOK_S: Final = 0.02
ADMIN, WORKER, SIGNING = (secrets.token_hex(16) for _ in range(3))
EFFECTS: Final = "effects.jsonl"


class NotInTimeError(AssertionError):
    """What had to come has not come."""


def until(look: Callable[[], Any], what: Callable[[], str] | str) -> Any:
    """Look again until there is something, and return it."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not (found := look()):
        if time.monotonic() > deadline_s:
            raise NotInTimeError(what if isinstance(what, str) else what())
        threading.Event().wait(LOOK_S)
    return found


def free_port() -> int:
    """Return a port that nobody uses; the kernel gives it to nobody else for a while."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


# --- processes ----------------------------------------------------------------------------------


@attrs.define(eq=False)
class Process:
    """One process after another under one name; what it prints is read as lines of JSON."""

    name: str
    words: Sequence[str]
    env: Mapping[str, str]
    directory: Path
    record: Recorder
    boot: int = 0
    lines: list[dict[str, Any]] = attrs.field(factory=list)
    process: subprocess.Popen[bytes] | None = None
    _readers: list[threading.Thread] = attrs.field(factory=list)

    @property
    def p(self) -> str:
        """What the history calls the process that there is."""
        return f"{self.name}/{self.boot}"

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self.process is not None
        return self.process.pid

    def start(self) -> Self:
        """Start the next process."""
        self.boot += 1
        self.begun()
        ledger = self.directory / f"{self.name}-{self.boot}.jsonl"
        with (self.directory / f"{self.name}-{self.boot}.log").open("wb") as log:
            self.process = subprocess.Popen(
                self.words,
                env={**os.environ, **self.env, "P": self.p, "LEDGER": str(ledger)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        reader = threading.Thread(target=self._read, args=(self.process, self.p))
        reader.start()
        self._readers.append(reader)
        return self

    def begun(self) -> None:
        """Write down that it shall take jobs."""
        self.record("boot", p=self.p)

    def _read(self, process: subprocess.Popen[bytes], p: str) -> None:
        assert process.stdout is not None
        with process.stdout as printed:
            for text in printed:
                with contextlib.suppress(ValueError):  # cut off by a SIGKILL
                    line = json.loads(text)
                    if "worker" in line:
                        self.record("join", p=p, nonce=line["worker"], extra={"worker": True})
                    self.lines.append({**line, "p": p})
        self.record("exit", p=p, result=process.wait())

    def send(self, number: signal.Signals) -> None:
        """Send the process a signal."""
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Wait until the process has ended, and all that it has printed is read."""
        assert self.process is not None
        try:
            code = self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise NotInTimeError(f"{self.p} does not end: {self.log()}") from None
        self._readers[-1].join()
        return code

    def kill(self) -> None:
        """SIGKILL it."""
        with self.killing():
            self.send(signal.SIGKILL)
            self.wait()

    @contextmanager
    def killing(self) -> Iterator[None]:
        """Write down that it is killed."""
        extra = {"id": f"kill {self.p}", "kind": "kill", "does": "crash", "target": self.name}
        self.record("fault", "invoke", extra=extra)
        yield
        self.record("fault", "ok", extra=extra)

    def leave(self) -> int:
        """Have it leave in peace; returns how it ended."""
        self.record("leave", "invoke", p=self.p, extra={"grace_s": 0.0})
        self.send(signal.SIGTERM)
        code = self.wait()
        self.record("leave", p=self.p)
        return code

    def end(self) -> None:
        """End it, however it is."""
        if self.process is not None and self.process.poll() is None:
            self.send(signal.SIGKILL)
        for reader in self._readers:
            reader.join()

    def log(self) -> str:
        """Return the last of what it has written to standard error."""
        path = self.directory / f"{self.name}-{self.boot}.log"
        return path.read_text("utf-8", "replace")[-2000:]

    def said(self, **facts: Any) -> list[dict[str, Any]]:
        """Return the lines in which these facts stand."""
        return [line for line in self.lines if facts.items() <= line.items()]


@attrs.define(eq=False, kw_only=True)
class Gateway(Process):
    """A `pool web` on a port of its own, which its next process has too."""

    port: int

    def begun(self) -> None:
        """Write nothing: it takes none."""

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"

    def up(self) -> Self:
        """Start it, and wait until it answers."""
        self.start()
        return self.await_ready()

    def await_ready(self) -> Self:
        """Wait until it answers."""

        def is_ready() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, f"{self.p} has ended: {self.log()}"
            with contextlib.suppress(httpx.HTTPError):
                return httpx.get(f"{self.url}/ready", timeout=5.0).status_code == 200
            return False

        until(is_ready, lambda: f"{self.p} does not answer: {self.log()}")
        return self


# --- the fleet ----------------------------------------------------------------------------------


@attrs.define(eq=False)
class Fleet:
    """A pool with its server, gateways and workers; all of them end with its `with` block."""

    server: EmbeddedServer
    directory: Path
    toolchain: Toolchain
    ttl_s: float = 8.0
    record: Recorder = attrs.field(init=False)
    gateways: list[Gateway] = attrs.field(factory=list)
    workers: dict[str, Process] = attrs.field(factory=dict)
    http: httpx.Client = attrs.field(factory=httpx.Client)  # to make one takes longer than to ask

    def __attrs_post_init__(self) -> None:
        sink, lock = file_sink(self.directory / "driver.jsonl"), threading.Lock()

        def tell(event: Event) -> None:
            with lock:
                sink(event)

        self.record = Recorder("driver/1", tell, time.monotonic)

    @classmethod
    @contextmanager
    def made(
        cls,
        program: ServerProgram,
        directory: Path,
        toolchain: Toolchain,
        *,
        ttl_s: float = 8.0,
        gateways: int = 2,
    ) -> Iterator[Self]:
        """Yield a pool that has gateways, and no workers yet."""
        with EmbeddedServer.start(program, persist=True) as server:
            self = cls(server, directory, toolchain, ttl_s)
            anyio.run(self._found)
            try:
                for number in range(1, gateways + 1):
                    self.gateways.append(self._gateway(f"g{number}").up())
                yield self
            finally:
                for process in (*self.workers.values(), *self.gateways):
                    process.end()
                self.http.close()

    async def _found(self) -> None:
        """Found the pool: what a lease lasts is the pool's, and its founder says it."""
        settings = Settings(lease_ttl_s=self.ttl_s, result_ttl_s=3600.0)
        async with Node(POOL, self.server.url, settings=settings, observers=()):
            pass

    def _gateway(self, name: str) -> Gateway:
        port = free_port()
        program = str(Path(sys.executable).with_name("pool"))
        words = [program, "web", "--url", self.server.url, "--pool", POOL]
        env = {"POOL_WEB_ADMIN": ADMIN, "POOL_WEB_WORKER": WORKER, "POOL_WEB_SIGNING": SIGNING}
        return Gateway(
            name=name,
            words=[*words, "--port", str(port), "--requests-per-s", "1000000"],
            env=env,
            directory=self.directory,
            record=self.record,
            port=port,
        )

    def worker(
        self,
        language: Language,
        *,
        name: str = "",
        capacity: int = 4,
        grace_s: int = 2,
        gateways: Sequence[str] = (),
    ) -> Process:
        """Start a worker, and wait until it is registered; gateways: other addresses to ask."""
        name = name or f"{language}{len(self.workers) + 1}"
        env = {
            "POOL_GATEWAYS": " ".join(gateways or [each.url for each in self.gateways]),
            "POOL_WEB_WORKER": WORKER,
            "CAPACITY": str(capacity),
            "GRACE_S": str(grace_s),
            "EFFECTS": str(self.directory / EFFECTS),
            "PYTHON": sys.executable,
        }
        words = {
            "javascript": [self.toolchain.node, str(MEMBERS / "member.mjs")],
            "go": [str(self.toolchain.go_member)],
            "shell": [str(EXAMPLES / "shell/worker.sh"), str(MEMBERS / "handlers")],
        }
        process = Process(name, words[language], env, self.directory, self.record).start()
        self.workers[name] = process
        self.await_registered(process)
        return process

    def await_registered(self, process: Process) -> str:
        """Wait until the process that there is now is registered; returns its identity."""
        p = process.p

        def who() -> str:
            assert process.process is not None
            code = process.process.poll()
            assert code is None, f"{p} has ended with {code}: {process.log()}"
            return next((x["worker"] for x in process.lines if x["p"] == p and "worker" in x), "")

        return str(until(who, lambda: f"{p} is not registered: {process.log()}"))

    def leave(self) -> None:
        """Have all workers leave."""
        for worker in self.workers.values():
            assert worker.process is not None
            if worker.process.poll() is None:
                worker.leave()
        self.workers.clear()

    # --- what is asked of the control plane ---

    def ask(self, method: str, path: str, body: Any = None, *, wait_s: float = 0.0) -> Any:
        """Ask the gateways in turn until one answers; returns what it says, which is no refusal."""
        for turn in range(1_000):
            gateway = self.gateways[turn % len(self.gateways)]
            with contextlib.suppress(httpx.TransportError):
                answer = self.http.request(
                    method,
                    f"{gateway.url}{path}",
                    json=body,
                    headers={"Authorization": f"Bearer {ADMIN}"},
                    timeout=wait_s + 10.0,
                )
                if answer.status_code < 500:
                    assert answer.status_code < 300, f"{method} {path}: {answer.text}"
                    return answer.json()
            threading.Event().wait(LOOK_S)
        raise NotInTimeError(f"no gateway answers: {self.gateways[0].log()}")

    def dispatch(self, key: str, **spec: Any) -> str:
        """Dispatch a job; returns its id."""
        text = json.dumps({"ms": 0, "fails": 0, **spec})
        body = {"handler": "work", "key": key, "args": [f"call-{key}", text]}
        return str(self.ask("POST", "/v1/jobs", body)["job_id"])

    def result(self, key: str, job: str) -> dict[str, Any]:
        """Wait until a job has ended; returns how."""

        def ended() -> Any:
            told = self.ask("GET", f"/v1/jobs/{key}/{job}?wait_s=20", wait_s=20.0)
            return told if told["is_ended"] else None

        found: dict[str, Any] = until(ended, f"{job} of {key} does not end")
        return found

    # --- what handlers have written ---

    def events(self, f: str, *, key: str = "") -> list[Event]:
        """Return what handlers have written of that kind, in the order of time."""
        found: list[Event] = []
        for path in self.directory.glob("*.jsonl"):
            found += [e for e in read(path) if e.f == f and (not key or e.key == key)]
        return sorted(found, key=lambda event: event.t)

    def await_event(self, f: str, *, key: str, count: int = 1) -> Event:
        """Wait until so many have been written; returns the last of them."""

        def look() -> Event | None:
            found = self.events(f, key=key)
            return found[count - 1] if len(found) >= count else None

        found: Event = until(look, lambda: f"no {f} of {key}: {self.logs()}")
        return found

    def logs(self) -> str:
        """Return what all have written to standard error."""
        return "\n".join(f"--- {each.p}: {each.log()}" for each in self.workers.values())
