"""Bugs planted in what keeps plans, as `mutants.py` takes them."""

from __future__ import annotations

from typing import Any, Final

_CORE: Final = "pool/core/plans.py"
_KEPT: Final = "pool/jobs/client/plans.py"
_TESTS: Final = "tests/jobs/test_plans.py::"
_HELD: Final = _TESTS + "test_an_answer_that_would_stop_too_much_is_held_until_confirmed"
_OTHERS: Final = _TESTS + "test_jobs_of_others_are_never_touched"
_USER_CODE: Final = "tests/jobs/test_user_code.py::"
_ENDS: Final = _USER_CODE + "test_however_user_code_ends_only_it_has_failed"
_RUN: Final = "pool/jobs/run.py"
_ATTEMPTED: Final = """        raise  # our own coroutine is being closed
    except BaseException as error:
"""
_UNUSABLE: Final = _TESTS + "test_what_cannot_be_changes_nothing"

PLAN_MUTANTS: Final[tuple[dict[str, Any], ...]] = (
    {
        "name": "Ctrl-C is told behind a turn that was saved",
        "breaks": "a plan that is handed over just then has nobody told of Ctrl-C",
        "path": _KEPT,
        "old": "                finally:  # also where",
        "new": "                except ZeroDivisionError:\n"
        "                    pass\n"
        "                else:  # also where",
        "by": (_USER_CODE + "test_ctrl_c_out_of_a_producer_is_told_whatever_becomes_of_its_turn",),
    },
    {
        "name": "a plan stops what is not its own",
        "breaks": "a key that is not in the list any more is stopped, whoever has it",
        "path": _CORE,
        "old": 'return "stop" if own else "nothing"',
        "new": 'return "stop"',
        "by": (_OTHERS,),
    },
    {
        "name": "a plan replaces what is not its own",
        "breaks": "a job of somebody else's ends for one that a plan wants",
        "path": _CORE,
        "old": '        return "taken"\n',
        "new": '        return "replace"\n',
        "by": (_OTHERS,),
    },
    {
        "name": "a plan holds nothing",
        "breaks": "a halved answer stops half of all jobs at once",
        "path": _CORE,
        "old": "return stops == self.had or stops > stop_max * self.had",
        "new": "return stops == self.had",
        "by": (_HELD,),
    },
    {
        "name": "an empty answer stops all",
        "breaks": "where all may be stopped but by an empty answer, that does",
        "path": _CORE,
        "old": "return stops == self.had or stops > stop_max * self.had",
        "new": "return stops > stop_max * self.had",
        "by": (_TESTS + "test_an_empty_answer_stops_nothing_unless_it_is_told_to",),
    },
    {
        "name": "a token is for any stops of its number",
        "breaks": "what was confirmed lets as many others be stopped",
        "path": _CORE,
        "old": 'self._mark ^= int.from_bytes(mark, "big")',
        "new": "self._mark ^= len(mark)",
        "by": (_HELD,),
    },
    {
        "name": "a plan's next run has the id of the one before",
        "breaks": "what the plan stopped begins again only when that is forgotten",
        "path": _CORE,
        "old": 'return f"{planned_id(*_plan_and_digest(job_id))}.{epoch}"',
        "new": "return job_id",
        "by": (_TESTS + "test_a_key_that_comes_back_begins_at_once",),
    },
    {
        "name": "who takes a plan over knows nothing of it",
        "breaks": "a job that a former owner started, and nobody wants, runs for ever",
        "path": _KEPT,
        "old": "self._had = await comparing.walk()",
        "new": "self._had = set()",
        "by": (_TESTS + "test_who_takes_a_plan_over_knows_what_to_stop",),
    },
    {
        "name": "a request that comes again confirms again",
        "breaks": "a confirmation, once carried out, lets another answer stop all",
        "path": _KEPT,
        "old": "if asked is not None and asked.id not in before.asked else None",
        "new": "if asked is not None else None",
        "by": (_TESTS + "test_a_confirmation_that_comes_again_confirms_nothing_more",),
    },
    {
        "name": "a request is done before its turn is",
        "breaks": "a confirmation is lost with the owner who had read it",
        "path": _KEPT,
        "old": "                self._turn = await self._take_turn(",
        "new": "                await job.save(pack_turn(self._turn))\n"
        "                self._turn = await self._take_turn(",
        "by": (_TESTS + "test_a_plan_converges_whatever_step_its_owner_dies_after",),
    },
    {
        "name": "a producer that hangs is called again",
        "breaks": "each turn leaves another thread behind",
        "path": _KEPT,
        "old": "if self._hanging is not None and not self._hanging.is_set():",
        "new": "if False:",
        "by": (_TESTS + "test_a_producer_that_hangs_changes_nothing_and_is_not_called_again",),
    },
    {
        "name": "a key may be there twice",
        "breaks": "of two entries with one key the last one counts, unsaid",
        "path": _KEPT,
        "old": "if key in answer.wanted:",
        "new": "if False:",
        "by": (_UNUSABLE,),
    },
    {
        "name": "a part of an answer counts for the whole",
        "breaks": "a producer that fails half way has the rest stopped",
        "path": _KEPT,
        "old": "if raised is not None or not answer.is_whole:",
        "new": "if False:",
        "by": (_UNUSABLE,),
    },
    {
        "name": "a producer is called as it is",
        "breaks": "sys.exit() out of a producer ends the node, and then the next one's",
        "path": _KEPT,
        "old": "        ended = await attempted(asking, scope)\n",
        "new": "        with scope:\n            await asking()\n        ended = None\n",
        "by": (_ENDS,),
    },
    {
        "name": "a dry run calls the producer by itself",
        "breaks": "sys.exit() out of a producer parks the dry run's job",
        "path": _KEPT,
        "old": "            await comparing.ask(answer, anyio.CancelScope())\n",
        "new": "            await comparing._ask(answer)\n",
        "by": (_ENDS,),
    },
    {
        "name": "a producer's own cancellation is taken for ours",
        "breaks": "a task of its own that was cancelled ends the plan, as if it were stopped",
        "path": _RUN,
        "old": _ATTEMPTED + "        if is_cancellation(error) and is_asked_for():",
        "new": _ATTEMPTED + "        if is_cancellation(error):",
        "by": (_USER_CODE + "test_a_cancellation_of_a_producers_own_is_a_failed_turn",),
    },
    {
        "name": "what cancelled a producer's task stays with it",
        "breaks": "a producer that cancels its own task ends the plan's job with it",
        "path": _RUN,
        "old": "    if cancels.has_any():\n        await cancels.absorb()\n    if not isinstance",
        "new": "    if not isinstance",
        "by": (_USER_CODE + "test_a_cancellation_of_a_producers_own_is_a_failed_turn",),
    },
    {
        "name": "a producer's Ctrl-C ends one node after another",
        "breaks": "a producer that raises KeyboardInterrupt each time ends the whole fleet",
        "path": _KEPT,
        "old": "if interrupt is not None and KeyboardInterrupt.__name__ not in before.problem:",
        "new": "if interrupt is not None:",
        "by": (_USER_CODE + "test_ctrl_c_out_of_a_producer_is_for_one_node_and_no_other",),
    },
    {
        "name": "a hook's own cancellation is taken for ours",
        "breaks": "the hooks of that job are called again and again",
        "path": "pool/jobs/around.py",
        "old": "if is_cancellation(error) and is_asked_for():",
        "new": "if is_cancellation(error):",
        "by": (_ENDS,),
    },
    {
        "name": "a hook's thread hands every error on",
        "breaks": "GeneratorExit out of a plain hook ends the worker's actor",
        "path": "pool/jobs/around.py",
        "old": "await in_thread(partial(hook, happened), None)",
        "new": "await __import__('anyio.to_thread').to_thread.run_sync(hook, happened)",
        "by": (_ENDS,),
    },
    {
        "name": "a lifespan's own cancellation is taken for ours",
        "breaks": "a lifespan whose end was cancelled by itself is entered again",
        "path": "pool/jobs/lifespans.py",
        "old": "if is_strangers and is_asked_for():",
        "new": "if is_strangers:",
        "by": (_USER_CODE + "test_a_lifespan_that_ends_so_is_told",),
    },
    {
        "name": "a plan's own key is anybody's",
        "breaks": "a job that waits behind the one that keeps a plan follows it: the plan ends",
        "path": "pool/jobs/client/job_client.py",
        "old": "if key[:5] == OF_PLANS and not is_plans:",
        "new": "if False:",
        "by": (_TESTS + "test_the_key_of_a_plans_own_job_is_nobody_elses",),
    },
    {
        "name": "a plan's own key is a follower's",
        "breaks": "likewise, of what follows another job",
        "path": "pool/jobs/followers.py",
        "old": "        check_new_key(key)",
        "new": "",
        "by": (_TESTS + "test_the_key_of_a_plans_own_job_is_nobody_elses",),
    },
    {
        "name": "any version of a producer compares",
        "breaks": "diff tells what an earlier version would do, which is never asked",
        "path": "pool/jobs/client/plan_ref.py",
        "old": "    if found and found[-1] >= of:\n",
        "new": "    if found:\n",
        "by": (_TESTS + "test_where_only_an_earlier_version_is_left_it_is_said",),
    },
    {
        "name": "a plan believes every answer",
        "breaks": "an answer that is empty by mistake stops all, whoever gives it when",
        "path": _KEPT,
        "old": "if not answer.stops_all and diff.is_held(comparing.producer.stop_max, confirmed):",
        "new": "if False:",
        "needs": ("plans",),
    },
    {
        "name": "other arguments are the same",
        "breaks": "a key that is to have other arguments goes on with those of before",
        "path": _CORE,
        "old": 'return "keep" if own == wanted_id else "replace"',
        "new": 'return "keep"',
        "needs": ("plans",),
    },
)
