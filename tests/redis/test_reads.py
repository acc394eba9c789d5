"""As much is asked for at once as should weigh no more than a line carries in a call's time."""

from __future__ import annotations

import anyio
import pytest
from anyio.abc import TaskGroup

from pool.redis.reads import (
    PORTION_FIRST,
    PORTION_MAX,
    READ_BYTES_MAX,
    TURNS_MAX,
    Portion,
    Reads,
    Turn,
)

pytestmark = pytest.mark.anyio


class Readers:
    """Some who read, each until it is told what came."""

    def __init__(self, tasks: TaskGroup) -> None:
        self.reads = Reads()
        self.reading: list[Turn] = []  # in the order in which they came
        self.skipped = 0
        self._ends: dict[Turn, anyio.Event] = {}
        self._tasks = tasks

    async def begin(self, count: int) -> list[Turn]:
        turns = [self.reads.turn() for _ in range(count)]
        for turn in turns:
            self._tasks.start_soon(self._read, turn)
            await anyio.wait_all_tasks_blocked()
        return turns

    async def _read(self, turn: Turn) -> None:
        async with turn:
            if turn.is_given_up:
                self.skipped += 1
                return
            self.reading.append(turn)
            self._ends[turn] = anyio.Event()
            await self._ends[turn].wait()

    async def answer(self, size: int | None, count: int = 1) -> None:
        for turn in self.reading[:count]:
            turn.size = size
            self._ends[turn].set()
        del self.reading[:count]
        await anyio.wait_all_tasks_blocked()


async def test_the_first_comes_alone_and_small_ones_are_wide() -> None:
    async with anyio.create_task_group() as tasks:
        readers = Readers(tasks)
        turns = await readers.begin(300)
        assert readers.reading == turns[:1]
        await readers.answer(2_000)
        assert len(readers.reading) == TURNS_MAX
        tasks.cancel_scope.cancel()


async def test_of_what_is_large_each_comes_alone() -> None:
    """Also after many small ones, and what is forgotten is forgotten slowly."""
    async with anyio.create_task_group() as tasks:
        readers = Readers(tasks)
        await readers.begin(200)
        for _ in range(20):
            await readers.answer(READ_BYTES_MAX // 3)
        assert len(readers.reading) == 3
        await readers.answer(READ_BYTES_MAX)
        await readers.answer(10, 2)
        assert len(readers.reading) == 1
        await readers.answer(10)
        assert len(readers.reading) == 2
        tasks.cancel_scope.cancel()


async def test_after_an_answer_that_did_not_come_the_next_one_comes_alone() -> None:
    """It may have been too much at once: nobody knows how large it was."""
    async with anyio.create_task_group() as tasks:
        readers = Readers(tasks)
        await readers.begin(300)
        await readers.answer(10)
        assert len(readers.reading) == TURNS_MAX
        await readers.answer(None, TURNS_MAX)
        assert len(readers.reading) == 1
        tasks.cancel_scope.cancel()


async def test_who_gives_up_asks_for_nothing_and_keeps_nobody_waiting() -> None:
    async with anyio.create_task_group() as tasks:
        readers = Readers(tasks)
        first, second, third = await readers.begin(3)
        assert not first.give_up(), "it reads"
        assert second.give_up()
        await anyio.wait_all_tasks_blocked()
        assert readers.skipped == 1
        await readers.answer(READ_BYTES_MAX)
        assert readers.reading == [third]
        await readers.answer(10)
        await readers.begin(1)
        assert len(readers.reading) == 1
        tasks.cancel_scope.cancel()


async def test_who_is_cancelled_gives_its_turn_back() -> None:
    reads = Reads()
    with anyio.CancelScope() as reading:
        async with reads.turn():
            with anyio.move_on_after(0.01):
                async with reads.turn():
                    pytest.fail("there is room for one")
            reading.cancel()
            await anyio.lowlevel.checkpoint()
    with anyio.fail_after(5):
        async with reads.turn() as turn:
            assert turn.has_come


async def test_a_portion_of_entries_is_what_should_weigh_no_more_than_a_read() -> None:
    portion = Portion()
    assert portion.of(1_000) == PORTION_FIRST
    assert portion.of(1_000, streams=64) == 1, "nothing is known of any of them"
    for _ in range(8):
        portion.came(10, 1_000)
    assert portion.of(1_000) == PORTION_MAX
    assert portion.of(1_000, streams=64) == PORTION_FIRST
    assert portion.of(7) == 7
    portion.came(1, READ_BYTES_MAX // 4)
    assert portion.of(1_000) == 4
    assert portion.of(1_000, streams=64) == 1
    portion.came(1, 10 * READ_BYTES_MAX)
    assert portion.of(1_000) == 1


async def test_a_portion_halves_with_each_answer_that_did_not_come_and_grows_again() -> None:
    portion = Portion()
    portion.came(16, 16 * READ_BYTES_MAX // 8)
    assert portion.of(1_000) == 8
    found = []
    for _ in range(4):
        portion.failed(1_000)
        found.append(portion.of(1_000))
    assert found == [4, 2, 1, 1]
    portion.came(0, 100)
    assert portion.of(1_000) == 1, "nothing came"
    found = []
    for _ in range(4):
        portion.came(1, READ_BYTES_MAX // 8)
        found.append(portion.of(1_000))
    assert found == [2, 4, 8, 8]
