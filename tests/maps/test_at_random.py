"""Any sequence of calls on a ReplicatedMap does what it does to a plain dict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from pool import ReplicatedMap, Settings
from pool.errors import WrongValue
from pool.maps import Written

keys = st.sampled_from(["a", "b", "=,\0"])
texts = st.sampled_from(["", "1", "-2", "x", "\n\N{SNOWMAN}"])


@pytest.fixture
def portal(anyio_backend: str) -> Iterator[BlockingPortal]:
    """Yield a thread with an event loop: a state machine's rules are plain functions."""
    with start_blocking_portal(anyio_backend) as portal:
        yield portal


def found(answer: Written[str]) -> tuple[str | None, int]:
    return answer.previous, answer.size_before


def what(held: str | tuple[str, ...] | None) -> tuple[str | None, int]:
    """Say what a write answers that found this: of a list no more than its size."""
    return (None, len(held)) if isinstance(held, tuple) else (held, 0)


def test_a_map_does_what_a_dict_does(
    portal: BlockingPortal, redis_url: str, pool_name: str
) -> None:
    """Both the answers and, once the copy has the revision, all that can be read."""

    class AgainstADict(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            described = ReplicatedMap.open(
                redis_url, "flags", pool=pool_name, settings=Settings(lease_ttl_s=1.0)
            )
            self.block = portal.wrap_async_context_manager(described)
            self.flags = self.block.__enter__()
            self.truth: dict[str, Any] = {}
            self.call("reset")

        def call(self, name: str, *args: Any) -> Any:
            answer = portal.call(getattr(self.flags, name), *args)
            portal.call(self.flags.wait_for, answer.at)
            return answer

        def keep(self, key: str, new: Any) -> None:
            if new in (None, ()):
                self.truth.pop(key, None)
            else:
                self.truth[key] = new

        @rule(key=keys, value=texts)
        def set(self, key: str, value: str) -> None:
            assert found(self.call("set", key, value)) == what(self.truth.get(key))
            self.keep(key, value)

        @rule(key=keys, value=texts)
        def set_and_wait(self, key: str, value: str) -> None:
            self.call("set_and_wait", key, value)
            self.keep(key, value)

        @rule(key=keys, value=texts)
        def set_if_not_exists(self, key: str, value: str) -> None:
            answer = self.call("set_if_not_exists", key, value)
            assert answer.is_met == (key not in self.truth)
            assert found(answer) == what(self.truth.get(key))
            self.truth.setdefault(key, value)

        @rule(key=keys, expected=texts, value=texts)
        def compare_and_set(self, key: str, expected: str, value: str) -> None:
            is_met = self.call("compare_and_set", key, expected, value).is_met
            assert is_met == (self.truth.get(key) == expected)
            if is_met:
                self.keep(key, value)

        @rule(key=keys)
        def delete(self, key: str) -> None:
            assert found(self.call("delete", key)) == what(self.truth.pop(key, None))

        @rule(key=keys, expected=texts)
        def compare_and_delete(self, key: str, expected: str) -> None:
            is_met = self.call("compare_and_delete", key, expected).is_met
            assert is_met == (self.truth.get(key) == expected)
            if is_met:
                del self.truth[key]

        @rule(key=keys, by=st.integers(-5, 5))
        def increment(self, key: str, by: int) -> None:
            old = self.truth.get(key, "0")
            try:
                value = self.call("increment", key, by).value
            except WrongValue:
                assert not isinstance(old, str) or not old.removeprefix("-").isdigit()
            else:
                assert value == int(old) + by
                self.keep(key, str(value))

        @rule(
            name=st.sampled_from(["append", "append_unique", "remove"]),
            key=keys,
            values=st.lists(texts, min_size=1, max_size=3),
        )
        def change_list(self, name: str, key: str, values: list[str]) -> None:
            old = self.truth.get(key, ())
            if isinstance(old, str):
                with pytest.raises(WrongValue):
                    self.call(name, key, *values)
                return
            held = list(old)
            for value in values:
                if name == "remove":
                    held = [each for each in held if each != value]
                elif name == "append" or value not in held:
                    held.append(value)
            answer = self.call(name, key, *values)
            assert (answer.size_before, answer.size) == (len(old), len(held))
            self.keep(key, tuple(held))

        @rule(name=st.sampled_from(["reset", "destroy"]))
        def empty(self, name: str) -> None:
            self.call(name)
            self.truth.clear()

        @rule(key=keys, expected=texts)
        def compare_and_reset(self, key: str, expected: str) -> None:
            is_met = self.call("compare_and_reset", {key: expected}).is_met
            assert is_met == (self.truth.get(key) == expected)
            if is_met:
                self.truth.clear()

        @invariant()
        def reads_are_the_dicts(self) -> None:
            assert self.flags.snapshot() == self.truth
            assert len(self.flags) == len(self.truth)
            assert set(self.flags) == set(self.truth)

        def teardown(self) -> None:
            self.block.__exit__(None, None, None)

    run_state_machine_as_test(
        AgainstADict, settings=settings(max_examples=25, stateful_step_count=40, database=None)
    )
