"""Evidence that a job kills its workers, and the marks of it in the job's record.

Crash marks: how much speaks for a job being what kills its workers, as its record keeps it.

    deaths.low.high.seen.ends.grown, process.at.m.bits.kind, place.m.kind[, rounds.from.ms.kind]

The first part is evidence from deaths that are settled, the second the last death with the job
aboard, the third where the job was dealt after that.  The last death stays apart until the next
one is judged: only then is it known which processes died together, and which one came back.  The
fourth part is there once a coin was tossed for the job: how often, and the last round.

Evidence that a job kills its workers: pure, and valid however the world kills.

    a death --> the jobs aboard are dealt by dice over m processes --> the next one: who is aboard?

A worker may die of a job, or of something outside, and the world does not kill evenly: the fullest
process dies first, one host is worse than others.  So the proof uses only our own dice.  A marked
job is dealt uniformly over the m processes that may take it.  Whatever kills from outside cannot
look at that choice, so an innocent job is aboard at a death of k of them with k / m at most.

For each share t of BETS a record keeps a sum in tenths of a bit, never below 0:

    the first death               starts the record, and adds nothing: it chose the job
    the job is aboard             + log2(t m/k + 1 - t)
    ... and was in its trial      + log2(7/8 of the age of the process / length of the trial)
    ... and was not, but was tried there                                            - 3
    the job is elsewhere          + log2(1 - t)
    it outlives crash_window_s    both sums are halved

Two to the power of what a death adds is 1 on average, or less, for an innocent job.  So by Ville's
inequality a sum that starts at 0 ever exceeds b bits with a probability of 2**-b at most, however
often anybody looks.  A job is given up at log2(N x 10**6) bits, of N running jobs of the pool, and
one more for the two sums: about one innocent job in m x 10**6 deaths from outside.

Where one process only may take a job, its dice are a fair coin: in a crash loop each suspect is
started or held for a round of three gaps between deaths, a minute at most.

    the coin      a death within the round             silence
    it runs       aboard, m = 2                         as a death elsewhere
    it is held    as a death elsewhere, once            as a death aboard, m = 2

Both rows ask the same question of the same list: did any process die within the round?  What
kills from outside does not see the coin, so an innocent job gains nothing on average.  The round
begins with the death before it, and is settled at the next death with the job aboard.  Deaths are
listed in the order of their leases, so by then the list is whole up to that death, also where
nobody was there to fence for a while.  A held job is started when its round is over, whatever
happened, and goes on until it dies: no job is held twice for one death.  After ROUNDS_MAX rounds
all suspects run.  Jobs that may have killed at once have trials instead of rounds.

    died --coin--> held  --the sweeper's deadline--> runs --+
      ^      +---> runs -----------------------------------+--> dies: the round is settled
      +--------------------------------------------------------------+

The step that moves the job stores the coin, so a job that is read again was not moved, and its coin
is tossed anew: the one before had no effect.  A late copy of that step finds another epoch.

An event is the set of processes that died within one renewal period.  Its size is not known when
its first process is taken over, so the last death of a record is settled with the whole list later:
at the next death, or at the end of the hold before the job is parked.

Who writes, and what a crash leaves: `fence.lua` puts a process into the list once, a claim's
successor finds it there.  The list says at which pool time a process died, and a record up to which
time it is judged: a job that is read twice is judged once, because the step that moves it stores
both.  A process that comes back is taken out (`thaw.lua`), and its death is void where it is the
last one of a record.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import cached_property
from itertools import pairwise
from typing import Final

import attrs

from pool.core.ids import DIGITS_MAX

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
    low: int = 0  # evidence in tenths of a bit, before the last death; see below
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


BETS: Final = (0.5, 0.95)  # the first is for killers that others' deaths hide
ODDS: Final = 10**6  # at most one innocent job in as many deaths from outside
TENTHS: Final = 10  # of a bit
MORE_TENTHS: Final = TENTHS  # for taking the larger of two sums
TRIED_TENTHS: Final = 2  # for betting seven eighths on the trial, ...
LIVED_TENTHS: Final = 30  # ... and one eighth on the dice alone
SUM_MAX: Final = 10_000  # tenths; a thousand bits are enough of anything
ROUNDS_MAX: Final = 40  # of one job; then it runs, and doctor says so
ROUND_GAPS: Final = 3  # a round lasts for so many gaps between deaths, ...
ROUND_S: Final = 60.0  # ... or for so long at most
LOOP_SHARE: Final = 0.1  # of the crash window: deaths that come closer are a crash loop
LOOP_GAPS: Final = (2, 7)  # gaps that are looked at, at least and at most


@attrs.frozen
class Deaths:
    """The processes that died in one shard, and the pool time of their last renewal.

    A process is named again if it was taken for dead, said nothing when it joined, and died again.
    """

    at_ms: dict[str, int] = attrs.field(factory=dict)  # PROCESS[.MS] -> when
    period_ms: int = 2000  # of renewals: processes that died within it are one event

    @cached_property
    def last_ms(self) -> dict[str, int]:
        """When each process died last."""
        found: dict[str, int] = {}
        for name, at_ms in self.at_ms.items():
            process = name.partition(".")[0]
            found[process] = max(at_ms, found.get(process, 0))
        return found

    @cached_property
    def known(self) -> frozenset[tuple[str, int]]:
        """All deaths: which process, and when."""
        return frozenset((name.partition(".")[0], at_ms) for name, at_ms in self.at_ms.items())

    @classmethod
    def parse(cls, found: Iterable[tuple[bytes, bytes]], period_s: float) -> Deaths:
        """Return the shard's list as the server has it."""
        known = {
            name.decode(errors="replace"): int(min(float(score), 1e15)) for name, score in found
        }
        return cls(known, round(period_s * 1000))

    def together(self, at_ms: int) -> tuple[int, int]:
        """Return how many processes died within a period of a moment, and when the last one did."""
        times = [ms for ms in self.at_ms.values() if abs(ms - at_ms) <= self.period_ms]
        return max(1, len(times)), max(times, default=at_ms)

    def events(self, after_ms: int, before_ms: int) -> list[tuple[int, int]]:
        """Return the events between two moments: how many processes, and when the last one died."""
        found: list[tuple[int, int]] = []
        first_ms = -math.inf
        for ms in sorted(ms for ms in self.at_ms.values() if after_ms < ms < before_ms):
            if ms - first_ms > self.period_ms:
                found.append((0, ms))
                first_ms = ms
            found[-1] = found[-1][0] + 1, ms
        return found


NO_DEATHS: Final = Deaths()


def _tenths(odds: float) -> int:
    return math.floor(TENTHS * math.log2(odds))


def _add(marks: Marks, low: int, high: int) -> Marks:
    low, high = (min(SUM_MAX, max(0, s)) for s in (marks.low + low, marks.high + high))
    return attrs.evolve(marks, low=low, high=high)


def aboard_tenths(bet: float, dealt: int, died: int) -> int:
    """Return what a death with the job aboard adds: `died` of the `dealt` processes died."""
    return _tenths(bet * dealt / died + 1 - bet) if dealt > 1 else 0


def elsewhere_tenths(bet: float) -> int:
    """Return what a death without the job adds, which is below 0."""
    return _tenths(1 - bet)


def trial_tenths(age_s: float, trial_s: float) -> int:
    """Return what it adds that a process died in one job's trial, of all its life."""
    return max(0, _tenths(max(age_s, trial_s) / trial_s))


def settled(marks: Marks, deaths: Deaths) -> Marks:
    """Return marks with the last death counted, now that the list is whole."""
    last = marks.last
    if last is None:
        return marks
    if (last.process, last.at_ms) not in deaths.known:  # it came back, or it was long ago
        return attrs.evolve(marks, last=None, deaths=max(0, marks.deaths - 1))
    died, seen_ms = deaths.together(last.at_ms)
    more = last.bits - TRIED_TENTHS if last.bits else -LIVED_TENTHS * last.is_tried
    low, high = (aboard_tenths(bet, last.dealt, died) + more for bet in BETS)
    return attrs.evolve(_add(marks, low, high), last=None, seen_ms=max(marks.seen_ms, seen_ms))


def _elsewhere(marks: Marks, deaths: Deaths, before_ms: int) -> Marks:
    """Return marks with the deaths counted at which the job was not aboard."""
    for died, at_ms in deaths.events(marks.seen_ms, before_ms):
        marks = _add(marks, *map(elsewhere_tenths, BETS))
        # Any of these may have been one that the job was dealt over.
        marks = attrs.evolve(marks, dealt=max(1, marks.dealt - died), seen_ms=at_ms)
    return marks


def round_s(marks: Marks, deaths: Deaths, window_s: float) -> float:
    """Return for how long a coin starts or holds a suspect now; 0: it runs, there is no crash loop.

    The middle gap counts: silent rounds make some of them long, and the loop still goes on.
    """
    if marks.last is None or marks.rounds >= ROUNDS_MAX:
        return 0.0
    least, most = LOOP_GAPS
    times = [at_ms for _, at_ms in deaths.events(0, marks.last.at_ms + 1)][-most - 1 :]
    gaps = sorted(later - at_ms for at_ms, later in pairwise(times))
    if len(gaps) < least:
        return 0.0
    gap_s: float = gaps[(len(gaps) - 1) // 2] / 1000
    return min(ROUND_GAPS * gap_s, ROUND_S) if gap_s < LOOP_SHARE * window_s else 0.0


def in_round(marks: Marks, for_s: float, *, is_held: bool) -> Marks:
    """Return marks after a toss of the coin; `for_s` counts from the last death."""
    assert marks.last is not None
    coin = Round(marks.last.at_ms, round(1000 * for_s), is_held)
    return attrs.evolve(marks, rounds=marks.rounds + 1, round=coin)


def _round_over(marks: Marks, deaths: Deaths, at_ms: int) -> tuple[Marks, int]:
    """Settle a round at the job's next death; returns over how many that death was dealt by it."""
    coin = marks.round
    if coin is None:
        return marks, 1
    marks = attrs.evolve(marks, round=None)
    times = deaths.at_ms.values()
    # Those that died with the process before are of the event that began the round.
    has_died = any(coin.from_ms + deaths.period_ms < ms <= coin.upto_ms for ms in times)
    if not coin.is_held and has_died:
        return marks, 2 if at_ms <= coin.upto_ms else 1
    # The list is whole if what it had before the round is still there.
    if coin.is_held and not has_died and min(times, default=math.inf) <= coin.from_ms:
        return _add(marks, *(aboard_tenths(bet, 2, 1) for bet in BETS)), 1
    seen_ms = max(marks.seen_ms, coin.upto_ms) if coin.is_held else marks.seen_ms
    marks = _add(marks, *map(elsewhere_tenths, BETS))
    return attrs.evolve(marks, seen_ms=seen_ms), 1


def after_death(marks: Marks, deaths: Deaths, process: str, bits: int | None = None) -> Marks:
    """Return a job's marks after the death of its process; `bits` as of `Aboard`, None: no culprit.

    A process that is not in the list was no event: it drained, or has come back.
    """
    at_ms = deaths.last_ms.get(process)
    marks = settled(marks, deaths)
    if at_ms is None:
        return attrs.evolve(marks, place="", dealt=1)
    marks, by_coin = _round_over(marks, deaths, at_ms)
    marks = _elsewhere(marks, deaths, at_ms - deaths.period_ms)
    is_first = not marks.deaths
    last = Aboard(
        process,
        at_ms,
        max(by_coin, marks.dealt) if marks.place == process and not is_first else by_coin,
        (bits or 0) if not is_first else 0,
        not is_first and (bits is not None or marks.is_tried),
    )
    seen_ms = max(marks.seen_ms, deaths.together(at_ms)[1])
    return attrs.evolve(
        marks,
        deaths=marks.deaths + 1,
        last=last,
        seen_ms=seen_ms,
        place="",
        dealt=1,
        grown=marks.grown + (last.is_tried and bits is None),
        is_tried=False,
    )


def outlived(marks: Marks, windows: int) -> Marks:
    """Return marks after a run that outlived `crash_window_s` so often."""
    if windows <= 0:
        return marks
    low, high = (had >> min(windows, 30) for had in (marks.low, marks.high))
    if not low and not high:
        return NO_MARKS
    return attrs.evolve(marks, low=low, high=high)


def tenths(marks: Marks, deaths: Deaths) -> int:
    """Return how much speaks against a job, with all that is known by now."""
    whole = settled(marks, deaths)
    return max(whole.low, whole.high) - MORE_TENTHS


def is_proved(marks: Marks, deaths: Deaths, *, jobs: int, crashes_max: int, rival: int = 0) -> bool:
    """Say whether a job is what kills its workers; `jobs` are running in the pool.

    `rival` is how much speaks against another job that was aboard.
    """
    by_trial = marks.last is not None and marks.last.bits > 0
    if settled(marks, deaths).deaths < crashes_max + (1 if by_trial else 2):
        return False
    return tenths(marks, deaths) > max(rival, TENTHS * math.log2(max(1, jobs) * ODDS))
