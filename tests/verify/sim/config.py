"""What one seed does: its fleet, its load, and which faults it knows (swarm testing).

Everything is drawn from the seed.  Each seed has a random subset of the faults, from none to all,
because some bugs show only where others stay away; the same seed with one fault taken out, or with
fewer jobs, is otherwise the same, so that a failure can be made small.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Collection
from typing import Any, Final, Literal, TypeAlias

import attrs

Loops: TypeAlias = Literal["asyncio", "trio", "mixed"]
SPARSE_S: Final = 15.0  # between faults where they are sparse
CHAOS_S: Final = 40.0  # how long such a seed goes wrong
MARKS_MANY: Final = 50  # crashes are faults here: without poison they give nobody up
MARKS_FEW: Final = 3

# kind -> what it does, in the history's words
FAULTS: Final = {
    "slow": "cut",  # requests and replies take long
    "thin": "cut",  # each byte of them does: a line of few bytes per second
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
    # Those of the edges are drawn by dice of their own: older seeds keep the faults they had.
    "freeze-all": "pause",  # all processes stand still, several times in a row
    "garbage": "drop",  # replies of another shape, bytes that are none, stray, late and half ones
    "full": "full",  # the server's memory is up: it takes nothing that grows
    "lost-index": "store",  # a key or a member is deleted from what can be made again
    "lane-stall": "store",  # the server of one lane stands still
    "lane-restart": "store",  # it is away for a while
    "lane-wipe": "loss",  # it comes back empty
    "lost-data-key": "data",  # a key of a map or of a stream is deleted, or a sink's group
    "foreign-data": "data",  # a foreign value stands under such a key for a while
    "fork-behind": "loss",  # as lost-suffix, and the server's clock is behind from then on
    "crash-two": "crash",  # two processes are gone at the same moment
    "wipe-behind": "loss",  # its clock is set back, pool time goes on, and then it comes back empty
    "silences": "store",  # the server stands still again and again, and a node dies meanwhile
    "line-silences": "cut",  # the lines of one node, or of all but one, do, either way or one way
    "spot-wave": "crash",  # several processes are gone at once, and come back one by one
    "host-dies": "crash",  # the nodes of a host are gone at one moment, and are back at another
    "killed-again": "crash",  # one node is killed again and again, soon after it is back
    "drain-killed": "crash",  # a node leaves, and is killed at the end of its grace
    "old-primary": "loss",  # a failover loses what came last, and a node does not get through to it
}
EDGES: Final = (
    *("freeze-all", "garbage", "full", "lost-index", "lane-stall", "lane-restart", "lane-wipe"),
)
LATER: Final = (  # each by dice of its own
    *("thin", "wipe-behind", "crash-two"),
    *("silences", "line-silences", "old-primary"),
)
OUTSIDE: Final = ("spot-wave", "host-dies", "killed-again", "drain-killed")  # who kills is not here
# Those of maps and streams, which strike only where programs use such.
OF_DATA: Final = ("lost-data-key", "foreign-data", "fork-behind")
LANES: Final = frozenset({"lane-stall", "lane-restart", "lane-wipe"})  # of lanes that are apart

# What is hurt not by a fault of the calendar but by those who are there.
HURTS: Final = {
    "block": "pause",  # a handler blocks its loop
    "observer": "pause",  # an observer does
    "interrupt": "leave",  # a handler raises KeyboardInterrupt, and its node leaves
    "poison": "crash",  # a handler ends its process
    "exit": "crash",  # the library does, because a handler outlived its lease
}
DOES: Final = {**FAULTS, **HURTS}

# What else makes seeds differ; each has some of them.
SHAPES: Final = {
    "sparse": "one or two kinds of fault, far apart, and room for everything",
    "ill": "handlers end in every way that Python has",
    "calls": "calls are in flight while their node leaves, and are cancelled",
    "poison": "few crash marks are enough, and some jobs end their process at once",
    "blocks": "handlers block their loop, before or after they are acknowledged",
    "settings": "each node has settings of its own, but for the TTL",
    "exits": "nodes end when a handler outlives its lease",
    "observers": "observers raise, and block their loop",
    "apart": "each lane has a server of its own",
    "crowd": "nothing goes wrong, and more jobs come at once than there are slots",
    "alone": "the fleet is one process",
    "pages": "whatever is done in pages is done in small ones",
    "lines": "many dispatches are for a few keys, with every policy for those that have a job",
    "keeps": "jobs have steps, and services save what they have heard",
    "in-time": "many jobs must begin by some time",
    "letters": "dead letters are replayed, by several nodes at once",
    "chains": "jobs have others that follow them, and these have",
    "schedules": "schedules are made, changed, paused, triggered and removed",
    "edits": "one with much jitter is changed, paused and resumed, mostly before that is over",
    "batches": "jobs are members of batches, whose makers may die",
    "operators": "the pool, handlers and keys are paused and resumed, and nodes cordoned",
    "plans": "a plan keeps services as a list says, which changes, and is wrong now and then",
    "versions": "some nodes lack a version, or a codec, of handlers that others have",
    "maps": "programs write, watch and wait for replicated maps",
    "sinks": "programs add events to streams, which readers and sinks read",
}
CROWDS: Final = 0.06  # share of seeds; the other shapes need faults, or bring some
ALONE_SHARE: Final = 0.06
LINES_SHARE: Final = 0.3  # of seeds
PROGRAMS: Final = ("maps", "sinks")
PROGRAMS_SHARE: Final = 0.25  # of seeds, for each of these
KEEPS_SHARE: Final = 0.4
IN_TIME_SHARE: Final = 0.3
LETTERS_SHARE: Final = 0.3
CHAINS_SHARE: Final = 0.3
SCHEDULES_SHARE: Final = 0.3
EDITS_SHARE: Final = 0.5  # of the seeds with schedules
BATCHES_SHARE: Final = 0.25
OPERATORS_SHARE: Final = 0.2
PLANS_SHARE: Final = 0.25
VERSIONS_SHARE: Final = 0.2
VERSIONED_SLOTS: Final = 20  # of a worker: one that can read a job is to have a slot free
PLANNED_SLOTS: Final = 20  # of a worker: the others' services have theirs beside those
# Faults and shapes that the code is known not to stand until their mend has landed: they are drawn
# only where everything is asked for (`--all`).  A line here names a seed that shows why.
KNOWN_RED: Final[frozenset[str]] = frozenset()


ATTEMPTS_MAX: Final = 4  # of a job
Plan = dict[str, Any]  # what a job is to do


def digest(plan: Plan) -> str:
    """Return what tells whether a plan has arrived as it was sent."""
    return hashlib.sha1(json.dumps(plan, sort_keys=True).encode()).hexdigest()[:12]


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
    shapes: tuple[str, ...] = ()
    is_all: bool = False  # what is known to be red is drawn, too

    @property
    def crashes_max(self) -> int:
        """How many crash marks a job may have."""
        is_few = "poison" in self.shapes or "freeze-all" in self.faults
        return MARKS_FEW if is_few else MARKS_MANY

    @classmethod
    def of(cls, seed: int, loops: Loops | None = None, *, is_all: bool = False) -> Config:
        """Draw everything from the seed."""
        config = cls._dense(seed, loops)
        dice = random.Random(f"edges/{seed}")
        share = dice.choice((0.0, 0.1, 0.2, 0.4, 1.0))
        edges = tuple(kind for kind in EDGES if dice.random() < share)
        share = dice.choice((0.0, 0.2, 0.2, 0.4))
        # These have dice of their own.
        mine = {"crowd", "pages", "lines", "keeps", "in-time", "letters", "chains", "batches"}
        mine |= {"alone", "schedules", "edits", "plans", "operators", "versions", *PROGRAMS}
        shapes = tuple(name for name in SHAPES if name not in mine and dice.random() < share)
        if dice.random() < 0.25:
            own = (*LATER, *OUTSIDE, *OF_DATA)
            kinds = dice.sample([k for k in FAULTS if k not in own], dice.choice((1, 1, 2)))
            shapes = ("sparse", *(name for name in shapes if name != "sparse"))[:2]
            config = attrs.evolve(
                config, faults=(), pace_s=SPARSE_S, chaos_s=CHAOS_S, capacity=100, workers=1
            )
            edges = tuple(kind for kind in FAULTS if kind in kinds)
        else:
            shapes = tuple(name for name in shapes if name != "sparse")
        later = [k for k in (*LATER, *OUTSIDE) if random.Random(f"{k}/{seed}").random() < 0.15]
        faults = tuple(kind for kind in FAULTS if kind in {*config.faults, *edges, *later})
        if not is_all:
            faults = tuple(kind for kind in faults if kind not in KNOWN_RED)
            shapes = tuple(name for name in shapes if name not in KNOWN_RED)
        if random.Random(f"pages/{seed}").random() < 0.5:
            shapes = (*shapes, "pages")
        if random.Random(f"lines/{seed}").random() < LINES_SHARE:
            shapes = (*shapes, "lines")
        if random.Random(f"keeps/{seed}").random() < KEEPS_SHARE:
            shapes = (*shapes, "keeps")
        if random.Random(f"in-time/{seed}").random() < IN_TIME_SHARE:
            shapes = (*shapes, "in-time")
        if random.Random(f"letters/{seed}").random() < LETTERS_SHARE:
            shapes = (*shapes, "letters")
        if random.Random(f"chains/{seed}").random() < CHAINS_SHARE:
            shapes = (*shapes, "chains")
        if random.Random(f"schedules/{seed}").random() < SCHEDULES_SHARE:
            shapes = (*shapes, "schedules")
            if random.Random(f"edits/{seed}").random() < EDITS_SHARE:
                shapes = (*shapes, "edits")
        if random.Random(f"batches/{seed}").random() < BATCHES_SHARE:
            shapes = (*shapes, "batches")
        if random.Random(f"operators/{seed}").random() < OPERATORS_SHARE:
            shapes = (*shapes, "operators")
        if random.Random(f"plans/{seed}").random() < PLANS_SHARE:
            shapes = (*shapes, "plans")
            config = attrs.evolve(config, capacity=max(config.capacity, PLANNED_SLOTS))
        has_versions = random.Random(f"versions/{seed}").random() < VERSIONS_SHARE
        if has_versions and (is_all or "versions" not in KNOWN_RED):
            shapes = (*shapes, "versions")
            config = attrs.evolve(config, capacity=max(config.capacity, VERSIONED_SLOTS))
        if random.Random(f"alone/{seed}").random() < ALONE_SHARE:
            shapes = (*shapes, "alone")
            services = min(config.services, config.capacity - 1)  # a slot is left beside them
            config = attrs.evolve(config, nodes=1, services=services)
        lanes = config.lanes
        if LANES & {*faults}:
            shapes = (*(name for name in shapes if name != "apart"), "apart")
        if "apart" in shapes:
            lanes = max(lanes, dice.choice((2, 3, 8)))
        workers = 2 if "change-worker" in faults else config.workers
        config = attrs.evolve(config, faults=faults, shapes=shapes, workers=workers, lanes=lanes)
        return attrs.evolve(config._crowded()._with_programs(), is_all=is_all)

    def with_programs(self, programs: Collection[str], share: float = 0.3) -> Config:
        """Return it with maps, sinks or both, and some of the faults that these know."""
        if not programs:
            return self
        shapes = (*self.shapes, *(name for name in PROGRAMS if name in programs))
        mine = [k for k in OF_DATA if random.Random(f"{k}/{self.seed}").random() < share]
        faults = tuple(kind for kind in FAULTS if kind in {*self.faults, *mine})
        return attrs.evolve(self, shapes=shapes, faults=faults)

    def _with_programs(self) -> Config:
        drawn = [n for n in PROGRAMS if random.Random(f"{n}/{self.seed}").random() < PROGRAMS_SHARE]
        return self if "crowd" in self.shapes else self.with_programs(drawn)

    def _crowded(self) -> Config:
        """Return a fleet in peace whose slots are few, if this seed is such a one."""
        dice = random.Random(f"crowd/{self.seed}")
        if dice.random() >= CROWDS:
            return self
        lanes, capacity = dice.choice((1, 1, 1, 3, 8)), dice.choice((1, 1, 2, 5))
        services = min(dice.choice((0, 0, 1)), self.nodes * capacity - 1)  # a slot is left
        return attrs.evolve(
            self,
            shapes=("crowd",),
            faults=(),
            lanes=lanes,
            capacity=capacity,
            workers=1,
            services=services,
            keys=1000,
            ttl_s=dice.choice((2.0, 3.0)),
            op_timeout_s=1.0,
            jobs=12,
            chaos_s=12.0,
        )

    @classmethod
    def _dense(cls, seed: int, loops: Loops | None) -> Config:
        dice = random.Random(f"config/{seed}")
        drawn: Loops = dice.choice(("asyncio", "trio", "mixed"))
        share = dice.choice((0.0, 0.1, 0.2, 0.2, 0.35, 0.5, 1.0))
        ttl_s = dice.choice((2.0, 3.0, 5.0, 5.0, 8.0))
        nodes, capacity = dice.randint(2, 4), dice.choice((1, 3, 10, 100))
        # With one node away there must be a slot left beside those that services hold.
        services = min(dice.choice((0, 1, 3, 6)), (nodes - 1) * capacity - 1)
        dense = (kind for kind in FAULTS if kind not in (*EDGES, *LATER, *OUTSIDE, *OF_DATA))
        faults = tuple(kind for kind in dense if dice.random() < share)
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
        facts |= {name: tuple(facts.get(name, ())) for name in ("faults", "shapes")}
        return cls(**facts)
