"""What strict JSON is made of.  Imports next to nothing: a process that is started for one function
goes by it, too, and shall not wait for more.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

DEPTH_MAX = 100  # containers within containers; json itself would go as deep as the stack is
SCALARS: Final = frozenset({str, int, float, bool, type(None)})

# check_circular is off because what is circular is also too deep, and that we check ourselves.
to_json: Final = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")
).encode


def is_encodable(value: Any, depth_left: int = DEPTH_MAX) -> bool:
    """Say whether the shape is right; json alone would turn the key 1 into "1"."""
    items: Iterable[Any]
    if isinstance(value, dict):
        if not has_text_keys(value):
            return False
        items = value.values()
    elif isinstance(value, (list, tuple)):
        items = value
    else:
        return isinstance(value, (str, int, float))
    if depth_left == 0:
        return False
    # Plain loops here and below: half the time of `all()` for the few items of a usual call.
    for item in items:
        if type(item) not in SCALARS and not is_encodable(item, depth_left - 1):
            return False
    return True


def has_text_keys(value: dict[Any, Any]) -> bool:
    """Say whether all keys are text, and no two of them the same on the wire."""
    for key in value:
        if type(key) is not str:
            return _are_apart(value)
    return True


def _are_apart(value: dict[Any, Any]) -> bool:
    """Look at keys of subclasses, of which two may have the same text and not be equal."""
    if not all(issubclass(type(key), str) for key in value):
        return False
    return len({str.__str__(key) for key in value}) == len(value)
