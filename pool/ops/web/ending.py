"""Before a server heeds a signal that ends it.

A server that waits for its connections to close before it ends an application's lifespan, as
uvicorn does, would wait for whoever waits in the application, who would be answered only then.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def before_signals(call: Callable[[], object]) -> Iterator[None]:
    """Within the block have a signal call that first, then do what it has done until now.

    `call` may come between any two instructions.  Beside the main thread, and where a signal is not
    handled in Python, it is left alone.
    """
    handlers = dict[int, Any]()

    def heed(number: int, frame: FrameType | None) -> None:
        call()
        handlers[number](number, frame)

    if threading.current_thread() is threading.main_thread():
        for each in SIGNALS:
            found = signal.getsignal(each)
            if callable(found):
                handlers[each] = found
                signal.signal(each, heed)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if signal.getsignal(number) is heed:  # else it is somebody else's by now
                signal.signal(number, handler)
