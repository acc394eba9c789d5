"""From how a handler ended to the edge that settles its job."""

from __future__ import annotations

from typing import Any

import attrs

from pool.core.codec import check_size, encode_value
from pool.core.record import (
    CAUSE_CHARS_MAX,
    ERROR_CHARS_MAX,
    Options,
    Outcome,
    one_line,
    pack_attempt,
)
from pool.core.settlement import ParkJob, after_failure
from pool.errors import PayloadEncodingError, PayloadTooLarge
from pool.events import AttemptFailed
from pool.jobs.context import Context
from pool.jobs.raised import Raised, read
from pool.jobs.run import Ending, Returned, Run, Unreadable
from pool.jobs.settlement import brief_ttl_ms, outcome_ttl_ms
from pool.redis.commands.edges import (
    CancelEdge,
    DoneEdge,
    Edge,
    GrantEdge,
    ParkEdge,
    WaitEdge,
)
from pool.runtime.exceptions import told


@attrs.frozen
class Settlement:
    """Decides for one node; the edges it makes still lack the targets of a grant."""

    context: Context
    _ttl_ms: int = attrs.field(init=False)
    _brief_ms: int = attrs.field(init=False)

    @_ttl_ms.default
    def _(self) -> int:
        return outcome_ttl_ms(self.context.settings)

    @_brief_ms.default
    def _(self) -> int:
        return brief_ttl_ms(self.context.settings)

    def edge_for(self, run: Run, ending: Ending) -> Edge:
        """Return what shall become of the job of a run that has ended while it was ours."""
        if run.why == "timeout":
            return self.timed_out(run)
        try:
            if type(ending) is Returned and not run.why:  # nearly all of them
                return self._done(run, ending.value)
            return self._judged(run, ending)
        except KeyboardInterrupt as error:  # Ctrl-C, for all that can be seen, as out of a handler
            self.context.on_interrupt(error)
            return self._failed(run, "failed", told(error))
        except BaseException as error:  # noqa: BLE001 - what it returns is user code
            raised = read(error)
            return self._failed(run, "failed", raised.text, traceback=raised.traceback)

    def _judged(self, run: Run, ending: Ending) -> Edge:
        start = run.start
        match ending:
            # A result counts although we wanted the handler to end; a service that returns because
            # it was cancelled is not done.
            case Returned(value) if start.kind == "job":
                return self._done(run, value)
            case Raised(order="retry", cause=cause, after_s=after_s):
                return self._failed(run, "retry", cause, after_s=after_s)
            case Raised(order="cancel", cause=cause):
                return self._cancelled(run, one_line(cause, CAUSE_CHARS_MAX))
            case Raised(order="park", cause=cause):
                failed = pack_attempt("Park", cause)
                return self._parked(run, cause or "parked by its handler", "", failed)
            case Unreadable(problem):
                return self._parked(run, "malformed payload", problem)
            case Raised(text, traceback=traceback) if run.why in ("", "lease"):
                return self._failed(run, "failed", text, traceback=traceback)
        if run.why == "stop":
            return self._cancelled(run, run.cause)
        # Released: it goes elsewhere, and its attempt is not burned.
        checkpoint, mark = run.job._checkpoint() if run.job is not None else None, ""
        if run.is_marked and run.job is not None:
            marks = start.marks.add(run.job.worker, is_whole=True)
            if marks.halves > 2 * self.context.settings.crashes_max:
                times = f"its process was told to end while it was at work, {marks.deaths} times"
                return self._parked(run, "poison", times)
            mark = f"a={marks.pack()}"
        return GrantEdge(*self._of(run), mark=mark, checkpoint=checkpoint)

    def timed_out(self, run: Run) -> Edge:
        """Return the end of an attempt that ran too long."""
        return self._failed(run, "timed out", "ran longer than timeout_s")

    def _of(self, run: Run, *, is_brief: bool = False) -> tuple[str, int, str, int, str]:
        """Return what each edge of this run's epoch begins with."""
        start, handler = run.start, run.handler
        ttl_ms = self._brief_ms if is_brief else self._ttl_ms
        if handler is not None and handler._options.retention_s is not None:
            ttl_ms = outcome_ttl_ms(self.context.settings, handler._options)
        return start.key, start.epoch, start.id, ttl_ms, start.handler

    def _done(self, run: Run, value: Any) -> Edge:
        try:
            encoded = encode_value(value)
            check_size("result", encoded, self.context.settings.result_bytes_max)
        except (PayloadEncodingError, PayloadTooLarge) as error:
            failed = pack_attempt(type(error).__name__, str(error))
            return self._parked(run, "unusable result", str(error), failed)
        return DoneEdge(*self._of(run, is_brief=value is None), encoded)

    def _parked(self, run: Run, cause: str, error: str, failed: str = "") -> Edge:
        cause, error = one_line(cause, CAUSE_CHARS_MAX), one_line(error, ERROR_CHARS_MAX)
        failed = failed or pack_attempt(cause, error)
        return ParkEdge(*self._of(run), cause, error, run.is_called, failed)

    def _cancelled(self, run: Run, cause: str) -> Edge:
        return CancelEdge(*self._of(run), cause, run.is_called)

    def _failed(
        self,
        run: Run,
        cause: str,
        error: str,
        *,
        after_s: float | None = None,
        traceback: str = "",
    ) -> Edge:
        start, io = run.start, self.context.io
        options = run.handler._options if run.handler is not None else Options()
        attempt = start.attempt
        ran_s = io.clock() - run.began_s if run.began_s else 0.0
        if options.kind == "service" and ran_s >= options.healthy_s:
            attempt = 1  # it was well for long enough: this failure is a first one
        decision = after_failure(attempt, options, io.dice, cause=cause, error=error)
        kind, _, message = error.partition(": ") if cause == "failed" else (cause, "", error)
        failed = pack_attempt(kind, message, traceback)
        if isinstance(decision, ParkJob):
            follows = "parked"
            edge: Edge = self._parked(run, decision.cause, decision.error, failed)
        else:
            delay_s = decision.delay_s if after_s is None else after_s
            follows = f"attempt {decision.attempt} in {delay_s:.3f} s"
            delay_ms = round(delay_s * 1000)
            edge = WaitEdge(
                *self._of(run), delay_ms, decision.attempt, decision.error, failed=failed
            )
        self.context.emit(
            AttemptFailed(
                key=start.key,
                handler=start.handler,
                attempt=start.attempt,
                error=one_line(error, ERROR_CHARS_MAX),
                follows=follows,
                traceback=traceback,
            )
        )
        return edge


def outcome_text(edge: Edge, owner: str, attempt: int) -> bytes | None:
    """Return the outcome that an edge made, but for the times; None if it made none.

    Nor is there one for what is parked: of former attempts only the store knows.
    """
    run = edge.epoch, owner, attempt
    match edge:
        case DoneEdge():
            return Outcome.pack("done", *run, body=edge.result)
        case CancelEdge():
            return Outcome.pack("cancelled", *run, cause=edge.cause)
    return None
