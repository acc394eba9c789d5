"""Every verb of the command line that asks a pool, taken from the parser, with words that it takes.

A verb that is new has no words here, and fails the tests that go through all of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Final

from pool.ops.cli.parser import make

KEY: Final = "k"  # of a job that runs
WORKER: Final = "w-none"
# What stands behind a verb's name.  What cannot be there says so, and changes nothing.
WORDS: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(
        (
            *("status", "rates", "nodes", "workers", "jobs", "maps", "streams", "config"),
            *("doctor", "events", "journal show", "journal stop", "parked list"),
            *("schedules list", "plans list", "batches list"),
        ),
        (),
    ),
    **dict.fromkeys(("job", "why", "stop", "requeue"), (KEY,)),
    **dict.fromkeys(("cordon", "uncordon", "drain"), (WORKER, "--timeout", "0.1")),
    **dict.fromkeys(("parked show", "parked replay", "parked discard"), (KEY, "no-such-id")),
    **dict.fromkeys(
        (f"schedules {verb}" for verb in ("show", "pause", "resume", "trigger", "remove")),
        ("no-such-schedule",),
    ),
    **dict.fromkeys((f"plans {verb}" for verb in ("show", "diff", "apply")), ("no-such-plan",)),
    **dict.fromkeys(("batches show", "batches cancel"), ("no-such-batch",)),
    "plans confirm": ("no-such-plan", "--anything"),
    "parked edit": (KEY, "no-such-id", "--args", "[]"),
    "top": ("--frames", "1"),
    "web": ("--port", "0"),
    "dispatch": ("here", "new"),
    "notify": (KEY, "1"),
    "pause": ("--handler", "other"),
    "resume": ("--handler", "other"),
    "purge": ("{pool}",),
    "ttl": ("4",),
    "journal follow": ("--key", KEY),
}


def verbs() -> list[str]:
    """Return the names of all verbs that name a pool, but `run` and `check`."""
    return [name for name in _verbs("", make(is_whole=False)) if name not in ("run", "check")]


def words_of(verb: str, pool: str) -> list[str]:
    """Return a call of a verb, without where its pool is."""
    return [*verb.split(), *(word.format(pool=pool) for word in WORDS[verb])]


def _verbs(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb, command in action.choices.items():
                yield from _verbs(f"{name} {verb}".strip(), command)
        elif "--pool" in action.option_strings:
            yield name
