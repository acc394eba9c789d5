"""What is wanted for jobs: by their handler, and by a dispatch whose key has a live job.

A handler's options stand in its lane.  The scripts read of them the policy, which comes last
(`lua/dispatch.lua`), and by when a job must begin (`lua/lib/wait.lua`).
"""

from __future__ import annotations

import re
from typing import Final, Literal, TypeAlias, get_args

import attrs

from pool.core.ids import number
from pool.core.record import KIND_LETTERS, KINDS, Kind

# `timeout_s`, `progress_timeout_s`, `start_timeout_s`
Limit: TypeAlias = Literal["timeout", "progress", "start"]
LIMITS: Final[tuple[Limit, ...]] = get_args(Limit)


# --- what a dispatch wants where its key has a live job ----------------------------------------

IfExists: TypeAlias = Literal["reject", "attach", "queue", "replace", "coalesce"]
LINE_MAX: Final = 1000  # jobs queued behind one, whatever is asked for
POLICY_LETTERS: Final = "abcqr"
_POLICY: Final = rf"[{POLICY_LETTERS}]\d{{0,4}}"
ATTACHES: Final = "a"  # the letter of the policy that compares the arguments


def policy_of(if_exists: IfExists, *, queue_max: int, attach_any: bool) -> str:
    """Return the letters that `dispatch` takes: empty to reject, q<N> to queue behind so many."""
    letters = {
        "reject": "",
        "attach": "b" if attach_any else ATTACHES,
        "queue": f"q{queue_max}",
        "replace": "r",
        "coalesce": "c",
    }
    return letters[if_exists]


def registered_policy(text: bytes | None) -> str:
    """Return the letters that a handler was registered with, as it stands in `handlers`."""
    found = re.search(rf"\|({_POLICY})$", (text or b"").decode(errors="replace"))
    return found[1] if found else ""


def attaches(policy: str) -> bool:
    """Say whether what is dispatched by these letters is answered by the live job, and makes none.

    What is not of that handler, or not of these arguments, may be refused.
    """
    return policy.startswith(("a", "b"))


# --- what a handler wants for its jobs --------------------------------------------------------


@attrs.frozen(kw_only=True)
class Options:
    """How jobs of one handler are run; kept in the lane, so that recovery needs no handler code."""

    kind: Kind = "job"
    attempts_max: int = 5  # 0: without limit
    backoff_s: float = 1.0
    backoff_max_s: float = 60.0
    timeout_s: float | None = None
    healthy_s: float = 60.0
    retention_s: float | None = None
    progress_timeout_s: float | None = None
    park_on: frozenset[Limit] = frozenset()  # limits after which an attempt is the last one
    expires_s: float | None = None
    start_timeout_s: float | None = None
    policy: str = ""  # where the key has a live job, see `policy_of`
    # Whether a job must have begun by some time, see `core/record.py`.
    is_timed: bool = attrs.field(init=False)
    # The first limit that a run without any progress comes to; None: it has none.
    limit_s: float | None = attrs.field(init=False)

    @is_timed.default
    def _has_to_begin(self) -> bool:
        return self.expires_s is not None or self.start_timeout_s is not None

    @limit_s.default
    def _first_limit_s(self) -> float | None:
        limits = (self.timeout_s, self.progress_timeout_s)
        return min((limit for limit in limits if limit is not None), default=None)

    def pack(self) -> str:
        """Return what stands in `handlers`: what few have comes last, or not at all."""
        mask = sum(1 << at for at, limit in enumerate(LIMITS) if limit in self.park_on)
        numbers = (
            self.attempts_max,
            round(self.backoff_s * 1000),
            round(self.backoff_max_s * 1000),
            _limit_ms(self.timeout_s),
            round(self.healthy_s * 1000),
        )
        rare = (
            *(_limit_ms(self.retention_s), _limit_ms(self.progress_timeout_s), mask),
            *(_limit_ms(self.expires_s), _limit_ms(self.start_timeout_s)),
        )
        words = [KIND_LETTERS[self.kind], *map(str, numbers)]
        words += [str(number) if number else "" for number in rare]
        return "|".join([*words, self.policy]).rstrip("|")

    @classmethod
    def parse(cls, text: bytes) -> Options:
        """Return the options; what cannot be read counts as the defaults."""
        fields = text.decode(errors="replace").split("|")
        try:
            attempts, base, cap, timeout, healthy = map(number, fields[1:6])
            rare = [number(text) if text else 0 for text in fields[6:11]]
            retention, progress, mask, expires, start = (*rare, 0, 0, 0, 0, 0)[:5]
        except ValueError:
            return cls()
        if fields[0] not in KINDS:
            return cls()
        return cls(
            kind=KINDS[fields[0]],
            attempts_max=attempts,
            backoff_s=max(base, 1) / 1000,
            backoff_max_s=max(cap, base, 1) / 1000,
            timeout_s=timeout / 1000 if timeout else None,
            healthy_s=healthy / 1000,
            retention_s=retention / 1000 if retention else None,
            progress_timeout_s=progress / 1000 if progress else None,
            park_on=frozenset(limit for at, limit in enumerate(LIMITS) if mask >> at & 1),
            expires_s=expires / 1000 if expires else None,
            start_timeout_s=start / 1000 if start else None,
            policy=fields[-1] if re.fullmatch(_POLICY, fields[-1], re.ASCII) else "",
        )


def _limit_ms(limit_s: float | None) -> int:
    return 0 if limit_s is None else max(1, round(limit_s * 1000))
