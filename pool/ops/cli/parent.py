"""`pool run --processes N`, and `--reload`: the parent of N children, each of which is a worker.

It decides nothing (`pool.ops.processes` does) and imports no module of the user's: it has the
clock, the signals and the processes, and carries out what is decided.  Children are executed anew,
never forked: they begin with what is on the disk, and share nothing with each other.

    SIGTERM, SIGINT  all drain, then it ends; the second one ends them at once
    SIGHUP           a reload; with --reload as SIGTERM: the terminal is gone
    SIGCHLD          somebody has ended
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import random
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any, Final

import attrs

from pool.errors import ConfigError
from pool.ops.cli.child import SHUT_DOWN, TWICE_S
from pool.ops.cli.config import RunOptions
from pool.ops.cli.readiness import Readiness
from pool.ops.processes import (
    FAILED,
    DrainChild,
    Effect,
    Finish,
    KillChild,
    Processes,
    Say,
    StartChild,
)
from pool.redis.url import Url

_LEAVE: Final = (signal.SIGTERM, signal.SIGINT)
_CHANGED: Final = b"c"  # through the pipe that signals wake us by
_LINE_BYTES_MAX: Final = 1024 * 1024  # of a child: what is longer is no line of ours
_BY_SIGNAL: Final = 128  # as a shell says of a program that a signal has ended


def run_children(words: list[str], options: RunOptions, tell: Callable[..., None]) -> int:
    """Have children do what these words of `pool run` say; return when all have ended.

    Raises:
        ConfigError: What is asked for cannot be had.
    """
    url = Url.parse(options.url)
    if url.kind == "embedded" and not url.path:
        problem = "embedded:// alone is a server of one process; name a directory, embedded:///..."
        raise ConfigError(setting="url", problem=problem)
    if options.reload and importlib.util.find_spec("watchfiles") is None:
        problem = "it needs watchfiles: pip install 'keyed-pool[cli]'"
        raise ConfigError(setting="reload", problem=problem)
    readiness = Readiness.of(options.ready_file, os.environ)
    return _Parent(words, options, readiness, tell).run()


@attrs.define
class _Process:
    """A child as the system has it."""

    popen: subprocess.Popen[bytes]
    line: socket.socket
    unread: bytes = b""


@attrs.define(eq=False)
class _Parent:
    words: list[str]
    options: RunOptions
    readiness: Readiness
    tell: Callable[..., None]
    processes: Processes = attrs.field(init=False)
    _running: dict[int, _Process] = attrs.field(factory=dict)
    _signals: deque[int] = attrs.field(factory=deque)
    _selector: selectors.BaseSelector = attrs.field(factory=selectors.DefaultSelector)
    _state: str = "starting"  # as whoever started us knows it
    _why: str = ""  # we leave
    _told_at_s: float = -math.inf  # when we were told to
    _problem: str = ""  # of the child that failed last
    _last: int = 0  # the signal that made us end at once
    _code: int | None = None
    _killed: int = 0  # children that did not leave in order, and whose jobs others take over later

    def __attrs_post_init__(self) -> None:
        self.processes = Processes(
            count=self.options.processes or 1,
            dice=random.Random(),
            waits_for_change=self.options.reload,
        )

    def run(self) -> int:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        with ours, theirs, self._selector:
            self._selector.register(ours, selectors.EVENT_READ)
            before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
            for number in (*_LEAVE, signal.SIGHUP, signal.SIGCHLD):
                signal.signal(number, self._on_signal)
            try:
                if self.options.reload:
                    _watch(Path.cwd(), theirs)
                self._carry_out(self.processes.begin())
                while self._code is None:
                    self._turn(ours)
            finally:
                signal.set_wakeup_fd(before)
                self.readiness.leaving(self._why or "ended")
                for each in self._running.values():
                    each.line.close()  # it drains, and ends
        killed = {"killed": self._killed} if self._killed else {}
        self.tell("left", pool=self.options.pool, **killed)
        return _BY_SIGNAL + self._last if self._last else self._code

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self._signals.append(number)

    def _turn(self, ours: socket.socket) -> None:
        """Wait for what happens next, and deal with it."""
        ready = self._selector.select(self._patience_s())
        if any(key.fileobj is ours for key, _ in ready) and _CHANGED in ours.recv(4096):
            self._carry_out(self.processes.reload())
        while self._signals:
            self._signal(self._signals.popleft())
        for key, _ in ready:
            if key.data in self._running:
                self._hear(key.data)
        for serial, process in list(self._running.items()):
            code = process.popen.poll()
            if code is not None:
                self._bury(serial, code)
        self._carry_out(self.processes.tick(time.monotonic()))
        if self.readiness.beat_s is not None:
            self.readiness.alive()

    def _patience_s(self) -> float | None:
        wake_s = self.processes.wake_s
        waits = [] if wake_s is None else [max(0.0, wake_s - time.monotonic())]
        waits += [] if self.readiness.beat_s is None else [self.readiness.beat_s]
        return min(waits, default=None)

    def _signal(self, number: int) -> None:
        if number in _LEAVE or (number == signal.SIGHUP and self.options.reload):
            now_s = time.monotonic()
            if self.processes.is_stopping and now_s < self._told_at_s + TWICE_S:
                return
            self._last = number if self.processes.is_stopping else 0
            self._told_at_s = now_s
            self._why = self._why or signal.Signals(number).name
            self._carry_out(self.processes.stop())
        elif number == signal.SIGHUP:
            self._carry_out(self.processes.reload())

    # --- children -------------------------------------------------------------------------------

    def _hear(self, serial: int) -> None:
        """Take what a child says."""
        process = self._running[serial]
        try:
            came = process.line.recv(65_536, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            came = b""
        *lines, process.unread = (process.unread + came).split(b"\n")
        if not came or len(process.unread) > _LINE_BYTES_MAX:
            self._selector.unregister(process.line)  # it ends, which SIGCHLD tells
        for line in lines:
            self._told(serial, json.loads(line))

    def _told(self, serial: int, facts: dict[str, Any]) -> None:
        event, now_s = facts.pop("event"), time.monotonic()
        drain_s = facts.pop("drain_s", math.inf)
        self.tell(f"child.{event}", pid=self._running[serial].popen.pid, **facts)
        if event == "ready":
            self._carry_out(self.processes.ready(serial, now_s, drain_s))
        elif event == "failed":
            self._problem = facts["problem"]
        elif event == "draining":
            is_shut_down = facts["why"] == SHUT_DOWN
            self._why = self._why or (SHUT_DOWN if is_shut_down else "")
            self._carry_out(self.processes.leaving(serial, now_s, is_shut_down=is_shut_down))

    def _bury(self, serial: int, code: int) -> None:
        process = self._running[serial]
        if process.line.fileno() in self._selector.get_map():
            self._hear(serial)  # its last words came before its end
            if process.line.fileno() in self._selector.get_map():
                self._selector.unregister(process.line)
        process.line.close()
        del self._running[serial]
        self.tell("child.ended", pid=process.popen.pid, code=code)
        self._carry_out(self.processes.ended(serial, code, time.monotonic()))

    # --- what is decided ------------------------------------------------------------------------

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case StartChild(number=number, serial=serial):
                    self._start(number, serial)
                case DrainChild(serial=serial):
                    if serial in self._running:
                        self._running[serial].line.shutdown(socket.SHUT_WR)
                case KillChild(serial=serial):
                    if serial in self._running:
                        self._running[serial].popen.kill()
                        self._killed += 1
                case Say(event=event, facts=facts):
                    self.tell(event, **facts)
                case Finish(code=code):
                    self._code = code
        self._say_how_it_is()

    def _start(self, number: int, serial: int) -> None:
        ours, theirs = socket.socketpair()
        verb, *rest = self.words
        command = [sys.executable, "-P", "-m", "pool.ops.cli", verb]
        command += ["--child", f"{number}:{theirs.fileno()}", *rest]
        unheard = {"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"}  # those are for us
        environ = {name: text for name, text in os.environ.items() if name not in unheard}
        try:
            with theirs:
                popen = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environ)
        except OSError as error:  # no memory, or too many processes: later there may be
            ours.close()
            self.tell("child.failed", child=number, problem=str(error))
            self._carry_out(self.processes.ended(serial, FAILED, time.monotonic()))
            return
        self._running[serial] = _Process(popen, ours)
        self._selector.register(ours, selectors.EVENT_READ, serial)
        self.tell("child.started", child=number, pid=popen.pid)

    def _say_how_it_is(self) -> None:
        """Tell whoever started us, if that has changed."""
        now = self.processes
        state = "leaving" if now.is_stopping else "ready" if now.is_ready else self._state
        if state == "ready" and now.is_reloading:
            state = "reloading"
        elif self._state != "starting" and not now.is_stopping and not now.is_ready:
            state = "lost"
        if state == self._state:
            return
        self._state, facts = state, {"pool": self.options.pool, "processes": now.count}
        match state:
            case "leaving":
                self._why = self._why or self._problem  # nobody has asked for it
                self.readiness.leaving(self._why)
                self.tell("draining", **facts, why=self._why)
            case "reloading":
                self.readiness.reloading()
            case "lost":
                self.readiness.lost()
            case "ready":
                self.readiness.ready(f"{now.count} processes")
                self.tell("ready", **facts)


def _watch(directory: Path, wake: socket.socket) -> None:
    """Tell of changed files, from a thread."""
    import watchfiles

    files = watchfiles.PythonFilter(extra_extensions=(".toml",))

    def watch() -> None:
        for _ in watchfiles.watch(directory, watch_filter=files, raise_interrupt=False):
            try:
                wake.send(_CHANGED)
            except BlockingIOError:
                continue  # many wake-ups are unread already, one of them ours
            except OSError:
                return  # it has ended meanwhile

    threading.Thread(target=watch, name="watch", daemon=True).start()
