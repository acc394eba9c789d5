"""What a job has stored while it went on: its steps, and its state; see `lua/lib/steps.lua`."""

from __future__ import annotations

import re
from typing import Final

from pool.core.digits import number, number_or


def steps_name(key: str) -> str:
    """Return where in `checkpoints` the results of a job's steps stand."""
    return f"\n{key}"


def letters_steps(job_id: str, key: str) -> str:
    """Return where those of a parked job stand."""
    return f"\n\n{job_id} {key}"


def parse_steps(text: bytes) -> dict[str, bytes] | None:
    """Return the results of a job's steps; None: the text is not what `lib/steps.lua` makes."""
    steps: dict[str, bytes] = {}
    at = 0
    try:
        while at < len(text):
            name_end = text.index(b"\n", at)
            begin = text.index(b"\n", name_end + 1) + 1
            name, size = text[at:name_end].decode(), text[name_end + 1 : begin - 1].decode()
            at = begin + number(size)
            if at > len(text):
                return None
            steps[name] = text[begin:at]
    except ValueError:
        return None
    return steps


def state_of(checkpoint: bytes) -> bytes:
    """Return the state that a checkpoint holds; empty: it is none.

    In front of a bar it says which save of which epoch it is, or nothing: it was handed over.
    """
    match = _SAVED.match(checkpoint)
    return checkpoint[match.end() :] if match is not None else b""


def saves_of(checkpoint: bytes, epoch: int) -> int:
    """Return which save of this epoch a checkpoint holds, or 0: none of it."""
    match = _SAVED.match(checkpoint)
    if match is None or number_or(-1, match[1]) != epoch:
        return 0
    return number_or(0, match[2])


_SAVED: Final = re.compile(rb"(?:(\d+)\.(\d+))?[|]")
