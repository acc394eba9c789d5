"""What `make check` leaves out."""

from __future__ import annotations

from tests.conftest import HERE, SLOW


def test_what_is_called_slow_exists() -> None:
    assert [path for path in sorted(SLOW) if not (HERE / path).exists()] == []
