"""What an operator has asked for, as it stands in the `workers` map: pauses, cordons and drains.

    !paused pool | handler NAME | key HASH    a pause; each is a JSON object
    !cordon ID                                a cordon, or a drain, of a node or worker

No worker's id begins like that.  See `jobs/client/pausing.py` for who writes them, and when.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias

import attrs

from pool.core.ids import DIGITS_MAX
from pool.errors import PoolError
from pool.names import check_handler, check_key, key_hash, lane_of

REASON_MAX: Final = 200  # characters of a reason, and of who gave it
HANDLERS_PAUSED_MAX: Final = 64  # every script reads their names, while there are some
KEYS_PAUSED_MAX: Final = 1_000  # of the pool: each node has a copy of their list

What: TypeAlias = Literal["pool", "handler", "key"]
_PAUSED: Final = "!paused "
_CORDON: Final = "!cordon "


@attrs.frozen(kw_only=True)
class Pause:
    """What is paused: the whole pool, or the jobs of a handler, or those of a key.

    `since_ms` is the server's clock.  `is_over` says that it is being resumed, and that a lane has
    not been reached by that yet.  `order` is the number of this decision: of two about the same the
    higher one counts, in the list and in every lane.
    """

    handler: str | None = None
    key: str | None = None
    since_ms: int = 0
    by: str = ""
    reason: str = ""
    is_over: bool = False
    order: int = 0

    @classmethod
    def of(cls, what: What, name: str) -> Pause:
        """Return what is called so."""
        return cls(handler=name if what == "handler" else None, key=name if what == "key" else None)

    @property
    def what(self) -> What:
        """The pool, a handler or a key."""
        return "pool" if self.handler is self.key is None else "key" if self.key else "handler"

    @property
    def name(self) -> str:
        """Which handler or key; `-` for the pool."""
        return self.handler or self.key or "-"

    def __str__(self) -> str:
        return "the whole pool" if self.what == "pool" else f"{self.what} {self.name}"

    @property
    def entry(self) -> bytes:
        """What it is called in the map, which has no room for a key."""
        match self.what:
            case "pool":
                return f"{_PAUSED}pool".encode()
            case "handler":
                return f"{_PAUSED}handler {self.handler}".encode()
            case _:
                return f"{_PAUSED}key {key_hash(self.name):016x}".encode()

    def pack(self) -> bytes:
        """Return what stands there."""
        return json.dumps(attrs.asdict(self), separators=(",", ":")).encode()


@attrs.frozen(kw_only=True)
class Cordon:
    """A node or a worker that takes no keys; with `is_drain` it gives up what it has, and leaves.

    `since_ms` is the server's clock.
    """

    id: str
    since_ms: int = 0
    by: str = ""
    reason: str = ""
    is_drain: bool = False

    @property
    def entry(self) -> bytes:
        """What it is called in the map."""
        return f"{_CORDON}{self.id}".encode()

    def pack(self) -> bytes:
        """Return what stands there."""
        return json.dumps(attrs.asdict(self), separators=(",", ":")).encode()


@attrs.frozen
class Asked:
    """All that stands in the map; entries that cannot be read are left out."""

    pauses: Mapping[bytes, Pause] = attrs.field(factory=dict)
    cordons: Mapping[str, Cordon] = attrs.field(factory=dict)  # by the id that was named

    def pause_of(self, key: str, handler: str) -> Pause | None:
        """Return what keeps a job from being granted, the closest to it first."""
        pauses = self.pauses
        for each in (Pause(key=key), Pause(handler=handler), Pause()) if pauses else ():
            found = pauses.get(each.entry)
            if found is not None and found.name == each.name:
                return found
        return None

    def cordon_of(self, *ids: str) -> Cordon | None:
        """Return the cordon of a worker or of its node, a drain before another."""
        found = [self.cordons[each] for each in ids if each in self.cordons]
        return max(found, key=lambda each: each.is_drain, default=None)

    def cordon_of_all(self, workers: Iterable[tuple[str, str]]) -> Cordon | None:
        """Return the cordon of the first of these (worker, node), if each of them has one."""
        cordons = [self.cordon_of(*ids) for ids in workers]
        return cordons[0] if cordons and None not in cordons else None


def lanes_of(pause: Pause, lanes: int) -> range:
    """Return the lanes that are to know of it."""
    if pause.what != "key":
        return range(lanes)
    number = lane_of(pause.name, lanes)
    return range(number, number + 1)


def is_asked(entry: bytes) -> bool:
    """Say whether an entry of the map is one of these."""
    return entry.startswith((_PAUSED.encode(), _CORDON.encode()))


def parse(items: Iterable[tuple[bytes, object]]) -> Asked:
    """Read those entries of the map that are such."""
    pauses: dict[bytes, Pause] = {}
    cordons: dict[str, Cordon] = {}
    for entry, text in items:
        match _read(entry, text) if isinstance(text, bytes) else None:
            case Pause() as pause if pause.entry == entry:
                pauses[entry] = pause
            case Cordon() as cordon if cordon.entry == entry:
                cordons[cordon.id] = cordon
            case _:
                pass
    return Asked(pauses, cordons)


@lru_cache(maxsize=2 * KEYS_PAUSED_MAX)  # all are looked at whenever one of them changes
def _read(entry: bytes, text: bytes) -> Pause | Cordon | None:
    made: type[Pause | Cordon] = Pause if entry.startswith(_PAUSED.encode()) else Cordon
    try:
        known: dict[str, Any] = json.loads(text)
        names = {field.name for field in attrs.fields(made)}
        found = made(**{name: value for name, value in known.items() if name in names})
        return found if _is_whole(found) else None
    except (ValueError, TypeError, AttributeError, RecursionError, PoolError):
        return None


def _is_whole(found: Pause | Cordon) -> bool:
    """Say whether its fields are what a node writes: every node reads what any of them wrote."""
    flag = found.is_drain if isinstance(found, Cordon) else found.is_over
    name = found.id if isinstance(found, Cordon) else found.name
    if isinstance(found, Pause):
        if found.handler is not None:
            check_handler(found.handler)
        elif found.key is not None:
            check_key(found.key)
    texts = (found.by, found.reason, name)
    is_text = all(type(text) is str for text in texts) and bool(name)
    "".join(texts).encode()  # a lone surrogate cannot be sent: a ValueError
    numbers = (found.since_ms, found.order if isinstance(found, Pause) else 0)
    are_numbers = all(type(each) is int and 0 <= each < 10**DIGITS_MAX for each in numbers)
    return is_text and are_numbers and type(flag) is bool
