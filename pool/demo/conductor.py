"""The conductor of the demo, with its script, its stage and what it shows.

The script of the demo: who plays, how fast, and how long the conductor waits for what.

What people see while the demo runs: story lines that stay and, on a terminal, a live block.

Everything shown comes from the ledger.

The stage of the demo: the processes that play, the ledger they write, and who watches both.

The conductor of the demo: plays the story, and asks for the verdict.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any, Final, Self, TextIO

import anyio
import attrs

from pool.core.codec import decode_value
from pool.core.record import Outcome
from pool.demo import tzif, zones
from pool.demo.ledger import CLOCK, ZONE, Ledger, LedgerTail, What
from pool.demo.verdict import (
    KILLED_CLOCKS_MIN,
    KILLED_ZONES_MIN,
    History,
    JobLife,
    Stored,
    Verdict,
    judge,
)
from pool.errors import HandlerError, PoolError, again
from pool.jobs.client.dispatch import Call
from pool.jobs.client.ref import JobRef
from pool.jobs.node import Node
from pool.ops import inspect
from pool.ops.terminal import takes_codes
from pool.redis.io.system import SystemIO
from pool.redis.pipeline import Pipeline
from pool.redis.url import Url
from pool.settings import Settings

# Enough for four nodes; each name is a label, so that a run places its keys as the last one did.
NAMES: Final = ("north", "east", "south", "west")

CLOCKS: Final = (
    *("Africa/Cairo", "Africa/Lagos", "Africa/Nairobi", "America/Anchorage", "America/Bogota"),
    *("America/Chicago", "America/Los_Angeles", "America/New_York", "America/Sao_Paulo"),
    *("America/St_Johns", "Asia/Dubai", "Asia/Kathmandu", "Asia/Kolkata", "Asia/Shanghai"),
    *("Asia/Tokyo", "Australia/Adelaide", "Australia/Sydney", "Europe/Athens", "Europe/Dublin"),
    *("Europe/London", "Europe/Madrid", "Pacific/Auckland", "Pacific/Chatham", "Pacific/Honolulu"),
)


@attrs.frozen(kw_only=True)
class PlayPace:
    """How long the work takes.  Computing one zone is far too quick to be killed in the middle."""

    zone_min_s: float = 4.0
    zone_max_s: float = 9.0
    tick_s: float = 0.5
    notify_s: float = 0.1  # between two notifications, each to the next clock


@attrs.frozen(kw_only=True)
class Play:
    """The whole demo in numbers."""

    ttl_s: float = 2.0
    grace_s: float = 2.0
    workers: int = 4  # per node: each settles by itself, so that a freeze catches several at it
    pace: PlayPace = PlayPace()
    deadline_s: float = 40.0  # then the curtain falls, whatever is done
    patience_s: float = 8.0  # for one thing to happen that should take seconds


@attrs.frozen(kw_only=True)
class Cast:
    """What one member process is told."""

    name: str
    loop: str
    url: str
    pool: str
    ledger: str
    workers: int
    capacity: int
    ttl_s: float
    grace_s: float
    pace: PlayPace

    def pack(self) -> str:
        """Return it as a word of a command line."""
        return json.dumps(attrs.asdict(self))

    @classmethod
    def parse(cls, text: str) -> Cast:
        """Return what `pack()` packed."""
        fields = json.loads(text)
        return cls(**{**fields, "pace": PlayPace(**fields["pace"])})


_PAINT_S: Final = 0.2
_REPORT_S: Final = 5.0  # between two lines of progress where nothing can be repainted
_BAR: Final = 40
_SHOWN: Final = ("Europe/London", "Africa/Nairobi", "Asia/Tokyo", "America/New_York")

_FIGURES: Final = {
    "jobs": "zones computed, each a finite job",
    "services": "world clocks, each a service",
    "lost": "accepted and never seen again",
    "settled_twice": "jobs with more than one outcome",
    "stale_commits": "results of an owner that was not the last",
    "overlaps": "two owners at once",
    "frozen_overlaps": "... of which the older was frozen: it could not know (G-03)",
    "wrong_results": "zones that differ from their TZif file",
    "takeover_s": "seconds from SIGKILL until all ran elsewhere",
    "handoff_s": "seconds that a clock stood still in a planned move, at most",
    "moves": "changes of node, over all clocks",
}


@attrs.define(eq=False)
class Show:
    """Writes to `stream`; None shows nothing."""

    stream: TextIO | None
    _began_s: float = attrs.field(init=False, factory=time.monotonic)
    _painted_s: float = attrs.field(init=False, default=0.0)
    _block: list[str] = attrs.field(init=False, factory=list)  # as it stands there now

    @property
    def is_live(self) -> bool:
        """Whether what was written can be repainted."""
        return self.stream is not None and takes_codes(self.stream)

    def say(self, text: str) -> None:
        """Write a line of the story."""
        self._write([f"{time.monotonic() - self._began_s:6.1f}  {text}"], self._block)

    def paint(self, history: History) -> None:
        """Show how things stand, if it is time to."""
        now_s = time.monotonic()
        if now_s - self._painted_s < (_PAINT_S if self.is_live else _REPORT_S):
            return
        self._painted_s = now_s
        if self.is_live:
            self._write([], list(self._state(history)))
        elif history.accepted:
            self.say(_progress(history))

    def close(self, verdict: Verdict) -> None:
        """Write the verdict."""
        figures = verdict.figures()
        lines = [f"  {_shown(figures[name])}  {text}" for name, text in _FIGURES.items()]
        word = "every promise was kept" if verdict.ok else "BROKEN"
        self._write(["", *lines, "", f"  {word}, in {verdict.seconds:.0f} s"], [])
        self._write([f"  - {case}" for case in verdict.broken], [])

    def _state(self, history: History) -> Iterator[str]:
        yield ""
        yield f"  {self._bar(history)}  {_progress(history)}"
        for node, life in history.lives.items():
            zones = len(history.open_runs(node, ZONE))
            clocks = len(history.open_runs(node, CLOCK))
            load = f"{zones:4} zones {clocks:3} clocks" if life.gone_s == float("inf") else ""
            yield f"  {node:6} {_word(life):9} {load}".rstrip()
        times = [_clock(history, zone) for zone in _SHOWN]
        yield "  " + "   ".join(text for text in times if text)

    def _bar(self, history: History) -> str:
        full, empty = (
            "█░" if "utf" in (getattr(self.stream, "encoding", "") or "").lower() else "#."
        )
        jobs = len(history.jobs(ZONE))
        done = _BAR * (jobs - len(history.unfinished_zones())) // max(jobs, 1)
        return full * done + empty * (_BAR - done)

    def _write(self, story: list[str], block: list[str]) -> None:
        if self.stream is None:
            return
        width = shutil.get_terminal_size().columns - 1
        erase = f"\x1b[{len(self._block)}F\x1b[J" if self._block else ""
        lines = [*story, *(line[:width] for line in block)]
        self.stream.write(erase + "".join(f"{line}\n" for line in lines))
        self.stream.flush()
        self._block = block


def _progress(history: History) -> str:
    jobs = len(history.jobs(ZONE))
    return f"{jobs - len(history.unfinished_zones())} of {jobs} zones"


def _word(life: JobLife) -> str:
    words = {
        life.killed_s: "killed",
        life.left_s: "left",
        life.draining_s: "draining",
        life.continued_s: "running",
        life.stopped_s: "frozen",
        life.joined_s: "running",
    }
    return words[max(at_s for at_s in words if at_s < float("inf"))]


def _clock(history: History, zone: str) -> str:
    runs = history.by_key.get(f"{CLOCK}:{zone}", [])
    shown = [run.shown for run in runs if run.shown]
    return f"{zone.rpartition('/')[2].replace('_', ' ')} {shown[-1]}" if shown else ""


def _shown(figure: float | None) -> str:
    return f"{'never' if figure is None else figure:>8}"


_LOOK_S: Final = 0.05  # between two looks at the ledger
_NAP_S: Final = 0.02  # of the thread that sees how late the machine is
_OURS: Final = Path(__file__).parents[2]  # where this very package is imported from


@attrs.define(eq=False, kw_only=True)
class Stage:
    """Has the processes; `history` is what the ledger says of them, as far as it was read."""

    play: Play
    show: Show
    url: str
    directory: Path
    pool: str = attrs.field(init=False, factory=lambda: f"demo-{secrets.token_hex(4)}")
    history: History = attrs.field(init=False, factory=History)
    _processes: dict[str, subprocess.Popen[bytes]] = attrs.field(init=False, factory=dict)
    _ledger: Ledger = attrs.field(init=False)
    _tail: LedgerTail = attrs.field(init=False)
    _looked: anyio.Event = attrs.field(init=False, factory=anyio.Event)
    _left: threading.Event = attrs.field(init=False, factory=threading.Event)
    _naps: threading.Thread | None = attrs.field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        path = self.directory / "ledger.jsonl"
        self._ledger, self._tail = Ledger(path), LedgerTail(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        for process in self._processes.values():
            process.kill()  # none is left, unless we are here by an exception
            process.wait()
            assert process.stdin is not None
            process.stdin.close()
        if self._naps is not None:
            self._naps.join()
        self.read()
        self._ledger.close()

    # --- who plays ----------------------------------------------------------------------------

    def enter(self, name: str) -> None:
        """Start a node."""
        cast = Cast(
            name=name,
            loop=loop_of(name),
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

    def kill(self, name: str) -> float:
        """SIGKILL a node; return when, by the ledger's clock."""
        killed_s = self.write("node", node=name, how="killed")
        self._processes[name].kill()
        self._processes[name].wait()
        self.read()
        return killed_s

    def signal(self, name: str, number: int, how: str) -> None:
        """Send a node a signal, and write down how it is by that."""
        self.write("node", node=name, how=how)
        self._processes[name].send_signal(number)

    def alive(self) -> list[str]:
        """Return who is there."""
        return [name for name, life in self.history.lives.items() if life.gone_s == math.inf]

    async def everybody_leaves(self) -> None:
        """Wait until nobody is there."""
        limit_s = self.play.grace_s + self.play.patience_s
        if not await self.until(lambda: not self.alive(), limit_s):
            self.fail(f"{', '.join(self.alive())} did not leave within {limit_s:g} s")

    # --- what is known of it ------------------------------------------------------------------

    def write(self, what: What, **facts: Any) -> float:
        """Write into the ledger; return when."""
        return self._ledger.write(what, **facts)

    def read(self) -> None:
        """Read what is new in it."""
        for entry in self._tail.read():
            self.history.add(entry)

    def fail(self, why: str) -> None:
        """Say what should not have happened; the verdict will, too."""
        self.show.say(why)
        self.write("mishap", how=why)

    async def until(self, is_so: Callable[[], bool], limit_s: float) -> bool:
        """Wait until it is so; False when the limit passes first."""
        with anyio.move_on_after(limit_s):
            while not is_so():
                await self._looked.wait()
            return True
        return False

    async def watch(self) -> None:
        """Follow the ledger and the processes."""
        while True:
            self.read()
            for name, process in self._processes.items():
                life = self.history.lives.get(name)
                if process.poll() is not None and (life is None or life.gone_s == math.inf):
                    self.write("node", node=name, how="left", count=process.returncode)
                    if process.returncode:
                        said = (self.directory / f"{name}.log").read_text("utf-8", "replace")
                        self.show.say(f"{name} ended: {said.strip().rpartition(chr(10))[2]}")
            self.show.paint(self.history)
            self._looked.set()
            self._looked = anyio.Event()
            await anyio.sleep(_LOOK_S)

    def watch_machine(self) -> None:
        """Write down from now on how late the machine is."""
        self._naps = threading.Thread(target=self._nap, name="demo-naps", daemon=True)
        self._naps.start()

    def _nap(self) -> None:
        """Write down how late a thread wakes that does nothing: so late is everybody, on average.

        It is the machine's other work that does it.  What hung for its own reasons is not excused.
        """
        began_s = time.monotonic()
        while not self._left.wait(_NAP_S):
            late_s = time.monotonic() - began_s - _NAP_S
            if late_s > _NAP_S / 4:
                self.write("late", count=round(late_s * 1e6))
            began_s = time.monotonic()


def loop_of(name: str) -> str:
    """Return the event loop of a node: every other one is on trio, if that is installed."""
    has_trio = importlib.util.find_spec("trio") is not None
    return "trio" if has_trio and NAMES.index(name) % 2 else "asyncio"


_START_S: Final = 20.0  # for a Python process to start, on a busy machine


@attrs.define(eq=False, kw_only=True)
class Conductor:
    """Plays the story.  What it decides by, it reads from the ledger."""

    stage: Stage
    server: str
    play: Play = attrs.field(init=False)
    show: Show = attrs.field(init=False)
    history: History = attrs.field(init=False)
    _began_s: float = attrs.field(init=False, factory=time.monotonic)
    _refs: list[JobRef[Any]] = attrs.field(init=False, factory=list)
    _numbers: dict[str, int] = attrs.field(init=False, factory=dict)  # notifications sent, by key
    _idle_since_s: float = attrs.field(init=False, default=math.inf)

    def __attrs_post_init__(self) -> None:
        self.play, self.show, self.history = self.stage.play, self.stage.show, self.stage.history

    async def conduct(self) -> Verdict:
        """Play it all and return the verdict."""
        self.show.say(f"{self.server}, lease TTL {self.play.ttl_s:g} s")
        with self.stage as stage:
            for name in NAMES[:3]:
                stage.enter(name)
            expected = {name: _right(name) for name in zones.names()}
            stage.watch_machine()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stage.watch)
                try:
                    await self._acts()
                except PoolError as error:
                    stage.fail(str(error))
                await stage.everybody_leaves()
                tasks.cancel_scope.cancel()
            stored = await self._stored()
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
        await self.stage.until(lambda: len(lives) == 3, _START_S)  # joined, or ended
        if len(self.stage.alive()) < 3:
            self.stage.fail(f"only {len(self.stage.alive())} of three nodes came up")
            return
        loops = ", ".join(f"{name} ({loop_of(name)})" for name in NAMES[:3])
        self.show.say(f"three nodes, each a process: {loops}")
        settings = Settings(lease_ttl_s=self.play.ttl_s)
        async with Node(self.stage.pool, self.stage.url, settings=settings) as node:
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
                    await self.stage.until(self._is_over, math.inf)
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
                self.stage.write("accepted", key=ref.key, job=ref.job_id, handler=handler)
                self._refs.append(ref)
        self.show.say(f"dispatched {len(jobs)} zones and {len(clocks)} world clocks")

    async def _kill(self) -> bool:
        """SIGKILL the node with the most clocks; say whether all it ran runs elsewhere."""
        runs = self.history.open_runs

        def is_ready() -> bool:
            return sum(map(len, self.history.by_key.values())) >= len(self._refs)

        await self.stage.until(is_ready, self.play.patience_s)
        name = max(NAMES[:3], key=lambda each: len(runs(each, CLOCK)))
        killed_s = self.stage.kill(name)
        held = [*runs(name, ZONE), *runs(name, CLOCK)]
        self.show.say(f"SIGKILL {name}, which runs {_load(self.history, name)}")
        if len(runs(name, ZONE)) < KILLED_ZONES_MIN or len(runs(name, CLOCK)) < KILLED_CLOCKS_MIN:
            return False  # the verdict will say so

        def waits_s() -> list[float]:
            return [self.history.started_after(run, killed_s) - killed_s for run in held]

        if await self.stage.until(lambda: max(waits_s()) < math.inf, self.play.patience_s):
            self.show.say(f"all of it runs elsewhere, after {max(waits_s()):.2f} s")
            return True
        missing = sum(wait_s == math.inf for wait_s in waits_s())
        self.show.say(f"{missing} of {len(held)} were not started elsewhere")
        return False

    async def _freeze(self) -> None:
        """SIGSTOP the busier of the two left for 2 TTL; wait until it has let go."""
        # Not before jobs end: those that it wants to settle when it wakes are the point of this.
        jobs = self.history.jobs(ZONE)
        await self.stage.until(
            lambda: len(jobs) - len(self.history.unfinished_zones()) >= len(jobs) // 4,
            self.play.patience_s,
        )
        name = max(self.stage.alive(), key=lambda each: len(self.history.open_runs(each, ZONE)))
        held = [*self.history.open_runs(name, ZONE), *self.history.open_runs(name, CLOCK)]
        self.show.say(f"SIGSTOP {name}, which runs {_load(self.history, name)}")
        self.stage.signal(name, signal.SIGSTOP, "stopped")
        await anyio.sleep(2 * self.play.ttl_s)
        self.stage.signal(name, signal.SIGCONT, "continued")
        self.show.say(f"SIGCONT {name}, after {2 * self.play.ttl_s:g} s")
        began_s = time.monotonic()
        if await self.stage.until(
            lambda: all(run.ended_s < math.inf for run in held), self.play.patience_s
        ):
            took_s = time.monotonic() - began_s
            self.show.say(f"{name} has let go of all it ran, after {took_s:.2f} s")

    async def _drain_and_add(self) -> None:
        """SIGTERM the node that was never frozen, and add one in its place."""
        lives, newcomer = self.history.lives, NAMES[3]
        name = next(each for each in self.stage.alive() if lives[each].stopped_s == math.inf)
        self.show.say(f"SIGTERM {name}, which runs {_load(self.history, name)}; add {newcomer}")
        self.stage.signal(name, signal.SIGTERM, "draining")
        self.stage.enter(newcomer)
        if await self.stage.until(lambda: lives[name].left_s < math.inf, _START_S):
            self.show.say(f"{name} has handed everything over and left")
        await self.stage.until(lambda: newcomer in lives, _START_S)
        self.show.say(f"{newcomer} ({loop_of(newcomer)}) has joined")

    async def _curtain(self, node: Node) -> None:
        """See that every clock still runs, and that every notification was heard."""
        self.stage.write("curtain")
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

        await self.stage.until(is_quiet, self.play.patience_s)
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
            self.stage.fail(f"{ref.key}: {error}")
            return
        try:
            status = await ref.status()
        except PoolError as error:
            self.stage.fail(f"{ref.key}: {error}")
        else:
            self.stage.write(
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
            self.stage.write("notified", key=key, count=number)

    async def _stop(self, ref: JobRef[Any]) -> None:
        try:
            await ref.stop(cause="the play is over", timeout_s=self.play.patience_s)
        except PoolError as error:
            self.stage.fail(f"stop {ref.key}: {error}")

    def _is_over(self) -> bool:
        """Say whether all zones have outcomes, or nobody works on the others any more."""
        unfinished = self.history.unfinished_zones()
        if any(self.history.is_worked_on(entry.key) for entry in unfinished):
            self._idle_since_s = math.inf
            return False
        now_s = time.monotonic()
        self._idle_since_s = min(self._idle_since_s, now_s)
        return not unfinished or now_s - self._idle_since_s > self.play.patience_s

    # --- how it ended -------------------------------------------------------------------------

    async def _stored(self) -> dict[str, Stored]:
        """Fetch how all jobs ended, straight from Redis."""
        pipeline = await Pipeline.open(SystemIO(), Url.parse(self.stage.url), op_timeout_s=5.0)
        try:
            found = await inspect.find(pipeline, self.stage.pool)
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


def _load(history: History, name: str) -> str:
    jobs, clocks = (len(history.open_runs(name, handler)) for handler in (ZONE, CLOCK))
    return f"{jobs} zones and {clocks} clocks"


def _right(name: str) -> dict[str, Any]:
    """Return a zone's right result as it comes out of JSON."""
    first, changes = tzif.transitions(zones.file_of(name), zones.SINCE_S, zones.UNTIL_S)
    plain: dict[str, Any] = json.loads(json.dumps({"first": first, "changes": changes}))
    return plain
