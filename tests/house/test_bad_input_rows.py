"""The catalogue of bad input: each row has a test that names it, or a reason why it has none."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
ROWS = {
    "D1": "key empty",
    "D2": "key of another type",
    "D3": "key too long",
    "D4": "key with control characters",
    "D5": "keys equal only after normalisation",
    "D6": "pool name outside its alphabet",
    "D7": "handler unknown at dispatch",
    "D8": "handler unknown at delivery",
    "D9": "handler registered twice",
    "D10": "handler that cannot be called so",
    "D11": "registration after the start",
    "D12": "payload that cannot be encoded",
    "D13": "tuple",
    "D14": "circular structure",
    "D15": "payload too large",
    "D16": "result too large",
    "D17": "headers",
    "D18": "idempotency key",
    "D19": "delay",
    "D20": "timeout",
    "D21": "attempts",
    "D22": "backoff",
    "D23": "settings that contradict each other",
    "D24": "capacity",
    "D25": "address",
    "D26": "unreachable server",
    "D27": "credentials and rights",
    "D28": "server too old, a replica, or loading",
    "D29": "server that may evict",
    "D30": "call before start or after stop",
    "D31": "waiting for one's own job",
    "D32": "full pool",
    "D33": "job id unknown, expired or malformed",
    "D34": "stored entry without its fields",
    "D35": "stored version that is newer",
    "D36": "stored number that is none",
    "D37": "stored owner of an unknown form",
    "D38": "replay of a letter whose handler is gone",
    "D39": "query parameters of a dashboard",
}
NOT_YET = {
    "D17": "there are no headers",
    "D39": "there is no dashboard",
}
_ROW = re.compile(r"\bD([1-9]\d?)\b(?: to D(\d+))?")


def named() -> set[str]:
    """Return the rows that tests name; `D1 to D4` is four."""
    found = set()
    for path in TESTS.rglob("test_*.py"):
        if path != Path(__file__):
            for first, last in _ROW.findall(path.read_text("utf-8")):
                found |= {f"D{n}" for n in range(int(first), int(last or first) + 1)}
    return found


def test_every_row_has_a_test_or_a_reason() -> None:
    assert named() & ROWS.keys() == ROWS.keys() - NOT_YET.keys()
    assert named() <= ROWS.keys()
