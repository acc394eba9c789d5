"""Which server is the primary, decided from what several guides say.  Pure functions.

A guide is a sentinel, or a node of a cluster.  Each of its answers claims, for each slot, an owner
with a config epoch (sentinels know one slot, 0).  Epochs only grow: every failover gets a new one.

    claims --agreed()--> the quorum's claim, or None --step()--> belief

A claim is the quorum's if a majority of the guides that have a vote makes it.  Its epoch is the
highest that a majority reaches, so one guide cannot raise it.  In a cluster a node that claims a
slot for itself, with a higher epoch than all other claims, is right too, if a majority knows that
node: gossip about a slot that has just moved reaches the others later.

    none          --the quorum claims X--> X
    X at epoch e  --it claims Y at a higher epoch--> Y        also X itself, at a higher epoch
    X at epoch e  --no majority--> X                          guides are away, or disagree
    X at epoch e  --it claims Y at e or below--> doubt --for REBUILT_S without a break--> Y
                                                 doubt --anything else--> X

The last case is that of guides that were set up anew and count epochs from the start.  A late
answer, or a guide that missed a failover, never leads back to a primary that was replaced.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import attrs

REBUILT_S: Final = 5.0  # a majority with lower epochs is believed after so long

Owner: TypeAlias = Hashable  # a sentinel's master: its address; a node of a cluster: its id
Address: TypeAlias = tuple[str, int]


@attrs.frozen
class OwnerClaim:
    """One slot belongs to this owner since this epoch."""

    owner: Owner
    epoch: int


@attrs.frozen
class GuideAnswer:
    """The claims of one guide."""

    guide: Owner
    ranges: Sequence[tuple[int, int, OwnerClaim]]  # first slot, last slot, claim
    places: Mapping[Owner, Address]  # the address of each owner
    has_vote: bool = True
    votes: int = 0  # how many guides have a vote, as far as this guide knows
    known: frozenset[Owner] = frozenset()  # all nodes that this guide knows
    replicas: Sequence[Address] = ()

    def claim(self, slot: int) -> OwnerClaim | None:
        """Return the claim about this slot."""
        return next((claim for low, high, claim in self.ranges if low <= slot <= high), None)


@attrs.frozen
class Belief:
    """What this process believes of one slot."""

    claim: OwnerClaim | None = None
    doubt: OwnerClaim | None = None  # what a majority claims instead, at a lower epoch ...
    doubt_s: float = 0.0  # ... since this moment


def needed_votes(answers: Iterable[GuideAnswer], asked_max: int) -> int:
    """Return the majority of a cluster's votes; at most `asked_max` nodes are asked."""
    votes = sorted(answer.votes for answer in answers if answer.has_vote)
    if not votes:
        return 1
    return min(votes[(len(votes) - 1) // 2], asked_max) // 2 + 1  # the median: one may be wrong


def agreed(answers: Iterable[GuideAnswer], slot: int, needed: int) -> OwnerClaim | None:
    """Return the quorum's claim about a slot; None: there is no majority."""
    votes = {answer.guide: answer for answer in answers if answer.has_vote}
    claims = {guide: claim for guide, each in votes.items() if (claim := each.claim(slot))}
    epochs: dict[Owner, list[int]] = {}
    for claim in claims.values():
        epochs.setdefault(claim.owner, []).append(claim.epoch)
    top = max((claim.epoch for claim in claims.values()), default=0)
    found = [
        OwnerClaim(owner, sorted(each, reverse=True)[needed - 1])
        for owner, each in epochs.items()
        if len(each) >= needed
    ]
    for guide, claim in claims.items():
        knows = sum(guide in other.known for other in votes.values())
        if claim.owner == guide and claim.epoch == top and knows >= needed:
            found.append(claim)
    return max(found, key=lambda claim: claim.epoch, default=None)


def step(belief: Belief, named: OwnerClaim | None, now_s: float) -> Belief:
    """Return the belief after the quorum has named an owner, or nobody (None)."""
    before = belief.claim
    if named is None or named == before:
        return Belief(before)
    if before is None or named.epoch > before.epoch:
        return Belief(named)
    if belief.doubt != named:
        return Belief(before, named, now_s)
    return Belief(named) if now_s - belief.doubt_s >= REBUILT_S else belief


def candidates(
    belief: Belief, answers: Iterable[GuideAnswer], slot: int, *, is_agreed: bool
) -> list[Owner]:
    """Return whom to connect to, in this order.

    Without a majority the present primary comes first: nothing is left for the word of a few.
    After it come other owners that may be newer, for a process that knows nothing yet, or whose
    primary is away together with most guides.
    """
    before = belief.claim
    owners = [before.owner] if before is not None else []
    if is_agreed and owners:
        return owners
    claims = [claim for answer in answers if (claim := answer.claim(slot)) is not None]
    claims.sort(key=lambda claim: -claim.epoch)
    newer = (c.owner for c in claims if before is None or c.epoch > before.epoch)
    return list(dict.fromkeys([*owners, *newer]))
