"""Lines whose writers never wait, into a pipe whose reader stalls and goes on."""

from __future__ import annotations

import os

from pool.ops.lines import Lines
from pool.redis.io.scribe import QUEUED_MAX
from tests.verify.exits import full_pipe

MORE = 7


def test_a_reader_that_goes_on_gets_what_was_kept_and_how_much_was_not() -> None:
    with full_pipe() as (reader, writer), os.fdopen(writer, "w", closefd=False) as stream:
        lines = Lines(stream, lambda count: f"lost {count}")
        for number in range(1 + QUEUED_MAX + MORE):  # one is with the thread
            lines.write(f"line {number}\n")
        text = b""
        while b"lost" not in text or not text.endswith(b"\n"):
            text += os.read(reader, 65_536)
        said = text.decode().lstrip("x").splitlines()
        assert said[:-1] == [f"line {number}" for number in range(1 + QUEUED_MAX)]
        assert said[-1] == f"lost {MORE}"
        lines.write("late ü\n")
        lines.end()
        assert os.read(reader, 65_536).decode() == "late ü\n"


def test_what_cannot_be_encoded_is_escaped() -> None:
    with full_pipe() as (reader, writer):
        os.read(reader, 1 << 20)
        with os.fdopen(writer, "w", encoding="ascii", closefd=False) as stream:
            lines = Lines(stream, str)
            lines.write("ü\n")
            lines.end()
        assert os.read(reader, 65_536) == b"\\xfc\n"
