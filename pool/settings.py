"""How a node behaves: one frozen class, every number with its unit and both bounds.

What derives from the lease TTL is in `pool.core.lease`: the TTL is the pool's, and may change.
docs/reference/settings.md is printed from the metadata here.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import attrs

from pool import checks

_KNOWN_CALLS: Final = 3  # a call is repeated for one deadline, and its last answer may take another


def _check(settings: Any, attribute: attrs.Attribute[Any], given: Any) -> None:
    meta = attribute.metadata
    value = checks.number(
        attribute.name,
        given,
        meta["low"],
        meta["high"],
        unit=meta["unit"],
        whole=meta["whole"],
        refuse=checks.setting,
    )
    object.__setattr__(settings, attribute.name, value)  # a plain one, whatever was given


def seconds(default: float | None, doc: str, *, low: float, high: float) -> Any:
    """A duration in seconds, bounded on both sides: nothing is unlimited; None only by default."""
    meta = {"doc": doc, "unit": "s", "low": low, "high": high, "whole": False}
    return _number(default, meta)


def count(default: int | None, doc: str, *, unit: str, low: int, high: int) -> Any:
    """A whole number of something, bounded on both sides; None only by default."""
    meta = {"doc": doc, "unit": unit, "low": low, "high": high, "whole": True}
    return _number(default, meta)


def _number(default: float | None, meta: dict[str, Any]) -> Any:
    check = _check if default is not None else attrs.validators.optional(_check)
    return attrs.field(default=default, validator=check, metadata=meta)


def number(default: float, doc: str, *, low: float, high: float) -> Any:
    """A number of nothing, such as a share, bounded on both sides."""
    return _number(default, {"doc": doc, "unit": "", "low": low, "high": high, "whole": False})


def choice(default: str, doc: str, *options: str) -> Any:
    """One word out of a few."""

    def check(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        checks.word(attribute.name, value, *options, refuse=checks.setting)

    return attrs.field(
        default=default, validator=check, metadata={"doc": doc, "unit": " / ".join(options)}
    )


@attrs.frozen(kw_only=True)
class Settings:
    """How a node behaves.  Immutable; `attrs.evolve()` makes a changed copy."""

    lease_ttl_s: float | None = seconds(
        None,
        "A node silent for this long loses its jobs; all other times derive from it. "
        "The first node that names one decides for the pool; until then it is 10 s.",
        low=1.0,
        high=3600.0,
    )
    op_timeout_s: float = seconds(
        2.0,
        "A call to the store fails when nothing has moved for so long, reconnects included; on a "
        "line that moves it may take half of retry_window_s.",
        low=0.05,
        high=60.0,
    )
    retry_window_s: float = seconds(
        30.0,
        "For at least this long the pool knows the outcome of every ended job, "
        "so that a repeated call is recognised; never less than three times op_timeout_s.",
        low=1.0,
        high=86_400.0,
    )
    result_ttl_s: float = seconds(
        3600.0,
        "How long results other than None, and how jobs failed, can be fetched, within "
        "results_bytes_max; all other outcomes, and what is too much, for retry_window_s.",
        low=0.0,
        high=365 * 86_400.0,
    )
    results_bytes_max: int = count(
        64 * 1024 * 1024,
        "Outcomes that are remembered, per pool; each lane has an equal share.  Above it none is "
        "kept longer than retry_window_s.",
        unit="bytes",
        low=0,
        high=1024**4,
    )
    parked_ttl_s: float = seconds(
        30 * 86_400.0, "How long dead letters are kept.", low=60.0, high=10 * 365 * 86_400.0
    )
    parked_max: int = count(
        100_000,
        "Dead letters that are kept, per pool; each lane has an equal share, of at least one.  The "
        "oldest go first.",
        unit="jobs",
        low=1,
        high=100_000_000,
    )
    grace_s: float = seconds(
        10.0, "How long finite jobs may go on when the node leaves.", low=0.0, high=86_400.0
    )
    settle_delay_s: float = seconds(
        1.0,
        "A service moves at the earliest this long after the fleet last changed.",
        low=0.0,
        high=3600.0,
    )
    crash_window_s: float = seconds(
        600.0,
        "Each time a job runs this long in one go, the evidence that it kills its workers halves.  "
        "Deaths of workers are remembered as long.",
        low=1.0,
        high=86_400.0,
    )
    crashes_max: int = count(
        3,
        "A job is parked as poison after more worker crashes than this, if it is proved that they "
        "are its doing.",
        unit="crashes",
        low=1,
        high=1000,
    )
    queued_jobs_max: int = count(
        1_000_000,
        "Jobs accepted but not started, per pool; each lane has an equal share, of at least one.",
        unit="jobs",
        low=1,
        high=100_000_000,
    )
    payload_bytes_max: int = count(
        262_144,
        "Encoded arguments of one job; all followers of one; the payload of a stream's event.",
        unit="bytes",
        low=1,
        high=64 * 1024 * 1024,
    )
    result_bytes_max: int = count(
        262_144, "Encoded result of one job.", unit="bytes", low=1, high=64 * 1024 * 1024
    )
    state_bytes_max: int = count(
        65_536, "State that a job saves or hands over.", unit="bytes", low=1, high=64 * 1024 * 1024
    )
    steps_max: int = count(
        100, "Steps of one job whose results are stored.", unit="steps", low=1, high=10_000
    )
    steps_bytes_max: int = count(
        262_144,
        "Encoded results of all steps of one job, and their names.",
        unit="bytes",
        low=1,
        high=64 * 1024 * 1024,
    )
    message_bytes_max: int = count(
        65_536, "Encoded payload of one notification.", unit="bytes", low=1, high=16 * 1024 * 1024
    )
    messages_max: int = count(
        1_000, "Unhandled notifications per job.", unit="messages", low=1, high=1_000_000
    )
    sweep_batch: int = count(
        128, "Overdue keys that one sweep looks after.", unit="keys", low=1, high=250
    )
    restarts_max: int = count(
        5, "Restarts of one actor in a minute before the node ends.", unit="", low=0, high=1000
    )
    lanes: int | None = count(
        None,
        "Groups of keys with a hash tag each; fixed when the pool is made.  Who first opens a pool "
        "without a number gives it 1.",
        unit="lanes",
        low=1,
        high=256,
    )
    on_overrun: Literal["report", "exit"] = choice(
        "report", "What happens when a handler outlives its lease.", "report", "exit"
    )
    on_store_loss: Literal["fence", "continue"] = choice(
        "fence",
        "While the store is away, services are stopped (fence) or go on (continue).",
        "fence",
        "continue",
    )

    def __attrs_post_init__(self) -> None:
        if self.lanes is not None and self.queued_jobs_max < self.lanes:
            must = f"at least 1 for each of the {self.lanes} lanes: it is divided among them"
            raise checks.setting("queued_jobs_max", self.queued_jobs_max, must)

    # A lane's shares, once it is known of how many: an open node's settings name the number.

    @property
    def queued_jobs_of_lane(self) -> int:
        """How many jobs a lane accepts that are not started: its share."""
        return self.queued_jobs_max // (self.lanes or 1)

    @property
    def results_bytes_of_lane(self) -> int:
        """How many bytes of outcomes a lane remembers: its share."""
        return self.results_bytes_max // (self.lanes or 1)

    @property
    def parked_of_lane(self) -> int:
        """How many dead letters a lane keeps: its share, at least one."""
        return max(1, self.parked_max // (self.lanes or 1))

    @property
    def known_s(self) -> float:
        """For how long it is known what a call did: by then nobody repeats it any more (G-04)."""
        return max(self.retry_window_s, _KNOWN_CALLS * self.op_timeout_s)

    @property
    def longest_s(self) -> float:
        """How long a call may take that moves on; later nothing of it is sent again."""
        return self.known_s / 2

    @property
    def missing_s(self) -> float:
        """For how long a member that counts as missing is refused: see `jobs/client/batches.py`."""
        return 2 * self.known_s
