"""PID 1 of a container: it starts the command as a child, passes signals on, and reaps.

    PID 1: blocks signals, forks --> takes signals one by one until its child has ended
    child: unblocks signals -------> the command, with another PID

The kernel gives PID 1 every orphan of its container, and never kills PID 1 by a signal's default
action: a SIGTERM without a handler is lost, and a second one ends nothing.  The child is a process
like any other, to which all documented signals apply.  A blocked signal is kept for PID 1, so none
is lost from here on.

The kernel itself sends Ctrl-C to all processes of a terminal: that is not passed on again.  If PID
1 dies, the kernel kills all others.  If the child dies, PID 1 ends with its exit code.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import Final

_FROM_KERNEL: Final = 0x80  # SI_KERNEL
_BY_SIGNAL: Final = 128  # as a shell says of a program that a signal has ended
# Signals by which the kernel reports a fault of this process itself: they are not passed on.
_OWN: Final = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP}


def become_init() -> None:
    """Return in a child of this process, which stays behind as PID 1 until the child ends."""
    numbers = set(signal.valid_signals()) - _OWN - {signal.SIGKILL, signal.SIGSTOP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    while True:
        info = signal.sigwaitinfo(numbers)
        if info.si_signo == signal.SIGCHLD:
            if (code := _reap(child)) is not None:
                os._exit(code)
        elif info.si_code != _FROM_KERNEL:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(child, info.si_signo)


def _reap(child: int) -> int | None:
    """Reap all that have ended; return the exit code of our child if it is among them."""
    code = None
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                status = os.waitstatus_to_exitcode(ended[1])
                code = status if status >= 0 else _BY_SIGNAL - status
    return code
