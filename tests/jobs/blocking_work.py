"""Functions that tests call in processes of their own: see test_blocking.py."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn


def echo(*values: Any) -> Any:
    """Return what it is given, as one value or several."""
    return values[0] if len(values) == 1 else list(values)


def pid() -> int:
    return os.getpid()


def sleep(noted: str, with_child: bool = False, with_group: bool = False) -> None:
    """Note the numbers of our processes, and go on for ever."""
    pids = [os.getpid()]
    if with_child:
        pids.append(_started(None))
    if with_group:
        pids.append(_started(0))
    path = Path(noted)
    path.with_suffix(".new").write_text(" ".join(map(str, pids)))
    path.with_suffix(".new").rename(path)
    time.sleep(600)  # noqa: TID251 - what cannot be told anything


def leave_behind() -> list[int]:
    """Start processes, and do not wait for them."""
    return [_started(None), _started(0)]


def _started(group: int | None) -> int:
    """Start a process in our group, or in one of its own, as shells do."""
    if not sys.platform.startswith("linux"):
        group = None  # there one of its own would stay
    argv = [sys.executable, "-c", "import time; time.sleep(600)"]
    return subprocess.Popen(argv, process_group=group).pid


def copies_of_copies() -> str:
    """Open a file in a copy of this process, until every low number is taken; read it in a copy."""
    read_end, write_end = os.pipe()
    if os.fork() == 0:
        files = [os.memfd_create("theirs") for _ in range(20)]
        if os.fork() == 0:
            are_open = all(os.fstat(number) for number in files)
            os.write(write_end, b"theirs" if are_open else b"")
            os._exit(0)
        os.wait()
        os._exit(0)
    os.close(write_end)
    os.wait()
    return os.read(read_end, 10).decode()


def hold_the_gil(noted: str) -> None:
    """Likewise, in C that lets no other thread run."""
    path = Path(noted)
    path.with_suffix(".new").write_text(str(os.getpid()))
    path.with_suffix(".new").rename(path)
    ctypes.PyDLL(None).sleep(600)


def shout(text: str) -> str:
    """Write to whatever may be somebody's channel."""
    os.write(1, text.encode())
    os.write(2, text.encode())
    print(text)  # noqa: T201
    return text


def fail(text: str) -> NoReturn:
    raise LookupError(text)


def leave(code: int) -> NoReturn:
    sys.exit(code)


def vanish(code: int) -> NoReturn:
    os._exit(code)


def kill_itself(number: int) -> None:
    os.kill(os.getpid(), number)
    signal.pause()


def take(size_bytes: int) -> int:
    """Take so much memory, and touch it."""
    return len(bytearray(size_bytes))


def odd() -> Any:
    """Return what no codec takes."""
    return {1: {2, 3}}


async def wait() -> None:
    """It is no plain function."""


class Kind:
    @staticmethod
    def double(value: int) -> int:
        return 2 * value

    @classmethod
    def of_class(cls) -> None:
        """A method of a class."""

    def of_object(self) -> None:
        """A method of an object."""


NAMED = lambda: None  # noqa: E731
