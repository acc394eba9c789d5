"""What is wrong with the streams of a pool, and with who handles their events: if asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pool.ops.checkup import PoolFacts
from pool.ops.findings import PATIENCE_S, Rule, Spot, command
from pool.ops.stores import SinkRow
from pool.ops.why import span


def _sinks(facts: PoolFacts) -> Iterator[tuple[str, SinkRow]]:
    for stream in facts.streams:
        for sink in stream.sinks:
            yield stream.name, sink


def _is_alone(facts: PoolFacts, sink: SinkRow) -> bool:
    """Say whether no consumer has said for long that it is there."""
    return sink.silent_s is not None and sink.silent_s > max(
        PATIENCE_S, 2 * facts.pool_ttl_ms / 1000
    )


def _spot(stream: str, sink: SinkRow, says: str, count: int, oldest_s: float | None) -> Spot:
    return Spot(
        says=f"sink {sink.name} of stream {stream}: {says}",
        count=count,
        oldest_s=oldest_s,
        where=(f"stream {stream}",),
        command=command("pool streams", stream),
    )


def _behind(facts: PoolFacts) -> Iterator[Spot]:
    for stream, sink in _sinks(facts):
        waits_s = sink.waits_s or 0.0
        if waits_s > PATIENCE_S:
            many = "events" if sink.lag is None else f"{sink.lag} events"
            who = ", and no consumer is there" if _is_alone(facts, sink) else ""
            says = f"{many} wait, the first for {span(waits_s)}{who}"
            yield _spot(stream, sink, says, max(1, sink.lag or 0), waits_s)


def _stale(facts: PoolFacts) -> Iterator[Spot]:
    for stream, sink in _sinks(facts):
        if sink.held and _is_alone(facts, sink):
            silent_s = sink.silent_s or 0.0
            says = f"{sink.held} events are held by consumers of whom none is there any more"
            yield _spot(stream, sink, f"{says}, since {span(silent_s)}", sink.held, silent_s)


def _parked(facts: PoolFacts) -> Iterator[Spot]:
    for stream, sink in _sinks(facts):
        if sink.parked:
            says = f"{sink.parked} events were given up after too many deliveries"
            yield _spot(stream, sink, says, sink.parked, None)


STREAM_RULES: Final = (
    Rule(
        "sink-behind",
        "warning",
        "the first event that a sink was not given",
        "it has waited for over 60 s",
        "Its consumers are too slow, hang, or are gone: start some, or mend their handler.",
        _behind,
    ),
    Rule(
        "consumers-stale",
        "warning",
        "when consumers of a sink were there last, and what they hold",
        "none for over 60 s, and two TTLs, and events are held",
        "Start a consumer of that sink: it frees what the dead ones held, and goes on.",
        _stale,
    ),
    Rule(
        "sink-parked",
        "warning",
        "events that a sink has given up",
        "any",
        "Their handler fails each time. `Sink.fetch_parked()` shows them, `drop_parked()` forgets "
        "them.",
        _parked,
    ),
)
