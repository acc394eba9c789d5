r"""Follows the primary that the sentinels, or the majority of a cluster, name.

One watch per place and process, with a thread of its own: it serves all connections of all nodes,
maps, streams and clients in this process, also while an event loop hangs.

    sentinel   a connection to each sentinel of the address.  It hears at once of failovers, and
               asks every LOOK_S, because what is published may be lost
    cluster    a connection to up to GUIDES_MAX nodes, primaries first, each asked every LOOK_S

    asks, hears  -->  answers  --quorum.agreed, step-->  belief  -->  connections that lead to
                                                                      another server are moved

A connection is moved by shutting its socket: a call under way gets the outcome of a connection
that was cut (maybe done), and nothing new is sent there.  It connects again to the server that is
believed in; a server that is opposed by the quorum is left again before its first call.

A sentinel says when it is about to promote a replica, and learns up to a second later that this was
done.  What the old primary acknowledges in between is lost.  So connections pause: nothing new is
sent until the quorum names the new primary, for HOLD_S at most and once in HOLD_AGAIN_S.

    follows --a sentinel promotes a replica--> holds --the quorum names it--> follows, moved
                                                 \--aborted, or HOLD_S passed--> follows, the same

What starts a look before its time: a connection that is being made, `+switch-master`, and replies
that a primary gives if it is cut off or was replaced (`errors.is_doubtful`).  After these the
guides are asked every HURRY_S, for HURRIES_S; again after HURRY_AGAIN_S, if such replies go on.

What may go wrong:

    a guide is away, hangs, or leads nowhere    its answer is dropped after FRESH_S; a majority of
                                                the others is enough
    all guides are away                         connections stay, and reconnect to the same server
    a guide lies                                outvoted; without a majority nothing is moved.  It
                                                can make all wait for HOLD_S in HOLD_AGAIN_S
    an answer comes late                        its epoch is too low; see `quorum`
    the primary and most guides are cut off     the same as "all guides are away": nobody can know
    the watch crashes                           logged; it begins anew after a pause.  Connections
                                                wait for it for a part of their time only, and then
                                                go by the last belief, or by a cluster's address
    this process forks                          the child forgets all watches

Who writes what, under the lock: the watch's thread `_answers` and `_settled`; that thread and each
look the `_beliefs`, which follow from these.  Others set only `_wanted_s` and `_hurry_s`.
"""

from __future__ import annotations

import selectors
import socket
import threading
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, Protocol, TypeAlias

import attrs
import hiredis

from pool.redis.errors import Garbled, Held, Unanswered
from pool.redis.log import Log
from pool.redis.quorum import (
    Address,
    Belief,
    GuideAnswer,
    Owner,
    OwnerClaim,
    agreed,
    candidates,
    needed_votes,
    step,
)
from pool.redis.url import Url

LOOK_S: Final = 1.0  # from one question to the next, at rest
HURRY_S: Final = 0.1  # ... while something points to a failover
HURRIES_S: Final = 3.0  # ... for so long
HURRY_AGAIN_S: Final = 10.0  # a primary may lack its replicas for hours
FRESH_S: Final = 3.0  # an answer counts for so long
HOLD_S: Final = 2.5  # a promotion is waited for: sentinels look every second whether it is done
HOLD_AGAIN_S: Final = 30.0
GUIDES_MAX: Final = 8  # how many nodes of a cluster are asked
_ANSWER_S: Final = 1.0  # a guide that does not answer in this time is connected to anew
_DIAL_S: Final = 1.5
_GAP_S: Final = 0.05  # between two tries with one guide, whoever wants them
_BACKOFF_MAX_S: Final = 5.0
_PAUSE_S: Final = 1.0  # after a crash
_SLOT_LAST: Final = 16_383
_NOT_YET: Final = object()
_NAME: Final = "keyed-pool-watch"  # in CLIENT LIST
_SWITCHED, _PROMOTES = b"+switch-master", b"+failover-state-send-slaveof-noone"
_ABORTED = b"-failover-abort-slave-timeout"

Dial: TypeAlias = Callable[[Url, Address, float, Callable[[], float]], socket.socket]

_log = Log("pool")


class MovableConnection(Protocol):
    """A connection that wants to lead to the primary."""

    slot: int
    target: Owner | None  # the server that it leads to, as the guides name it

    def move(self, problem: str) -> None:
        """Leave that server; from any thread."""

    def pause(self) -> None:
        """Send nothing more there before a `TopologyWatch.look()`; from any thread."""


@attrs.frozen
class Choice:
    """Whom to connect to: owners with their addresses, the best first."""

    owners: list[tuple[Owner, Address]]
    is_agreed: bool  # a majority has named the first one
    guides: list[Address]  # whom else to try in a cluster
    failed: Exception  # why no guide has answered
    at: Address | None  # ... and which guide that was


# --- what guides say ----------------------------------------------------------------------------


def _packed(*commands: tuple[Any, ...]) -> bytes:
    return b"".join(hiredis.pack_command(words) for words in commands)


def _dict(pairs: list[Any]) -> dict[Any, Any]:
    return dict(zip(pairs[::2], pairs[1::2], strict=True))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")


def read_sentinel(place: Address, replies: list[Any]) -> GuideAnswer:
    """Return the answer of a sentinel to SENTINEL MASTER and GET-MASTER-ADDR-BY-NAME.

    They are asked in this order: an address that changes in between gets an epoch that is too low,
    never an old address one that is too high.
    """
    for reply in replies:
        if isinstance(reply, Exception):
            raise Unanswered from RuntimeError(str(reply))
    facts, named = replies
    if named is None:
        raise Unanswered from RuntimeError("it knows no address")
    facts = facts if isinstance(facts, dict) else _dict(facts)
    owner = (_text(named[0]), int(named[1]))
    claim = OwnerClaim(owner, int(facts[b"config-epoch"]))
    return GuideAnswer(place, [(0, _SLOT_LAST, claim)], {owner: owner})


def read_slots(slots: Any, asked: Address) -> list[tuple[int, int, str, Address]]:
    """Return from CLUSTER SLOTS each range with the id and the address of its owner.

    A node that does not know its own host leaves it out, or says "?": then it is the host that was
    asked, unless the reply also has its `ip`.
    """
    found = []
    for low, high, owner, *_ in slots:
        found.append((int(low), int(high), _text(owner[2]), _place(owner, asked)))
    return found


def _place(node: list[Any], asked: Address) -> Address:
    host, port, _, *more = node
    name = _text(host)
    if name in ("", "?"):
        pairs = more[0] if more else []
        facts = pairs if isinstance(pairs, dict) else _dict(pairs)
        name = _text(facts.get(b"ip")) if name else ""
        name = name if name not in ("", "?") else asked[0]
    return name, int(port)


def read_node(place: Address, replies: list[Any]) -> GuideAnswer:
    """Return the answer of a node of a cluster to CLUSTER SLOTS and CLUSTER NODES."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise Unanswered from RuntimeError(str(reply))
    slots, nodes = replies
    ranges = read_slots(slots, place)
    myself, epochs, masters = "", dict[str, int](), set[str]()
    for line in _text(nodes).splitlines():
        name, _, flags, _, _, _, epoch, _, *served = line.split(" ")
        epochs[name] = int(epoch)
        if "master" in flags.split(",") and served:
            masters.add(name)
        if "myself" in flags.split(","):
            myself = name
    if not myself:
        raise Garbled("a node that does not know itself")
    return GuideAnswer(
        myself,
        [(low, high, OwnerClaim(node, epochs.get(node, 0))) for low, high, node, _ in ranges],
        {node: at for _, _, node, at in ranges},
        has_vote=myself in masters,
        votes=len(masters),
        known=frozenset(epochs),
        replicas=[_place(each, place) for _, _, _, *others in slots for each in others],
    )


# --- the watch ----------------------------------------------------------------------------------


@attrs.define(eq=False)
class _Line:
    """The connection to one guide; belongs to the thread."""

    place: Address
    socket: socket.socket | None = None
    reader: Any = None
    replies: list[Any] = attrs.field(factory=list)
    awaited: int = 0  # how many replies are still to come, those to the greeting included
    greeted: int = 0  # ... of which so many answer the greeting
    is_dialing: bool = False
    asked_s: float = float("-inf")
    failed_s: float = float("-inf")
    next_s: float = float("-inf")  # not dialed again before
    failures: int = 0


class TopologyWatch:
    """What this process knows of the primaries of one place."""

    def __init__(self, url: Url, dial: Dial, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.members: weakref.WeakSet[MovableConnection] = weakref.WeakSet()
        self._url = url
        self._dial = dial
        self._is_cluster = url.kind == "cluster"
        if self._is_cluster:
            self._question: list[tuple[Any, ...]] = [("CLUSTER", "SLOTS"), ("CLUSTER", "NODES")]
        else:
            self._question = [
                ("SENTINEL", "MASTER", url.service),
                ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", url.service),
            ]
        self._news = threading.Condition()
        self._answers: dict[Address, tuple[float, float, GuideAnswer]] = {}  # asked, answered
        self._settled: dict[Address, tuple[float, Exception | None]] = {}  # asked or failed
        self._beliefs: dict[int, Belief] = {}
        self._lines: dict[Address, _Line] = {}
        self._dialed: list[tuple[_Line, socket.socket | None, Exception | None]] = []
        self._wanted_s = float("-inf")  # somebody wants answers to questions from here on
        self._hurry_s = float("-inf")  # until then guides are asked more often
        self._hurry_again_s = float("-inf")
        self._held_s = float("-inf")  # until then a promotion is waited for
        self._hold_again_s = float("-inf")  # ... and before this moment no other one
        self._is_over = False
        self._bell, self._ear = socket.socketpair()
        self._bell.setblocking(False)
        self._ear.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._thread = threading.Thread(target=self._run, name="pool-topology", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    # --- for connections, from any thread -----------------------------------------------------

    def look(self, slot: int, timeout_s: float) -> Choice:
        """Ask all guides now; return whom to connect to, as soon as a majority agrees."""
        began_s = self._clock()
        with self._news:
            self._wanted_s = max(self._wanted_s, began_s)
            self._ring()
            while True:
                now_s = self._clock()
                left_s, held_s = began_s + timeout_s - now_s, self._held_s - now_s
                answers = self._fresh(began_s)
                named = agreed(answers, slot, self._needed(answers))
                is_over = named is not None or self._all_settled(began_s)
                if left_s <= 0 or (is_over and held_s <= 0):
                    break
                self._news.wait(min(left_s, held_s) if held_s > 0 else left_s)
            self._decide()
            if self._clock() < self._held_s:
                return Choice([], True, [], Held(), None)
            return self._choice(slot, answers, is_agreed=named is not None)

    def opposes(self, slot: int, owner: Owner) -> bool:
        """Say whether the quorum names somebody else for this slot."""
        with self._news:
            return self._quorums_owner(slot) not in (None, owner)

    def hurry(self) -> None:
        """Something points to a failover: ask more often for a while."""
        now_s = self._clock()
        if now_s >= self._hurry_again_s:
            self._hurry_s, self._hurry_again_s = now_s + HURRIES_S, now_s + HURRY_AGAIN_S
            self._ring()

    def end(self) -> None:
        """End, soon: there are no connections any more."""
        self._is_over = True
        self._ring()

    def forget(self) -> None:
        """Be the copy in a forked child: the sockets are the parent's."""
        self._is_over = True
        for line in self._lines.values():
            if line.socket is not None:
                line.socket.close()
        for each in (self._bell, self._ear, self._selector):
            with suppress(OSError):
                each.close()

    def _ring(self) -> None:
        with suppress(OSError):  # it has been rung often enough, or is closed
            self._bell.send(b"x")

    def _choice(self, slot: int, answers: list[GuideAnswer], *, is_agreed: bool) -> Choice:
        belief = self._beliefs.get(slot, Belief())
        places: dict[Owner, Address] = {}
        for _, _, each in self._answers.values():
            places |= each.places
        for each in answers:
            places |= each.places
        if belief.claim is not None and not self._is_cluster:
            places.setdefault(belief.claim.owner, belief.claim.owner)  # type: ignore[arg-type]
        owners = candidates(belief, answers, slot, is_agreed=is_agreed)
        problems = ((e, at) for at, (_, e) in self._settled.items() if e is not None)
        failed, at = next(problems, (TimeoutError(), None))
        found = [(each, places[each]) for each in owners if each in places]
        return Choice(found, is_agreed and bool(found), self._places(), failed, at)

    def _members(self) -> list[MovableConnection]:
        with _LOCK:
            return list(self.members)

    # --- under the lock -----------------------------------------------------------------------

    def _fresh(self, since_s: float) -> list[GuideAnswer]:
        return [each for asked_s, _, each in self._answers.values() if asked_s >= since_s]

    def _needed(self, answers: Iterable[GuideAnswer]) -> int:
        if self._is_cluster:
            return needed_votes(answers, GUIDES_MAX)
        return len(self._url.hosts) // 2 + 1

    def _all_settled(self, since_s: float) -> bool:
        settled = self._settled
        return all(settled.get(each, (-1.0, None))[0] >= since_s for each in self._places())

    def _named(self, slot: int) -> OwnerClaim | None:
        answers = self._fresh(self._clock() - FRESH_S)
        return agreed(answers, slot, self._needed(answers))

    def _quorums_owner(self, slot: int) -> Owner | None:
        """Return the owner on whom quorum and belief agree."""
        claim = self._beliefs.get(slot, Belief()).claim
        named = self._named(slot)
        return claim.owner if claim and named and named.owner == claim.owner else None

    def _places(self) -> list[Address]:
        """Return whom to ask; of a cluster first those who own what we need, then primaries."""
        if not self._is_cluster:
            return list(dict.fromkeys(self._url.hosts))
        targets = {member.target for member in self._members()}
        known: dict[Address, None] = {}
        replicas: dict[Address, None] = {}
        for is_ours in (True, False):
            for _, _, answer in list(self._answers.values()):
                replicas.update(dict.fromkeys(answer.replicas))
                for owner, place in answer.places.items():
                    if (owner in targets) is is_ours:
                        known[place] = None
        return list(dict.fromkeys([*known, *self._url.hosts, *replicas]))[:GUIDES_MAX]

    # --- the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        self._selector.register(self._ear, selectors.EVENT_READ)
        while not self._is_over:
            try:
                self._turn()
            except Exception as error:  # noqa: BLE001 - told; connections need no watch to live
                _log.error("part.crashed", part="pool-topology", exc_info=error)
                for line in self._lines.values():
                    self._drop(line, error)
                threading.Event().wait(_PAUSE_S)
            with _LOCK:
                if not self.members:
                    self._is_over = True
        for line in self._lines.values():
            self._hang_up(line)
        with self._news:
            for _, found, _ in self._dialed:
                if found is not None:
                    found.close()
            self._dialed.clear()
            self._selector.close()
            self._bell.close()
            self._ear.close()

    def _turn(self) -> None:
        now_s = self._clock()
        with self._news:
            places = self._places()
            dialed, self._dialed = self._dialed, []
        for line, found, error in dialed:
            self._on_dialed(line, found, error)
        for place in [each for each in self._lines if each not in places]:
            self._hang_up(self._lines.pop(place))
            with self._news:
                self._answers.pop(place, None)
                self._settled.pop(place, None)
        next_s = min(self._attend(self._line(place), now_s) for place in places)
        for key, _ in self._selector.select(max(0.0, next_s - self._clock())):
            if key.data is None:
                with suppress(BlockingIOError):
                    self._ear.recv(4096)
            else:
                self._receive(key.data)
        with self._news:
            self._decide()
            self._news.notify_all()

    def _line(self, place: Address) -> _Line:
        return self._lines.setdefault(place, _Line(place))

    def _attend(self, line: _Line, now_s: float) -> float:
        """Do what is due with one guide; return when to look at it again."""
        wanted_s = self._wanted_s
        if line.is_dialing:
            return now_s + _DIAL_S
        if line.socket is None:
            due_s = line.next_s
            if wanted_s > line.failed_s:
                due_s = min(due_s, line.failed_s + _GAP_S)
            if now_s < due_s:
                return due_s
            self._dial_apart(line)
            return now_s + _DIAL_S
        if line.awaited:
            if now_s < line.asked_s + _ANSWER_S:
                return line.asked_s + _ANSWER_S
            self._drop(line, TimeoutError())
            return now_s + _GAP_S
        due_s = line.asked_s + (HURRY_S if now_s < self._hurry_s else LOOK_S)
        if wanted_s > line.asked_s:
            due_s = min(due_s, line.asked_s + _GAP_S)
        if now_s < due_s:
            return due_s
        self._send(line, _packed(*self._question), len(self._question))
        return now_s + _ANSWER_S

    def _dial_apart(self, line: _Line) -> None:
        """Dial in a thread: looking a name up may hang."""

        def work() -> None:
            found, error = None, None
            try:
                found = self._dial(self._url, line.place, self._clock() + _DIAL_S, self._clock)
            except Exception as caught:  # noqa: BLE001 - the address may be none
                error = caught
            with self._news:
                if self._is_over:
                    if found is not None:
                        found.close()
                    return
                self._dialed.append((line, found, error))
            self._ring()

        line.is_dialing = True
        try:
            threading.Thread(target=work, name="pool-topology-dial", daemon=True).start()
        except RuntimeError as error:  # there are too many threads
            self._on_dialed(line, None, OSError(str(error)))

    def _on_dialed(self, line: _Line, found: socket.socket | None, error: Exception | None) -> None:
        line.is_dialing = False
        if found is None or self._lines.get(line.place) is not line:
            if found is not None:
                found.close()
            self._drop(line, error or ConnectionError())
            return
        line.socket = found
        line.reader = hiredis.Reader(protocolError=Garbled, notEnoughData=_NOT_YET)
        line.replies.clear()
        self._selector.register(found, selectors.EVENT_READ, line)
        line.greeted = 1
        self._send(line, self._greeting() + _packed(*self._question), 1 + len(self._question))

    def _greeting(self) -> bytes:
        """Return what is answered once; no attribute of ours holds the password in it."""
        url = self._url
        if not self._is_cluster:
            # RESP3, where what is published may come between replies.
            return _packed(("HELLO", 3), ("SUBSCRIBE", _SWITCHED, _PROMOTES, _ABORTED))
        who = ("AUTH", url.username or "default", url.password) if url.password else ()
        return _packed(("HELLO", 2, *who, "SETNAME", _NAME))

    def _send(self, line: _Line, packed: bytes, awaited: int) -> None:
        assert line.socket is not None
        line.asked_s, line.awaited = self._clock(), awaited
        try:
            line.socket.sendall(packed)
        except OSError as error:
            self._drop(line, error)

    def _receive(self, line: _Line) -> None:
        try:
            data = line.socket.recv(65_536) if line.socket is not None else b""
            if not data:
                raise ConnectionError
            line.reader.feed(data)
            while (reply := line.reader.gets()) is not _NOT_YET:
                if isinstance(reply, list) and reply and reply[0] in (b"subscribe", b"message"):
                    if reply[0] == b"message" and _is_about(reply[2], self._url.service):
                        self._hear(reply[1])
                    continue
                line.replies.append(reply)
                line.awaited -= 1
                if line.awaited == 0:
                    self._take(line)
        except BlockingIOError:
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, this guide has no answer
            self._drop(line, error if isinstance(error, OSError | Unanswered) else Garbled())

    def _hear(self, event: bytes) -> None:
        """A sentinel says how far a failover of our service is."""
        now_s = self._clock()
        self._wanted_s, self._hurry_s = now_s, now_s + HURRIES_S
        with self._news:
            if event == _ABORTED:
                self._held_s = now_s
            elif event == _PROMOTES and now_s >= self._hold_again_s:
                self._held_s, self._hold_again_s = now_s + HOLD_S, now_s + HOLD_AGAIN_S
                for member in self._members():
                    member.pause()

    def _take(self, line: _Line) -> None:
        """Take the answer of one guide."""
        greetings, replies = line.replies[: line.greeted], line.replies[line.greeted :]
        line.replies, line.greeted = [], 0
        for reply in greetings:
            if isinstance(reply, Exception):
                raise Unanswered from RuntimeError(str(reply))
        read = read_node if self._is_cluster else read_sentinel
        answer = read(line.place, replies)
        line.failures = 0
        with self._news:
            self._answers[line.place] = (line.asked_s, self._clock(), answer)
            self._settled[line.place] = (line.asked_s, None)

    def _drop(self, line: _Line, error: Exception) -> None:
        """This guide has no answer: try again later."""
        self._hang_up(line)
        line.failed_s = self._clock()
        line.failures += 1
        line.next_s = line.failed_s + min(LOOK_S * line.failures, _BACKOFF_MAX_S)
        with self._news:
            self._settled[line.place] = (line.failed_s, error)

    def _hang_up(self, line: _Line) -> None:
        found, line.socket, line.awaited = line.socket, None, 0
        if found is not None:
            with suppress(KeyError, ValueError):
                self._selector.unregister(found)
            found.close()

    def _decide(self) -> None:
        now_s = self._clock()
        members = self._members()
        for slot in {member.slot for member in members}:
            named = self._named(slot)
            before = self._beliefs.get(slot, Belief())
            self._beliefs[slot] = after = step(before, named, now_s)
            if after.claim is not None and before.claim not in (None, after.claim):
                self._hurry_s, self._held_s = now_s + HURRIES_S, now_s
                self._hold_again_s = now_s  # the promotion was a true one
            owner = self._quorums_owner(slot)
            for member in members if owner is not None else ():
                if member.slot == slot and member.target not in (None, owner):
                    member.move(f"it is not the primary any more: {self._called(owner)} is")

    def _called(self, owner: Owner) -> str:
        for _, _, answer in self._answers.values():
            if owner in answer.places:
                host, port = answer.places[owner]
                return f"{host}:{port}"
        return str(owner)


def _is_about(message: Any, service: str) -> bool:
    """Say whether an event is about our service.

    "SERVICE ...", or "slave NAME HOST PORT @ SERVICE ...": what the sentinels call a server has no
    spaces.
    """
    before, at, behind = _text(message).partition(" @ ")
    return (behind if at else before).split(" ")[0] == service


# --- the watches of this process ----------------------------------------------------------------

_LOCK = threading.Lock()
_WATCHES: dict[Url, TopologyWatch] = {}


def join(
    url: Url, member: MovableConnection, dial: Dial, clock: Callable[[], float]
) -> TopologyWatch:
    """Return the watch of this place, which moves the member from now on.

    Raises:
        OSError: There are too many threads.
    """
    place = attrs.evolve(url, tag="", db=0)
    with _LOCK:
        watch = _WATCHES.get(place)
        if watch is None or watch._is_over:
            watch = TopologyWatch(place, dial, clock)
            watch.members.add(member)
            try:
                watch.start()
            except RuntimeError as error:
                raise OSError(str(error)) from None
            _WATCHES[place] = watch
        watch.members.add(member)
    return watch


def leave(watch: TopologyWatch, member: MovableConnection) -> None:
    """Move this member no more; the last one ends the watch."""
    with _LOCK:
        watch.members.discard(member)
        if not watch.members:
            watch.end()
            for place in [at for at, each in _WATCHES.items() if each is watch]:
                del _WATCHES[place]


def forget_all() -> None:
    """Be the copy in a forked child."""
    global _LOCK  # noqa: PLW0603 - the parent's may be locked for good
    _LOCK = threading.Lock()
    for watch in list(_WATCHES.values()):
        watch.forget()
    _WATCHES.clear()
