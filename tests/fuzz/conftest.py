"""Bytes that nearly are what they should be: the fuzzer of what is stored.

Every run is the same; POOL_FUZZ_SEED makes it another one, and the report's header names the seed.
"""

from __future__ import annotations

import os
import random
import re

import attrs
import pytest

SEED = int(os.environ.get("POOL_FUZZ_SEED", "1"))

_NUMBER = re.compile(rb"\d+")
_ODD_NUMBERS = (
    *(b"", b"0", b"-1", b"-0", b"1e999", b"nan", b"inf", b"0x10", b"1.5", b" 7", b"+7", b"1_0"),
    *(b"9" * 15, b"9" * 16, b"9" * 17, b"9" * 400, b"18446744073709551615"),
    *("\u00b2".encode(), "\u0663".encode(), b"7\n"),
)
_JUNK = (
    b"",
    b"|",
    b"||||||||||||||||",
    b"\x00",
    b"\xff\xfe",
    b"\n",
    b"junk",
    b"{}",
    b"[1]",
    b"null",
)


def pytest_report_header() -> str:
    """Name the seed."""
    return f"fuzz: POOL_FUZZ_SEED={SEED}"


@attrs.define
class Mutator:
    """Damages bytes, one small thing at a time."""

    dice: random.Random = attrs.field(factory=lambda: random.Random(SEED))

    def pick(self, *among: bytes) -> bytes:
        return among[int(self.dice.random() * len(among))]

    def damaged(self, raw: bytes) -> bytes:
        """Return something else than `raw`, most often very much like it."""
        for _ in range(20):
            mutated = self._once(raw)
            if mutated != raw:
                return mutated
        return raw + b"?"

    def _once(self, raw: bytes) -> bytes:
        at = int(self.dice.random() * (len(raw) + 1))
        to = min(len(raw), at + 1 + int(self.dice.random() * 8))
        match int(self.dice.random() * 11):
            case 0:
                return raw[:at] + bytes([int(self.dice.random() * 256)]) + raw[at + 1 :]
            case 1:
                return raw[:at] + self.pick(*_JUNK) + raw[at:]
            case 2:
                return raw[:at] + raw[to:]
            case 3:
                return raw[:to] + raw[at:]
            case 4:
                return raw[:at]
            case 5:
                return self.pick(*_JUNK)
            case 6 | 7 | 8:
                return self._number(raw)
            case 9:
                return self._fields(raw)
            case _:
                return self.pick(b"P", b"R", b"W", b"U", b"s", b"t") + raw[1:]

    def _number(self, raw: bytes) -> bytes:
        numbers = list(_NUMBER.finditer(raw))
        if not numbers:
            return raw
        found = numbers[int(self.dice.random() * len(numbers))]
        return raw[: found.start()] + self.pick(*_ODD_NUMBERS) + raw[found.end() :]

    def _fields(self, raw: bytes) -> bytes:
        fields = raw.split(b"|")
        i, j = (int(self.dice.random() * len(fields)) for _ in range(2))
        if self.dice.random() < 0.5:
            fields[i], fields[j] = fields[j], fields[i]
        else:
            del fields[i]
        return b"|".join(fields)


@pytest.fixture
def mutator() -> Mutator:
    """Return one at the beginning of its sequence."""
    return Mutator()
