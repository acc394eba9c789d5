"""The process that ends an embedded server when its last user is gone.

Run by path, in an isolated interpreter, by `pool.redis.embedded.server` (which describes the
locks); it imports nothing but the standard library, and little of that, because a start waits for
it. It is the server's parent, so that the server's pid stays the server's until it has been reaped.

    argv  DIRECTORY  private|shared  LOCK_FD  STATUS_FD  PROGRAM  ARGUMENT...
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import traceback

_END_S = 10  # a shared server has this long to bring its data to disk


def _start(program: list[str], status_fd: int) -> int:
    """Start the server, which keeps the inherited lock for as long as it lives."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.close(status_fd)
        os.execv(program[0], program)  # noqa: S606  (no shell is wanted)
    finally:  # only reached when it cannot be started; the log gets the reason
        traceback.print_exc()
        os._exit(127)


def _end(pid: int, *, gently: bool) -> None:
    """End the server; one that ignores the gentle signal, or is stopped, is killed."""
    signal.signal(signal.SIGALRM, lambda *_: os.kill(pid, signal.SIGKILL))
    signal.alarm(_END_S)
    os.kill(pid, signal.SIGTERM if gently else signal.SIGKILL)
    os.waitpid(pid, 0)
    signal.alarm(0)


def main(directory: str, form: str, lock_fd: int, status_fd: int, program: list[str]) -> None:
    """Start the server, wait until nobody uses it, end it."""
    users_fd = os.open(os.path.join(directory, "users.lock"), os.O_RDWR)  # noqa: PTH118
    if os.fork():
        os._exit(0)  # nobody's child: a shared server outlives the process that started it
    pid = _start(program, status_fd)
    os.close(lock_fd)  # from here on the server alone holds it
    try:
        os.write(status_fd, f"{os.getpid()} {pid}\n".encode())
    except BrokenPipeError:
        traceback.print_exc()  # the user is gone already: the lock below will say so
    fcntl.flock(users_fd, fcntl.LOCK_EX)
    _end(pid, gently=form == "shared")
    if form == "private":
        import shutil  # slow to import, and not needed before

        shutil.rmtree(directory)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:])
