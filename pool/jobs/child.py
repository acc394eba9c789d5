"""The process in which one function is called for a handler: see `pool/jobs/process.py`.

Run by path, in a session of its own, by a parent that holds the other end of its socket.  Frames
are a letter, a length of 8 bytes, and so many bytes:

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
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any

HEAD_BYTES = 9
FRAME_BYTES_MAX = 256 * 1024 * 1024
TEXT_CHARS_MAX = 10_000  # of what it raised, and of the traceback


def head(kind: bytes, size: int) -> bytes:
    """Return what stands before so many bytes."""
    return kind + size.to_bytes(HEAD_BYTES - 1, "big")


def read_head(data: bytes) -> tuple[bytes, int]:
    """Return which kind of frame follows, and its size."""
    return data[:1], int.from_bytes(data[1:], "big")


def _receive(line: socket.socket, size: int) -> bytearray:
    data = bytearray()
    while len(data) < size:
        more = line.recv(min(size - len(data), 1 << 20))
        if not more:
            os._exit(0)  # the parent has ended: nobody wants an answer
        data += more
    return data


def _frame(line: socket.socket) -> bytes:
    _, size = read_head(bytes(_receive(line, HEAD_BYTES)))
    return bytes(_receive(line, size))


def _watch(line: socket.socket) -> Callable[[], None]:
    """Die with our parent; calling the result ends that."""
    if not hasattr(fcntl, "F_SETSIG"):
        threading.Thread(target=_wait_for_end, args=(line,), daemon=True).start()
        return lambda: None
    flags = fcntl.fcntl(line, fcntl.F_GETFL)
    fcntl.fcntl(line, fcntl.F_SETOWN, -os.getpgrp())  # all that we start, too
    fcntl.fcntl(line, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(line, fcntl.F_SETFL, flags | os.O_ASYNC)
    try:
        line.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)  # it ended before we asked
    except BlockingIOError:
        return lambda: _quiet(line, flags)
    os._exit(0)


def _quiet(line: socket.socket, flags: int) -> None:
    fcntl.fcntl(line, fcntl.F_SETFL, flags)  # or room for our answer would be told, too


def _wait_for_end(line: socket.socket) -> None:
    line.recv(1, socket.MSG_PEEK)
    os.killpg(0, signal.SIGKILL)


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


def _limit(memory_bytes: int | None) -> Callable[[], None]:
    """Limit our memory; calling the result ends that, so that there is room to tell of it."""
    if memory_bytes is None:
        return lambda: None
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    low = memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (low, hard))
    return lambda: resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _answer(header: dict[str, Any], call: bytes) -> tuple[bytes, bytes]:
    """Call the function; return the kind of answer, and the answer."""
    memory_bytes = header["memory_bytes"]
    unlimit = _limit(memory_bytes)
    try:
        fn = _function(header)
        from pool.core.codec import decode_call, encode_message
        from pool.errors import PayloadEncodingError

        args, kwargs = decode_call(call)
        value = fn(*args, **kwargs)
        try:
            result = encode_message(value)
        except PayloadEncodingError as error:
            return b"V", _told(error.path, error.problem)
        if len(result) > FRAME_BYTES_MAX:
            return b"V", _told("$", f"{len(result):,} bytes, at most {FRAME_BYTES_MAX:,}")
        return b"R", result
    except BaseException as error:  # noqa: BLE001 - of the caller's own code: all of it is told
        unlimit()
        if memory_bytes is not None and issubclass(type(error), MemoryError):
            return b"M", b""
        trace = "".join(traceback.format_exception(error))
        return b"F", _told(type(error).__qualname__, _text(error), trace[-TEXT_CHARS_MAX:])


def _text(error: BaseException) -> str:
    try:
        return str(error)[:TEXT_CHARS_MAX]
    except Exception as worse:  # noqa: BLE001 - of the caller's own code
        return f"its text cannot be had: {type(worse).__qualname__}"


def _told(*words: str) -> bytes:
    return json.dumps(words).encode()


def main(number: int) -> None:
    """Take one call, answer it, end."""
    line = socket.socket(fileno=number)
    line.set_inheritable(False)
    os.register_at_fork(after_in_child=line.close)  # a copy's end is not ours
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
    line.sendall(head(kind, len(answer)))
    line.sendall(answer)
    os._exit(0)  # as a process of `multiprocessing`: what is left behind does not hold us up


if __name__ == "__main__":
    main(int(sys.argv[1]))
