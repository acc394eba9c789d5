"""What can only be a mistake is refused where it is made, and says what to do."""

from __future__ import annotations

from datetime import time
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from pool import Depends, Handlers, Job
from pool.errors import ConfigError, InvalidKey, PayloadEncodingError, WrongArguments
from pool.testing import make_job

pytestmark = pytest.mark.anyio


def client() -> str:
    return "real"


def greeting(client: str = Depends(client)) -> str:
    return f"hello {client}"


def unused() -> None: ...


class Text:
    name = "text"

    def encode(self, value: Any) -> bytes:
        return str(value).encode()

    def decode(self, data: bytes) -> Any:
        return data.decode()


class Runs:
    def start(self, job: Job) -> None: ...
    def stop(self, job: Job) -> None: ...


class Made:
    def __init__(self, greeting: str = Depends(greeting)) -> None:
        self.greeting = greeting

    def run(self, job: Job) -> str:  # noqa: ARG002
        return self.greeting


async def test_a_direct_call_is_told_what_to_give() -> None:
    handlers = Handlers()

    @handlers.job("greets")
    def greets(job: Job, n: int, *, said: str = Depends(greeting)) -> str:
        return said * n

    made: Any = handlers.job("made")(Made)
    with pytest.raises(WrongArguments, match="give said=, for greeting"):
        greets(make_job("k"), 1)
    assert greets(make_job("k"), 2, said="a") == "aa"
    with pytest.raises(WrongArguments, match="give greeting=, for greeting"):
        made(make_job("k"))
    assert made(make_job("k"), greeting="b") == "b"


def test_an_override_is_of_what_something_depends_on() -> None:
    handlers = Handlers()

    @handlers.job("greets")
    def greets(job: Job, *, said: str = Depends(greeting)) -> None: ...

    with pytest.raises(ConfigError, match="something that a handler here depends on"):
        handlers.override(unused, unused)
    with handlers.override(client, unused), handlers.override(greeting, unused):
        pass
    with (
        pytest.raises(ConfigError, match=r"greeting -> client \(in its place greeting\) -> client"),
        handlers.override(client, greeting),
    ):
        pass


def test_a_class_is_no_object_of_it() -> None:
    given: Any = Text
    with pytest.raises(ConfigError, match=r"an object of it: Text\(...\)"):
        Handlers().job("encodes", codec=given)
    given = Runs
    with pytest.raises(ConfigError, match="give an object of it"):
        Handlers().runner("runs", given)


@pytest.mark.parametrize("key", ["", "k" * 513])
async def test_no_test_has_a_job_that_there_cannot_be(key: str) -> None:
    with pytest.raises(InvalidKey):
        make_job(key)


def test_the_codec_of_bytes_carries_nothing_else() -> None:
    @Handlers().job("raw", codec="bytes")
    def raw(job: Job, data: bytes) -> bytes:
        return data

    result = raw._result
    assert result is not None
    for value in (b"x", None):
        assert result.decode(result.encode(value)) == value
    for wrong in ("x", 1, [b"x"]):
        with pytest.raises(PayloadEncodingError, match="all that the codec 'bytes' carries"):
            result.encode(wrong)


def test_a_time_whose_zone_would_be_lost_is_refused() -> None:
    @Handlers().job("at")
    def at(job: Job, when: time) -> None: ...

    with pytest.raises(WrongArguments, match="whose offset is another on other days"):
        at._arguments.encode("at", (time(12, tzinfo=ZoneInfo("Europe/Berlin")),), {})
    assert at._arguments.encode("at", (time(12, tzinfo=ZoneInfo("UTC")),), {})
