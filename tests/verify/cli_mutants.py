"""Bugs planted in the command line, as `mutants.py` takes them."""

from __future__ import annotations

from typing import Any, Final

_TESTS: Final = "tests/ops/test_verbs.py::"
_HELP: Final = "tests/house/test_imports.py::"
_COUNTED: Final = _TESTS + "test_many_are_counted_first_and_stopped_when_that_is_confirmed"

_OUTPUT: Final = "tests/ops/test_output.py::"
CLI_MUTANTS: Final[tuple[dict[str, Any], ...]] = (
    {
        "name": "a closed output within tasks is a fault",
        "breaks": "`pool top | head` ends with a traceback of internals",
        "path": "pool/ops/cli/carrying.py",
        "old": "        leaves = list(_leaves(error))  # a verb may have written in a task group\n",
        "new": "        leaves = [error]\n",
        "by": (_OUTPUT + "test_a_view_whose_output_is_gone_or_full_ends_as_any_command",),
    },
    {
        "name": "options of other commands are proposed",
        "breaks": "`pool nodes --pge` asks whether --page is meant, which `nodes` has not",
        "path": "pool/ops/cli/parser.py",
        "old": "        flags = set(chosen._option_string_actions)\n",
        "new": "        flags = self._flags()\n",
        "by": ("tests/ops/test_config.py::test_a_flag_that_is_none_is_likened_to_one",),
    },
    {
        "name": "nobody has to say yes",
        "breaks": "all that match are stopped by who only wanted to know how many there are",
        "path": "pool/ops/cli/acting.py",
        "old": "    if not args.yes:\n",
        "new": "    if False:\n",
        "by": (_COUNTED,),
    },
    {
        "name": "more are stopped than were counted",
        "breaks": "what was dispatched since the count was shown is stopped with them",
        "path": "pool/jobs/client/stopping.py",
        "old": "new[: self.most - len(self._asked)]",
        "new": "new",
        "by": (_TESTS + "test_no_more_are_stopped_than_were_counted",),
    },
    {
        "name": "what runs is requeued",
        "breaks": "a running job is said to begin anew, and nothing happens",
        "path": "pool/ops/admin.py",
        "old": '    if record.state != "waiting":\n',
        "new": "    if False:\n",
        "by": (_TESTS + "test_what_does_not_wait_is_not_requeued",),
    },
    {
        "name": "a look without an end",
        "breaks": "one command looks at as many records as a page has: 2,000 jobs hold the server",
        "path": "pool/ops/browse.py",
        "old": "min(SLICE, page - looked)",
        "new": "page - looked",
        "by": (_TESTS + "test_a_page_looks_at_no_more_than_it_may_and_says_so",),
    },
    {
        "name": "a pool is purged under its nodes",
        "breaks": "who is there loses what it works at",
        "path": "pool/ops/admin.py",
        "old": "        await _check_nobody(pipeline, found)\n",
        "new": "        pass\n",
        "by": (_TESTS + "test_a_pool_is_purged_whole_and_nothing_else",),
    },
    {
        "name": "status sees nothing wrong",
        "breaks": "exit code 0 while jobs wait for a handler that nobody has",
        "path": "pool/ops/summary.py",
        "old": 'if each.severity != "note")',
        "new": "if False)",
        "by": (_TESTS + "test_status_names_what_is_wrong_and_where",),
    },
    {
        "name": "help imports the settings",
        "breaks": "`pool --help` takes as long as all that the pool needs",
        "path": "pool/ops/cli/__init__.py",
        "old": 'is_whole=not {"run", "check"}.isdisjoint(words)',
        "new": "is_whole=True",
        "by": (_HELP + "test_help_and_version_import_nothing_but_pythons_own",),
    },
    {
        "name": "a view that ends with the first look that fails",
        "breaks": "`pool top` is gone in the moment it is needed: the server hangs",
        "path": "pool/ops/cli/watching.py",
        "old": "if not isinstance(cause, StoreError):",
        "new": "if True:",
        "by": (
            "tests/ops/test_top.py::test_it_shows_the_last_picture_and_since_when_there_is_none",
        ),
    },
    {
        "name": "a time in any spelling",
        "breaks": "one verb's times have a space where all others have a T",
        "path": "pool/ops/cli/shapes.py",
        "old": " or not _TIME.fullmatch(value)",
        "new": "",
        "by": ("tests/ops/test_verbs.py::test_a_time_is_spelled_in_one_way",),
    },
    {
        "name": "what is queued waits",
        "breaks": "`pool status` counts as waiting what `pool jobs` shows as queued",
        "path": "pool/ops/summary.py",
        "old": 'max(0, view.states["waiting"] - queued)',
        "new": 'view.states["waiting"]',
        "by": ("tests/ops/test_verbs.py::test_what_is_queued_is_counted_apart_from_what_waits",),
    },
    {
        "name": "a run of no time for what did not run",
        "breaks": "stops of delayed jobs make all handlers look fast",
        "path": "pool/ops/metrics.py",
        "old": "            if event.worker:  # else it did not run",
        "new": "            if True:",
        "by": ("tests/ops/test_metrics.py::test_what_ended_without_a_run_is_no_run_of_no_time",),
    },
    {
        "name": "NaN on standard output",
        "breaks": "`--json` prints what is no JSON, and whoever reads it strictly fails",
        "path": "pool/ops/jsonable.py",
        "old": "default=_plain, allow_nan=False, separators=separators)",
        "new": "default=_plain, separators=separators)",
        "by": (
            "tests/ops/test_verbs.py::test_values_that_json_has_no_word_for_are_told_all_the_same",
        ),
    },
    {
        "name": "a name twice on the command line",
        "breaks": "half of what an operator typed is dropped without a word",
        "path": "pool/core/codec.py",
        "old": "        return _decode_json(text.strip().encode())",
        "new": "        return __import__('json').loads(text)",
        "by": ("tests/ops/test_verbs.py::test_what_cannot_be_meant_is_said_in_a_line",),
    },
    {
        "name": "bytes are not said to be bytes",
        "breaks": "bytes in a letter are told as a text, and come back as one when they are edited",
        "path": "pool/ops/jsonable.py",
        "old": '        return b64encode(value).decode(), "base64"',
        "new": '        return b64encode(value).decode(), "json"',
        "by": (
            _TESTS + "test_bytes_are_told_apart_from_what_looks_like_them",
            "tests/web/test_control.py::test_what_is_told_of_a_call_can_be_sent_as_it_is",
        ),
    },
    {
        "name": "a value that is taken for an option",
        "breaks": "the command that a finding names for a key like -x ends with its usage",
        "path": "pool/ops/findings.py",
        "old": '    between = "=" if value.startswith("-") else " "',
        "new": '    between = " "',
        "by": (_TESTS + "test_a_command_that_is_told_takes_values_that_begin_like_options",),
    },
)
