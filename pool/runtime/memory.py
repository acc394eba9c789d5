"""What a node and its program have loaded is no work for Python's collector of cycles."""

from __future__ import annotations

import gc


def freeze_memory() -> None:
    """Take all that lives in this process out of the collector's work, for good.

    A full collection looks at every object there is and holds the event loop up meanwhile: modules,
    handlers and a joined node alone are some 50,000, of which hardly any will ever be garbage.
    For programs with a node of their own: call it once, when everything is imported and joined;
    `pool run` does.  What is freed by counting references goes as before; only cycles among what
    lives now would stay.
    """
    gc.collect()
    gc.freeze()
