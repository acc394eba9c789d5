"""Who works in the fleet, as the local copy of the `workers` map says.

    a change --update--> roster ... asked for workers, or candidates --> new entries are read

A deployment changes the map of every node thrice per worker: so a change costs next to nothing, and
whoever asks pays once for what has changed since, not for the size of the fleet.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any, Final

import attrs

from pool.core.ids import DIGITS_MAX
from pool.core.pauses import Asked, is_asked, parse
from pool.core.placement import Candidate, Candidates
from pool.errors import PoolError
from pool.maps.deltas import Value

_NO_WORKER: Final = b"!"  # no id begins like that
SHUTDOWN_KEY: Final = b"!shutdown"  # in `workers`
REMOTE: Final = "remote"  # the node of workers that poll: they are in no node's process


@attrs.frozen(kw_only=True)
class WorkerInfo:
    """A worker of the fleet, as its node tells it.

    `node` is the `id` of its node, or the same word for all workers that poll over HTTP.
    """

    id: str
    node: str
    handlers: tuple[str, ...]
    capacity: int
    weight: float
    label: str
    version: str
    is_draining: bool
    host: str = ""  # where its process is
    pid: int = 0
    is_cordoned: bool = False  # by an operator: it takes no keys


@attrs.frozen(kw_only=True)
class WorkerEntry(WorkerInfo):
    """The same, as it stands in the `workers` map.

    `siblings` is of a child of `pool run --processes`: the parent's PID / how many children it has.
    `is_settled`: it is there for so long that the others must be, too.
    """

    numbers: tuple[int, ...]
    siblings: str = ""
    is_settled: bool = False

    @cached_property
    def candidate(self) -> Candidate:
        """What placement needs of it."""
        return Candidate(
            self.id,
            frozenset(self.handlers),
            self.weight,
            self.label,
            self.is_draining or self.is_cordoned,
            self.numbers,
        )

    def pack(self) -> bytes:
        """Return what stands in the map."""
        return json.dumps(attrs.asdict(self), separators=(",", ":")).encode()

    @classmethod
    def parse(cls, text: Value) -> WorkerEntry | None:
        """Return the worker, or None when the text is not one; unknown fields are left out."""
        try:
            known: dict[str, Any] = json.loads(text if isinstance(text, bytes) else b"")
            needed = (a.name for a in attrs.fields(cls) if a.default is attrs.NOTHING)
            fields = {name: known[name] for name in needed}
            later = ("host", "pid", "is_cordoned", "siblings", "is_settled")
            fields |= {name: known[name] for name in later if name in known}
            fields["handlers"] = tuple(fields["handlers"])
            fields["numbers"] = tuple(fields["numbers"])
            info = cls(**fields)
            is_one = info.is_whole and info.candidate is not None
        except (ValueError, TypeError, KeyError, RecursionError, PoolError):
            return None
        return info if is_one else None

    @property
    def is_whole(self) -> bool:
        """Whether its fields are what a node writes: every node reads what any of them wrote."""
        texts = (self.id, self.node, self.label, self.version, self.host, self.siblings)
        numbers = (self.capacity, self.pid, *self.numbers)
        checks = [
            all(type(text) is str for text in (*texts, *self.handlers)),
            self.id,
            # A lone surrogate cannot be sent, nor hashed: `encode()` raises, as a ValueError.
            "".join((*texts, *self.handlers)).encode(),
            all(type(number) is int and 0 <= number < 10**DIGITS_MAX for number in numbers),
            type(self.weight) in (int, float),
            type(self.is_draining) is type(self.is_cordoned) is type(self.is_settled) is bool,
        ]
        return all(checks)


@attrs.define(eq=False)
class Roster:
    """The workers that a copy of the map names; entries that cannot be read are left out."""

    _items: Mapping[bytes, Value] = attrs.field(factory=dict)
    _read: dict[bytes, tuple[Value, WorkerEntry | None]] = attrs.field(factory=dict)
    _workers: tuple[WorkerEntry, ...] | None = None
    _candidates: Candidates | None = None
    asked: Asked = attrs.field(factory=Asked)  # as of the last `hear()`

    def update(self, items: Mapping[bytes, Value]) -> None:
        """Take a new copy."""
        self._items = items
        self._workers = self._candidates = None

    def hear(self) -> Asked:
        """Read what operators ask for, and return what was asked for before."""
        before = self.asked
        self.asked = parse((name, text) for name, text in self._items.items() if is_asked(name))
        return before

    @property
    def workers(self) -> tuple[WorkerEntry, ...]:
        """All workers, in no order."""
        if self._workers is None:
            before, self._read = self._read, {}
            for key, text in self._items.items():
                if not key.startswith(_NO_WORKER):
                    known = before.get(key)
                    if known is None or known[0] != text:
                        known = text, _worker(key, text)
                    self._read[key] = known
            self._workers = tuple([info for _, info in self._read.values() if info is not None])
        return self._workers

    def like(self, some: Collection[str]) -> set[str]:
        """Return all workers with the program of one of these: of its node, or its version."""
        known = [info for info in self.workers if info.id in some]
        nodes = {info.node for info in known}
        versions = {info.version for info in known if info.version}
        return {i.id for i in self.workers if i.node in nodes or i.version in versions}

    @property
    def candidates(self) -> Candidates:
        """The same, for placement."""
        if self._candidates is None:
            self._candidates = Candidates([info.candidate for info in self.workers])
        return self._candidates


def _worker(key: bytes, text: Value) -> WorkerEntry | None:
    info = WorkerEntry.parse(text)
    return info if info is not None and info.id.encode() == key else None
