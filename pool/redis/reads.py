"""How much is asked for at once of what nobody knows how large it is.

    turn() --has come: asked for, answered--> __aexit__: what its answer weighed
       | given up: somebody else is to do it, and it was not asked for

What is asked for together is answered together: more of it than a line carries in a call's time
fails as a whole, is asked for again from the beginning, and so for ever.  So whoever reads what may
be large takes a turn first.  There are as many turns at once as should weigh no more than
`READ_BYTES_MAX`, by what was answered before: what is small is as wide as ever, of what is large
each has a call's time for itself.  After an answer that did not come, the next one comes alone.

Who reads entries one after the other asks for a `Portion`: as many as should weigh that much.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Self

import anyio
import attrs

READ_BYTES_MAX: Final = 512 * 1024  # expected at once: at 1 MB/s what is small waits 0.5 s
TURNS_MAX: Final = 64  # at once: so many may be larger than what was answered before
FORGOTTEN: Final = 0.75  # of the largest, what is still expected after each smaller one
PORTION_FIRST: Final = 16  # entries, of which nothing is known
PORTION_MAX: Final = 256  # entries: at 64 KiB each, if all before were small, that is 16 MiB


@attrs.define(eq=False)
class Turn:
    """One who reads: `async with turn`, and sets `size` to what came."""

    _reads: Reads
    size: int | None = None  # bytes; None: no answer came
    is_given_up: bool = False  # before it was its turn: nothing shall be asked for
    has_come: bool = False
    event: anyio.Event = attrs.field(factory=anyio.Event)

    async def __aenter__(self) -> Self:
        self._reads._waiting.append(self)
        self._reads._go_on()
        if not self.has_come:
            try:
                await self.event.wait()
            except BaseException:
                self._reads._end(self)
                raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reads._end(self)

    def give_up(self) -> bool:
        """Ask for nothing any more; False: it was asked for already."""
        if not self.has_come and not self.is_given_up:
            self.is_given_up = True
            self.event.set()
        return self.is_given_up


@attrs.define(eq=False)
class Reads:
    """The turns of one pipeline; they come in their order."""

    _expected: float = READ_BYTES_MAX  # of one answer, in bytes
    _is_known: bool = False  # or is that of the first of all, of which nothing is
    _count: int = 0  # of those who read
    _waiting: deque[Turn] = attrs.field(factory=deque)

    def turn(self) -> Turn:
        """Return a turn, to be waited for by `async with`."""
        return Turn(self)

    def _has_room(self) -> bool:
        is_light = (self._count + 1) * self._expected <= READ_BYTES_MAX
        return self._count == 0 or (is_light and self._count < TURNS_MAX)

    def _go_on(self) -> None:
        while self._waiting and (self._waiting[0].is_given_up or self._has_room()):
            turn = self._waiting.popleft()
            if not turn.is_given_up:
                turn.has_come = True
                self._count += 1
                turn.event.set()

    def _end(self, turn: Turn) -> None:
        if turn.has_come:
            self._count -= 1
            came = READ_BYTES_MAX if turn.size is None else turn.size
            self._expected = max(came, FORGOTTEN * self._expected if self._is_known else 0)
            self._is_known = True
        else:
            turn.is_given_up = True  # whoever waited was cancelled
        self._go_on()


@attrs.define(eq=False)
class Portion:
    """How many entries to ask for at once, by what they weighed before.

    It grows with each answer, at most twofold, and halves after one that did not come.
    """

    most: int = PORTION_FIRST  # of each stream, as far as answers came
    entry_bytes: float = 0.0  # expected of each; 0: not known

    def of(self, wanted: int, streams: int = 1) -> int:
        """Return how many to ask for of each of so many streams; one in any case."""
        if self.entry_bytes > 0:
            fit = int(READ_BYTES_MAX / (streams * self.entry_bytes))
            fit = min(fit, max(PORTION_FIRST, PORTION_MAX // streams))
        else:
            fit = PORTION_FIRST // streams
        return max(1, min(wanted, self.most, fit))

    def came(self, entries: int, size: int) -> None:
        """An answer is here, of so many bytes."""
        if entries:
            self.entry_bytes = max(size / entries, FORGOTTEN * self.entry_bytes)
            self.most = min(2 * self.most, PORTION_MAX)

    def failed(self, wanted: int, streams: int = 1) -> None:
        """The answer to such a question did not come."""
        self.most = max(1, self.of(wanted, streams) // 2)


NO_TURN: Final = Turn(Reads(), has_come=True)  # of who reads nothing, and has nothing to give up
