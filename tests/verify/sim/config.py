"""What one seed does: its fleet, its load, and which faults it knows (swarm testing).

Everything is drawn from the seed.  Each seed has a random subset of the faults, from none to all,
because some bugs show only where others stay away; the same seed with one fault taken out, or with
fewer jobs, is otherwise the same, so that a failure can be made small.
"""

from __future__ import annotations

import json
import random
from typing import Any, Final, Literal, TypeAlias

import attrs

Loops: TypeAlias = Literal["asyncio", "trio", "mixed"]

# kind -> what it does, in the history's words
FAULTS: Final = {
    "slow": "cut",  # requests and replies take long
    "lossy-requests": "cut",  # some requests never arrive
    "lossy-replies": "cut",  # some replies never arrive: applied, and the caller unsure
    "late": "cut",  # some requests arrive after their caller gave up, on a dead connection
    "torn": "cut",  # of some pipelines only the beginning arrives
    "resets": "drop",  # some connections are reset instead of carrying a request
    "partition": "cut",  # nothing gets through, either way or one way
    "crash": "crash",  # the process is gone, at any moment
    "crash-at-call": "crash",  # ... right before or right after a command of its was carried out
    "pause": "pause",  # the whole process stands still
    "hang": "pause",  # its event loop stands still, its threads go on
    "leave": "leave",  # it leaves in peace, and comes back
    "restart": "store",  # the server is away for a while; data are kept
    "stall": "store",  # the server stands still
    "script-flush": "drop",  # the server forgets all scripts
    "clock-forward": "clock",
    "clock-back": "clock",
    "lost-suffix": "loss",  # the server comes back as it was some time ago
    "wipe": "loss",  # the server comes back empty
    "lost-since-grant": "loss",  # ... as it was right after a key had been granted
    "crash-in-reap": "crash",  # a process is gone, and so is whoever claims what it owned
    "change-worker": "leave",  # a node removes a worker of its, and adds another
    "stubborn": "stubborn",  # handlers go on for a while after they were cancelled
}


@attrs.frozen(kw_only=True)
class Config:
    """All that a seed decides."""

    seed: int
    loops: Loops
    nodes: int
    lanes: int
    capacity: int
    ttl_s: float
    op_timeout_s: float
    chaos_s: float
    jobs: int
    services: int
    keys: int
    faults: tuple[str, ...]
    pace_s: float  # on average, between two faults of one kind
    on_store_loss: str = "fence"
    workers: int = 1  # of each node
    bursts: bool = False  # messages come several at once, the first right behind their service

    @classmethod
    def of(cls, seed: int, loops: Loops | None = None) -> Config:
        """Draw everything from the seed."""
        dice = random.Random(f"config/{seed}")
        drawn: Loops = dice.choice(("asyncio", "trio", "mixed"))
        share = dice.choice((0.0, 0.1, 0.2, 0.2, 0.35, 0.5, 1.0))
        ttl_s = dice.choice((2.0, 3.0, 5.0, 5.0, 8.0))
        nodes, capacity = dice.randint(2, 4), dice.choice((1, 3, 10, 100))
        # With one node away there must be a slot left beside those that services hold.
        services = min(dice.choice((0, 1, 3, 6)), (nodes - 1) * capacity - 1)
        faults = tuple(kind for kind in FAULTS if dice.random() < share)
        return cls(
            seed=seed,
            loops=loops or drawn,
            nodes=nodes,
            lanes=dice.choice((1, 1, 1, 3)),
            capacity=capacity,
            ttl_s=ttl_s,
            op_timeout_s=dice.choice((0.2, 0.4, 1.0)) * ttl_s / 2,
            chaos_s=dice.uniform(15.0, 25.0),
            jobs=dice.choice((10, 30, 60)),
            services=services,
            keys=dice.choice((5, 50, 1000)),
            faults=faults,
            pace_s=dice.choice((4.0, 8.0, 15.0)),
            on_store_loss=dice.choice(("fence", "fence", "continue")),
            workers=dice.choice((1, 1, 2)) if "change-worker" not in faults else 2,
            bursts=dice.random() < 0.5,
        )

    def text(self) -> str:
        """Return it on one line, as `parse` takes it."""
        return json.dumps(attrs.asdict(self))

    @classmethod
    def parse(cls, text: str) -> Config:
        """Return what `text()` wrote."""
        facts: dict[str, Any] = json.loads(text)
        return cls(**{**facts, "faults": tuple(facts["faults"])})
