"""Bugs planted in what keeps plans, as `mutants.py` takes them."""

from __future__ import annotations

from typing import Any, Final

_CORE: Final = "pool/core/plans.py"
_KEPT: Final = "pool/jobs/client/plans.py"
_REF: Final = "pool/jobs/client/plan_ref.py"
_TESTS: Final = "tests/jobs/test_plans.py::"
_HELD: Final = _TESTS + "test_an_answer_that_would_stop_too_much_is_held_until_confirmed"
_OTHERS: Final = _TESTS + "test_jobs_of_others_are_never_touched"
_OBJECTS: Final = "tests/jobs/test_object_form.py::"
_USER_CODE: Final = "tests/jobs/test_user_code.py::"
_ENDS: Final = _USER_CODE + "test_however_user_code_ends_only_it_has_failed"
_RUN: Final = "pool/jobs/run.py"
_ATTEMPTED: Final = """        raise  # our own coroutine is being closed
    except BaseException as error:
"""
_UNUSABLE: Final = _TESTS + "test_what_cannot_be_changes_nothing"

_LEFT_OPEN: Final = (
    _TESTS + "test_a_dry_run_of_what_leaves_a_scope_open_is_refused_and_leaves_nothing"
)

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
        "old": "            tokens.pop(done, None)",
        "new": "            del done",
        "by": (_TESTS + "test_a_confirmation_that_comes_again_confirms_nothing_more",),
    },
    {
        "name": "a request is done before its turn is",
        "breaks": "a confirmation is lost with the owner who had read it",
        "path": _KEPT,
        "old": "                turn = await self._take_turn(",
        "new": "                await job._store(encode_value(pack_turns(self._turns)))\n"
        "                turn = await self._take_turn(",
        "by": (_TESTS + "test_a_plan_converges_whatever_step_its_owner_dies_after",),
    },
    {
        "name": "requests are off the table before their turn is saved",
        "breaks": "likewise, and it is told to nobody that they were not answered",
        "path": "pool/jobs/job.py",
        "old": "            standing.append((self._in_hand, message))\n",
        "new": "            standing.append((self._in_hand, message))\n"
        "            self._host.on_handled(self._run, self._in_hand)\n",
        "by": (_TESTS + "test_a_plan_converges_whatever_step_its_owner_dies_after",),
    },
    {
        "name": "each request costs a turn",
        "breaks": "the producer is called as often as somebody asks, who may have given up since",
        "path": _KEPT,
        "old": "ASKED_MAX: Final = 256 ",
        "new": "ASKED_MAX: Final = 1 ",
        "by": (_TESTS + "test_all_who_ask_before_a_turn_begins_share_it_and_are_told_of_it",),
    },
    {
        "name": "who asks is told of the last turn",
        "breaks": "a turn that failed, or has stopped jobs, is told to none of those who asked",
        "path": _REF,
        "old": "return attrs.evolve(status, last=turn)",
        "new": "return status",
        "by": (_TESTS + "test_who_looks_late_is_told_of_the_turn_that_answered",),
    },
    {
        "name": "what was asked of a job that has ended is waited for",
        "breaks": "who asks while a later version takes the plan over waits for ever",
        "path": _REF,
        "old": "if record.id != job_id:",
        "new": "if False:",
        "by": (_TESTS + "test_who_asks_while_the_plan_begins_anew_is_answered",),
    },
    {
        "name": "what was under way when time was up was not asked for",
        "breaks": "who confirms is told that nothing was asked for, and then all is stopped",
        "path": _REF,
        "old": "was_sent, asking.may_be_done = asking.may_be_done, True",
        "new": "was_sent = asking.may_be_done",
        "by": (_TESTS + "test_what_is_under_way_when_time_is_up_may_be_asked_for",),
    },
    {
        "name": "what ended with the job that was asked was not asked for",
        "breaks": "who is refused by the next one is told that nothing was done",
        "path": _REF,
        "old": "asking.may_be_done = was_sent\n",
        "new": "asking.may_be_done = False\n",
        "by": (_TESTS + "test_what_ended_with_the_job_that_was_asked_may_have_been_done",),
    },
    {
        "name": "whatever was confirmed to one job is to the next",
        "breaks": "a later version stops all that its first answer leaves out",
        "path": _REF,
        "old": 'token = "" if was_sent and asking.token == ANYTHING else asking.token',
        "new": "token = asking.token",
        "by": (_TESTS + "test_whatever_was_confirmed_is_not_to_a_later_version",),
    },
    {
        "name": "a plan's turns have the bound of a state",
        "breaks": "a turn that cannot be saved is taken again and again, and answers nobody",
        "path": _KEPT,
        "old": "job._store(encode_value(pack_turns(self._turns)))",
        "new": "job.save(pack_turns(self._turns))",
        "by": (_TESTS + "test_turns_are_saved_whatever_a_state_may_take",),
    },
    {
        "name": "a confirmation may be called by any length",
        "breaks": "what is saved of turns grows with what anybody sends",
        "path": _KEPT,
        "old": 'str(each.get("id"))[:ID_CHARS_MAX]',
        "new": 'str(each.get("id"))',
        "by": (_TESTS + "test_turns_are_saved_whatever_a_state_may_take",),
    },
    {
        "name": "who takes what is there at once hears nothing",
        "breaks": "of a plan that is stopped it is told that it never took its messages",
        "path": "pool/jobs/job.py",
        "old": 'is known of."""\n        self._is_asked, self.is_unheard = True, False\n',
        "new": 'is known of."""\n',
        "by": (_OBJECTS + "test_who_takes_what_is_there_at_once_hears_what_comes_later",),
    },
    {
        "name": "a plan that is dispatched just now is none",
        "breaks": "a node does not know its own plan, right after it was opened",
        "path": _REF,
        "old": "if not (_has_here(client, self.name) or _versions(client, self.name)):",
        "new": "if True:",
        "by": (_TESTS + "test_a_plan_of_ones_own_is_there_as_soon_as_the_node_is_open",),
    },
    {
        "name": "a full inbox is not tried again",
        "breaks": "of many who ask at once the last are refused, and told so at once",
        "path": _REF,
        "old": "            asking.sent = error.with_traceback(None)\n",
        "new": "            raise\n",
        "by": (_TESTS + "test_more_than_an_inbox_takes_wait_or_are_told_so",),
    },
    {
        "name": "a producer runs in its job's own tasks",
        "breaks": "a scope that it leaves open ends the job: a dry run is parked",
        "path": _KEPT,
        "old": "        start_soon(_apart, answered, over)\n",
        "new": "        start_soon(answered)\n",
        "by": (_LEFT_OPEN + "[asyncio]",),
    },
    {
        "name": "a wait of the command line ends in a traceback",
        "breaks": "with --json there is no object, and a script cannot tell it from a crash",
        "path": "pool/ops/cli/carrying.py",
        "old": "except (PoolError, TimeoutError, BaseExceptionGroup) as error:",
        "new": "except (PoolError, BaseExceptionGroup) as error:",
        "by": (
            "tests/ops/test_plans.py::test_what_has_not_come_in_time_is_one_line_and_an_object",
        ),
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
        "old": "answer = await PlanKeeper(comparing=comparing)._answer(tasks.start_soon)\n",
        "new": "answer = Answer()\n            await comparing._ask(answer)\n",
        "by": (_LEFT_OPEN,),
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
        "name": "a plan's caller waits for the store",
        "breaks": "apply() and confirm() take an op timeout longer than `timeout_s`",
        "path": "pool/jobs/client/plan_ref.py",
        "old": "with anyio.move_on_after(timeout_s or None):  # with 0 it takes the time of a call",
        "new": "with anyio.move_on_after(None):",
        "by": (_TESTS + "test_a_store_that_does_not_answer_takes_nobody_longer_than_his_time",),
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
        "path": _REF,
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
