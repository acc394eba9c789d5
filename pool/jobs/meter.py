"""An observer that counts what goes by, for figures: a node has at most one.

    worker --job events--> Meter <--turned, renewed-- keep-alive        other events as any observer

It is told of all jobs, as by `JobEvents`; without one, and without those, jobs pay nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pool.checks import setting
from pool.events import Event, JobEvents, Observer

if TYPE_CHECKING:
    from pool.jobs.node import Node


class Meter:
    """What such an observer is told; none of it may raise, but `attach`."""

    def __call__(self, event: Event) -> None:
        """Take an event."""
        raise NotImplementedError

    def attach(self, node: Node) -> None:
        """Take the node that opens; a meter has at most one that is open.

        Raises:
            ConfigError: It has one.
        """
        raise NotImplementedError

    def turned(self, lag_s: float) -> None:
        """The event loop took so long to take up what a thread had posted; four times a second."""
        raise NotImplementedError

    def pause_s(self) -> float:
        """Return the longest pause of the collector of the last minute or two; from any thread."""
        raise NotImplementedError

    def renewed(self, took_s: float, failed: int, of: int) -> None:
        """So many leases were to be renewed, which failed for some."""
        raise NotImplementedError


def meter_of(observers: Iterable[Observer]) -> Meter | None:
    """Return the observer that counts, if there is one.

    Raises:
        ConfigError: There are several.
    """
    found = [each for each in observers if isinstance(each, Meter)]
    if len(found) > 1:
        raise setting("observers", f"{len(found)} of them", "at most one that counts jobs")
    return found[0] if found else None


def told_of_jobs(meter: Meter | None) -> Sequence[Observer]:
    """Return who is told of jobs for the sake of a meter."""
    return () if meter is None else (JobEvents(meter),)
