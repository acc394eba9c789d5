"""How whoever started us learns that we are ready: by a file, and by systemd's protocol.

    loading --ready--> file written, READY=1 --reloading--> RELOADING=1 --ready--> READY=1
    ... --leaving--> file removed, STOPPING=1

The file holds our pid, in a line.  What is removed, or written over, holds such a line or nothing:
somebody else's file, a link or a device may be there by a slip of the hand.  Who leaves removes its
own line alone: in a deploy that overlaps, the file may be its successor's by then.  The file is of
the process that began last.  Until it ends, the files of others that are ready stand beside it,
as `.ready.4711`; then the file is another's again.  Each process locks its own file, so that one
that a killed process has left is known.

The protocol is that of sd_notify(3): one datagram to the socket that NOTIFY_SOCKET names.  Where
nobody listens, nothing is said, and nothing fails: to be ready is not to be asked about it.
"""

from __future__ import annotations

import fcntl
import glob
import os
import re
import socket
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs

from pool.errors import ConfigError, shown

_MICROSECONDS: Final = 1_000_000
_LINE: Final = re.compile(rb"[0-9]+\n")  # all that a file of ours holds
_LINE_BYTES_MAX: Final = 32
_NOT_OURS: Final = "something else is there, not a file that holds a pid, or nothing"
_BEATS: Final = 3  # of a watchdog's time: two may come late


@attrs.define
class Readiness:
    """Says it; each of its calls may be repeated."""

    file: Path | None = None
    address: str = ""  # of the socket; "": nobody wants to know
    watchdog_s: float = 0.0  # in which a sign of life is wanted; 0: never
    _lock: int | None = None  # the descriptor of our file, locked while it says that we are ready

    @classmethod
    def of(cls, file: str, environ: Mapping[str, str]) -> Readiness:
        """Return what a file's name and the environment ask for; no file is there afterwards.

        One that is left of a process that was killed would say of this one what is not so.

        Raises:
            ConfigError: The file cannot be there.
        """
        path = Path(file) if file else None
        if path is not None:
            try:
                _write(_part(path))
                _part(path).unlink()
                _make_way(path)
            except (OSError, ValueError) as error:
                raise _refused(path, error) from None
        is_ours = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        limit = environ.get("WATCHDOG_USEC", "")
        watchdog_s = int(limit) / _MICROSECONDS if is_ours and limit.isdecimal() else 0.0
        return cls(path, environ.get("NOTIFY_SOCKET", ""), watchdog_s)

    @property
    def beat_s(self) -> float | None:
        """How often to call `alive`; None: not at all."""
        return self.watchdog_s / _BEATS if self.watchdog_s and self.address else None

    def ready(self, status: str) -> None:
        """Say that jobs are taken.

        Raises:
            ConfigError: The file cannot be written.
        """
        if self.file is not None:
            part = _part(self.file)
            try:
                self._unlock()
                _write(part)
                self._lock = os.open(part, os.O_RDONLY | os.O_NOFOLLOW)
                _make_way(self.file)
                part.replace(self.file)  # there at once as a whole, or not
                # Not before: another one that leaves would put it there, and we would not find it.
                fcntl.flock(self._lock, fcntl.LOCK_EX)
            except (OSError, ValueError) as error:
                raise _refused(self.file, error) from None
        self._notify(f"READY=1\nSTATUS={status}")

    def lost(self) -> None:
        """Say that nobody takes jobs for now, as far as there is a word for it."""
        self._remove()
        self._notify("STATUS=no process is ready")

    def reloading(self) -> None:
        """Say that others are about to take the place of who is there."""
        now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._notify(f"RELOADING=1\nMONOTONIC_USEC={now_us}\nSTATUS=reloading")

    def leaving(self, why: str) -> None:
        """Say that no jobs are taken any more."""
        self._remove()
        self._notify(f"STOPPING=1\nSTATUS=draining: {why}")

    def alive(self) -> None:
        """Say that we are not stuck."""
        self._notify("WATCHDOG=1")

    def _remove(self) -> None:
        """Remove our own file, and give its place to another process that is ready."""
        self._unlock()
        if self.file is None:
            return
        try:
            for path in (self.file, _part(self.file)):
                if _held(path) == str(os.getpid()):
                    path.unlink(missing_ok=True)
            others = self.file.parent.glob(f".{glob.escape(self.file.name)}.*")
            ready = next((path for path in others if _is_locked(path)), None)
            if ready is not None and _held(self.file) is None:
                ready.rename(self.file)
        except (OSError, ValueError):
            return  # it is no file of ours, or its directory is gone

    def _unlock(self) -> None:
        if self._lock is not None:
            fcntl.flock(self._lock, fcntl.LOCK_UN)  # a process that a handler forked has it, too
            os.close(self._lock)
            self._lock = None

    def _notify(self, text: str) -> None:
        if not self.address:
            return
        # A name that begins with @ is not in the file system (unix(7)).
        address = f"\0{self.address[1:]}" if self.address[0] == "@" else self.address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
            line.setblocking(False)  # who does not read shall not hold us up
            try:
                line.sendto(text.encode(), address)
            except OSError:
                return  # whoever listened is gone: see the module's header


def _part(path: Path) -> Path:
    """Return where a file is written before it has its name."""
    return path.with_name(f".{path.name}.{os.getpid()}")


def _held(path: Path) -> str | None:
    """Return which pid a file of ours holds, maybe none; None: there is no file.

    Raises:
        OSError, ValueError: It cannot be read, or is none of ours.
    """
    try:
        is_file = stat.S_ISREG(path.lstat().st_mode)
        # Looked at by its name alone it may be a link or a pipe by now.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK) if is_file else None
    except FileNotFoundError:
        return None
    if fd is None:
        raise ValueError(_NOT_OURS)
    with os.fdopen(fd, "rb") as file:
        text = file.read(_LINE_BYTES_MAX + 1)
    if text and not _LINE.fullmatch(text):
        raise ValueError(_NOT_OURS)
    return text.decode().rstrip("\n")


def _clear(path: Path) -> None:
    """See to it that no file of ours is there.  Raises as `_held` does."""
    if _held(path) is not None:
        path.unlink(missing_ok=True)


def _make_way(path: Path) -> None:
    """See to it that no file is there; that of another process which is ready stands beside it.

    Raises as `_held` does.
    """
    pid = _held(path)
    if pid and pid != str(os.getpid()) and _is_locked(path):
        path.rename(path.with_name(f".{path.name}.{pid}"))
    else:
        _clear(path)


def _is_locked(path: Path) -> bool:
    """Say whether the process whose file this is says by it that it is ready."""
    if _held(path) is None:
        return False
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _write(path: Path) -> None:
    """Make a file of ours anew.  Raises as `_held` does."""
    _clear(path)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)  # as umask says
    with os.fdopen(fd, "w", encoding="ascii") as file:
        file.write(f"{os.getpid()}\n")


def _refused(path: Path, error: OSError | ValueError) -> ConfigError:
    why = getattr(error, "strerror", None) or str(error)
    problem = f"{shown(str(path))} cannot be made and removed: {why}"
    return ConfigError(setting="ready_file", problem=problem)
