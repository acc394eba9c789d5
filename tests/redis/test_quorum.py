"""The decision who is primary: tables of cases, and answers at random in any order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.redis.quorum import (
    REBUILT_S,
    Belief,
    GuideAnswer,
    OwnerClaim,
    agreed,
    candidates,
    needed_votes,
    step,
)
from pool.redis.topology import read_node, read_sentinel, read_slots

A, B, C = ("a", 1), ("b", 1), ("c", 1)


def answer(guide: Any, owner: Any, epoch: int, **more: Any) -> GuideAnswer:
    """Return the answer of a guide about slot 0."""
    return GuideAnswer(guide, [(0, 0, OwnerClaim(owner, epoch))], {owner: owner}, **more)


def sentinels(*claims: tuple[Any, int] | None) -> list[GuideAnswer]:
    """Return the answers of sentinels; None: this one does not answer."""
    return [answer(i, *claim) for i, claim in enumerate(claims) if claim is not None]


@pytest.mark.parametrize(
    ("claims", "named"),
    [
        ([(A, 3), (A, 3), (A, 3)], OwnerClaim(A, 3)),
        ([(A, 3), (A, 3), None], OwnerClaim(A, 3)),
        ([(A, 3), None, None], None),
        ([(B, 9), (A, 3), (A, 3)], OwnerClaim(A, 3)),  # one guide lies
        ([(A, 9), (A, 3), (A, 3)], OwnerClaim(A, 3)),  # ... about the epoch
        ([(B, 4), (A, 3), None], None),  # the first to know of a failover, and nobody else
        ([(B, 4), (A, 3), (B, 4)], OwnerClaim(B, 4)),
        ([(A, 1), (B, 2), (C, 3)], None),
        ([], None),
    ],
)
def test_a_majority_of_the_sentinels_names_the_primary(
    claims: Any, named: OwnerClaim | None
) -> None:
    assert agreed(sentinels(*claims), 0, 2) == named


def node(name: str, owner: str, epoch: int, **more: Any) -> GuideAnswer:
    facts = {"votes": 3, "known": frozenset("pqrs"), **more}
    return answer(name, owner, epoch, **facts)


@pytest.mark.parametrize(
    ("answers", "named"),
    [
        # p is cut off from the others, and still calls itself the owner.
        ([node("p", "p", 1), node("q", "s", 4), node("r", "s", 4)], OwnerClaim("s", 4)),
        ([node("p", "p", 1), node("q", "s", 4), node("s", "s", 4)], OwnerClaim("s", 4)),
        ([node("p", "p", 1)], None),
        # Replicas have no vote.
        ([node("p", "p", 1), node("x", "s", 4, has_vote=False)], None),
        # The slot has just moved to s: the others have not heard of it.
        ([node("s", "s", 9), node("q", "p", 1), node("r", "p", 1)], OwnerClaim("s", 9)),
        # p is cut off, s hangs, q is dead: r alone knows better, and p does not become right.
        ([node("p", "p", 1), node("r", "s", 4)], None),
        # A node of another cluster, which nobody knows.
        ([node("x", "x", 9), node("q", "p", 1), node("r", "p", 1)], OwnerClaim("p", 1)),
        # The same node at two addresses has one vote.
        ([node("q", "s", 4), node("q", "s", 4)], None),
    ],
)
def test_the_primaries_of_a_cluster_name_the_owner_of_a_slot(
    answers: list[GuideAnswer], named: OwnerClaim | None
) -> None:
    assert needed_votes(answers, 8) == 2
    assert agreed(answers, 0, 2) == named


def test_of_a_large_cluster_a_majority_of_those_that_are_asked_is_enough() -> None:
    assert needed_votes([node("p", "p", 1, votes=100)], 8) == 5
    assert needed_votes([], 8) == 1


def test_an_epoch_that_is_not_higher_is_believed_only_after_a_while() -> None:
    """Guides that were set up anew count from the start; a late answer is gone by then."""
    believed, rebuilt = Belief(OwnerClaim(A, 5)), OwnerClaim(B, 5)
    assert step(believed, OwnerClaim(B, 6), 0.0).claim == OwnerClaim(B, 6)
    doubting = step(believed, rebuilt, 0.0)
    assert doubting.claim == OwnerClaim(A, 5)
    assert step(doubting, rebuilt, REBUILT_S - 0.1).claim == OwnerClaim(A, 5)
    assert step(doubting, rebuilt, REBUILT_S).claim == rebuilt
    # Whatever comes between begins the time anew: another word, or none.
    for other in (None, OwnerClaim(A, 5), OwnerClaim(C, 4)):
        again = step(step(doubting, other, 1.0), rebuilt, 2.0)
        assert step(again, rebuilt, REBUILT_S + 1.0).claim == OwnerClaim(A, 5)


def test_without_a_majority_the_present_primary_comes_first() -> None:
    answers = sentinels((B, 7), (C, 2), None)
    assert candidates(Belief(OwnerClaim(A, 5)), answers, 0, is_agreed=False) == [A, B]
    assert candidates(Belief(OwnerClaim(A, 5)), answers, 0, is_agreed=True) == [A]
    assert candidates(Belief(), answers, 0, is_agreed=False) == [B, C]  # the newest first
    assert candidates(Belief(), [], 0, is_agreed=False) == []


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from(["liar", "late", "away"]), st.integers(0, 9)),
        max_size=60,
    ),
    st.lists(st.integers(1, 3), max_size=10),
)
def test_no_history_leads_back(faults: list[tuple[int, str, int]], failovers: list[int]) -> None:
    """Five sentinels, of which at most two lie, are late or are away at any time.

    Failovers happen one after the other; whatever those two say, the belief is always a primary
    that the quorum has named, its epoch never falls, and it is the newest once all are heard.
    """
    truth, belief, believed = [OwnerClaim("0", 0)], Belief(OwnerClaim("0", 0)), [0]
    for i in range(max(len(failovers), 1)):
        for _ in range(failovers[i] if i < len(failovers) else 0):
            truth.append(OwnerClaim(str(len(truth) % 3), truth[-1].epoch + 1))
        said: list[tuple[Any, int] | None] = [(truth[-1].owner, truth[-1].epoch)] * 5
        for guide, fault, number in dict.fromkeys(faults[2 * i : 2 * i + 2]):
            old = truth[number % len(truth)]
            said[guide] = {
                "liar": ("evil", 100 + number),
                "late": (old.owner, old.epoch),
                "away": None,
            }[fault]
        belief = step(belief, agreed(sentinels(*said), 0, 3), float(i) / 10)
        assert belief.claim in truth
        believed.append(belief.claim.epoch)
        assert belief.claim == truth[-1]
    assert believed == sorted(believed)


# --- what guides say ----------------------------------------------------------------------------

NODES = (
    b"07c3 127.0.0.1:30004@31004,host master - 0 0 4 connected 0-5460\n"
    b"67ed 127.0.0.1:30002@31002 myself,master - 0 0 2 connected 5461-10922 [93-<-07c3]\n"
    b"292f 127.0.0.1:30003@31003 master - 0 0 3 connected 10923-16383\n"
    b"6ec2 127.0.0.1:30005@31005 slave 67ed 0 0 2 connected\n"
    b"aaaa :0@0 master,noaddr - 0 0 0 disconnected\n"
)


def test_a_node_says_who_it_is_and_how_many_vote() -> None:
    slots = [[0, 5460, [b"127.0.0.1", 30004, b"07c3"]], [5461, 10922, [b"", 30002, b"67ed"]]]
    told = read_node(("asked", 1), [slots, NODES])
    assert (told.guide, told.has_vote, told.votes) == ("67ed", True, 3)
    assert told.claim(5000) == OwnerClaim("07c3", 4)
    assert told.claim(9000) == OwnerClaim("67ed", 2)
    assert told.claim(16_000) is None
    assert told.known == {"07c3", "67ed", "292f", "6ec2", "aaaa"}
    assert told.places == {"07c3": ("127.0.0.1", 30004), "67ed": ("asked", 30002)}


@pytest.mark.parametrize(
    ("endpoint", "host"),
    [
        ([b"10.0.0.1", 1, b"id"], "10.0.0.1"),
        ([b"", 1, b"id"], "asked"),
        ([None, 1, b"id", [b"ip", b"10.0.0.2"]], "asked"),  # as if it were asked there: NAT
        ([b"?", 1, b"id", []], "asked"),
        ([b"?", 1, b"id", [b"ip", b"10.0.0.2"]], "10.0.0.2"),
        ([b"?", 1, b"id", {b"ip": b"10.0.0.2"}], "10.0.0.2"),
        ([b"?", 1, b"id", [b"ip", b"?"]], "asked"),
    ],
)
def test_an_unknown_endpoint_is_the_host_that_was_asked(endpoint: list[Any], host: str) -> None:
    assert read_slots([[0, 16_383, endpoint]], ("asked", 7)) == [(0, 16_383, "id", (host, 1))]


@pytest.mark.parametrize("is_map", [False, True])
def test_a_sentinel_names_an_address_and_an_epoch(is_map: bool) -> None:
    facts: Any = [b"name", b"main", b"config-epoch", b"7"]
    facts = dict(zip(facts[::2], facts[1::2], strict=True)) if is_map else facts
    told = read_sentinel(A, [facts, [b"10.0.0.1", b"6379"]])
    assert told.claim(0) == OwnerClaim(("10.0.0.1", 6379), 7)
