"""The stage of the demo: the processes that play, the ledger they write, and who watches both."""

from __future__ import annotations

import importlib.util
import math
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

import anyio
import attrs

from pool.demo import zones
from pool.demo.history import History
from pool.demo.ledger import Ledger, LedgerTail, What
from pool.demo.play import CLOCKS, NAMES, Cast, Play
from pool.demo.show import Show

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
