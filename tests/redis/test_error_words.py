"""An error word of the server is never reported as foreign data: only WRONGTYPE says that.

Three kinds of calls: a command of a script that raises, one whose error the script looks at, and
whatever becomes of an error reply in Python.  The words are put into the server's own scripts: a
server says NOREPLICAS to one command and serves the next, so no set-up of a server reaches all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from pool.core.pauses import Pause
from pool.errors import AuthError, StorageFull, StoreFault, StoreUnavailable
from pool.maps.commands import StoredMap, probe_call
from pool.names import Control, pair
from pool.ops.cli import main
from pool.redis.embedded.server import EmbeddedServer, ServerProgram
from pool.redis.errors import from_words, naming
from pool.redis.scripts import ScriptCall
from pool.streams.commands import PROBE as STREAM_PROBE
from pool.sync import Client
from tests.redis.conftest import W1
from tests.servers import admin, until

if TYPE_CHECKING:
    from tests.redis.conftest import Bench

LUA = Path(__file__).parents[2] / "pool" / "redis" / "lua"
WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
# What a server says instead of running a command, and the error that callers get.
WORDS: dict[str, type[Exception]] = {
    "NOREPLICAS Not enough good replicas to write.": StoreUnavailable,
    "MISCONF Valkey is configured to save RDB snapshots, but it cannot": StoreUnavailable,
    "OOM command not allowed when used memory > 'maxmemory'.": StorageFull,
    "READONLY You can't write against a read only replica.": StoreUnavailable,
    "LOADING Valkey is loading the dataset in memory": StoreUnavailable,
    "BUSY Valkey is busy running a script.": StoreUnavailable,
    "CLUSTERDOWN The cluster is down": StoreUnavailable,
    "MASTERDOWN Link with MASTER is down": StoreUnavailable,
    "TRYAGAIN Multiple keys request during rehashing of slot": StoreUnavailable,
    "MOVED 3999 127.0.0.1:6381": StoreUnavailable,
    "ASK 3999 127.0.0.1:6381": StoreUnavailable,
    "NOPERM User x has no permissions to run the 'hlen' command": AuthError,
    "ERR ACL failure in script: User x has no permissions to run the 'get' command": AuthError,
    "NOAUTH Authentication required.": AuthError,
    "ERR something that nobody knows yet": StoreFault,
}

# Errors that scripts look past on purpose, by the script: what stands there is not theirs to judge.
LOOKED_PAST = {
    "advance": "HSETNX: the server is full, and the next command raises whatever else it is",
    "batch_look": "HSET: the next command raises whatever else it is",
    "incoming": "HGET: a count that is not kept",
    "join": "INFO: as in lib/silence",
    "look": "ZSCORE, HEXISTS: who is not known to live; HSET: the next command raises it",
    "note": "XREVRANGE: what is there is not known, and these are noted again",
    "renew": "what others wrote must not end leases",
    "rmap_reset": "ZREM: a place that a probe puts back",
    "sink_ack": "XPENDING: each is asked for one by one then",
    "stream_add_once": "ZADD: an id that stays for less long",
    "stream_probe": "XINFO: an error that says that the stream is missing",
    "lib/append": "HINCRBY, XADD: the error is the answer; XLEN: no cap is kept",
    "lib/append_plain": "HINCRBY, XADD: the long way follows",
    "lib/finish": "LLEN, HDEL: of a job that ends",
    "lib/hung": "HGET: who is not known to hang",
    "lib/journal": "XADD: an entry that is not written",
    "lib/keep": "ZADD: an answer that is kept for less long",
    "lib/list_plain": "XADD: the long way follows",
    "lib/place": "XADD: the next command raises it",
    "lib/rmap": "ZADD, ZREM: a place that a probe puts back; XADD: the next command raises it",
    "lib/rmap_plain": "XADD: the long way follows",
    "lib/silence": "INFO: a server that does not tell its run id counts as the one before",
    "lib/typed": "the one place that asks what kind of error it is",
}


def raised(bench: Bench, call: ScriptCall, command: str, word: str) -> str:
    """Return what a script raises if the server refuses one kind of command; "" if it answers.

    Refused is the one whose error the script looks at, and from then on each of that name.
    """
    text = "\n".join(
        (
            "local real, is_refused = redis, false",
            f"local refused = {{ name = '{command}', err = \"{word}\" }}",
            "local redis = { error_reply = real.error_reply, sha1hex = real.sha1hex }",
            "redis.pcall = function(name, ...)",
            "  if name == refused.name then is_refused = true return { err = refused.err } end",
            "  return real.pcall(name, ...)",
            "end",
            "redis.call = function(name, ...)",
            "  if is_refused and name == refused.name then error(refused.err, 0) end",
            "  return real.call(name, ...)",
            "end",
            "local function script()",
            call.script.source,
            "end",
            "local has_answered, answer = pcall(script)",
            "if not has_answered then return 'raised ' .. tostring(answer.err or answer) end",
            "assert(is_refused)",
            "return type(answer) == 'table' and answer.err and 'raised ' .. answer.err or ''",
        )
    )
    found: bytes = bench.do("EVAL", text, len(call.keys), *call.keys, *call.args)
    return found.decode().removeprefix("raised ")


# --- scripts ------------------------------------------------------------------------------------


@attrs.frozen
class Case:
    """A call whose script looks at the error of one of its commands."""

    name: str
    command: str
    make: Callable[[Bench], ScriptCall]
    is_alone: bool = True  # no other command of the script meets the same foreign value before


def _map(bench: Bench, make: Callable[[Control, StoredMap], ScriptCall]) -> ScriptCall:
    control = Control(bench.pool)
    bench.do("HSET", control.config, "incarnation", "i1")
    return make(control, StoredMap(control, "flags"))


def _probe(bench: Bench) -> ScriptCall:
    return _map(bench, lambda control, stored: probe_call(control, "i1", [stored], logs=True))


def _settled(bench: Bench) -> ScriptCall:
    bench.put("k", "R")
    edge = bench.edge("d", "k")
    bench.advance("own", W1.name, edge)
    return bench.advance_call("own", W1.name, edge)


def _ended(bench: Bench) -> tuple[str, str]:
    record = bench.put("k", "R")
    bench.advance("own", W1.name, bench.edge("d", "k"))
    return "k", record.id


def _expired(bench: Bench) -> ScriptCall:
    key, job_id = _ended(bench)
    size = bench.client.strlen(bench.names.result(key, job_id))
    item = f"{size} {pair(key, job_id)}"
    bench.do("ZADD", bench.names.kept, 1, item)
    return bench.lane.expire([item], items_max=9)


def _again(bench: Bench) -> ScriptCall:
    key, job_id = _ended(bench)
    return bench.dispatch_call(bench.admission(key, id=job_id))


def _replay(bench: Bench) -> ScriptCall:
    key, job_id = _ended(bench)
    return bench.lane.replay(key, job_id, "anew", "h", [W1], pending_s=9.0, queued_jobs_max=9)


def _resume(bench: Bench) -> ScriptCall:
    bench.run(bench.lane.pause("pause", attrs.evolve(Pause(key="k"), order=1)))
    bench.put("k", "U")
    return bench.lane.pause("resume", attrs.evolve(Pause(key="k"), order=2), "h")


def _pull(bench: Bench) -> ScriptCall:
    bench.put("k", "U")
    return bench.lane.pull(W1, ["h"], keys_max=1, pending_s=9.0)


def _stream(bench: Bench) -> ScriptCall:
    events, meta = bench.names.stream("s"), bench.names.lane
    bench.do("XADD", events, "*", "a", "b")
    return STREAM_PROBE([events, meta], ["0-0"], parts=8)


CASES = [
    *(Case("probe", command, _probe) for command in ("HDEL", "ZREM", "HLEN", "ZCARD")),
    Case("probe", "HGET", _probe, is_alone=False),
    Case("probe of logs", "XLEN", _probe),
    Case("the maps' time", "HMGET", _probe, is_alone=False),
    Case("look", "GET", lambda bench: bench.lane.look([_ended(bench)])),
    Case("muster", "GET", lambda bench: bench.lane.muster([_ended(bench)], missing_s=9.0)),
    Case("settled before", "GET", _settled),
    Case("dispatched again", "GET", _again),
    Case("replay", "GET", _replay),
    Case("expire", "STRLEN", _expired),
    Case("resume", "ZSCORE", _resume),
    Case("pull", "ZRANGE", _pull),
    Case("stream", "XINFO", _stream),
    Case("stream", "HMGET", _stream),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name} {case.command}")
def test_a_script_passes_on_every_word_but_that_of_a_wrong_type(bench: Bench, case: Case) -> None:
    """It was told as damage, as nothing, or as the answer of somebody else."""
    call = case.make(bench)
    for word in WORDS:
        assert raised(bench, call, case.command, word) == word
    if case.is_alone:
        assert raised(bench, call, case.command, WRONG_TYPE) == "", "foreign data fail all of it"


def test_no_script_looks_at_errors_by_itself() -> None:
    """Class of C4: a new one uses `typed`, or says here why any error means the same to it."""
    found = set()
    for path in sorted(LUA.rglob("*.lua")):
        if "redis.pcall(" in re.sub(r"--[^\n]*", "", path.read_text()):
            found.add(str(path.relative_to(LUA).with_suffix("")))
    assert found == {*LOOKED_PAST}


# --- Python -------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", WORDS)
def test_the_error_of_a_word_advises_to_delete_nothing(word: str) -> None:
    error = from_words(word)
    assert type(error) is WORDS[word]
    if isinstance(error, StoreFault):
        assert naming(error, ["pool:{p}:one", "pool:{p}:two"]) is error
    foreign = from_words(WRONG_TYPE)
    assert isinstance(foreign, StoreFault)
    assert "delete the value" in naming(foreign, ["pool:{p}:one", "pool:{p}:two"]).problem


def test_a_disk_that_cannot_be_written_does_not_read_as_a_memory_limit() -> None:
    text = str(from_words("MISCONF Errors writing to the AOF file: No space left on device"))
    assert "cannot save to its disk" in text
    assert "No space left on device" in text
    assert "disk" in text.partition("Hint: ")[2]
    assert "memory" not in text


@contextmanager
def server_with_folder(program: ServerProgram, folder: Path) -> Iterator[EmbeddedServer]:
    """Start a server that takes snapshots, into that folder."""
    folder.mkdir()
    config = {"save": "3600 1", "dir": str(folder)}
    with EmbeddedServer.start(program, config=config) as server:
        yield server
        folder.mkdir()  # it takes a snapshot when it ends


def lose_folder(server: EmbeddedServer, folder: Path) -> None:
    """Have the next snapshot fail: from then on the server refuses writes."""
    with admin(server) as client:
        folder.rmdir()
        client.bgsave()

        def has_failed() -> bool:
            facts: Any = client.info("persistence")
            return bool(facts["rdb_last_bgsave_status"] == "err")

        until(has_failed, "it cannot save")


@pytest.mark.parametrize("is_open", [False, True], ids=["opening", "dispatching"])
def test_a_server_that_cannot_save_is_named_with_its_own_hint(
    program: ServerProgram, tmp_path: Path, is_open: bool
) -> None:
    """It refuses PING, too, which vouches for the replies of all that is no script."""
    folder = tmp_path / "data"
    with server_with_folder(program, folder) as server, Client("shop", server.url) as client:
        asking = client.options(allow_unknown=True)
        if is_open:
            asking.dispatch("greet", "before")
        lose_folder(server, folder)
        with pytest.raises(StoreUnavailable) as refused:
            asking.dispatch("greet", "k")
    assert "rdb_last_bgsave_status" in str(refused.value).partition("Hint: ")[2]
    assert not refused.value.maybe_done


def test_a_server_that_cannot_save_is_looked_at_as_any_other(
    program: ServerProgram, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "data"
    with server_with_folder(program, folder) as server, Client("shop", server.url) as client:
        client.options(allow_unknown=True).dispatch("greet", "k")
        lose_folder(server, folder)
        for words in (["status"], ["why", "k"], ["jobs"], ["doctor"]):
            code = main([*words, "--pool", "shop", "--url", server.url])
            said = capsys.readouterr()
            assert code in (0, 1), said.err
            assert "no reply" not in said.out + said.err


@pytest.mark.parametrize("text", [text for text, kind in WORDS.items() if kind is StoreUnavailable])
def test_an_error_names_the_word_that_the_server_said(text: str) -> None:
    assert text.partition(" ")[0] in str(from_words(text))
