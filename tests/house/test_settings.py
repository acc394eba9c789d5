"""Both bounds of every setting hold, and an error names the setting it is about."""

from __future__ import annotations

import math
from typing import Any

import attrs
import pytest

from pool.core.lease import Timing
from pool.errors import ConfigError
from pool.jobs.settlement import outcome_ttl_ms
from pool.settings import Settings

FIELDS = {field.name: field for field in attrs.fields(Settings)}
NUMBERS = [name for name, field in FIELDS.items() if "low" in field.metadata]
CHOICES = [name for name in FIELDS if name not in NUMBERS]


def made(name: str, value: object) -> object:
    changes: dict[str, Any] = {name: value}
    return getattr(Settings(**changes), name)


def refused(name: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        made(name, value)
    assert caught.value.setting == name


def test_the_defaults_hold() -> None:
    Settings()


@pytest.mark.parametrize("name", FIELDS)
def test_every_setting_is_documented(name: str) -> None:
    meta = FIELDS[name].metadata
    assert meta["doc"].endswith(".")
    assert "unit" in meta
    assert not name.endswith("_s") or meta["unit"] == "s"
    assert not name.endswith("_bytes_max") or meta["unit"] == "bytes"


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("side", ["low", "high"])
def test_a_value_at_its_bound_passes_and_one_beyond_is_refused(name: str, side: str) -> None:
    bound = FIELDS[name].metadata[side]
    way = -1 if side == "low" else 1
    assert made(name, bound) == bound
    step = bound + way if isinstance(bound, int) else math.nextafter(bound, way * math.inf)
    refused(name, step)


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [None, "1", b"1", True, math.nan, math.inf, -math.inf, [], 1j])
def test_what_is_no_number_is_refused(name: str, value: object) -> None:
    if value is not None or FIELDS[name].default is not None:
        refused(name, value)


@pytest.mark.parametrize("name", [n for n in NUMBERS if not n.endswith("_s")])
def test_a_count_is_a_whole_number(name: str) -> None:
    refused(name, float(FIELDS[name].metadata["low"]))


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("value", [None, "", "Exit", 1, True, []])
def test_a_choice_is_one_of_its_words(name: str, value: object) -> None:
    for word in FIELDS[name].metadata["unit"].split(" / "):
        assert made(name, word) == word
    refused(name, value)


@pytest.mark.parametrize("op_timeout_s", [0.05, 2.0, 14.0, 15.0, 60.0])
@pytest.mark.parametrize("retry_window_s", [1.0, 30.0, 86_400.0])
def test_an_outcome_is_known_for_longer_than_a_call_is_repeated(
    op_timeout_s: float, retry_window_s: float
) -> None:
    """A repeated call must find what its first try did (G-04), whatever the two are."""
    settings = Settings(op_timeout_s=op_timeout_s, retry_window_s=retry_window_s, result_ttl_s=0.0)
    assert settings.known_s > 2 * op_timeout_s
    assert settings.known_s >= retry_window_s
    assert outcome_ttl_ms(settings) == round(settings.known_s * 1000)


@pytest.mark.parametrize("ttl_s", [1.0, 1.3, 2.0, 10.0, 3600.0])
def test_all_times_derive_from_the_ttl(ttl_s: float) -> None:
    """Three renewals may fail before handlers are stopped, and those have time to stop (G-03)."""
    timing = Timing(ttl_s)
    soft_s = timing.ttl_s - timing.margin_s - timing.stop_budget_s
    assert 3 * timing.renew_s + timing.renew_timeout_s <= soft_s + 1e-9
    assert timing.renew_s <= 10.0
    assert timing.margin_s >= 0.05
    assert timing.block_s < timing.socket_timeout_s < timing.ttl_s


def test_settings_never_change() -> None:
    settings = Settings()
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        settings.lease_ttl_s = 5.0  # type: ignore[misc]
    assert attrs.evolve(settings, lease_ttl_s=5.0).lease_ttl_s == 5.0
