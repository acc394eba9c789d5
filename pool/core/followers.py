"""The followers of a job as one text, which `lua/lib/channel.lua` reads when the job ends.

    WHEN LANE DELAY PLACE KIND NAME #KEY #ID #HANDLER #MORE #PAYLOAD\\n KEY ID HANDLER MORE PAYLOAD

one after another.  A follower's own followers stand behind its call, in its payload, and how long
the call is in its `more`; so a chain is as large as its parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal, TypeAlias
from urllib.parse import quote, unquote

import attrs

from pool.core.ids import derived_id
from pool.core.record import KIND_LETTERS, Kind, more_of, pack_more
from pool.names import pair, split_pair

When: TypeAlias = Literal["then", "otherwise"]

_WHENS: Final[dict[str, When]] = {"t": "then", "o": "otherwise"}
_LETTERS: Final = {when: letter for letter, when in _WHENS.items()}
NO_PLACE: Final = -1  # it is not told what its predecessor has to say


@attrs.frozen(kw_only=True)
class Follows:
    """One job that is to follow another."""

    when: When
    key: str
    id: str
    handler: str
    kind: Kind | None = None  # None: as the handler was registered
    lane: int
    delay_ms: int = 0
    place: int = NO_PLACE  # where in its call `null` stands for that
    call: bytes
    followers: bytes = b""  # its own, packed

    def pack(self) -> bytes:
        """Return what the script reads."""
        more = pack_more(followers=len(self.call)) if self.followers else ""
        key, job_id, handler = self.key.encode(), self.id.encode(), self.handler.encode()
        parts = (key, job_id, handler, more.encode(), self.call + self.followers)
        head = (
            _LETTERS[self.when],
            self.lane,
            self.delay_ms,
            self.place,
            KIND_LETTERS[self.kind] if self.kind else "?",
            name_of(self.key, self.id),
            *map(len, parts),
        )
        return " ".join(map(str, head)).encode() + b"\n" + b"".join(parts)


@attrs.frozen(kw_only=True)
class Followed:
    """One of a packed text, as far as people are told of it."""

    when: When
    key: str
    id: str
    handler: str
    followers: bytes


_HEAD: Final = re.compile(
    rb"([to]) \d+ \d+ -?\d+ [js?] \S+ (\d+) (\d+) (\d+) (\d+) (\d+)\n", re.ASCII
)


def parse(text: bytes) -> Iterator[Followed]:
    """Yield the followers of a packed text, as far as it can be read."""
    at = 0
    while (head := _HEAD.match(text, at)) is not None:
        at, parts = head.end(), []
        for size in head.groups()[1:]:
            parts.append(text[at : at + int(size)])
            at += int(size)
        key, job_id, handler, more, payload = parts
        size = more_of(more.decode(errors="replace"), "followers")
        yield Followed(
            when=_WHENS[head[1].decode()],
            key=key.decode(errors="replace"),
            id=job_id.decode(errors="replace"),
            handler=handler.decode(errors="replace"),
            followers=payload[int(size) :] if size.isdecimal() else b"",
        )


def renamed(text: bytes, key: str, job_id: str) -> bytes:
    """Return packed followers as those of another job: their ids are made of its id and theirs."""
    at, texts = 0, []
    while (head := _HEAD.match(text, at)) is not None:
        at, words, parts = head.end(), head[0][:-1].split(b" "), list[bytes]()
        for size in head.groups()[1:]:
            parts.append(text[at : at + int(size)])
            at += int(size)
        own_key, own_id = parts[0].decode(), parts[1].decode()
        new_id = derived_id(f"{own_id} {pair(key, job_id)}")
        size = more_of(parts[3].decode(), "followers")
        if size.isdecimal():
            call, behind = parts[4][: int(size)], parts[4][int(size) :]
            parts[4] = call + renamed(behind, own_key, new_id)
        parts[1] = new_id.encode()
        words[5:] = [name_of(own_key, new_id).encode(), *(b"%d" % len(part) for part in parts)]
        texts.append(b" ".join(words) + b"\n" + b"".join(parts))
    return b"".join(texts)


def follower_id(key: str, job_id: str, place: str) -> str:
    """Return the id of a job's follower at a place: the same whoever asks, and however often."""
    return derived_id(f"{place} {pair(key, job_id)}")


def name_of(key: str, job_id: str) -> str:
    """Return a job's name as a word without what separates words."""
    return quote(pair(key, job_id), safe="")


def released(more: str) -> list[tuple[str, str]]:
    """Return keys and ids of the followers that an outcome says were released."""
    names = more_of(more, "followers").split(";")
    return [split_pair(unquote(name)) for name in names if "%20" in name]
