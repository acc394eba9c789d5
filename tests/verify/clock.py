"""A server whose clock can be stepped, by a library that is preloaded: `clock.c`.

It needs a C compiler and a loader that preloads, so Linux; elsewhere `NoClock` says why not.  The
program that stands for the server is a script of two lines that becomes it, under its own pid.
"""

from __future__ import annotations

import mmap
import platform
import shlex
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

from pool.redis.embedded.server import ServerProgram

_SOURCE = Path(__file__).with_name("clock.c")


class NoClock(Exception):
    """This machine cannot do it."""


@attrs.frozen
class SteppedClock:
    """The clock of a server; its steps add up."""

    _place: mmap.mmap

    def step(self, seconds: float) -> None:
        """Step at once, by so much more."""
        before = struct.unpack_from("=q", self._place)[0]
        struct.pack_into("=q", self._place, 0, before + round(seconds * 1_000_000))


@contextmanager
def stepped(
    program: ServerProgram, directory: Path
) -> Iterator[tuple[ServerProgram, SteppedClock]]:
    """Yield a program that is this one with a clock of its own, and that clock.

    Raises:
        NoClock: There is no compiler, or no preloading.
    """
    compiler = shutil.which("cc")
    if platform.system() != "Linux" or compiler is None:
        raise NoClock("no C compiler on Linux")
    library, file = directory / "clock.so", directory / "clock"
    words = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(_SOURCE), "-ldl"]
    built = subprocess.run(words, capture_output=True, text=True, check=False)
    if built.returncode:
        raise NoClock(f"clock.c does not compile: {built.stderr.strip()[-200:]}")
    file.write_bytes(bytes(mmap.PAGESIZE))
    script = directory / "server-with-a-clock"
    quoted = [shlex.quote(str(path)) for path in (library, file, program.path)]
    script.write_text(
        f'#!/bin/sh\nLD_PRELOAD={quoted[0]} POOL_CLOCK={quoted[1]} exec {quoted[2]} "$@"\n'
    )
    script.chmod(0o700)
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), mmap.PAGESIZE) as place:
        yield attrs.evolve(program, path=script), SteppedClock(place)
