"""The process in which one function is called for a handler: see `pool/jobs/process.py`.

Run by path, in a session of its own, by a parent that holds the other end of its socket.  It
imports little of its own, as each call waits for that.  Frames are a letter, a length of 8 bytes,
and so many bytes:

    parent --H header (JSON)--C call (codec)--> imports, calls --R|F|V|M answer--> ends

    R  the result (codec)          V  the result cannot be encoded, or is too large: [path, problem]
    F  it raised: [type, text, traceback]               M  it wanted more memory than it may have

The socket is all that ties it to its parent.  While the function runs, nothing comes there but the
parent's end, and that ends this process, with all that it has started: where the kernel can tell
us by a signal, also where C code never lets another thread run.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, Final

HEAD_BYTES: Final = 9
FRAME_BYTES_MAX: Final = 256 * 1024 * 1024
TEXT_CHARS_MAX: Final = 10_000  # of what it raised, and of the traceback
_CHUNK_BYTES: Final = 1 << 20


def head(kind: bytes, size: int) -> bytes:
    """Return what stands before so many bytes."""
    return kind + size.to_bytes(HEAD_BYTES - 1, "big")


def read_head(data: bytes) -> tuple[bytes, int]:
    """Return which kind of frame follows, and its size."""
    return data[:1], int.from_bytes(data[1:], "big")


# --- the line to our parent -----------------------------------------------------------------------


def _receive(line: int, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = os.read(line, min(size - len(data), _CHUNK_BYTES))
        if not more:
            os._exit(0)  # the parent has ended: nobody wants an answer
        data += more
    return bytes(data)


def _frame(line: int) -> bytes:
    return _receive(line, read_head(_receive(line, HEAD_BYTES))[1])


def _send(line: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(line, left[:_CHUNK_BYTES]) :]


def _watch(line: int) -> Callable[[], object]:
    """Die with our parent; calling the result ends that."""
    if not hasattr(fcntl, "F_SETSIG"):
        from threading import Thread

        Thread(target=_wait_for_end, args=(line,), daemon=True).start()
        return lambda: None
    flags = fcntl.fcntl(line, fcntl.F_GETFL)
    fcntl.fcntl(line, fcntl.F_SETOWN, -os.getpgrp())  # all that we start, too
    fcntl.fcntl(line, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(line, fcntl.F_SETFL, flags | os.O_ASYNC)
    if _has_ended(line, 0):
        os._exit(0)  # before we asked to be told
    # Room for our answer would be told, too.
    return lambda: fcntl.fcntl(line, fcntl.F_SETFL, flags)


def _has_ended(line: int, timeout_ms: int | None) -> bool:
    poll = select.poll()
    poll.register(line, select.POLLIN)
    return bool(poll.poll(timeout_ms))


def _wait_for_end(line: int) -> None:
    _has_ended(line, None)
    os.killpg(0, signal.SIGKILL)


def _close_in_copy(lines: list[int]) -> None:
    """Let go of the line in a forked child, whose end is not ours; its own children have none."""
    while lines:
        os.close(lines.pop())


# --- the call -------------------------------------------------------------------------------------


def _function(header: dict[str, Any]) -> Callable[..., Any]:
    sys.path[:], sys.argv[:] = header["path"], header["argv"]
    if header["main"]:
        # As a spawned process of `multiprocessing` does: under another name, so that what stands
        # behind `if __name__ == "__main__"` is not run again.
        from multiprocessing import process, spawn

        # Whoever starts processes, or opens a node, without that line is refused.
        process.current_process()._inheriting = True  # type: ignore[attr-defined]
        spawn.prepare(header["main"])
        process.current_process()._inheriting = False  # type: ignore[attr-defined]
    found: Any = import_module(header["module"])
    for name in header["name"].split("."):
        found = getattr(found, name)
    return found  # type: ignore[no-any-return]


def _limit(memory_bytes: int | None) -> Callable[[], object]:
    """Limit our memory; calling the result ends that, so that there is room to tell of it."""
    if memory_bytes is None:
        return lambda: None
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    low = memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (low, hard))
    return lambda: resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _arguments(call: bytes) -> list[Any]:
    """Read what `encode_call()` made of positional ones."""
    if call[:1] == b"\0":
        return [call[1:]]
    return json.loads(call) if call else []


def _encoded(value: Any) -> tuple[bytes, bytes]:
    """Return the answer that a result is: what `encode_value()` makes, without importing it."""
    from pool.core.shape import SCALARS, is_encodable, to_json

    result = None
    if issubclass(type(value), bytes):
        result = b"".join((b"\0", value))
    elif type(value) in SCALARS or is_encodable(value):
        try:
            result = to_json(value).encode()
        except ValueError:
            result = None  # `encode_value` says why
    if result is None:
        from pool.core.codec import encode_value
        from pool.errors import PayloadEncodingError

        try:
            result = encode_value(value)
        except PayloadEncodingError as error:
            return b"V", _told(error.path, error.problem)
    if len(result) > FRAME_BYTES_MAX:
        return b"V", _told("$", f"{len(result):,} bytes, at most {FRAME_BYTES_MAX:,}")
    return b"R", result


def _answer(header: dict[str, Any], call: bytes) -> tuple[bytes, bytes]:
    """Call the function; return the kind of answer, and the answer."""
    memory_bytes = header["memory_bytes"]
    unlimit = _limit(memory_bytes)
    try:
        return _encoded(_function(header)(*_arguments(call)))
    except BaseException as error:  # noqa: BLE001 - of the caller's own code: all of it is told
        unlimit()
        if memory_bytes is not None and issubclass(type(error), MemoryError):
            return b"M", b""
        return b"F", _told(type(error).__qualname__, _text(error), _trace(error))


def _text(error: BaseException) -> str:
    try:
        return str(error)[:TEXT_CHARS_MAX]
    except Exception as worse:  # noqa: BLE001 - of the caller's own code
        return f"its text cannot be had: {type(worse).__qualname__}"


def _trace(error: BaseException) -> str:
    from traceback import format_exception

    try:
        return "".join(format_exception(error))[-TEXT_CHARS_MAX:]
    except Exception:  # noqa: BLE001 - of the caller's own code
        return ""


def _told(*words: str) -> bytes:
    return json.dumps(words).encode()


def main(line: int) -> None:
    """Take one call, answer it, end."""
    os.set_inheritable(line, False)
    os.register_at_fork(after_in_child=partial(_close_in_copy, [line]))
    header = json.loads(_frame(line))
    call = _frame(line)
    unwatch = _watch(line)
    kind, answer = _answer(header, call)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # noqa: BLE001, S112 - closed, or nobody reads it: the answer counts
            continue
    unwatch()
    _send(line, head(kind, len(answer)))
    _send(line, answer)
    os._exit(0)  # as a process of `multiprocessing`: what is left behind does not hold us up


if __name__ == "__main__":
    main(int(sys.argv[1]))
