"""Bugs planted in log lines, as `mutants.py` takes them."""

from __future__ import annotations

from typing import Any, Final

_LOGS: Final = "tests/ops/test_logs.py::"
_FLOODS: Final = "tests/runtime/test_floods.py::"

LOG_MUTANTS: Final[tuple[dict[str, Any], ...]] = (
    {
        "name": "an event does not name its pool",
        "breaks": "of two pools in one process nobody knows which one fails, and one is not told",
        "path": "pool/runtime/observers.py",
        "old": "    if not event.pool:\n",
        "new": "    if False:\n",
        "by": (_LOGS + "test_each_pool_of_a_process_has_lines_of_its_own",),
    },
    {
        "name": "many handlers are counted as one",
        "breaks": "the last line of a flood says of one handler how often all others have failed",
        "path": "pool/redis/io/hush.py",
        "old": '        return {"others": times}\n',
        "new": '        return {"times": times}\n',
        "by": (_FLOODS + "test_of_many_handlers_no_line_counts_what_was_not_its_own",),
    },
    {
        "name": "one line more than the limit",
        "breaks": "each flood of names is 21 lines, and the page says 20",
        "path": "pool/redis/io/hush.py",
        "old": ">= KIND_MAX - 1\n",
        "new": ">= KIND_MAX\n",
        "by": (_FLOODS + "test_a_flood_of_names_is_bounded",),
    },
    {
        "name": "lines that the configuration cannot write vanish",
        "breaks": "a processor that raises hides all that is told, and that it does",
        "path": "pool/redis/log.py",
        "old": '                facts["log_error"] =',
        "new": '                return\n                facts["log_error"] =',
        "by": (_LOGS + "test_a_line_that_the_configuration_cannot_write_is_on_standard_error",),
    },
    {
        "name": "a logger with coroutines is called as it is",
        "breaks": "all lines of a program with AsyncBoundLogger vanish, or go elsewhere",
        "path": "pool/redis/log.py",
        "old": "return self._plain if is_async else self._configured",
        "new": "return self._configured",
        "by": (_LOGS + "test_a_program_that_configured_structlog_has_its_own_lines[async]",),
    },
    {
        "name": "a root logger's handler leaves warnings raw",
        "breaks": "a program with logging of its own writes warnings that are no JSON",
        "path": "pool/ops/logs.py",
        "old": "_log_warnings(None if is_ours else handler)",
        "new": "_log_warnings(None)",
        "by": (_LOGS + "test_warnings_are_json_though_the_root_logger_has_a_handler",),
    },
    {
        "name": "warnings are taken from the application",
        "breaks": "what it has told Python to log goes past its own handlers",
        "path": "pool/ops/logs.py",
        "old": "if is_json and warnings.showwarning.__module__ != logging.__name__:",
        "new": "if is_json:",
        "by": (_LOGS + "test_warnings_that_the_application_logs_are_left_to_it",),
    },
    {
        "name": "an extra fact replaces the text",
        "breaks": "a line with extra={'event': ...} has lost what it says",
        "path": "pool/ops/logs.py",
        "old": '{"_record": event["_record"]}), **event}',
        "new": "{**event})}",
        "by": (_LOGS + "test_a_line_of_logging_names_its_logger_and_has_its_extra_facts",),
    },
)
