"""Which worker should have a key: weighted rendezvous hashing over the local copy of `workers`.

Every worker draws a number for the key and the highest number wins (Thaler and Ravishankar, "A
Name-Based Mapping Scheme for Rendezvous", 1996; weights as in Schindelhauer and Schomaker, 2005).
So when a worker leaves only its own keys move, and one that joins only takes.

The number is `key hash * the worker's multiplier mod 2**64`, both odd, hence never 0.  The key hash
is uniform, so each number is, and any few of them are independent: a correlation needs small
integers k with `sum(k[i] * multiplier[i]) = 0 mod 2**63`, which random multipliers do not have.
One multiplication instead of a mixing function per worker lets one long multiplication draw for
all workers at once: 128 bits of room for each, of which the lower half is the number.

       packed   ...| 0 multiplier[1] | 0 multiplier[0] |
       x key hash =  ...| high  number[1] | high  number[0] |
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from operator import mul
from struct import Struct
from typing import Final

import attrs

from pool.core.ids import member_name
from pool.errors import ConfigError
from pool.names import key_hash as hash_of

WEIGHT_MIN, WEIGHT_MAX = 0.001, 1000.0
CAPACITY_MAX: Final = 10_000  # slots of one worker
FEW: Final = 32  # places of many that are sorted, where no more of them are asked for


def _is_weight(_: object, attribute: attrs.Attribute[float], value: float) -> None:
    if not WEIGHT_MIN <= value <= WEIGHT_MAX:  # refuses NaN too
        raise ConfigError(
            setting=attribute.name,
            problem=f"{value!r} is not a number from {WEIGHT_MIN} to {WEIGHT_MAX}",
        )


@attrs.frozen
class Candidate:
    """What placement knows of a worker.

    `label` is a human name that outlives a restart; a worker with the label of an earlier one
    gets the keys of the earlier one, and shares them with it while both are there.
    `numbers` holds one number per lane; 0: it has not joined that lane.
    """

    id: str
    handlers: frozenset[str]
    weight: float = attrs.field(default=1.0, validator=_is_weight)
    label: str = ""
    is_draining: bool = False
    numbers: tuple[int, ...] = (1,)
    multiplier: int = attrs.field(init=False, repr=False, eq=False)

    @multiplier.default
    def _(self) -> int:
        return hash_of(self.label or self.id) | 1

    def is_in(self, lane: int) -> bool:
        """Say whether the worker has joined that lane."""
        return lane < len(self.numbers) and self.numbers[lane] > 0

    def name_in(self, lane: int) -> str:
        """Return the name under which the worker acts in that lane."""
        return member_name(self.id, self.numbers[lane])


class Candidates:
    """Ranks the workers of one revision of `workers`: build anew when that changes.

    Pure in (workers, key, handler): all processes with the same copy get the same answer.
    """

    __slots__ = ("_placed", "_tables", "workers")

    def __init__(self, workers: Iterable[Candidate]) -> None:
        self.workers: Mapping[str, Candidate] = {worker.id: worker for worker in workers}
        self._placed = [  # in an order all processes share
            worker
            for _, worker in sorted(self.workers.items())
            if not worker.is_draining  # such a one gives the place of its label up at once
        ]
        self._tables: dict[str, _Table] = {}  # filled as handlers are asked for

    def first(self, key_hash: int, handler: str) -> str | None:
        """Return the id of the worker that should have the key; None if no worker may."""
        ids, table = self._of(handler)
        if table.twins:
            return table.ranked(key_hash, 1)[0]
        if len(ids) < 2:
            return ids[0] if ids else None
        return ids[table.best(key_hash, 1)[0]]

    def few(self, handler: str) -> tuple[str, ...] | None:
        """Return the ids of all workers that may have any key, if there is nothing to rank."""
        ids, table = self._of(handler)
        return ids if len(ids) < 2 and not table.twins else None

    def ranked(self, key_hash: int, handler: str, limit: int) -> tuple[str, ...]:
        """Return the ids of at most `limit` workers, the one that should have the key first."""
        ids, table = self._of(handler)
        if table.twins:
            return table.ranked(key_hash, limit)
        if len(ids) < 2:
            return ids[:limit]
        return tuple([ids[place] for place in table.best(key_hash, limit)])

    def _of(self, handler: str) -> tuple[tuple[str, ...], _Table]:
        table = self._tables.get(handler)
        if table is None:
            places: dict[int, list[Candidate]] = {}
            for worker in self._placed:
                if handler in worker.handlers:
                    places.setdefault(worker.multiplier, []).append(worker)
            table = self._tables[handler] = _Table(places)
        return table.ids, table


class _Table:
    """The places for one handler, laid out for one multiplication.

    A label has one place, also while several workers have it: the old and the new one during a
    deployment, or all of them out of carelessness.  They share its keys by their ids, and the
    greatest of their weights counts.  Were the second one given a place by its id, each step of a
    deployment would move keys of all other nodes there, and away again when the old one leaves.
    """

    __slots__ = ("_bytes", "_cut", "_packed", "_rates", "_unpack", "ids", "twins")

    def __init__(self, places: Mapping[int, Sequence[Candidate]]) -> None:
        self.ids = tuple(workers[0].id for workers in places.values())
        self.twins = {
            n: _Table({hash_of(worker.id) | 1: (worker,) for worker in workers})
            for n, workers in enumerate(places.values())
            if len(workers) > 1
        }
        packed = b"".join(multiplier.to_bytes(16, "little") for multiplier in places)
        self._packed = int.from_bytes(packed, "little")
        self._bytes = len(packed)
        self._unpack = Struct("<" + "Q8x" * len(places)).unpack
        weights = [max(worker.weight for worker in workers) for workers in places.values()]
        # Equal weights cannot change the order, so they need no logarithms.
        self._rates = [1 / weight for weight in weights] if len(set(weights)) > 1 else None
        # Of many places, some FEW have scores over it, whatever the key.
        # An int for ints: a comparison with a float takes thrice as long.
        self._cut: float = (
            -FEW / sum(weights) if self._rates else 2**64 - 2**64 * FEW // max(len(weights), 1)
        )

    def scores(self, key_hash: int) -> Sequence[float]:
        """Return one score per place; the highest wins."""
        product = self._packed * (key_hash | 1)
        numbers: tuple[int, ...] = self._unpack(product.to_bytes(self._bytes, "little"))
        if self._rates is None:
            return numbers
        # ln(u) / weight for u uniform in (0, 1]: the highest is the first of exponential
        # clocks that run at the speed of the weights.
        return list(map(mul, map(math.log, map(mul, numbers, repeat(2.0**-64))), self._rates))

    def best(self, key_hash: int, limit: int) -> list[int]:
        """Return at most `limit` places, the highest score first; of equals the earlier one."""
        scores = self.scores(key_hash)
        if limit == 1:
            return [scores.index(max(scores))]
        places: Sequence[int] = range(len(scores))
        if len(scores) > 2 * FEW:
            cut = self._cut
            few = [place for place, score in enumerate(scores) if score > cut]
            if len(few) >= limit:
                places = few
        return sorted(places, key=scores.__getitem__, reverse=True)[:limit]  # stable: ties too

    def ranked(self, key_hash: int, limit: int) -> tuple[str, ...]:
        """Return the ids of at most `limit` workers, where places may be shared."""
        found = list[str]()
        for place in self.best(key_hash, limit):
            twins = self.twins.get(place)
            found += twins.ranked(key_hash, limit) if twins else (self.ids[place],)
            if len(found) >= limit:
                break
        return tuple(found[:limit])
