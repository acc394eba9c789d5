"""Whether a directory is ours alone: what others may write to decides what a server of ours does.

Who can write in it can put a link in the place of a log, which then overwrites what it leads to, or
listen on the socket that we connect to.  A directory that is ours, and that nobody else may write
in, cannot change between this look and what is done there; what was put there before is looked at.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from pool.errors import ConfigError, shown

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
