"""Bugs planted in what serves a pool over HTTP, as `mutants.py` takes them."""

from __future__ import annotations

from typing import Any, Final

_ACCESS: Final = "tests/web/test_access.py::"
_CONTROL: Final = "tests/web/test_control.py::"
_WORKERS: Final = "tests/web/test_workers.py::"

WEB_MUTANTS: Final[tuple[dict[str, Any], ...]] = (
    {
        "name": "a role is as good as another",
        "breaks": "who may look may discard",
        "path": "pool/ops/web/app.py",
        "old": "        if role is not None and not caller.may(role):\n",
        "new": "        if False:\n",
        "by": (_ACCESS + "test_each_route_is_for_its_role_alone",),
    },
    {
        "name": "any name of this machine is good",
        "breaks": "a page whose name was made to mean 127.0.0.1 operates the pool",
        "path": "pool/ops/web/access.py",
        "old": '    if not is_loopback(host_of(host := headers.get("host", ""))):\n',
        "new": '    if not (host := headers.get("host", "")):\n',
        "by": (_ACCESS + "test_without_secrets_only_programs_of_this_machine_are_answered",),
    },
    {
        "name": "a page of elsewhere is let in",
        "breaks": "whatever site is looked at on this machine can pause the pool",
        "path": "pool/ops/web/access.py",
        "old": '    return origin is not None and origin.partition("://")[2] !=',
        "new": "    return False and None !=",
        "by": (_ACCESS + "test_without_secrets_only_programs_of_this_machine_are_answered",),
    },
    {
        "name": "a body of any kind is read",
        "breaks": "a form of a page is taken for JSON, which a browser sends without asking",
        "path": "pool/ops/web/app.py",
        "old": '            if kind != "application/json":\n',
        "new": "            if False:\n",
        "by": (_ACCESS + "test_a_body_is_json_and_says_so",),
    },
    {
        "name": "a body without an end",
        "breaks": "one request takes all memory",
        "path": "pool/ops/web/app.py",
        "old": "                if size > most:\n",
        "new": "                if False:\n",
        "by": (_ACCESS + "test_a_body_is_so_long_and_comes_in_time",),
    },
    {
        "name": "nobody is asked often enough",
        "breaks": "one caller takes all of a gateway",
        "path": "pool/ops/web/limits.py",
        "old": "            wait_s = (1.0 - left) / self.per_s\n",
        "new": "            pass\n",
        "by": (_ACCESS + "test_each_caller_may_ask_so_often",),
    },
    {
        "name": "who did it is not noted",
        "breaks": "an action stands in no journal",
        "path": "pool/ops/web/app.py",
        "old": "        await self._audit.note(route, asked)\n",
        "new": "        pass\n",
        "by": (_CONTROL + "test_what_was_done_stands_in_the_journal_with_who_did_it",),
    },
    {
        "name": "a key's slash is a path's",
        "breaks": "a job whose key has a slash cannot be asked for",
        "path": "pool/ops/web/app.py",
        "old": '        path = raw.partition(b"?")[0].decode("latin-1")\n',
        "new": '        path = unquote_to_bytes(raw.partition(b"?")[0]).decode("latin-1")\n',
        "by": (_CONTROL + "test_a_job_is_dispatched_waited_for_and_told_with_its_result",),
    },
    {
        "name": "the header of a repeat is not read",
        "breaks": "a request that is sent again makes another job",
        "path": "pool/ops/web/jobs.py",
        "old": '    return {"job_id": None, "idempotency_key": f"{header}{suffix}"}',
        "new": '    return {"job_id": None, "idempotency_key": None}',
        "by": (_CONTROL + "test_a_repeat_is_known_by_its_header_or_by_what_the_body_says",),
    },
    {
        "name": "only the first secret is read",
        "breaks": "workers are thrown out while a secret is replaced",
        "path": "pool/ops/web/tokens.py",
        "old": "list(reversed(keys))",
        "new": "[keys[0]]",
        "by": (_WORKERS + "test_tokens_are_read_with_the_old_secret_while_the_new_one_signs",),
    },
    {
        "name": "a job of another worker is taken",
        "breaks": "one that had to register again is told to register, for ever",
        "path": "pool/ops/web/workers.py",
        "old": "    if job.worker != claim.id:\n",
        "new": "    if False:\n",
        "by": (_WORKERS + "test_tokens_are_the_gateways_own_and_of_one_worker",),
    },
)
