"""The conductor: starts server and nodes, plays the story, and asks for the verdict."""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import anyio
import attrs

from pool.core.codec import decode_value
from pool.core.record import Outcome
from pool.demo import tzif, zones
from pool.demo.history import History
from pool.demo.ledger import CLOCK, ZONE, Ledger, LedgerTail
from pool.demo.play import CLOCKS, NAMES, Cast, Play
from pool.demo.show import Show
from pool.demo.verdict import (
    KILLED_CLOCKS_MIN,
    KILLED_ZONES_MIN,
    Stored,
    Verdict,
    judge,
)
from pool.errors import ConfigError, HandlerError, PoolError, again
from pool.jobs.client.dispatch import Call
from pool.jobs.client.ref import JobRef
from pool.jobs.node import Node
from pool.ops import inspect
from pool.ops.logs import configure
from pool.redis.embedded.program import find_server
from pool.redis.embedded.server import EmbeddedServer
from pool.redis.io.system import SystemIO
from pool.redis.pipeline import Pipeline
from pool.redis.url import Url
from pool.settings import Settings

_LOOK_S: Final = 0.05  # between two looks at the ledger
_NAP_S: Final = 0.02  # of the thread that sees how late the machine is
_START_S: Final = 20.0  # for a Python process to start, on a busy machine
_OURS: Final = Path(__file__).parents[2]  # where this very package is imported from


def run(args: argparse.Namespace) -> int:
    """Carry out `pool demo`: 0, or 1 if a promise was broken."""
    return perform(Play(), is_json=args.json)


def perform(play: Play, *, is_json: bool) -> int:
    """Play the demo, print the verdict, and return the exit code.

    With `is_json` standard output gets one JSON object; the story goes to standard error, and only
    where somebody watches it.
    """
    if importlib.util.find_spec("tzdata") is None:
        problem = "its input is the tzdata package: pip install 'keyed-pool[demo]'"
        raise ConfigError(setting="demo", problem=problem)
    watched = sys.stderr if sys.stderr.isatty() else None
    show = Show(watched if is_json else sys.stdout)
    directory = Path(tempfile.mkdtemp(prefix="pool-demo-"))
    is_kept = False
    try:
        verdict = _verdict(play, show, directory)
        is_kept = not verdict.ok
    finally:
        if not is_kept:
            shutil.rmtree(directory)
    show.close(verdict)
    if is_json:
        sys.stdout.write(json.dumps(verdict.figures()) + "\n")
        sys.stderr.writelines(f"{case}\n" for case in verdict.broken if watched is None)
    if is_kept:
        sys.stderr.write(f"the ledger and the nodes' logs are kept in {directory}\n")
    return 0 if verdict.ok else 1


def _verdict(play: Play, show: Show, directory: Path) -> Verdict:
    program = find_server("path")
    with (
        (directory / "conductor.log").open("w", encoding="utf-8") as log,
        EmbeddedServer.start(program) as server,
    ):
        configure(
            log, is_json=True
        )  # the conductor is a client of the pool, with events of its own
        conductor = Conductor(
            play=play,
            show=show,
            url=server.url,
            server=f"{program.name} {program.version}",
            directory=directory,
        )
        return anyio.run(conductor.conduct)


@attrs.define(eq=False, kw_only=True)
class Conductor:
    """Plays the story.  What it decides by, it reads from the ledger."""

    play: Play
    show: Show
    url: str
    server: str
    directory: Path
    pool: str = attrs.field(init=False, factory=lambda: f"demo-{secrets.token_hex(4)}")
    history: History = attrs.field(init=False, factory=History)
    _began_s: float = attrs.field(init=False, factory=time.monotonic)
    _processes: dict[str, subprocess.Popen[bytes]] = attrs.field(init=False, factory=dict)
    _refs: list[JobRef[Any]] = attrs.field(init=False, factory=list)
    _ledger: Ledger = attrs.field(init=False)
    _tail: LedgerTail = attrs.field(init=False)
    _looked: anyio.Event = attrs.field(init=False, factory=anyio.Event)
    _numbers: dict[str, int] = attrs.field(init=False, factory=dict)  # notifications sent, by key
    _idle_since_s: float = attrs.field(init=False, default=math.inf)
    _left: threading.Event = attrs.field(init=False, factory=threading.Event)

    def __attrs_post_init__(self) -> None:
        path = self.directory / "ledger.jsonl"
        self._ledger, self._tail = Ledger(path), LedgerTail(path)

    async def conduct(self) -> Verdict:
        """Play it all and return the verdict."""
        self.show.say(f"{self.server}, lease TTL {self.play.ttl_s:g} s")
        naps = threading.Thread(target=self._nap, name="demo-naps", daemon=True)
        try:
            for name in NAMES[:3]:
                self._enter(name)
            expected = {name: _right(name) for name in zones.names()}
            naps.start()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._watch)
                try:
                    await self._acts()
                except PoolError as error:
                    self._fail(str(error))
                await self._everybody_leaves()
                tasks.cancel_scope.cancel()
            stored = await self._stored()
        finally:
            self._left.set()
            for process in self._processes.values():
                process.kill()  # none is left, unless we are here by an exception
                process.wait()
                assert process.stdin is not None
                process.stdin.close()
        naps.join()
        self._read()
        self._ledger.close()
        return judge(
            self.history,
            stored,
            expected,
            server=self.server,
            seconds=time.monotonic() - self._began_s,
            ttl_s=self.play.ttl_s,
        )

    # --- the acts -----------------------------------------------------------------------------

    async def _acts(self) -> None:
        lives = self.history.lives
        await self._until(lambda: len(lives) == 3, _START_S)  # joined, or ended
        if len(self._alive()) < 3:
            self._fail(f"only {len(self._alive())} of three nodes came up")
            return
        loops = ", ".join(f"{name} ({_loop(name)})" for name in NAMES[:3])
        self.show.say(f"three nodes, each a process: {loops}")
        settings = Settings(lease_ttl_s=self.play.ttl_s)
        async with Node(self.pool, self.url, settings=settings) as node:
            await self._dispatch(node)
            async with anyio.create_task_group() as tasks:
                for ref in self._refs:
                    if ref.handler == ZONE:
                        tasks.start_soon(self._wait_for, ref)
                tasks.start_soon(self._notify, node)
                with anyio.move_on_after(self.play.deadline_s):
                    if await self._kill():
                        await self._freeze()
                        await self._drain_and_add()
                    await self._until(self._is_over, math.inf)
                tasks.cancel_scope.cancel()
            await self._curtain(node)
            async with anyio.create_task_group() as tasks:
                for ref in self._refs:
                    if ref.handler == CLOCK:
                        tasks.start_soon(self._stop, ref)
            await node.shutdown_pool()

    async def _dispatch(self, node: Node) -> None:
        clocks = [Call(f"{CLOCK}:{zone}", zone) for zone in CLOCKS]
        jobs = [Call(zone, zone) for zone in zones.names()]
        for handler, calls in ((CLOCK, clocks), (ZONE, jobs)):
            for ref in await node.dispatch_many(handler, calls):
                if isinstance(ref, PoolError):
                    raise again(ref)
                self._ledger.write("accepted", key=ref.key, job=ref.job_id, handler=handler)
                self._refs.append(ref)
        self.show.say(f"dispatched {len(jobs)} zones and {len(clocks)} world clocks")

    async def _kill(self) -> bool:
        """SIGKILL the node with the most clocks; say whether all it ran runs elsewhere."""
        runs = self.history.open_runs

        def is_ready() -> bool:
            return sum(map(len, self.history.by_key.values())) >= len(self._refs)

        await self._until(is_ready, self.play.patience_s)
        name = max(NAMES[:3], key=lambda each: len(runs(each, CLOCK)))
        killed_s = self._ledger.write("node", node=name, how="killed")
        self._processes[name].kill()
        self._processes[name].wait()
        self._read()
        held = [*runs(name, ZONE), *runs(name, CLOCK)]
        self.show.say(f"SIGKILL {name}, which runs {_load(self.history, name)}")
        if len(runs(name, ZONE)) < KILLED_ZONES_MIN or len(runs(name, CLOCK)) < KILLED_CLOCKS_MIN:
            return False  # the verdict will say so

        def waits_s() -> list[float]:
            return [self.history.started_after(run, killed_s) - killed_s for run in held]

        if await self._until(lambda: max(waits_s()) < math.inf, self.play.patience_s):
            self.show.say(f"all of it runs elsewhere, after {max(waits_s()):.2f} s")
            return True
        missing = sum(wait_s == math.inf for wait_s in waits_s())
        self.show.say(f"{missing} of {len(held)} were not started elsewhere")
        return False

    async def _freeze(self) -> None:
        """SIGSTOP the busier of the two left for 2 TTL; wait until it has let go."""
        # Not before jobs end: those that it wants to settle when it wakes are the point of this.
        jobs = self.history.jobs(ZONE)
        await self._until(
            lambda: len(jobs) - len(self.history.unfinished_zones()) >= len(jobs) // 4,
            self.play.patience_s,
        )
        name = max(self._alive(), key=lambda each: len(self.history.open_runs(each, ZONE)))
        held = [*self.history.open_runs(name, ZONE), *self.history.open_runs(name, CLOCK)]
        self.show.say(f"SIGSTOP {name}, which runs {_load(self.history, name)}")
        self._ledger.write("node", node=name, how="stopped")
        self._processes[name].send_signal(signal.SIGSTOP)
        await anyio.sleep(2 * self.play.ttl_s)
        self._ledger.write("node", node=name, how="continued")
        self._processes[name].send_signal(signal.SIGCONT)
        self.show.say(f"SIGCONT {name}, after {2 * self.play.ttl_s:g} s")
        began_s = time.monotonic()
        if await self._until(
            lambda: all(run.ended_s < math.inf for run in held), self.play.patience_s
        ):
            took_s = time.monotonic() - began_s
            self.show.say(f"{name} has let go of all it ran, after {took_s:.2f} s")

    async def _drain_and_add(self) -> None:
        """SIGTERM the node that was never frozen, and add one in its place."""
        lives, newcomer = self.history.lives, NAMES[3]
        name = next(each for each in self._alive() if lives[each].stopped_s == math.inf)
        self.show.say(f"SIGTERM {name}, which runs {_load(self.history, name)}; add {newcomer}")
        self._ledger.write("node", node=name, how="draining")
        self._processes[name].send_signal(signal.SIGTERM)
        self._enter(newcomer)
        if await self._until(lambda: lives[name].left_s < math.inf, _START_S):
            self.show.say(f"{name} has handed everything over and left")
        await self._until(lambda: newcomer in lives, _START_S)
        self.show.say(f"{newcomer} ({_loop(newcomer)}) has joined")

    async def _curtain(self, node: Node) -> None:
        """See that every clock still runs, and that every notification was heard."""
        self._ledger.write("curtain")
        for ref in self._refs:
            if ref.handler == CLOCK:
                await self._notify_one(node, ref.key)

        def is_quiet() -> bool:
            unheard = any(
                number not in self.history.heard.get(key, ())
                for key, numbers in self.history.notified.items()
                for number in numbers
            )
            ticked = all(
                any(r.ticked_s > self.history.curtain_s for r in self.history.by_key.get(key, ()))
                for key in (ref.key for ref in self._refs if ref.handler == CLOCK)
            )
            return ticked and not unheard

        await self._until(is_quiet, self.play.patience_s)
        jobs = self.history.jobs(ZONE)
        done = len(jobs) - len(self.history.unfinished_zones())
        self.show.say(f"{done} of {len(jobs)} zones are done; the clocks are stopped")

    # --- beside the acts ----------------------------------------------------------------------

    async def _wait_for(self, ref: JobRef[Any]) -> None:
        """Write down when a zone's outcome is seen, and whose it is."""
        try:
            await ref.result()
        except HandlerError as error:  # parked or cancelled: an outcome too, and a lost zone
            self.show.say(f"{ref.key}: {error}")
        except PoolError as error:
            self._fail(f"{ref.key}: {error}")
            return
        try:
            status = await ref.status()
        except PoolError as error:
            self._fail(f"{ref.key}: {error}")
        else:
            self._ledger.write(
                "outcome", key=ref.key, job=ref.job_id, epoch=status.epoch, how=status.state
            )

    async def _notify(self, node: Node) -> None:
        for ref in cycle([ref for ref in self._refs if ref.handler == CLOCK]):
            await self._notify_one(node, ref.key)
            await anyio.sleep(self.play.pace.notify_s)

    async def _notify_one(self, node: Node, key: str) -> None:
        number = self._numbers[key] = self._numbers.get(key, 0) + 1
        try:
            await node.notify(key, number)
        except PoolError as error:  # not accepted, so nobody has to hear it
            self.show.say(f"notify {key}: {error}")
        else:
            self._ledger.write("notified", key=key, count=number)

    async def _stop(self, ref: JobRef[Any]) -> None:
        try:
            await ref.stop(cause="the play is over", timeout_s=self.play.patience_s)
        except PoolError as error:
            self._fail(f"stop {ref.key}: {error}")

    async def _watch(self) -> None:
        """Follow the ledger and the processes."""
        while True:
            self._read()
            for name, process in self._processes.items():
                life = self.history.lives.get(name)
                if process.poll() is not None and (life is None or life.gone_s == math.inf):
                    self._ledger.write("node", node=name, how="left", count=process.returncode)
                    if process.returncode:
                        said = (self.directory / f"{name}.log").read_text("utf-8", "replace")
                        self.show.say(f"{name} ended: {said.strip().rpartition(chr(10))[2]}")
            self.show.paint(self.history)
            self._looked.set()
            self._looked = anyio.Event()
            await anyio.sleep(_LOOK_S)

    def _nap(self) -> None:
        """Write down how late a thread wakes that does nothing: so late is everybody, on average.

        It is the machine's other work that does it.  What hung for its own reasons is not excused.
        """
        began_s = time.monotonic()
        while not self._left.wait(_NAP_S):
            late_s = time.monotonic() - began_s - _NAP_S
            if late_s > _NAP_S / 4:
                self._ledger.write("late", count=round(late_s * 1e6))
            began_s = time.monotonic()

    # --- means --------------------------------------------------------------------------------

    def _enter(self, name: str) -> None:
        cast = Cast(
            name=name,
            loop=_loop(name),
            url=self.url,
            pool=self.pool,
            ledger=str(self._tail.path),
            workers=self.play.workers,
            capacity=len(zones.names()) + len(CLOCKS),  # when one is left, it runs everything
            ttl_s=self.play.ttl_s,
            grace_s=self.play.grace_s,
            pace=self.play.pace,
        )
        paths = [str(_OURS), *filter(None, [os.environ.get("PYTHONPATH")])]
        with (self.directory / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                # -P: not whatever package lies in the working directory, but this one.
                [sys.executable, "-P", "-m", "pool.demo.member", cast.pack()],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                start_new_session=True,  # Ctrl-C at the terminal is the conductor's affair
            )

    def _alive(self) -> list[str]:
        return [name for name, life in self.history.lives.items() if life.gone_s == math.inf]

    def _read(self) -> None:
        for entry in self._tail.read():
            self.history.add(entry)

    async def _until(self, is_so: Callable[[], bool], limit_s: float) -> bool:
        """Wait until it is so; False when the limit passes first."""
        with anyio.move_on_after(limit_s):
            while not is_so():
                await self._looked.wait()
            return True
        return False

    def _is_over(self) -> bool:
        """Say whether all zones have outcomes, or nobody works on the others any more."""
        unfinished = self.history.unfinished_zones()
        if any(self.history.is_worked_on(entry.key) for entry in unfinished):
            self._idle_since_s = math.inf
            return False
        now_s = time.monotonic()
        self._idle_since_s = min(self._idle_since_s, now_s)
        return not unfinished or now_s - self._idle_since_s > self.play.patience_s

    def _fail(self, why: str) -> None:
        self.show.say(why)
        self._ledger.write("mishap", how=why)

    async def _everybody_leaves(self) -> None:
        limit_s = self.play.grace_s + self.play.patience_s
        if not await self._until(lambda: not self._alive(), limit_s):
            self._fail(f"{', '.join(self._alive())} did not leave within {limit_s:g} s")

    async def _stored(self) -> dict[str, Stored]:
        """Fetch how all jobs ended, straight from Redis."""
        pipeline = await Pipeline.open(SystemIO(), Url.parse(self.url), op_timeout_s=5.0)
        try:
            found = await inspect.find(pipeline, self.pool)
            if found is None:
                return {}  # nobody has founded it, as the verdict says
            jobs = [(ref.key, ref.job_id) for ref in self._refs]
            outcomes = await inspect.outcomes(pipeline, found, jobs)
        finally:
            await pipeline.aclose(1.0)
        return {
            job_id: Stored(
                word=outcome.word,
                epoch=outcome.epoch,
                value=decode_value(outcome.body) if outcome.word == "done" else None,
            )
            for (_, job_id), outcome in zip(jobs, outcomes, strict=True)
            if isinstance(outcome, Outcome)
        }


def _loop(name: str) -> str:
    """Return the event loop of a node: every other one is on trio, if that is installed."""
    has_trio = importlib.util.find_spec("trio") is not None
    return "trio" if has_trio and NAMES.index(name) % 2 else "asyncio"


def _load(history: History, name: str) -> str:
    jobs, clocks = (len(history.open_runs(name, handler)) for handler in (ZONE, CLOCK))
    return f"{jobs} zones and {clocks} clocks"


def _right(name: str) -> dict[str, Any]:
    """Return a zone's right result as it comes out of JSON."""
    first, changes = tzif.transitions(zones.file_of(name), zones.SINCE_S, zones.UNTIL_S)
    plain: dict[str, Any] = json.loads(json.dumps({"first": first, "changes": changes}))
    return plain
