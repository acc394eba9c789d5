"""Crash marks: how much speaks for a job being what kills its workers, as its record keeps it.

    deaths.low.high.seen.ends.grown, process.at.m.bits.kind, place.m.kind[, rounds.from.ms.kind]

The first part is evidence from deaths that are settled, the second the last death with the job
aboard, the third where the job was dealt after that.  The last death stays apart until the next
one is judged: only then is it known which processes died together, and which one came back.  The
fourth part is there once a coin was tossed for the job: how often, and the last round.
"""

from __future__ import annotations

import re
from typing import Final

import attrs

from pool.core.digits import DIGITS_MAX

MARKS_CHARS_MAX: Final = 400  # twice of what the longest marks need


@attrs.frozen
class Aboard:
    """The last death at which the job was aboard."""

    process: str
    at_ms: int  # pool time
    dealt: int  # over how many processes the job had been dealt by dice; 1: not by dice
    bits: int = 0  # tenths: how unlikely it was that the death fell into this job's trial
    is_tried: bool = False  # the job began alone in that process, as a suspect


@attrs.frozen
class Round:
    """A time for which a coin has started or held a job."""

    from_ms: int  # pool time of the death before it
    for_ms: int
    is_held: bool

    @property
    def upto_ms(self) -> int:
        """When it is over."""
        return self.from_ms + self.for_ms


@attrs.frozen
class Marks:
    """What a record says about the deaths that its job is suspected of."""

    deaths: int = 0  # with the job aboard, the last one included
    low: int = 0  # evidence in tenths of a bit, before the last death; see `evidence.py`
    high: int = 0
    seen_ms: int = 0  # deaths up to this pool time are counted
    ends: int = 0  # how often the job's own process was told to end while the job was at work
    grown: int = 0  # how often the job outlived its trial in a process that died
    last: Aboard | None = None
    place: str = ""  # the process that the dice chose
    dealt: int = 1  # over how many
    is_tried: bool = False  # the next run begins alone
    rounds: int = 0  # how often a coin was tossed for it
    round: Round | None = None  # the last one, until the next death with the job aboard

    @classmethod
    def parse(cls, text: str) -> Marks:
        """Return the marks of a record; a text that is none counts as no marks."""
        match = _MARKS.fullmatch(text) if text else None
        if match is None:
            return NO_MARKS
        deaths, low, high, seen, ends, grown, *rest = match.groups()
        process, at, of, bits, was, place, dealt, tried, rounds, from_ms, for_ms, arm = rest
        last = Aboard(process, int(at), int(of), int(bits), was == "t") if process else None
        return cls(
            deaths=int(deaths),
            low=int(low),
            high=int(high),
            seen_ms=int(seen),
            ends=int(ends),
            grown=int(grown),
            last=last,
            place=place,
            dealt=max(1, int(dealt)),
            is_tried=tried == "t",
            rounds=int(rounds or 0),
            round=Round(int(from_ms), int(for_ms), arm == "h") if arm else None,
        )

    def pack(self) -> str:
        """Return the text of a record's field."""
        if not self.deaths and not self.ends:
            return ""
        last = self.last
        sums = f"{self.deaths}.{self.low}.{self.high}.{self.seen_ms}.{self.ends}.{self.grown}"
        aboard = last and f"{last.process}.{last.at_ms}.{last.dealt}.{last.bits}.{_t(last)}"
        text = f"{sums},{aboard or '.0.1.0.'},{self.place}.{self.dealt}.{_t(self)}"
        if not self.rounds:
            return text
        coin = self.round
        arm = coin and f"{coin.from_ms}.{coin.for_ms}.{'h' if coin.is_held else 'r'}"
        return f"{text},{self.rounds}.{arm or '0.0.'}"


def _t(tried: Aboard | Marks) -> str:
    return "t" if tried.is_tried else ""


NO_MARKS: Final = Marks()
MARKS_TEXT: Final = rf"[0-9A-Za-z.,-]{{0,{MARKS_CHARS_MAX}}}"
_N: Final = rf"(\d{{1,{DIGITS_MAX}}})"
_MARKS: Final = re.compile(
    rf"{_N}\.{_N}\.{_N}\.{_N}\.{_N}\.{_N},([0-9A-Za-z]*)\.{_N}\.{_N}\.{_N}\.(t?),([0-9A-Za-z]*)\.{_N}\.(t?)"
    rf"(?:,{_N}\.{_N}\.{_N}\.([hr]?))?",
    re.ASCII,
)


def marks_text(text: str) -> str:
    """Return a text that may stand in the field of marks.

    Raises:
        ValueError: It may not.
    """
    if not re.fullmatch(MARKS_TEXT, text, re.ASCII):
        raise ValueError(text[:DIGITS_MAX])
    return text
