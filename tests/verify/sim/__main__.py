"""`python -m tests.verify.sim --seeds 300`: simulate that many seeds and judge each.

One seed again, with all that is known of it: `--seed S`; made smaller: `--seed S --shrink`.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
from collections import Counter

from tests.verify.sim.campaign import MUST_SEE, RARE, campaign, remember, shrink, told, unseen
from tests.verify.sim.config import FAULTS, SHAPES, Config
from tests.verify.sim.run import play


def _one(config: Config, *, is_shrunk: bool) -> int:
    if is_shrunk:
        config = shrink(config)
    outcome = play(config)
    sys.stdout.write(told(outcome) + "\n" + outcome.report.text(outcome.events) + "\n")
    return 0 if outcome.ok else 1


def _many(given: argparse.Namespace) -> int:
    seeds = range(given.first, given.first + given.seeds)
    lines, took_s = campaign(seeds, loops=given.loops, jobs=given.jobs, is_all=given.all)
    bad = [line for line in lines if line.broken]
    for line in bad:
        sys.stdout.write(line.report + "\n\n")
        if given.remember:
            remember(line.config, f"found {', '.join(line.broken)}")
    seen: Counter[str] = Counter()
    for line in lines:
        seen.update(line.seen)
    for name in (*MUST_SEE, *RARE):
        sys.stdout.write(f"  sometimes  {name:46} {seen[name]:>7}\n")
    for name in FAULTS:
        fired = [line.fired[name] for line in lines if name in line.fired]
        sys.stdout.write(f"  fault      {name:46} {sum(fired):>7} in {len(fired)} seeds\n")
    for name in SHAPES:
        drawn = sum(name in line.config.shapes for line in lines)
        sys.stdout.write(f"  shape      {name:46} {'':>10} in {drawn} seeds\n")
    virtual_s = sum(line.virtual_s for line in lines)
    calls = sum(line.calls for line in lines)
    sys.stdout.write(
        f"{len(lines)} seeds, {len({line.digest for line in lines})} different histories, "
        f"{virtual_s:.0f} virtual s, {calls} calls in {took_s:.1f} s: "
        f"{len(lines) / took_s:.2f} seeds/s\n"
    )
    missing = unseen(lines)
    for name in missing:
        sys.stdout.write(f"NEVER SEEN: {name}\n")
    sys.stdout.write(f"{len(bad)} of {len(lines)} seeds violated something\n")
    return 1 if bad or missing else 0


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.verify.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--all", action="store_true", help="with what is known to be red")
    parser.add_argument("--loops", choices=("asyncio", "trio", "mixed"))
    parser.add_argument("--seed", type=int, help="only this one, told in full")
    parser.add_argument("--config", help="a configuration as it was printed, instead of a seed")
    parser.add_argument("--shrink", action="store_true", help="with --seed: make it small first")
    parser.add_argument("--remember", action="store_true", help="keep failures in regressions.txt")
    parser.add_argument("--profile", action="store_true", help="print where the time went")
    given = parser.parse_args()
    if given.seed is not None or given.config:
        drawn = Config.of(given.seed or 0, given.loops, is_all=given.all)
        config = Config.parse(given.config) if given.config else drawn
        return _one(config, is_shrunk=given.shrink)
    if not given.profile:
        return _many(given)
    profile = cProfile.Profile()
    code = profile.runcall(_many, given)
    pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    return code


if __name__ == "__main__":
    sys.exit(main())
