"""The invariant of plans: what runs is what is wanted, and nothing is ended by mistake."""

from __future__ import annotations

from tests.verify.history import Event
from tests.verify.invariants import Finding, invariant
from tests.verify.sim.planned import amiss
from tests.verify.view import Bounds, View

LAG_S = 30.0  # a turn whose owner stood still acts by what its producer had said then


@invariant("I65", "a plan's jobs are those that are wanted")
def plans_converge(view: View, _: Bounds, found: Finding) -> None:
    """Whatever went wrong: at the end just the wanted keys have a job of the plan's, each with the
    arguments that are wanted, but for those that were parked.  Each was begun for an answer that
    had it, and the plan ended none but for an answer without it, which was no mistake: an empty one
    is held.
    """
    answers = view.of.get("answer", ())
    planned = {job: ok for job, ok in view.accepted.items() if "plan" in ok.extra}
    for job, ok in planned.items():
        found.judged += 1
        if not any(_has(answer, ok) for answer in answers if answer.t <= ok.t):
            found.say(f"{job} of {ok.key!r} was begun, and no answer had it", ok)
    confirmed = min((event.t for event in view.of.get("confirm", ())), default=float("inf"))
    for commit in view.settled:
        mine = planned.get(commit.job)
        if mine is None or not commit.cause.startswith("plan "):
            continue
        found.judged += 1
        said = [a for a in answers if mine.t - LAG_S <= a.t <= commit.order and not _has(a, mine)]
        if not said:
            found.say(f"{commit.job} of {mine.key!r} was ended, and every answer had it", mine)
        elif all(each.extra["mistake"] for each in said) and commit.order < confirmed:
            found.say(f"{commit.job} of {mine.key!r} was ended by mistake", mine, said[-1])
    told = view.final.extra.get("plan") if view.final is not None else None
    if told:
        found.judged += 1
        for key in amiss(told):
            there, wanted = told["there"].get(key), told["wanted"].get(key)
            found.say(f"{key!r} has {there} at the end, and is to have {wanted}", view.final)


def _has(answer: Event, ok: Event) -> bool:
    return bool(answer.extra["wanted"].get(ok.key) == ok.extra["version"])
