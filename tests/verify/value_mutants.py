"""Bugs planted in what is compared, what is checked at the dispatch, and who waits for batches."""

from __future__ import annotations

from typing import Any, Final

_CONTRACT: Final = "pool/jobs/typed/contract.py"
_WAITERS: Final = "pool/jobs/client/waiters.py"
_CANONICAL: Final = (
    "tests/verify/test_canonical.py::test_equal_values_are_equal_bytes_under_every_hash_seed",
)
_STEPS: Final = (
    "tests/fuzz/test_steps.py::test_what_is_read_takes_steps_in_proportion_to_its_size",
)
_TESTS: Final = "tests/jobs/test_"
_TYPES: Final = "tests/jobs/test_types.py::test_"
_CONTRACTS: Final = "tests/jobs/test_contract.py::test_"

VALUE_MUTANTS: Final[tuple[dict[str, Any], ...]] = (
    {
        "name": "sets in the order of their hashes",
        "breaks": "a set in a model or a struct is written as its process happens to iterate it",
        "path": "pool/jobs/typed/canonical.py",
        "old": "        made = sorted_wires(list(made))",
        "new": "        made = list(made)",
        "by": _CANONICAL,
    },
    {
        "name": "fields in the order of their assignment",
        "breaks": "equal models are other bytes if a field of one was assigned later",
        "path": "pool/jobs/typed/foreign.py",
        "old": "            return ordered(back, dumped(back))",
        "new": "            return ordered(value, wire)",
        "by": _CANONICAL,
    },
    {
        "name": "whole numbers for floats",
        "breaks": "2 and 2.0 are other arguments where a float is said",
        "path": "pool/jobs/typed/values.py",
        "old": "    return made if made == value else value",
        "new": "    return value",
        "by": _CANONICAL,
    },
    {
        "name": "a codec with a nonce is compared",
        "breaks": "what a codec says of itself counts for nothing: repeated calls are conflicts",
        "path": _CONTRACT,
        "old": "        if not is_canonical(codec) or self.encode(handler, args, kwargs) != data:",
        "new": "        if self.encode(handler, args, kwargs) != data:",
        "by": (_CONTRACTS + "what_would_be_compared_is_refused_of_a_codec_that_cannot_be",),
    },
    {
        "name": "a follower shows when it is there",
        "breaks": "a result that can never be an argument parks its follower once the work is done",
        "path": "pool/jobs/followers.py",
        "old": "        if outcome is not None:\n            check_first(",
        "new": "        if outcome is None:\n            check_first(",
        "by": (
            _TESTS
            + "followers.py::test_a_result_that_can_never_fit_is_refused_when_it_is_dispatched",
        ),
    },
    {
        "name": "an argument of its own name",
        "breaks": "**kwargs takes the name of the Job's parameter, and each attempt fails",
        "path": _CONTRACT,
        "old": "        if mine := sorted(self.taken.intersection(kwargs)):",
        "new": "        if mine := sorted(self.taken.intersection(())):",
        "by": (_CONTRACTS + "a_name_that_its_function_has_itself_is_no_argument",),
    },
    {
        "name": "a state that stop assigned",
        "breaks": "what stop assigns after a failed notify is not there at the next start",
        "path": "pool/jobs/forms.py",
        "old": "                await job._keep_assigned()",
        "new": "                pass",
        "by": (_TESTS + "object_form.py::test_what_stop_assigns_is_there_at_the_next_start",),
    },
    {
        "name": "ids of members",
        "breaks": "a batch drops the id that a call was given, and it runs twice",
        "path": "pool/jobs/client/batch.py",
        "old": "    if call._known:",
        "new": "    if False:",
        "by": (_TESTS + "batches.py::test_a_call_with_an_id_of_its_own_is_no_member",),
    },
    {
        "name": "members are not told who waits",
        "breaks": "batches whose members wait for each other's wait for ever",
        "path": _WAITERS,
        "old": "        for member, (lane, owner) in waiting.running.items():",
        "new": "        for member, (lane, owner) in ():",
        "by": (_TESTS + "in_a_handler.py::test_a_circle_over_several_batches_is_told",),
    },
    {
        "name": "waits of another node of the process",
        "breaks": "who waits by a client that blocks is not found in a circle",
        "path": _WAITERS,
        "old": "            for ref in _HERE.valuerefs():",
        "new": "            for ref in ():",
        "by": (
            _TESTS
            + "in_a_handler.py::test_handlers_without_async_that_wait_for_each_other_are_told",
        ),
    },
    {
        "name": "a name twice is looked for by counting",
        "breaks": "an object of 30,000 names, one of them twice, holds the loop up for a minute",
        "path": "pool/core/codec.py",
        "old": "        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]",
        "new": "        names = [name for name, _ in pairs]\n"
        "        twice = next(name for name in names if names.count(name) > 1)",
        "by": _STEPS,
    },
    {
        "name": "numbers of one hash",
        "breaks": "a set of chosen numbers takes the square of their count to build",
        "path": "pool/jobs/typed/containers.py",
        "old": "        if most > SAME_HASH_MAX:",
        "new": "        if most < 0:",
        "by": _STEPS,
    },
    {
        "name": "bytes pass by the codec",
        "breaks": "one bytes argument of a handler with a codec that encrypts is stored in clear",
        "path": "pool/core/codec.py",
        "old": "        if codec is None and len(args) == 1 and issubclass(type(args[0]), bytes):",
        "new": "        if len(args) == 1 and issubclass(type(args[0]), bytes):",
        "by": (
            _TESTS + "types.py::"
            "test_what_a_codec_makes_is_all_that_the_server_has_of_arguments_and_results",
        ),
    },
    {
        "name": "a result by its reference alone",
        "breaks": "node.job(key, id).result() fails for a codec that the node's own handlers have",
        "path": "pool/jobs/client/job_client.py",
        "old": "        if name and found is None and self.handlers is not None:",
        "new": "        if False and self.handlers is not None:",
        "by": (_TESTS + "types.py::test_a_result_is_read_wherever_its_codec_is_known",),
    },
    {
        "name": "a codec whose error cannot be printed",
        "breaks": "what the text of a codec's error raises comes out of dispatch()",
        "path": "pool/core/codec.py",
        "old": "    except Exception:  # noqa: BLE001 - its text is the codec's own, too",
        "new": "    except AttributeError:",
        "by": ("tests/core/test_codec.py::test_what_a_codec_raises_may_be_unprintable",),
    },
    {
        "name": "one text for another",
        "breaks": "a date for a Decimal parks its follower once the work before it is done",
        "path": _CONTRACT,
        "old": " and first.kind not in NEVER.get(outcome.kind, ())",
        "new": "",
        "by": (
            _TESTS
            + "followers.py::test_a_result_that_can_never_fit_is_refused_when_it_is_dispatched",
        ),
    },
    {
        "name": "keys by identity alone",
        "breaks": "a dict with two keys of one text is stored with one twice, and nobody reads it",
        "path": "pool/core/shape.py",
        "old": "    return len({str.__str__(key) for key in value}) == len(value)",
        "new": "    return True",
        "by": ("tests/core/test_codec.py::test_two_keys_of_one_text_are_refused",),
    },
    {
        "name": "numbers that msgspec rounds",
        "breaks": "a whole number that no float equals arrives as another one",
        "path": "pool/jobs/typed/msgpack.py",
        "old": "            is_compared = look.is_compared or (is_other and look.may_lose)",
        "new": "            is_compared = look.is_compared",
        "by": (_CONTRACTS + "msgspec_refuses_what_would_be_less_where_it_arrives",),
    },
    {
        "name": "moments that become one",
        "breaks": "a set of two datetimes arrives as a set of one",
        "path": "pool/jobs/typed/containers.py",
        "old": "        if any(map(eq, plain, plain[1:])) or _merge(item, made):",
        "new": "        if any(map(eq, plain, plain[1:])):",
        "by": (_TESTS + "shapes.py::test_what_is_not_of_the_type_is_not_sent",),
    },
    {
        "name": "a result that msgspec never sees is not checked",
        "breaks": "a handler of int that returns None is done, and its result cannot be read",
        "path": _CONTRACT,
        "old": "            _told(codec.convert, value)  # refuses what is of another type",
        "new": "            pass",
        "by": (_TYPES + "a_result_that_no_codec_has_to_encode_is_checked_too",),
    },
    {
        "name": "a field that __init__ does not take",
        "breaks": "a field with init=False arrives with its default",
        "path": "pool/jobs/typed/containers.py",
        "old": "        for field, part in late:\n            object.",
        "new": "        for field, part in ():\n            object.",
        "by": (_TESTS + "shapes.py::test_each_type_comes_back_as_it_went",),
    },
    {
        "name": "inherited fields of a generic class",
        "breaks": "what a class says of its generic base is not looked at: anything is its field",
        "path": "pool/jobs/typed/annotations.py",
        "old": "        _note_stands(base, its_args, found)",
        "new": "        pass",
        "by": (_TESTS + "shapes.py::test_each_type_comes_back_as_it_went",),
    },
    {
        "name": "a handler of bytes may return text",
        "breaks": "`-> bytes` is taken for what JSON has itself, and a text is its result",
        "path": _CONTRACT,
        "old": "    return None if shape.is_plain else ValueCodec(shape)",
        "new": "    return None if shape.is_plain or shape.kind is bytes else ValueCodec(shape)",
        "by": (_TYPES + "a_result_that_no_codec_has_to_encode_is_checked_too",),
    },
    {
        "name": "msgspec drops what it does not know",
        "breaks": "a field of a newer program is gone, and a large number is rounded",
        "path": "pool/jobs/typed/msgpack.py",
        "old": "        check_read(value, found)",
        "new": "        pass",
        "by": (_CONTRACTS + "what_msgspec_would_drop_or_round_of_json_is_refused",),
    },
    {
        "name": "constraints that nobody checks",
        "breaks": "what pydantic's Field forbids arrives by msgspec",
        "path": "pool/jobs/typed/msgpack.py",
        "old": "    if look.is_unchecked:",
        "new": "    if False:",
        "by": (_CONTRACTS + "msgspec_takes_arguments_by_name_and_types_that_it_knows",),
    },
    {
        "name": "a subclass has its own text",
        "breaks": "by msgspec a subclass of str arrives as what its __str__ says",
        "path": "pool/jobs/typed/msgpack.py",
        "old": "    str: str.__str__,",
        "new": "    str: str,",
        "by": (_CONTRACTS + "msgspec_sends_what_is_of_a_subclass_as_its_base_does",),
    },
    {
        "name": "deque that is compared by ==",
        "breaks": "a job that returns a deque of moments in a repeated hour is parked",
        "path": "pool/jobs/typed/proof.py",
        "old": "    elif issubclass(kind, (list, tuple, deque)):",
        "new": "    elif issubclass(kind, (list, tuple)):",
        "by": ("tests/jobs/test_proof.py::test_such_a_moment_arrives_whatever_holds_it",),
    },
)
