"""What operators may ask of a pool from any of its nodes; see `pausing.py` for how that is done."""

from __future__ import annotations

from pool import checks
from pool.core.pauses import Cordon, Pause
from pool.jobs.client.pausing import HEARD_S, CordonReport, Operator, PauseReport, named


class Operating:
    """A part of `Node`."""

    def _operator(self) -> Operator:
        raise NotImplementedError

    async def pause(
        self, *, handler: str | None = None, key: str | None = None, reason: str = ""
    ) -> PauseReport:
        """Pause the whole pool, or the jobs of a handler, or those of a key.

        Jobs are accepted, and wait; none is given to a worker until `resume()`, whatever it waited
        for before: a delay, a retry, its turn, its schedule, a worker that has died.  What a worker
        has goes on, services too; those that it gives up wait.  Times by which a job must begin go
        on counting.  Doing it again changes nothing, and completes what did not reach every lane.

        Args:
            handler: The jobs of this one only.
            key: The jobs of this one only.
            reason: For those who wonder; 200 characters of it are kept.

        Raises:
            InvalidOption: Both are given, or `reason` is no text.
            ConfigError, InvalidKey: The name or the key cannot be one.
            TooManyPaused: 64 handlers, or 1,000 keys, are.
            StoreUnavailable, StoreLost, NotRunning: As for `dispatch()`.
        """
        meant = named(handler, key)
        checks.text("reason", reason)
        return await self._operator().pause(meant, reason)

    async def resume(self, *, handler: str | None = None, key: str | None = None) -> PauseReport:
        """Take back the `pause()` of the same arguments; what waited goes on at once, in order.

        What something else pauses, goes on waiting for that: the report's `others`.  Of what is not
        paused it changes nothing.

        Raises:
            InvalidOption, ConfigError, InvalidKey: As for `pause()`.
            StoreUnavailable, StoreLost, NotRunning: As for `dispatch()`.
        """
        return await self._operator().resume(named(handler, key))

    async def pauses(self) -> tuple[Pause, ...]:
        """Return what is paused, the oldest first.

        Raises:
            StoreUnavailable, StoreLost, NotRunning: As for `dispatch()`.
        """
        return await self._operator().pauses()

    async def cordon(
        self, member: str, *, reason: str = "", timeout_s: float = HEARD_S
    ) -> CordonReport:
        """Have a node's workers, or one worker, take no more keys and keep those that they have.

        They take none from when their node has heard it, which this waits for; until it is taken
        back, or the node ends.

        Args:
            member: The id of the node or the worker, as `workers` has it.
            reason: As for `pause()`.
            timeout_s: How long to wait, 0 to 365 days; the report tells who has not heard it.

        Raises:
            InvalidOption: An argument cannot be used.
            NoSuchMember: Nobody has this id.
            StoreUnavailable, StoreLost, NotRunning: As for `dispatch()`.
        """
        wait_s = _member(member, timeout_s)
        checks.text("reason", reason)
        return await self._operator().cordon(member, reason, wait_s=wait_s)

    async def uncordon(self, member: str, *, timeout_s: float = HEARD_S) -> CordonReport:
        """Take a `cordon()` back; of one that is not cordoned it changes nothing.

        Raises:
            InvalidOption: An argument cannot be used, or it drains, which cannot be taken back.
            NoSuchMember, StoreUnavailable, StoreLost, NotRunning: As for `cordon()`.
        """
        return await self._operator().uncordon(member, wait_s=_member(member, timeout_s))

    async def drain_member(
        self, member: str, *, reason: str = "", timeout_s: float = HEARD_S
    ) -> CordonReport:
        """Have a node, or a worker, give up what it has and leave: as SIGTERM does to `pool run`.

        It returns when that has begun; a program that embeds the node has `wait_drained()`.

        Raises:
            InvalidOption, NoSuchMember, StoreUnavailable, StoreLost, NotRunning: As for `cordon()`.
        """
        wait_s = _member(member, timeout_s)
        checks.text("reason", reason)
        return await self._operator().cordon(member, reason, is_drain=True, wait_s=wait_s)

    async def cordons(self) -> tuple[Cordon, ...]:
        """Return who is cordoned, or was told to drain, the oldest first.

        Raises:
            StoreUnavailable, StoreLost, NotRunning: As for `dispatch()`.
        """
        return await self._operator().cordons()


def _member(member: object, timeout_s: object) -> float:
    checks.text("member", member)
    wait_s: float = checks.seconds("timeout_s", timeout_s)
    return wait_s
