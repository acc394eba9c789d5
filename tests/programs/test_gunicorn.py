"""A program that is loaded before it forks: the client of `wsgi.py` is each worker's own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.programs.conftest import two

if TYPE_CHECKING:
    from tests.programs.conftest import Place, Program, Web


def served(web: Web, customers: Iterator[int]) -> int:
    """Have an invoice made; return who did that."""
    customer = f"c{next(customers)}"
    answer = web.get(f"/{customer}")
    assert answer.status_code == 200, answer.text
    assert answer.json()["invoice"] == f"invoice 17 of {customer}"
    return int(answer.json()["pid"])


@pytest.mark.parametrize("preload", [["--preload"], []], ids=["preload", "plain"])
def test_each_worker_has_a_client_and_one_that_is_killed_is_replaced(
    place: Place, web: Web, preload: list[str]
) -> None:
    place.write("blocking-callers.md")
    place.worker()
    words = (*preload, "--workers", "2", "--threads", "2", "--bind", f"127.0.0.1:{web.port}")
    gunicorn: Program = place.start("gunicorn", *words, "wsgi:application")
    customers = iter(range(10_000))
    before = two(partial(served, web, customers))
    assert gunicorn.process.pid not in before
    [killed, other] = before
    os.kill(killed, signal.SIGKILL)
    assert served(web, customers) != killed
    after = two(partial(served, web, customers))
    assert killed not in after
    assert other in after
    assert gunicorn.ends(signal.SIGTERM) == 0
    gunicorn.says("node.left", times=2)  # those that ended in peace
