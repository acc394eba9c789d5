"""A batch as its head tells it, and what a member of one carries; see `lua/lib/members.lua`."""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from typing import Final, Literal, TypeAlias

import attrs

from pool.core.record import digest_of

BatchState: TypeAlias = Literal["open", "sealed", "cancelling", "done", "failed", "cancelled"]
End: TypeAlias = Literal["succeeded", "failed", "cancelled", "missing"]

STATES: Final[dict[str, BatchState]] = {
    "o": "open",
    "s": "sealed",
    "x": "cancelling",
    "d": "done",
    "f": "failed",
    "c": "cancelled",
}
ENDS: Final[dict[str, End]] = {"s": "succeeded", "f": "failed", "c": "cancelled", "m": "missing"}
SETTLED_ENDS: Final = {"done": "s", "failed": "f", "cancelled": "c"}  # of a member that is a batch
CHUNK: Final = 512  # members that stand in one field
NOT_ENDED: Final = "."  # the letter of a member that has not ended
MEMBERS_MAX: Final = 1_000_000
CHECK_S: Final = 60.0  # between two looks at all members that have not ended; of many ...
CHECK_MEMBERS: Final = 1_000  # ... one second for each of so many
IS_BATCH: Final = "\b"  # before the id of a member that is itself a batch; no key begins so


@attrs.frozen(kw_only=True)
class Head:
    """How a batch is."""

    nonce: str
    state: BatchState
    members: int
    succeeded: int
    failed: int
    cancelled: int
    missing: int
    least: int | None  # how many must succeed; None: all
    created_ms: int
    sealed_ms: int  # while it is open: by when it will be
    settled_ms: int  # 0: it is not
    keep_ms: int
    cause: str

    @property
    def ended(self) -> int:
        """How many members have."""
        return self.succeeded + self.failed + self.cancelled + self.missing

    @property
    def is_settled(self) -> bool:
        """Whether nothing of it changes any more."""
        return self.settled_ms > 0

    @classmethod
    def parse(cls, text: bytes) -> Head:
        """Return what a script told; ValueError: it is none."""
        match = _HEAD.fullmatch(text.decode())
        if match is None:
            raise ValueError("no batch")
        nonce, state, *numbers, cause = match.groups()
        members, s, f, c, m, least, created, sealed, settled, keep, _ = numbers
        return cls(
            nonce=nonce,
            state=STATES[state],
            members=int(members),
            succeeded=int(s),
            failed=int(f),
            cancelled=int(c),
            missing=int(m),
            least=int(least) if least else None,
            created_ms=int(created),
            sealed_ms=int(sealed),
            settled_ms=int(settled or 0),
            keep_ms=int(keep),
            cause=cause,
        )


_HEAD: Final = re.compile(
    r"([^|]+)\|([osxdfc])" + r"\|(\d{1,16})" * 5 + r"\|(\d{0,16})" + r"\|(\d{1,16})" * 2
    + r"\|(\d{0,16})" + r"\|(\d{1,16})" * 2 + r"\|([^|]*)",
    re.ASCII,
)  # fmt: skip


def check_s(members: int) -> float:
    """Return after how long the members of a batch are looked at again."""
    return max(CHECK_S, min(members, MEMBERS_MAX) / CHECK_MEMBERS)


def noted(key: str, handler: str, payload: bytes) -> str:
    """Return what a batch notes of a job: whoever adds it again must add the same call.

    48 bits of the digest that a job of a known id has: that another call is taken for it would be
    one chance in 10^14.
    """
    digest = bytes.fromhex(digest_of(handler, payload)[:12])
    return f"{key}\t{urlsafe_b64encode(digest).decode()}"


def outer_of(parent: str) -> str:
    """Return the id of the batch whose member one is, by what `member_of()` made; or nothing."""
    return parent.split("/", 3)[-1]


def member_id(nonce: str, index: int) -> str:
    """Return the id of a member: the same whoever dispatches it, and however often."""
    return f"{nonce}.{index:x}"


def is_member(job_id: str) -> bool:
    """Whether it may be the id of a member: other jobs may be called so."""
    return job_id[:1] == "b" and "." in job_id


def member_of(batch_id: str, nonce: str, lane: int, index: int) -> str:
    """Return what a member has in `more` of its record."""
    return f"{index}/{lane}/{nonce}/{batch_id}"
