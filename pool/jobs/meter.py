"""Who counts what goes by, for figures: at most one of a node's observers, and it asks for it.

    worker --started, ended--> Meter <--turned, renewed-- keep-alive       events as to any observer

A node without one pays a look whether there is one, for each job.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, TypeAlias

from pool.checks import setting

if TYPE_CHECKING:
    from pool.events import Event, Observer
    from pool.jobs.node import Node

RunOutcome: TypeAlias = Literal["done", "cancelled", "parked", "retried", "released", "lost"]


class Meter:
    """An observer that hears of every job, too.

    On the event loop, and each job waits for what is done here: none of it may raise.
    """

    def __call__(self, event: Event) -> None:
        """An event, as every observer hears it."""
        raise NotImplementedError

    def attach(self, node: Node) -> None:
        """This node opens; it has one meter, and a meter at most one open node."""
        raise NotImplementedError

    def started(self, handler: str, waited_s: float | None) -> None:
        """A handler is called; first after so long since the job was accepted, None: once more."""
        raise NotImplementedError

    def ended(self, handler: str, outcome: RunOutcome, ran_s: float) -> None:
        """A run has ended, and the store has said what became of it."""
        raise NotImplementedError

    def turned(self, lag_s: float) -> None:
        """The event loop took so long to take up what a thread had posted; four times a second."""
        raise NotImplementedError

    def renewed(self, took_s: float, failed: int, of: int) -> None:
        """A round of renewals was answered, of which so many failed."""
        raise NotImplementedError


def meter_of(observers: Iterable[Observer]) -> Meter | None:
    """Return the observer that counts jobs, if there is one.

    Raises:
        ConfigError: There are several.
    """
    found = [each for each in observers if isinstance(each, Meter)]
    if len(found) > 1:
        raise setting("observers", f"{len(found)} of them", "at most one that counts jobs")
    return found[0] if found else None
