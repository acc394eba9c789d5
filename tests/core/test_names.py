"""Every key name is its own, and nothing that could break one gets in."""

from __future__ import annotations

import enum
import unicodedata
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pool import names
from pool.errors import ConfigError, InvalidKey, InvalidOption, PoolError
from pool.names import Control, Names

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
ANYTHING = st.one_of(st.text(st.characters()), st.binary(), st.integers(), st.none(), st.floats())
FIXED = (
    *("lane", "keepalive", "open", "handlers", "jobs", "pending", "due", "payloads"),
    *("cleanup", "parked", "letters", "checkpoints", "journal"),
)
WITH_PART = ("unassigned", "owned", "stream", "inbox", "signal")
CHECKS: tuple[Callable[[object], None], ...] = (
    names.check_key,
    names.check_idempotency_key,
    names.check_pool,
    names.check_handler,
    names.check_label,
    names.check_map,
    names.check_stream,
)


class Colour(str, enum.Enum):  # noqa: UP042 - as many code bases still have them
    RED = "red"


def lane_keys(lane: Names, parts: list[str]) -> Iterator[str]:
    for name in FIXED:
        yield getattr(lane, name)
    for part in parts:
        for name in WITH_PART:
            yield getattr(lane, name)(part)
        for other in parts:
            if " " not in other:  # no id has one
                yield lane.result(part, other)


@given(st.lists(TEXT, unique=True, max_size=4))
@example(["", ":", "a", "a:b", "b", "1:a", "lane", "inbox:a"])
def test_no_two_names_of_a_lane_meet(parts: list[str]) -> None:
    keys = list(lane_keys(Names("media", 0), parts))
    assert len(set(keys)) == len(keys)


@given(TEXT)
def test_names_keep_the_lane_together(part: str) -> None:
    """Redis Cluster hashes what stands in the first braces; a user's braces come later."""
    for lane in (0, 17):
        for key in lane_keys(Names("media", lane), [part]):
            assert key.startswith(f"pool:{{media:{lane}}}:")
    control = Control("media")
    of_maps = [control.map_data(part), control.map_log(part), control.map_lists(part)]
    of_streams = [control.stream(part), control.stream_meta(part)]
    of_sinks = [
        made(*pair)
        for made in (control.sink, control.sink_leases, control.sink_parked)
        for pair in ((part, "x"), ("x", f"{part}:1"), (f"x:{part}", "1"))
    ]
    keys = [control.config, control.maps, *of_maps, *of_streams, *of_sinks]
    assert all(key.startswith("pool:{media}:") for key in keys)
    assert len(set(keys)) == len(keys)


def test_names_are_equal_by_pool_and_lane() -> None:
    assert Names("media", 1) == Names("media", 1)
    assert hash(Names("media", 1)) == hash(Names("media", 1))
    assert Names("media", 1) != Names("media", 2)
    assert repr(Control("media")) == "Control(pool='media')"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("tenant-17", 0xF105758457E3771A), ("", 0xE4A6A0577479B2B4), ("é", 0xCB1ABF8BEFF3192F)],
)
def test_the_key_hash_never_changes(text: str, expected: int) -> None:
    """Stored jobs lie in lanes by it: a pool could not be read with another one."""
    assert names.key_hash(text) == expected


def test_lanes_are_stable_and_even() -> None:
    assert [names.lane_of(f"k{i}", 4) for i in range(8)] == [3, 0, 2, 1, 3, 3, 0, 1]
    counts = [0] * 8
    for i in range(8000):
        counts[names.lane_of(f"tenant-{i}", 8)] += 1
    assert all(850 < count < 1150 for count in counts)  # 5 standard deviations


@given(TEXT, st.integers(1, 256))
def test_a_key_has_one_lane(key: str, lanes: int) -> None:
    assert 0 <= names.lane_of(key, lanes) < lanes
    assert names.lane_of(key, 1) == 0


def is_good(text: str, bytes_max: int) -> bool:
    if any(unicodedata.category(char) in ("Cc", "Cs") for char in text):
        return False
    return 1 <= len(text.encode()) <= bytes_max


@given(st.text(st.characters(), max_size=600))
@example("a" * 512)
@example("a" * 513)
@example("é" * 256)
@example("é" * 257)
@example("\U0001f600" * 128)
@example("\U0001f600" * 129)
@example("a\u200db")  # a joiner is no control character
@example("a\x85b")
@example("a\x7f")
def test_the_fast_check_and_the_rule_agree(key: str) -> None:
    try:
        names.check_key(key)
    except InvalidKey:
        assert not is_good(key, names.KEY_BYTES_MAX)
    else:
        assert is_good(key, names.KEY_BYTES_MAX)


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("", "empty"),
        (None, "expected str, not NoneType"),
        (7, "expected str, not int"),
        (b"key", "expected str, not bytes"),
        (Colour.RED, "expected str, not Colour: give its plain text"),
        ("a" * 513, "513 bytes, at most 512"),
        ("é" * 257, "514 bytes, at most 512"),
        ("ab\x00c", "control character U+0000 at offset 2"),
        ("\n", "control character U+000A at offset 0"),
        ("é\x7f", "control character U+007F at offset 1"),
        ("ab\ud800", "lone surrogate U+D800 at offset 2"),
    ],
)
def test_a_refused_key_says_why(key: Any, problem: str) -> None:
    with pytest.raises(InvalidKey) as caught:
        names.check_key(key)
    assert caught.value.problem == problem
    assert str(caught.value).isprintable()


def test_keys_that_only_normalisation_makes_equal_are_two() -> None:
    composed, decomposed = "\u00e9", "e\u0301"
    names.check_key(composed)
    names.check_key(decomposed)
    assert Names("p", 0).inbox(composed) != Names("p", 0).inbox(decomposed)
    assert names.key_hash(composed) != names.key_hash(decomposed)


@pytest.mark.parametrize("name", ["a", "media", "a-b_c9", "x" * 64])
def test_good_pool_names_pass(name: str) -> None:
    names.check_pool(name)


@pytest.mark.parametrize(
    "name", ["", "A", "a:b", "a*", "a?", "[a]", "{a}", "a b", "a\n", "é", "x" * 65, None, b"a", 1]
)
def test_bad_pool_names_are_refused(name: object) -> None:
    with pytest.raises(ConfigError) as caught:
        names.check_pool(name)
    assert caught.value.setting == "pool"


@pytest.mark.parametrize("name", ["a", "Media.resize:v2-b_c", "x" * 128])
def test_good_handler_names_pass(name: str) -> None:
    names.check_handler(name)


@pytest.mark.parametrize("name", ["", "a b", "a|b", "a\n", "é", "٣", "x" * 129, None, len])
def test_bad_handler_names_are_refused(name: object) -> None:
    with pytest.raises(ConfigError) as caught:
        names.check_handler(name)
    assert caught.value.setting == "handler"


def test_each_check_names_what_was_wrong() -> None:
    with pytest.raises(ConfigError, match="label"):
        names.check_label("a" * 129)
    with pytest.raises(ConfigError, match="<int of 16610 bits>"):  # cannot be printed
        names.check_label(10**5000)
    with pytest.raises(ConfigError, match="map"):
        names.check_map("")
    with pytest.raises(InvalidOption, match="257 bytes, at most 256"):
        names.check_idempotency_key("a" * 257)
    names.check_label("pod é 3")
    names.check_map("users:online")
    names.check_idempotency_key("a" * 256)


@given(ANYTHING)
def test_checks_raise_our_errors_only(value: object) -> None:
    for check in CHECKS:
        try:
            check(value)
        except PoolError as error:
            told = str(error)
            if not told.isprintable():
                raise
