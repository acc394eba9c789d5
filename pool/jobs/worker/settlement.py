"""From how a handler ended to the edge that settles its job."""

from __future__ import annotations

from typing import Any, Literal

import attrs

from pool.core.codec import check_size, encode_value
from pool.core.options import Options
from pool.core.record import ERROR_CHARS_MAX, Outcome, one_line, pack_attempt
from pool.core.settlement import (
    TOO_LONG,
    CancelJob,
    Decision,
    Grant,
    ParkJob,
    Wait,
    after_failure,
    after_timeout,
)
from pool.errors import PayloadEncodingError, PayloadTooLarge
from pool.events import AttemptFailed
from pool.jobs.context import Context
from pool.jobs.raised import Raised, read
from pool.jobs.run import Ending, LeftToOthers, Returned, Run, Unreadable
from pool.jobs.settlement import edge_of, left_to_others, outcome_ttl_ms
from pool.redis.commands.edges import CancelEdge, DoneEdge, Edge


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
        return round(self.context.settings.known_s * 1000)

    def edge_for(self, run: Run, ending: Ending) -> Edge:
        """Return what shall become of the job of a run that has ended while it was ours."""
        if run.why == "timeout":
            return self.timed_out(run)
        try:
            # A result counts although we wanted the handler to end; a service that returns because
            # it was cancelled is not done.
            if type(ending) is Returned and (not run.why or run.start.kind == "job"):
                return self._done(run, ending.value)
            decision = self._judged(run, ending)
        except KeyboardInterrupt as error:  # Ctrl-C, for all that can be seen, as out of a handler
            self.context.on_interrupt(error)
            decision = self._interrupted(run)
        except BaseException as error:  # noqa: BLE001 - what it returns is user code
            raised = read(error)
            decision = self._failed(run, "failed", raised.text, traceback=raised.traceback)
        return self._edge_of(run, decision)

    def timed_out(self, run: Run) -> Edge:
        """Return the end of an attempt that ran too long."""
        options = run.handler._options if run.handler is not None else Options()
        limit = run.limit_of(options)
        decision = after_timeout(run.start.attempt, options, self.context.io.dice, limit)
        self._tell_failed(run, TOO_LONG[limit], decision)
        return self._edge_of(run, decision)

    def _edge_of(self, run: Run, decision: Decision) -> Edge:
        start, settings, handler = run.start, self.context.settings, run.handler
        options = handler._options if handler is not None else None
        return edge_of(
            start.key, start, decision, settings, has_begun=run.is_called, options=options
        )

    def _done(self, run: Run, value: Any) -> Edge:
        start, handler, job = run.start, run.handler, run.job
        assert handler is not None  # it has returned
        assert job is not None
        try:
            of = handler._result
            encoded = encode_value(value) if of is None else of.encode(value)
            check_size("result", encoded, self.context.settings.result_bytes_max)
        except (PayloadEncodingError, PayloadTooLarge) as error:
            failed = pack_attempt(type(error).__name__, str(error))
            return self._edge_of(run, ParkJob("unusable result", str(error), failed))
        # Of None, that it has ended is all there is to tell.
        ttl_ms = self._brief_ms if value is None else self._ttl_ms
        if handler._options.retention_s is not None:
            ttl_ms = outcome_ttl_ms(self.context.settings, handler._options)
        of_run = (run.key, start.epoch, start.id, ttl_ms, start.handler)
        return DoneEdge(*of_run, encoded, job._packed)

    def _judged(self, run: Run, ending: Ending) -> Decision:
        match ending:
            case Raised(order="retry", cause=cause, after_s=after_s):
                return self._failed(run, "retry", cause or "Retry", after_s=after_s)
            case Raised(order="cancel", cause=cause):
                return CancelJob(cause)
            case Raised(order="park", cause=cause):
                failed = pack_attempt("Park", cause)
                return ParkJob(cause or "parked by its handler", "", failed)
            case Unreadable(problem, cause):
                return ParkJob(cause, problem)
            case LeftToOthers(problem):
                return self._left(run, problem)
            case Raised(interrupt=KeyboardInterrupt()) if run.why in ("", "lease"):
                return self._interrupted(run)
            case Raised(text, traceback=traceback) if run.why in ("", "lease"):
                return self._failed(run, "failed", text, traceback=traceback)
        return self._released(run)

    def _interrupted(self, run: Run) -> Decision:
        """Give back a job in whose code Ctrl-C came: that is no failure of its own.

        It takes a mark along, as from a signal: a job that raises it each time would else end one
        node after another.
        """
        run.is_marked = True
        return self._released(run)

    def _released(self, run: Run) -> Decision:
        start = run.start
        if run.why == "stop":
            return CancelJob(run.cause)
        # Released: it goes elsewhere, and its attempt is not burned.
        checkpoint = run.job._checkpoint() if run.job is not None else None
        mark = "f" if run.is_called else ""
        if run.keeper is not None and run.keeper.is_saving(checkpoint):
            checkpoint = None  # if that is refused, its messages and the state of before stay
        if run.is_marked and run.job is not None:
            marks = attrs.evolve(start.marks, ends=start.marks.ends + 1)
            if marks.ends > self.context.settings.crashes_max:
                times = f"its process was told to end while it was at work, {marks.ends} times"
                return ParkJob("poison", times)
            mark += f"a={marks.pack()}"
        return Grant(mark, checkpoint)

    def _failed(
        self,
        run: Run,
        kind: Literal["failed", "retry"],
        error: str,
        *,
        after_s: float | None = None,
        traceback: str = "",
    ) -> Decision:
        start, io = run.start, self.context.io
        options = run.handler._options if run.handler is not None else Options()
        attempt = start.attempt
        ran_s = io.clock() - run.began_s if run.began_s else 0.0
        if options.kind == "service" and ran_s >= options.healthy_s:
            attempt = 1  # it was well for long enough: this failure is a first one
        decision = after_failure(attempt, options, io.dice, cause="failed", error=error)
        what, _, message = error.partition(": ") if kind == "failed" else (kind, "", error)
        decision = attrs.evolve(decision, failed=pack_attempt(what, message, traceback))
        if isinstance(decision, Wait) and after_s is not None:
            decision = attrs.evolve(decision, delay_s=after_s)
        self._tell_failed(run, error, decision, traceback)
        return decision

    def _left(self, run: Run, problem: str) -> Decision:
        """Leave a job to those who know it: it waits as the attempt that it is, however long."""
        options = run.handler._options if run.handler is not None else Options()
        worker = run.job.worker.rpartition(".")[0] if run.job is not None else ""
        decision = left_to_others(self.context, run.lane, run.start, worker, options, problem)
        self._tell_failed(run, problem, decision)
        return decision

    def _tell_failed(self, run: Run, error: str, decision: Decision, traceback: str = "") -> None:
        start, follows = run.start, "parked"
        if isinstance(decision, Wait):
            follows = f"attempt {decision.attempt} in {decision.delay_s:.3f} s"
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
