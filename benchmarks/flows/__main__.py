"""Batches, fan-ins and schedules beside those of other libraries.

    python -m benchmarks.flows                                    # everything, some 25 minutes
    python -m benchmarks.flows --only ours,celery --parts fan_in  # some of it
    python -m benchmarks.flows --busy --rounds 1 --seconds 5      # a try, whatever else runs

    batch   1,000 jobs that do nothing, until who made them knows that all have ended
    fan_in  1,000 jobs, and one that begins when all have: until its first line
    cron    20 schedules that are due in every second, for 20 s: how long after it each job begins

Each on a server, a client and one worker process of its own; all libraries by turns in each round,
forwards and backwards, and ratios within a round: ours by theirs, the median with least and most.
Beside the figures stands what each library does for them, and what holds when a process dies: they
are not prices of the same thing.  A busy machine is refused; `--busy` measures there, too.

Each peer is installed into an environment of its own, as for `benchmarks.peers`; BullMQ is that of
Node.js.  Exit codes: 1 an adapter failed, 2 usage, 3 the machine is busy.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs

from benchmarks.flows.environments import ALL, prepare
from benchmarks.flows.measure import MEASURE, Figures, Peer, Sizes
from benchmarks.flows.protocol import PARTS
from benchmarks.peers.environments import OURS
from benchmarks.peers.quiet import WAIT_S, refusal, wait_quiet
from benchmarks.report import document
from pool.redis.embedded.server import ServerProgram, find_server

BUSY: Final = 3
RATIOS: Final = ("s", "p50_ms", "p99_ms", "server_us", "commands")

Rounds: TypeAlias = Sequence[Mapping[str, Figures]]  # of each round, by library


@attrs.define(kw_only=True)
class Run:
    """One run over all libraries."""

    program: ServerProgram
    sizes: Sizes
    wait_s: float
    peers: dict[str, Peer] = attrs.field(factory=dict)
    found: dict[str, list[dict[str, Figures]]] = attrs.field(factory=dict)  # part -> rounds
    errors: dict[str, str] = attrs.field(factory=dict)
    quiet: list[dict[str, Any]] = attrs.field(factory=list)

    def measure(self, names: Sequence[str], parts: Sequence[str]) -> None:
        """Measure."""
        for name in names:
            try:
                prepare(name)
                self.peers[name] = Peer.of(name)
            except Exception as error:  # noqa: BLE001 - one peer's fault costs no others theirs
                self._fail(name, error)
        for number in range(self.sizes.rounds):
            self.quiet.append(wait_quiet(f"round {number + 1}", self.wait_s))
            order = list(self.peers) if number % 2 == 0 else list(self.peers)[::-1]
            for part in parts:
                figures: dict[str, Figures] = {}
                for name in order:
                    if part in self.peers[name].ways:
                        _say(f"round {number + 1}, {part}, {name}")
                        try:
                            figures[name] = MEASURE[part](
                                self.program, self.peers[name], self.sizes
                            )
                        except Exception as error:  # noqa: BLE001 - as above
                            self._fail(f"{name}, {part}", error)
                self.found.setdefault(part, []).append(figures)

    def _fail(self, what: str, error: Exception) -> None:
        _say(f"{what}: {error}")
        last = str(error).strip().rpartition("\n")[2]
        self.errors[what] = f"{type(error).__name__}: {last}"


def table(part: str, rounds: Rounds, peers: Mapping[str, Peer]) -> Iterator[str]:
    """Yield a table in Markdown: the medians, ratios to ours, and what each library does for it."""
    names = [name for name in peers if any(name in each for each in rounds)]
    columns = list(dict.fromkeys(key for each in rounds for told in each.values() for key in told))
    yield f"### {part}"
    yield ""
    yield "| | " + " | ".join(columns) + " |"
    yield "|---" * (len(columns) + 1) + "|"
    for name in names:
        every = [each[name] for each in rounds if name in each]
        cells = [_short(statistics.median(told[key] for told in every)) for key in columns]
        yield f"| {name} | " + " | ".join(cells) + " |"
    shown = [key for key in columns if key in RATIOS]
    yield ""
    yield "Ours by theirs:"
    yield ""
    yield "| | " + " | ".join(shown) + " |"
    yield "|---" * (len(shown) + 1) + "|"
    for name in names:
        if name != OURS:
            yield (
                f"| {name} | " + " | ".join(ratio(rounds, peers[name], key) for key in shown) + " |"
            )
    yield ""
    for name, peer in peers.items():
        how = peer.ways.get(part)
        told = f"{how}.  When a process dies: {peer.promises[part]}" if how else peer.cannot[part]
        yield f"- *{name}*: {told}."
    yield ""


def ratio(rounds: Rounds, peer: Peer, key: str) -> str:
    """Return ours by theirs, within each round: the median, least and most.

    None for what is late by an interval of its own: that is another measure.
    """
    each = [
        told[OURS][key] / told[peer.name][key]
        for told in rounds
        if OURS in told and peer.name in told and told[peer.name][key]
    ]
    if not each or (peer.by_interval and key.endswith("_ms")):
        return "-"
    return f"{statistics.median(each):.2f} ({min(each):.2f} to {max(each):.2f})"


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _some_of(known: Sequence[str]) -> Any:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        if unknown := set(names) - set(known):
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not of {', '.join(known)}")
        return names

    return parse


def main() -> int:
    """Parse the command line, measure, print; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flows", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", type=_some_of(ALL), default=list(ALL), metavar="PEER,...")
    parser.add_argument("--parts", type=_some_of(PARTS), default=list(PARTS), metavar="PART,...")
    for field in attrs.fields(Sizes):
        parser.add_argument(f"--{field.name}", type=int, default=field.default)
    parser.add_argument("--busy", action="store_true", help="on a busy machine, too")
    parser.add_argument("--json", action="store_true", help="print all figures instead of tables")
    given = parser.parse_args()
    load = os.getloadavg()
    if not given.busy and (why := refusal(load[0])):
        _say(why)
        return BUSY
    sizes = Sizes(**{field.name: getattr(given, field.name) for field in attrs.fields(Sizes)})
    run = Run(program=find_server("path"), sizes=sizes, wait_s=0.0 if given.busy else WAIT_S)
    run.measure(given.only, given.parts)
    facts = {
        **document([], load_before=[round(each, 2) for each in load]).facts,
        "server": f"{run.program.name} {run.program.version}",
        "sizes": attrs.asdict(sizes),
        "quiet": run.quiet,
        "errors": run.errors,
    }
    if given.json:
        peers = {name: attrs.asdict(peer) for name, peer in run.peers.items()}
        print(json.dumps({**facts, "peers": peers, "rounds": run.found}, indent=1))
        return int(bool(run.errors))
    for part, rounds in run.found.items():
        print("\n".join(table(part, rounds, run.peers)))
    for name, peer in run.peers.items():
        versions = ", ".join(f"{each} {version}" for each, version in peer.versions.items())
        print(f"- {name}: {versions}; {peer.setting}; {peer.docs}")
    for name, value in facts.items():
        print(f"{name}: {value}")
    return int(bool(run.errors))


if __name__ == "__main__":
    sys.exit(main())
