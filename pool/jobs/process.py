"""Functions that are called in a process of their own, which can be killed: see `child.py`.

    checks, encodes --> starts --> sends the call --> waits for the answer --> kills, reaps
                          |______________|___________________|
                          cancelled, in whatever way: kills, reaps

One process for one call: nothing that a function leaves behind meets the next one, and it is gone
when this returns or raises.  Who may end it: we, by SIGKILL to its group, and on Linux to all of
its session, whose number is nobody else's until we have reaped it; it itself; the kernel.  If we
die, our end of the socket is closed, which ends it and its group.  A copy of us that a fork made
closes its copy of that end at once.

Being woken says only that it is worth a try: of a socket that was closed while some copy of it was
open still (each start of a process makes one, for a moment), trio's poll may tell him who waits for
a later one of the same number.  So ours is let go before it is closed, and whoever finds nothing
waits again.

Nothing is pickled.  The function is named and imported there; arguments and result are strict JSON,
or one `bytes`.
"""

from __future__ import annotations

import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import spawn
from pathlib import Path
from typing import Any, Final, NoReturn

import anyio
import anyio.to_thread
import attrs

from pool import checks
from pool.core.codec import check_size, decode_value, encode_call
from pool.errors import OutOfMemory, PayloadEncodingError, ProcessDied, ProcessFailed
from pool.jobs import child
from pool.jobs.child import FRAME_BYTES_MAX, HEAD_BYTES, head, read_head
from pool.redis.io.loops import let_go

MEMORY_BYTES_MIN: Final = 64 * 1024 * 1024  # Python itself takes half of it
MEMORY_BYTES_MAX: Final = 1 << 50
_CHUNK_BYTES: Final = 1 << 18
_MAIN: Final = "__main__"
_MAIN_KEYS: Final = ("init_main_from_name", "init_main_from_path")
_LINES: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _close_in_copy() -> None:
    for line in list(_LINES):
        line.close()


os.register_at_fork(after_in_child=_close_in_copy)


@attrs.frozen(kw_only=True)
class Request:
    """One call, as it is sent."""

    function: str
    frames: bytes
    memory_bytes: int | None

    @classmethod
    def of(cls, fn: Callable[..., Any], args: tuple[Any, ...], memory_bytes: int | None) -> Request:
        """Encode a call.

        Raises:
            InvalidOption: The function cannot be imported by its name, or the limit cannot be had.
            PayloadEncodingError: An argument cannot be encoded.
            PayloadTooLarge: They are larger than 256 MiB.
        """
        module, name = _names(fn)
        spawned = spawn.get_preparation_data("pool")
        main = {key: spawned[key] for key in _MAIN_KEYS if key in spawned}
        if module == _MAIN and (not main or main.get(_MAIN_KEYS[0], "").endswith(_MAIN)):
            must = "in another module: what was typed in, or a package's __main__, is not imported"
            raise checks.option("fn", fn, must)
        if getattr(sys, "frozen", False):
            raise checks.option("process", "frozen", "for a frozen program, which is no Python")
        if memory_bytes is not None:
            checks.count("memory_bytes", memory_bytes, MEMORY_BYTES_MIN, MEMORY_BYTES_MAX)
            if not sys.platform.startswith("linux"):
                raise checks.option("memory_bytes", memory_bytes, "None: only Linux limits it")
        header = {
            "module": module,
            "name": name,
            "main": main if module == _MAIN else None,
            "path": [each for each in spawned["sys_path"] if type(each) is str],
            "argv": spawned["sys_argv"],
            "memory_bytes": memory_bytes,
        }
        said = json.dumps(header).encode()
        call = encode_call(args, {})
        check_size("arguments", call, FRAME_BYTES_MAX)
        frames = (head(b"H", len(said)), said, head(b"C", len(call)), call)
        return cls(function=f"{module}.{name}", frames=b"".join(frames), memory_bytes=memory_bytes)

    def read(self, kind: bytes, answer: bytes) -> Any:
        """Return the result.

        Raises:
            ProcessFailed: It raised.
            OutOfMemory: It wanted more than it may have.
            PayloadEncodingError: Its result cannot be encoded.
        """
        match kind:
            case b"R":
                return decode_value(answer)
            case b"V":
                path, problem = json.loads(answer)
                raise PayloadEncodingError(path=path, problem=f"{self.function} returned {problem}")
            case b"M":
                assert self.memory_bytes is not None
                raise OutOfMemory(function=self.function, memory_bytes=self.memory_bytes)
        raised, text, trace = json.loads(answer)
        error = ProcessFailed(function=self.function, raised=raised, problem=text or raised)
        error.add_note(trace)
        raise error

    def died(self, code: int) -> NoReturn:
        """Raise what the end of a process says that had no answer yet."""
        name = ""
        if code < 0:
            name = next((each.name for each in signal.Signals if each == -code), f"signal {-code}")
        raise ProcessDied(function=self.function, exit_code=code, signal=name)


def _names(fn: object) -> tuple[str, str]:
    """Return the module and the name by which a function is found there."""
    must = "a plain function that its module holds under its name: no lambda, method or partial"
    try:
        names = fn.__module__, fn.__qualname__  # type: ignore[attr-defined]
        found: Any = sys.modules.get(names[0])
        for part in names[1].split("."):
            found = inspect.getattr_static(found, part)
            found = found.__func__ if isinstance(found, staticmethod) else found
    except Exception as error:  # of the caller's own code
        raise checks.option("fn", fn, must) from error
    if found is not fn or not callable(fn) or checks.is_async(fn):
        raise checks.option("fn", fn, must)
    return names


async def run(request: Request, limiter: anyio.CapacityLimiter) -> Any:
    """Call a function in a process of its own; that is gone when this returns or raises.

    Raises:
        ProcessDied: It ended without an answer.
        OSError: It could not be started.
    """
    async with limiter:
        line, theirs = socket.socketpair()
        _LINES.add(line)
        started: subprocess.Popen[bytes] | None = None
        is_closed = False  # with our event loop, maybe: nothing can be awaited
        try:
            with theirs:
                started = await anyio.to_thread.run_sync(_start, theirs.fileno(), limiter=_alone())
            line.setblocking(False)
            answered = await _talk(line, request.frames)
            if answered is not None:
                return request.read(*answered)
            await _end(started)
            request.died(started.returncode)
        except GeneratorExit:
            is_closed = True
            raise
        finally:
            let_go(line)
            line.close()
            if started is not None and is_closed:
                _kill(started)
            elif started is not None:
                await _end(started)


def _alone() -> anyio.CapacityLimiter:
    """Return a limit of our own: the call has its place already."""
    return anyio.CapacityLimiter(1)


def _start(number: int) -> subprocess.Popen[bytes]:
    # -P: what lies beside the program is not importable; the header brings our own path.
    command = [os.fsdecode(spawn.get_executable()), "-P", str(Path(child.__file__)), str(number)]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, pass_fds=(number,), start_new_session=True
    )


async def _end(started: subprocess.Popen[bytes]) -> None:
    """Kill a process with all that it has started, and reap it; one that has ended keeps its code.

    Not once it is reaped: its number may be another's.
    """
    if started.returncode is None:
        _kill(started)
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(_bury, started, limiter=_alone())


def _kill(started: subprocess.Popen[bytes]) -> None:
    # Its group: whatever else there is, where the kernel lists no sessions.  No permission: on
    # macOS, if there are none but zombies.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(started.pid, signal.SIGKILL)


def _bury(started: subprocess.Popen[bytes]) -> None:
    """Kill what of its session is in other groups, as a shell puts it; reap the process."""
    killed = set[int]()
    while found := {*_session(started.pid)} - killed:  # what is killed starts no others any more
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed |= found
    started.wait()


def _session(leader: int) -> Iterator[int]:
    """Yield the processes of a session; none where the kernel does not list them."""
    with suppress(OSError):
        for each in os.scandir("/proc"):
            with suppress(OSError):  # it has ended meanwhile
                if each.name.isdigit() and os.getsid(int(each.name)) == leader:
                    yield int(each.name)


async def _talk(line: socket.socket, frames: bytes) -> tuple[bytes, bytes] | None:
    """Send a call and return the answer; None: it ended without one."""
    left = memoryview(frames)
    try:
        while left:
            await anyio.wait_writable(line)
            with suppress(BlockingIOError):
                left = left[line.send(left[:_CHUNK_BYTES]) :]
        kind, size = read_head(await _receive(line, HEAD_BYTES))
        return kind, await _receive(line, size)
    except (ConnectionError, EOFError):
        return None


async def _receive(line: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        await anyio.wait_readable(line)
        try:
            more = line.recv(min(size - len(data), _CHUNK_BYTES))
        except BlockingIOError:
            continue
        if not more:
            raise EOFError
        data += more
    return bytes(data)
