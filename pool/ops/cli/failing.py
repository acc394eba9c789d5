"""What `pool run` says of a node that failed by something that is no error of pool's."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pool.ops.logs import line
from pool.runtime.exceptions import leaves, told

# Parts of paths: what runs the user's own code, which their traceback is not about.
_LIBRARY: Final = Path(os.__file__).parent
_POOL: Final = Path(__file__).parents[2]
_LOOPS: Final = {"anyio", "trio", "outcome"}


def lines_of(error: BaseException, *, is_json: bool) -> list[str]:
    """Return the lines: the tracebacks of what it is made of, and what the last line says."""
    texts = ["".join(_traceback(leaf)) for leaf in leaves(error)]
    if is_json:
        facts = {"error": told(error), "exception": "\n".join(texts)}
        return [line("error", "node.failed", is_json=True, **facts)]
    shown = [each for text in texts for each in text.splitlines()]
    return [*shown, f"pool: the node has failed: {told(error)}"]


def _traceback(error: BaseException) -> Iterator[str]:
    """Yield its text; where code of the user's is in it, from that code alone."""
    found = traceback.TracebackException.from_exception(error)
    if any(map(_is_theirs, found.stack)):
        _shorten(found)
    yield from found.format()


def _shorten(found: traceback.TracebackException) -> None:
    found.stack[:] = filter(_is_theirs, found.stack)
    for each in (found.__cause__, found.__context__, *(found.exceptions or ())):
        if each is not None:
            _shorten(each)


def _is_theirs(frame: traceback.FrameSummary) -> bool:
    path = Path(frame.filename)
    if path.is_relative_to(_POOL) or frame.filename.startswith("<frozen"):
        return False
    _, found, *installed = "/".join(path.parts).rpartition("/site-packages/")
    if found:
        return installed[0].partition("/")[0] not in _LOOPS
    return not path.is_relative_to(_LIBRARY)
