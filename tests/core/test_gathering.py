"""A copy that comes page by page while its map changes is the map as it once was, or none."""

from __future__ import annotations

import random
from zlib import crc32

import attrs
import pytest

from pool.maps.deltas import Delta, Edit, Gathering, Page, Position, Value

KEYS = [b"%d" % n for n in range(12)]
TEXTS = [b"", b"x", b"y", b"z"]
START = Position("i1", 0)
SEEDS = 300


@attrs.define
class Server:
    """A map as a server holds it: a hash, in an order of its own, and one sorted set of items."""

    dice: random.Random
    at: Position = START
    strings: dict[bytes, bytes] = attrs.field(factory=dict)
    listed: list[tuple[bytes, int, bytes]] = attrs.field(factory=list)
    log: list[Delta] = attrs.field(factory=list)
    appended: int = 0
    stamps: int = 0
    seed: int = 0  # of the order of the hash
    states: dict[Position, dict[bytes, Value]] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.states[self.at] = {}

    def items(self) -> dict[bytes, Value]:
        found: dict[bytes, Value] = dict(self.strings)
        for key, _, value in self.listed:
            held = found.get(key, ())
            assert isinstance(held, tuple)
            found[key] = (*held, value)
        return found

    def write(self) -> None:
        edits: list[Edit] = []
        for _ in range(self.dice.choice([1, 1, 3])):
            kind = self.dice.choice("++--aaaaaarr" if self.dice.random() > 0.03 else "*")
            edits += self._edit(kind, self.dice.choice(KEYS), self.dice.choice(TEXTS))
        if edits:
            after, self.stamps = (self.at.revision, self.at.stamp), self.stamps + 1
            self.at = Position("i1", self.at.revision + 1, f"{self.stamps:x}")
            self.log.append(Delta(self.at, after, tuple(edits)))
            self.states[self.at] = self.items()

    def _edit(self, kind: str, key: bytes, text: bytes) -> list[Edit]:
        without = [each for each in self.listed if each[0] != key]
        match kind:
            case "*":
                self.strings.clear()
                self.listed.clear()
                return [("*", b"", b"")]
            case "+":
                self.strings[key], self.listed = text, without
                return [("+", key, text)]
            case "-":
                self.strings.pop(key, None)
                self.listed = without
                return [("-", key, b"")]
            case "a" if key not in self.strings:
                self.appended += 1
                self.listed.append((key, self.appended, text))
                self.listed.sort()
                return [("a", key, text)]
            case "r" if any(each[::2] == (key, text) for each in self.listed):
                self.listed = [each for each in self.listed if each[::2] != (key, text)]
                return [("r", key, text)]
        return []

    def page(self, reader: Reader) -> Page:
        """Answer as `rmap_page.lua` does."""
        since, most = reader.gathering.at, self.dice.choice([1, 2, 5])
        log = [d for d in self.log if since is not None and d.at.revision > since.revision]
        if len(log) > most:
            return self._page(reader, log[:most], has_more=True)
        strings: dict[bytes, bytes] = {}
        while reader.cursor is not None and len(strings) < most:
            order = sorted((crc32(b"%d %s" % (self.seed, key)), key) for key in self.strings)
            left = [each for each in order if each[0] >= reader.cursor]
            strings.update({key: self.strings[key] for _, key in left[:most]})
            reader.cursor = left[most - 1][0] + 1 if len(left) > most else None
        found: list[tuple[bytes, int, bytes]] = []
        is_last = False
        if reader.cursor is None and len(strings) < most:
            left_items = [each for each in self.listed if each[:2] > reader.behind]
            found, is_last = left_items[:most], len(left_items) < most
            reader.behind = found[-1][:2] if found else reader.behind
        return self._page(reader, log, strings=strings, found=found, is_last=is_last)

    def _page(
        self,
        reader: Reader,
        log: list[Delta],
        *,
        has_more: bool = False,
        strings: dict[bytes, bytes] | None = None,
        found: list[tuple[bytes, int, bytes]] | None = None,
        is_last: bool = False,
    ) -> Page:
        lists: dict[bytes, list[bytes]] = {}
        for key, _, value in found or ():
            lists.setdefault(key, []).append(value)
        behind = reader.behind
        return Page(
            at=self.at,
            deltas=tuple(log),
            has_more=has_more,
            strings=strings or {},
            lists=lists,
            is_whole=lambda key: key < behind[0],
            is_last=is_last,
            strings_count=len(self.strings),
            listed_count=len(self.listed),
        )


@attrs.define
class Reader:
    gathering: Gathering = attrs.field(factory=Gathering)
    cursor: int | None = 0
    behind: tuple[bytes, int] = (b"", 0)


@pytest.mark.parametrize("part", range(4))
def test_it_is_the_map_at_its_position_whatever_was_written_meanwhile(part: int) -> None:
    """G-10, and it is never begun anew as long as the history leads on."""
    pages = written = 0
    for seed in range(part * SEEDS, (part + 1) * SEEDS):
        dice = random.Random(seed)
        server, reader = Server(dice), Reader()
        for _ in range(dice.randrange(60)):
            server.write()
        writes = dice.choice([0, 1, 1, 2])
        while not reader.gathering.is_over:
            assert reader.gathering.add(server.page(reader)), seed
            pages += 1
            for _ in range(writes if pages % 7 else 0):
                server.write()
                written += 1
        state = reader.gathering.state()
        assert dict(state.items) == server.states[state.at], seed
    assert pages > 3 * SEEDS
    assert written > 3 * SEEDS


@pytest.mark.parametrize("part", range(4))
def test_what_does_not_lead_on_is_never_taken_for_the_map(part: int) -> None:
    """The log was trimmed, the server went back, or another one orders its pages anew."""
    refused = whole = 0
    for seed in range(part * SEEDS, (part + 1) * SEEDS):
        dice = random.Random(seed)
        server, reader = Server(dice), Reader()
        for _ in range(dice.randrange(60)):
            server.write()
        while not reader.gathering.is_over:
            if not reader.gathering.add(server.page(reader)):
                refused += 1
                break
            for _ in range(dice.choice([0, 0, 1, 3])):
                server.write()
            match dice.choice(["", "", "", "trim", "order", "back", "fork"]):
                case "trim":
                    server.log = server.log[-dice.randrange(1, 3) :]
                case "order":
                    server.seed += 1
                case "back" | "fork" as fault:
                    _go_back(server, dice)
                    if fault == "fork":
                        server.write()
                        server.write()
        else:
            whole += 1
            state = reader.gathering.state()
            assert dict(state.items) == server.states[state.at], seed
    assert refused > 20
    assert whole > 20


def _go_back(server: Server, dice: random.Random) -> None:
    if server.log:
        lost = server.log.pop()
        before = next(at for at in server.states if (at.revision, at.stamp) == lost.after)
        items = server.states[before]
        server.at = before
        server.strings = {key: v for key, v in items.items() if isinstance(v, bytes)}
        values = [
            (key, v) for key, held in items.items() if not isinstance(held, bytes) for v in held
        ]
        server.listed = []
        server.appended += 100 * dice.randrange(2)
        for key, value in values:
            server.appended += 1
            server.listed.append((key, server.appended, value))
        server.listed.sort()
