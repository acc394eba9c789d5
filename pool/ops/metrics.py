"""The figures of one node, as Prometheus names them: counted as jobs go by, read when asked for.

    events, job events --> counts, durations           on the event loop
    read() --> families --> Prometheus' client, or whatever else somebody has       in any thread

No label is a key: handlers are those that are registered, at most HANDLERS_MAX; causes of failures
are names of exceptions, at most CAUSES_MAX of a handler; what is beyond counts as `other`.  Counts
only grow, also when the node is opened again.  A reader in another thread sees each count whole,
and two counts maybe a job apart.
"""

from __future__ import annotations

import gc
import re
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any, Final, Literal, TypeAlias

import attrs

from pool import checks
from pool.core.ailing import Recent
from pool.core.settlement import TOO_LONG
from pool.errors import ConfigError
from pool.events import (
    AttemptFailed,
    Event,
    JobAccepted,
    JobSettled,
    JobStarted,
    NodeJoined,
    NodeLeft,
    WorkerReaped,
)
from pool.jobs.meter import Meter
from pool.jobs.node import Node
from pool.runtime.observers import log_failed

HANDLERS_MAX: Final = 100
CAUSES_MAX: Final = 20  # of one handler
OTHER: Final = "other"
# From a turn of the loop to half an hour; what is longer is told together.
BUCKETS_S: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0),
)
SETTLED: Final = ("done", "cancelled", "parked")  # how a job ends; all else is a run's end only
_CAUSE: Final = re.compile(r"([A-Za-z_][\w.]{0,63})(:|$)")
_LIMITS: Final = {text: str(limit) for limit, text in TOO_LONG.items()}

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
Labels: TypeAlias = Mapping[str, str]
Callback: TypeAlias = Callable[[str, float, Labels], object]


@attrs.frozen
class Sample:
    """One value under its labels; of a histogram how many took at most so long, and all together.

    `buckets` are (seconds, how many up to it), cumulative, the last one's bound is infinite.
    """

    labels: Labels
    value: float  # of a histogram: the sum, in seconds
    buckets: tuple[tuple[float, int], ...] = ()


@attrs.frozen
class MetricFamily:
    """A metric, and its samples; a counter's name ends in `_total`."""

    name: str
    kind: Kind
    help: str
    samples: tuple[Sample, ...]


@attrs.define(eq=False)
class Durations:
    """How long things took: how many by `BUCKETS_S`, and the sum."""

    counts: list[int] = attrs.field(factory=lambda: [0] * (len(BUCKETS_S) + 1))
    total_s: float = 0.0

    def add(self, took_s: float) -> None:
        """Count one."""
        self.counts[bisect_left(BUCKETS_S, took_s)] += 1
        self.total_s += took_s

    def sample(self, labels: Labels) -> Sample:
        """Return it as it is now."""
        upto = zip((*BUCKETS_S, float("inf")), accumulate(list(self.counts)), strict=True)
        return Sample(labels, self.total_s, tuple(upto))


@attrs.define(eq=False)
class HandlerCounts:
    """What is counted of one handler's jobs here."""

    accepted: int = 0  # by this node's dispatches
    started: int = 0
    waited: Durations = attrs.field(factory=Durations)
    ran: Durations = attrs.field(factory=Durations)
    ended: Counter[str] = attrs.field(factory=Counter)  # runs, by outcome
    failed: Counter[str] = attrs.field(factory=Counter)  # attempts, by cause


class Metrics(Meter):
    """Counts what one node does: give it to the node as an observer.

        metrics = Metrics()
        async with Node("media", url, handlers=handlers, observers=[log_observer, metrics]): ...

    `read()` returns the figures; `register()` has Prometheus' client serve them.
    """

    def __init__(self, *, callback: Callback | None = None) -> None:
        """Begin with nothing counted.

        Args:
            callback: Called with (name, value, labels) for each thing as it is counted, on the
                event loop: 1 of a counter, seconds of a histogram.  Each job waits for it.

        Raises:
            ConfigError: `callback` is no plain function.
        """
        if callback is not None:
            checks.plain_function("callback", callback, refuse=checks.setting)
        self._callback = callback
        self._node: Node | None = None
        self._by_handler: dict[str, HandlerCounts] = {}
        self._events: Counter[str] = Counter()
        self._taken_over = 0
        self._renewals = [0, 0]  # all, and those that failed
        self._lag, self._calls, self._pauses = Durations(), Durations(), Durations()
        self._pause_began_s, self._recent_pauses = 0.0, Recent()

    # --- what is told of ----------------------------------------------------------------------

    def attach(self, node: Node) -> None:
        """Count for this node from now on; the node calls it when it opens.

        Raises:
            ConfigError: Another node is open that has the same one: which of them it counts for
                could not be told.
        """
        if self._node is not None and self._node is not node and self._node.state != "closed":
            problem = "this Metrics counts for a node that is open: make one for each node"
            raise ConfigError(setting="observers", problem=problem)
        self._node = node

    def __call__(self, event: Event) -> None:
        """Count an event; of a job's what it says, of others their names."""
        # First what there is of each job.
        if isinstance(event, JobSettled):
            counts = self._by_handler.get(event.handler) or self._of(event.handler)
            counts.ended[event.outcome] += 1
            if event.worker:  # else it did not run
                counts.ran.add(event.ran_s)
        elif isinstance(event, JobStarted):
            counts = self._by_handler.get(event.handler) or self._of(event.handler)
            counts.started += 1
            if not event.is_again:
                counts.waited.add(event.waited_s)
        elif isinstance(event, JobAccepted):
            self._of(event.handler).accepted += 1
        else:
            self._events[event.event] += 1
            self._look_into(event)
        if self._callback is not None:
            self._call_back(event)

    def _call_back(self, event: Event) -> None:
        match event:
            case JobSettled(handler=handler, outcome=outcome, ran_s=ran_s, worker=worker):
                is_over = outcome in SETTLED
                name = "pool_jobs_settled_total" if is_over else "pool_runs_continued_total"
                self._tell(name, 1, handler=handler, outcome=outcome)
                if worker:
                    self._tell("pool_run_duration_seconds", ran_s, handler=handler)
            case JobStarted(handler=handler, waited_s=waited_s, is_again=is_again):
                self._tell("pool_runs_started_total", 1, handler=handler)
                if not is_again:
                    self._tell("pool_job_start_delay_seconds", waited_s, handler=handler)
            case JobAccepted(handler=handler):
                self._tell("pool_jobs_accepted_total", 1, handler=handler)
            case _:
                self._tell("pool_events_total", 1, event=event.event)

    def _look_into(self, event: Event) -> None:
        match event:
            case AttemptFailed(handler=handler, error=error):
                failed, cause = self._of(handler).failed, _cause(error)
                cause = cause if cause in failed or len(failed) < CAUSES_MAX else OTHER
                failed[cause] += 1
                self._tell("pool_attempts_failed_total", 1, handler=handler, cause=cause)
            case WorkerReaped(keys=keys):
                self._taken_over += keys
            case NodeJoined() if self._on_collector not in gc.callbacks:
                gc.callbacks.append(self._on_collector)
            case NodeLeft() if self._on_collector in gc.callbacks:
                gc.callbacks.remove(self._on_collector)

    def turned(self, lag_s: float) -> None:
        """Count a turn of the event loop; the node's thread of renewals has it called."""
        self._lag.add(lag_s)
        self._tell("pool_loop_lag_seconds", lag_s)

    def pause_s(self) -> float:
        """Return the longest pause of the last minute or two."""
        return self._recent_pauses.read(time.perf_counter()).most

    def renewed(self, took_s: float, failed: int, of: int) -> None:
        """Count renewals; as `turned()`."""
        self._renewals[0] += of
        self._renewals[1] += failed
        self._calls.add(took_s)
        self._tell("pool_renewal_duration_seconds", took_s)
        if failed:
            self._tell("pool_renewals_failed_total", failed)

    def _of(self, handler: str) -> HandlerCounts:
        found = self._by_handler.get(handler)
        if found is None:
            if len(self._by_handler) >= HANDLERS_MAX and handler != OTHER:
                return self._of(OTHER)
            found = self._by_handler[handler] = HandlerCounts()
        return found

    def _on_collector(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._pause_began_s = time.perf_counter()
        elif self._pause_began_s:
            now_s = time.perf_counter()
            self._pauses.add(now_s - self._pause_began_s)
            self._recent_pauses.add(now_s - self._pause_began_s, now_s)

    def _tell(self, name: str, value: float, **labels: str) -> None:
        if self._callback is not None:
            try:
                self._callback(name, value, labels)
            except KeyboardInterrupt:  # as of every observer
                raise
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is raised again
                log_failed(name, error)

    # --- what is read -------------------------------------------------------------------------

    def read(self) -> list[MetricFamily]:
        """Return all figures as they are now; from any thread."""
        made = Families({"pool": self._node.pool if self._node is not None else ""})
        self._read_jobs(made)
        made.counter("pool_events", "Events, by name.", "event", self._events.copy())
        made.one(
            "counter",
            "pool_takeovers_total",
            "Dead members whose keys this node took over.",
            self._events[WorkerReaped.event],
        )
        made.one("counter", "pool_jobs_taken_over_total", "Jobs of theirs.", self._taken_over)
        made.one(
            "counter", "pool_renewals_total", "Renewals of leases, by lane.", self._renewals[0]
        )
        made.one("counter", "pool_renewals_failed_total", "Those that failed.", self._renewals[1])
        made.durations(
            "pool_renewal_duration_seconds",
            "One call of the renewal script, there and back.",
            self._calls,
        )
        made.durations(
            "pool_loop_lag_seconds", "How late the event loop takes up what it is told.", self._lag
        )
        made.durations(
            "pool_collector_pause_seconds", "Pauses of Python's garbage collector.", self._pauses
        )
        if self._node is not None:
            _read_node(made, self._node)
        return made.all

    def _read_jobs(self, made: Families) -> None:
        by_handler = list(self._by_handler.items())
        accepted = {handler: each.accepted for handler, each in by_handler}
        made.counter("pool_jobs_accepted", "Jobs dispatched here.", "handler", accepted)
        runs = {handler: each.started for handler, each in by_handler}
        made.counter("pool_runs_started", "Calls of handlers.", "handler", runs)
        ended = [
            ({"handler": handler, "outcome": outcome}, each.ended[outcome])
            for handler, each in by_handler
            for outcome in (*SETTLED, "retried", "moved")
        ]
        made.many(
            "counter",
            "pool_jobs_settled_total",
            "Jobs that have ended, by how.",
            [each for each in ended if each[0]["outcome"] in SETTLED],
        )
        made.many(
            "counter",
            "pool_runs_continued_total",
            "Runs that ended while their jobs go on: to be retried, or with another worker.",
            [each for each in ended if each[0]["outcome"] not in SETTLED],
        )
        failed = [
            ({"handler": handler, "cause": cause}, count)
            for handler, each in by_handler
            for cause, count in each.failed.copy().items()
        ]
        made.many(
            "counter",
            "pool_attempts_failed_total",
            "Attempts that failed, by exception, or limit.",
            failed,
        )
        waited = {handler: each.waited for handler, each in by_handler}
        text = "From acceptance to the first start, by pool time, with the delay asked for."
        made.histogram("pool_job_start_delay_seconds", text, waited)
        ran = {handler: each.ran for handler, each in by_handler}
        made.histogram("pool_run_duration_seconds", "How long handlers ran.", ran)

    def register(self, registry: Any = None) -> None:
        """Have Prometheus' client tell the figures whenever it is asked (extra `metrics`).

        Args:
            registry: Which of its registries; None is the process's.

        Raises:
            ConfigError: `prometheus-client` is not installed.
        """
        try:
            from prometheus_client import REGISTRY
        except ImportError:
            problem = "it needs prometheus-client: pip install 'keyed-pool[metrics]'"
            raise ConfigError(setting="metrics", problem=problem) from None
        (REGISTRY if registry is None else registry).register(_Collector(self))


def _cause(error: str) -> str:
    """Return what an attempt failed by, of the few: the exception's name, or the limit's."""
    if error in _LIMITS:
        return _LIMITS[error]
    found = _CAUSE.match(error)
    return found[1] if found is not None else OTHER


def _read_node(made: Families, node: Node) -> None:
    """Add how a node is at this moment."""
    made.many(
        "gauge",
        "pool_node_state",
        "1 for the state that the node is in.",
        [({"state": node.state}, 1.0)],
    )
    wiring = node._wiring
    if wiring is None:
        return
    workers = list(wiring.membership.workers.values())
    made.one(
        "gauge",
        "pool_worker_slots",
        "Jobs that workers here run at once at most.",
        sum(each.capacity for each in workers),
    )
    made.one(
        "gauge",
        "pool_worker_slots_busy",
        "Of these slots, those that are taken.",
        sum(each.busy_slots for each in workers),
    )
    made.one("gauge", "pool_jobs_held", "Jobs that workers here have in hand.", wiring.count_runs())
    made.one(
        "gauge",
        "pool_parts_down",
        "Parts of the node that have crashed and do not run again yet.",
        len(wiring.down),
    )
    made.one(
        "gauge",
        "pool_loop_silent_seconds",
        "For how long the event loop has not answered.",
        wiring.silent_s(),
    )
    left_s = wiring.lease_left_s()
    if left_s is not None:
        made.one(
            "gauge",
            "pool_lease_left_seconds",
            "Until handlers have to be stopped if no "
            "renewal succeeds, in the lane where that is soonest.",
            left_s,
        )


@attrs.define(eq=False)
class Families:
    """Puts families together, with the labels that all samples have."""

    labels: dict[str, str]
    all: list[MetricFamily] = attrs.field(factory=list)

    def many(
        self, kind: Kind, name: str, text: str, samples: Iterable[tuple[dict[str, str], float]]
    ) -> None:
        made = tuple(Sample({**self.labels, **labels}, value) for labels, value in samples)
        self.all.append(MetricFamily(name, kind, text, made))

    def one(self, kind: Kind, name: str, text: str, value: float) -> None:
        self.many(kind, name, text, [({}, value)])

    def counter(self, name: str, text: str, label: str, counts: Mapping[str, float]) -> None:
        samples = [({label: key}, value) for key, value in counts.items()]
        self.many("counter", f"{name}_total", text, samples)

    def durations(self, name: str, text: str, took: Durations) -> None:
        self.all.append(MetricFamily(name, "histogram", text, (took.sample(self.labels),)))

    def histogram(self, name: str, text: str, by_handler: Mapping[str, Durations]) -> None:
        made = [each.sample({**self.labels, "handler": h}) for h, each in by_handler.items()]
        self.all.append(MetricFamily(name, "histogram", text, tuple(made)))


@attrs.frozen(eq=False)
class _Collector:
    """What Prometheus' client asks."""

    metrics: Metrics

    def collect(self) -> Iterator[Any]:
        return as_prometheus(self.metrics.read())

    def describe(self) -> list[Any]:
        return []  # or it would ask for all of them now


def as_prometheus(families: Iterable[MetricFamily]) -> Iterator[Any]:
    """Yield families as Prometheus' client has them."""
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    for family in families:
        names = list(family.samples[0].labels) if family.samples else []
        made: Any
        match family.kind:
            case "counter":
                made = CounterMetricFamily(family.name, family.help, labels=names)
            case "gauge":
                made = GaugeMetricFamily(family.name, family.help, labels=names)
            case "histogram":
                made = HistogramMetricFamily(family.name, family.help, labels=names)
        for sample in family.samples:
            values = list(sample.labels.values())
            if family.kind == "histogram":
                bounds = [
                    ("+Inf" if le == float("inf") else f"{le:g}", n) for le, n in sample.buckets
                ]
                made.add_metric(values, bounds, sample.value)
            else:
                made.add_metric(values, sample.value)
        yield made
