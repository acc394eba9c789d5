"""Equal values are equal bytes, in every process: what Python leaves to chance has no say.

A set is iterated in the order of its hashes, and those of text are drawn anew by each process.
Calls are compared by their bytes (idempotency keys, `attach`, batches, plans), so each set is
written in the order of what its items are on the wire.  Our own shapes do that themselves; other
libraries write a set as they find it, so what they made is put in order here, beside the value that
it was made of.

What a serializer of the user's own makes of a set (one text, say) is left as it is: nothing shows
which parts of it come from there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Any, Final

_TEXT: Final = frozenset({str})
_HOLD_OTHERS: Final = frozenset({list, tuple, dict})
_rank: Final = json.JSONEncoder(default=lambda other: {"": repr(other)}).encode


def sorted_wires(wires: list[Any]) -> list[Any]:
    """Return the items of a set, as they are on the wire, in the order that they always have."""
    if _TEXT.issuperset(map(type, wires)):
        return sorted(wires)
    return sorted(wires, key=_rank)


def ordered(value: Any, wire: Any) -> Any:
    """Return what a library has made of a value, with the items of each set in their order."""
    kind = type(wire)
    of: Any = type(value)
    if getattr(of, "__pydantic_root_model__", False):
        return ordered(value.root, wire)
    if kind is dict:
        if isinstance(value, Mapping):
            if len(value) != len(wire):
                return wire  # a serializer has left something out: which, nobody says
            pairs = zip(value.items(), wire.items(), strict=True)
            return {_part(k, key): _part(v, part) for (k, v), (key, part) in pairs}
        names = _attributes(of)
        return {
            key: ordered(getattr(value, names.get(key, key), None), part)
            if type(part) in _HOLD_OTHERS
            else part
            for key, part in wire.items()
        }
    if kind not in _HOLD_OTHERS:
        return wire
    is_set = isinstance(value, AbstractSet)
    made = wire
    if not _HOLD_OTHERS.isdisjoint(map(type, wire)):
        items = _items(value, wire)
        if items is not None:
            made = [_part(item, part) for item, part in zip(items, wire, strict=True)]
    if is_set:
        made = sorted_wires(list(made))
    return made if type(made) is kind else kind(made)


def _part(value: Any, wire: Any) -> Any:
    return ordered(value, wire) if type(wire) in _HOLD_OTHERS else wire


def _items(value: Any, wire: Any) -> list[Any] | None:
    """Return of what each item of a list was made; None: that cannot be seen."""
    fields = getattr(type(value), "__struct_fields__", None)
    if fields is not None:  # of an array-like struct, its tag first if it has one
        tag: list[Any] = [None] * (len(wire) - len(fields))
        found = [*tag, *(getattr(value, name) for name in fields)]
    elif isinstance(value, (list, tuple, AbstractSet)):
        found = list(value)
    else:
        return None
    return found if len(found) == len(wire) else None


@lru_cache(1024)
def _attributes(kind: Any) -> Mapping[str, str]:
    """Return by which attribute each field of a struct is read, where its name is another one."""
    if not hasattr(kind, "__struct_encode_fields__"):
        return {}
    return dict(zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True))
