"""Everything that is read from Redis, damaged: a reader says what it is, or that it is nothing."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Protocol

import pytest
import redis

from pool.core.codec import decode_call, decode_value, encode_call, encode_value
from pool.core.options import Options
from pool.core.placement import Candidates
from pool.core.record import Outcome, Record, Start
from pool.core.settlement import Death, Judgement, after_failure, recover
from pool.errors import PayloadEncodingError
from pool.jobs.roster import WorkerEntry
from pool.maps.commands import delta_of

if TYPE_CHECKING:
    import random

CASES = 20_000  # of each kind


class Mutator(Protocol):
    dice: random.Random

    def damaged(self, raw: bytes) -> bytes: ...


RECORDS = (
    b"P|j|id-1|thumbnail|w8z4k0qv1xt1.1|1795231945399674|1|||||||||",
    b"R|s|id-2|follow|w8z4k0qv1xt1.2|1795231945399675|3|pbid|scause|2||1795231945399670|1795231945400|n1.1,n2.1|boom|",
    b"W|j|id-3|thumbnail||1795231945399676|2|d||||1795231945399671|||no|d01|newer fields",
    b"U|j|id-4|thumbnail||1795231945399677|1|a||1|4|||||",
)
OUTCOMES = (
    b"done|1795231945399674|w8z4k0qv1xt1.1|1|1795231945400|\n\x01[1,2]",
    b"parked|1795231945399674|w8z4k0qv1xt1.1|2|1795231945400,5210,17,3|failed\nValueError: no",
    b"parked|1795231945399674||5|1795231945400|failed\nValueError: no",
)
OPTIONS = (b"j|5|1000|60000|0|60000", b"s|0|1000|60000|30000|60000")
METAS = (b"id-1|thumbnail|j|1||0||", b"id-2|follow|s|3|pbi|2|1795231945399670|d0123456789abcdef")
ENTRIES = ("1795231945399674-0", "0-1", "18446744073709551615-18446744073709551615")
EDITS = (b"+3:key5:value-3:old", b"-1:a", b"+0:0:")
INFO = WorkerEntry(
    id="w8z4k0qv1xt1",
    node="n1",
    handlers=("thumbnail", "follow"),
    capacity=100,
    weight=1.5,
    label="\u00e9",
    version="1",
    is_draining=False,
    numbers=(1, 2),
).pack()


def _record(mutator: Mutator, raw: bytes) -> None:
    record = Record.parse(mutator.damaged(raw))
    if record is not None:
        options = Options.parse(mutator.damaged(OPTIONS[0]))
        judgement = Judgement(crash_window_s=600, crashes_max=3, hold_s=1)
        for death in (None, Death(identity="w9.1", alive_ms=1, culprit=record.epoch)):
            recover(record, options, mutator.dice, judgement=judgement, death=death)
        after_failure(record.attempt, options, mutator.dice, cause="x", error=record.error)


def _start(mutator: Mutator, raw: bytes) -> None:
    fields = {"k": b"key", "m": raw, "p": b"payload"}
    name = ("k", "m", "p")[int(mutator.dice.random() * 3)]
    fields[name] = mutator.damaged(fields[name])
    start = Start.parse(ENTRIES[int(mutator.dice.random() * 3)], fields)
    if start is not None:
        after_failure(start.attempt, Options(), mutator.dice, cause="x", error="y")


def _outcome(mutator: Mutator, raw: bytes) -> None:
    Outcome.parse(mutator.damaged(raw))


def _options(mutator: Mutator, raw: bytes) -> None:
    options = Options.parse(mutator.damaged(raw))
    assert options.backoff_max_s >= options.backoff_s > 0


def _info(mutator: Mutator, raw: bytes) -> None:
    info = WorkerEntry.parse(mutator.damaged(raw))
    if info is not None:
        Candidates([info.candidate]).ranked(17, "thumbnail", 3)
        for lane in range(len(info.numbers)):
            assert info.candidate.name_in(lane)


def _delta(mutator: Mutator, raw: bytes) -> None:
    fields = {"at": b"i1 17 16-16", "edits": raw}
    name = "at" if mutator.dice.random() < 0.6 else "edits"
    fields[name] = mutator.damaged(fields[name])
    delta_of("17-0", fields)


def _payload(mutator: Mutator, raw: bytes) -> None:
    mutated = mutator.damaged(raw)
    for decode in (decode_call, decode_value):
        try:
            decode(mutated)
        except PayloadEncodingError:
            continue


KINDS: list[tuple[Callable[[Any, bytes], None], tuple[bytes, ...]]] = [
    (_record, RECORDS),
    (_start, METAS),
    (_outcome, OUTCOMES),
    (_options, OPTIONS),
    (_info, (INFO,)),
    (_delta, EDITS),
    (_payload, (encode_call((1, "a"), {"k": [1.5, None]}), encode_value({"a": b"".hex()}))),
]


@pytest.mark.parametrize(("read", "samples"), KINDS, ids=[read.__name__[1:] for read, _ in KINDS])
def test_no_reader_raises(
    mutator: Mutator, read: Callable[[Mutator, bytes], None], samples: tuple[bytes, ...]
) -> None:
    """It returns what it could read, or none; what it returns, the decisions can take."""
    for n in range(CASES):
        read(mutator, samples[n % len(samples)])


def test_what_we_can_read_the_scripts_can_read(mutator: Mutator, redis_url: str) -> None:
    """Of two readers of one record the scripts' is the wider one, and never the other way round."""
    library = (files("pool.redis") / "lua/lib/record.lua").read_text("utf-8")
    source = f"""local now = 0 {library}
    local got = {{}}
    for i, text in ipairs(ARGV) do
      local r = parse(text)
      got[i] = r and pack(r) or false
    end
    return got"""
    readable = 0
    with redis.Redis.from_url(redis_url) as client:
        read = client.register_script(source)
        for n in range(0, CASES, 1000):
            texts = [mutator.damaged(RECORDS[(n + i) % len(RECORDS)]) for i in range(1000)]
            theirs: Any = read(args=texts)
            for text, packed in zip(texts, theirs, strict=True):
                if Record.parse(text) is not None:
                    readable += 1
                    assert packed == text
                elif packed is not None:
                    with pytest.raises(UnicodeDecodeError):
                        text.decode()
    assert readable > CASES / 20
