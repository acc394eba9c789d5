"""Ids and idempotency keys: one job, whoever asks for it, and however often."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from pool import Call, Handlers, Job, Node
from pool.errors import (
    IdempotencyConflict,
    InvalidOption,
    JobExists,
    JobParked,
    NoSuchJob,
    OutcomeExpired,
    StoreLost,
)
from tests.nodes import Fleet

pytestmark = pytest.mark.anyio


class Charges:
    """What was done, and how often."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self.gate = anyio.Event()
        self.fails = False

    def handlers(self) -> Handlers:
        handlers = Handlers()

        @handlers.job("charge", attempts_max=1)
        async def charge(job: Job, cents: int) -> str:
            self.done.append(cents)
            await self.gate.wait()
            if self.fails:
                raise ValueError("no money")
            return f"charged {cents}"

        @handlers.job("refund")
        async def refund(job: Job, cents: int) -> str:
            return f"refunded {cents}"

        return handlers


@pytest.fixture
def charges() -> Charges:
    return Charges()


async def _charged(node: Node, cents: int = 5, **options: Any) -> Any:
    options = options or {"idempotency_key": "order 17"}
    return await node.options(**options).dispatch("charge", "customer", cents)


async def test_a_repeat_answers_the_same_job_while_it_lives_and_after_its_end(
    fleet: Fleet, charges: Charges
) -> None:
    """A dispatch that is repeated runs nothing again: live, ended, and from another node."""
    node, other = await fleet.node(charges.handlers()), await fleet.node(None)
    first = await _charged(node)
    assert (await _charged(other)).job_id == first.job_id
    await fleet.until(lambda: charges.done)
    assert (await _charged(other)).job_id == first.job_id
    charges.gate.set()
    assert await first.result(timeout_s=30) == "charged 5"
    again = await _charged(other)
    assert await again.result(timeout_s=30) == "charged 5"
    assert (again.job_id, charges.done) == (first.job_id, [5])


async def test_two_at_once_are_one_job(fleet: Fleet, charges: Charges) -> None:
    node, other = await fleet.node(charges.handlers()), await fleet.node(None)
    refs: list[Any] = []

    async def dispatch(by: Node) -> None:
        refs.append(await _charged(by, job_id="o-17"))

    async with anyio.create_task_group() as tasks:
        for by in (node, other, node, other):
            tasks.start_soon(dispatch, by)
    assert {ref.job_id for ref in refs} == {"o-17"}
    charges.gate.set()
    assert [await ref.result(timeout_s=30) for ref in refs] == ["charged 5"] * 4
    assert charges.done == [5]


async def test_another_handler_or_other_arguments_are_a_conflict_that_names_both(
    fleet: Fleet, charges: Charges
) -> None:
    node = await fleet.node(charges.handlers())
    first = await _charged(node, job_id="o-17")
    named = node.options(job_id="o-17")
    charges.gate.set()
    for _ in range(2):  # while it lives, and when it has ended
        with pytest.raises(IdempotencyConflict) as conflict:
            await named.dispatch("charge", "customer", 6)
        assert conflict.value.handler == conflict.value.known_handler == "charge"
        assert conflict.value.differs == "arguments"
        assert conflict.value.digest != conflict.value.known_digest
        with pytest.raises(IdempotencyConflict) as conflict:
            await named.dispatch("refund", "customer", 5)
        assert (conflict.value.handler, conflict.value.known_handler) == ("refund", "charge")
        assert conflict.value.differs == "handler"
        await first.result(timeout_s=30)
    assert charges.done == [5]


async def test_an_id_is_its_keys_own(fleet: Fleet, charges: Charges) -> None:
    """Two keys may have the same ids, and who waits for one hears nothing of the other."""
    node = await fleet.node(charges.handlers())
    named = node.options(job_id="o-17")
    one = await named.dispatch("charge", "a", 1)
    two = await named.dispatch("refund", "b", 2)
    assert await two.result(timeout_s=30) == "refunded 2"
    with pytest.raises(TimeoutError) as late:
        await one.result(timeout_s=0.2)
    assert "o-17 of 'a'" in str(late.value)
    charges.gate.set()
    assert await one.result(timeout_s=30) == "charged 1"


async def test_a_key_with_another_live_job_refuses_a_named_one_too(
    fleet: Fleet, charges: Charges
) -> None:
    node = await fleet.node(charges.handlers())
    first = await _charged(node, job_id="o-17")
    with pytest.raises(JobExists) as exists:
        await _charged(node, job_id="o-18")
    assert exists.value.job_id == first.job_id
    charges.gate.set()
    await first.result(timeout_s=30)
    assert await (await _charged(node, job_id="o-18")).result(timeout_s=30) == "charged 5"


async def test_a_parked_job_answers_until_its_letter_goes_and_then_as_what_it_became(
    fleet: Fleet, charges: Charges
) -> None:
    """An idempotency key is known while its letter is there, and goes along with a replay."""
    node = await fleet.node(charges.handlers())
    charges.fails = True
    charges.gate.set()
    first = await _charged(node)
    with pytest.raises(JobParked) as parked:
        await first.result(timeout_s=30)
    assert "no money" in parked.value.__notes__[0]
    fleet.client.delete(fleet.names.result(first.key, first.job_id))  # as if its time were up
    again = await _charged(node)
    with pytest.raises(JobParked):
        await again.result(timeout_s=30)
    with pytest.raises(IdempotencyConflict):
        await _charged(node, 6, idempotency_key="order 17")
    charges.fails = False
    anew = await node.parked.replay(first.key, first.job_id)
    assert anew.job_id != first.job_id
    assert (await node.parked.replay(first.key, first.job_id)).job_id == anew.job_id
    answer = await _charged(node)
    assert answer.job_id == anew.job_id
    assert await answer.result(timeout_s=30) == "charged 5"
    with pytest.raises(JobParked) as replayed:
        await first.result(timeout_s=30)
    assert replayed.value.replayed_as == anew.job_id
    assert (await anew.status()).replay_of == first.job_id
    assert (await _charged(node)).job_id == anew.job_id
    assert charges.done == [5, 5]


async def test_many_at_once_have_ids_of_their_own(fleet: Fleet, charges: Charges) -> None:
    node = await fleet.node(charges.handlers())
    charges.gate.set()
    calls = [Call(f"k{i}", i).identified(idempotency_key=f"o{i % 2}") for i in range(4)]
    refs: list[Any] = await node.dispatch_many("refund", [*calls, *calls])
    assert [ref.job_id for ref in refs[:4]] == [ref.job_id for ref in refs[4:]]
    assert len({(ref.key, ref.job_id) for ref in refs}) == 4
    assert [await ref.result(timeout_s=30) for ref in refs[:4]] == [
        f"refunded {i}" for i in range(4)
    ]


async def test_the_window_ends(fleet: Fleet, charges: Charges) -> None:
    """Known for the window at least, whatever else is asked; then it is a job like any other."""
    node = await fleet.node(charges.handlers(), op_timeout_s=1.0, retry_window_s=3.0)
    charges.gate.set()
    first = await _charged(node, job_id="o", window_s=7200.0, retention_s=0.0)
    await first.result(timeout_s=30)
    now_s = fleet.client.time()[0]
    kept: Any = fleet.client.zrange(fleet.names.kept, 0, -1, withscores=True)
    assert [round(until_ms / 1000 - now_s, -2) for _, until_ms in kept] == [7200]
    fleet.client.delete(fleet.names.result(first.key, first.job_id))
    with pytest.raises(OutcomeExpired):
        await first.result(timeout_s=30)
    again = await _charged(node, job_id="o")
    await again.result(timeout_s=30)
    assert charges.done == [5, 5]


async def test_a_loss_of_data_forgets_ids_and_says_so(fleet: Fleet, charges: Charges) -> None:
    """Who waits is told; the same id is a new job then."""
    node = await fleet.node(charges.handlers(), lease_ttl_s=5.0)
    first = await _charged(node)
    await fleet.until(lambda: charges.done)
    fleet.client.flushall()
    with pytest.raises(StoreLost) as lost:
        await first.result(timeout_s=30)
    assert lost.value.maybe_done  # a handler has seen it

    async def dispatched() -> bool:
        try:
            await _charged(node)
        except StoreLost:
            return False
        return True

    await fleet.until(dispatched)
    charges.gate.set()
    await (await _charged(node)).result(timeout_s=30)
    assert charges.done == [5, 5]


async def test_a_job_is_found_from_any_node_by_key_id_or_idempotency_key(
    fleet: Fleet, charges: Charges
) -> None:
    node, other = await fleet.node(charges.handlers()), await fleet.node(None)
    first = await _charged(node)
    for ref in (
        await other.job("customer"),
        await other.job("customer", first.job_id),
        await other.job("customer", idempotency_key="order 17"),
    ):
        assert ref.job_id == first.job_id
    charges.gate.set()
    assert await (await other.job("customer", first.job_id)).result(timeout_s=30) == "charged 5"
    with pytest.raises(NoSuchJob):
        await other.job("customer")
    with pytest.raises(OutcomeExpired):
        await (await other.job("customer", "never")).result(timeout_s=30)


async def test_what_cannot_be_an_id_is_refused(fleet: Fleet, charges: Charges) -> None:
    """D18."""
    node = await fleet.node(None)
    for bad in ("", "a b", "a|b", "a,b", "x" * 129, "ü", "a\n", 5):
        with pytest.raises(InvalidOption):
            node.options(job_id=bad)  # type: ignore[arg-type]
    node.options(job_id="x" * 128)
    for bad in ("", "x" * 257, "\n", 5):
        with pytest.raises(InvalidOption):
            node.options(idempotency_key=bad)  # type: ignore[arg-type]
    node.options(idempotency_key="ü" * 128)
    with pytest.raises(InvalidOption):
        node.options(job_id="a", idempotency_key="b")


async def test_whoever_asks_again_gets_the_newest_replay(fleet: Fleet, charges: Charges) -> None:
    """A letter that was replayed may have been parked again, and replayed, and so on."""
    node = await fleet.node(charges.handlers())
    charges.fails = True
    charges.gate.set()
    ref = await _charged(node)
    for n in range(3):
        with pytest.raises(JobParked):
            await ref.result(timeout_s=30)
        charges.fails = n < 2
        ref = await node.parked.replay("customer", ref.job_id)
        assert (await _charged(node)).job_id == ref.job_id
    assert await (await _charged(node)).result(timeout_s=30) == "charged 5"
    assert len(charges.done) == 4


async def test_an_id_that_was_not_given_is_nobodys_to_ask_for(
    fleet: Fleet, charges: Charges
) -> None:
    """With which arguments its job was dispatched was not kept."""
    node = await fleet.node(charges.handlers())
    ref = await node.dispatch("charge", "customer", 5)
    for _ in range(2):  # while it lives, and when it has ended
        with pytest.raises(IdempotencyConflict):
            await _charged(node, 5, job_id=ref.job_id)
        charges.gate.set()
        await ref.result(timeout_s=30)
    assert charges.done == [5]


async def test_an_id_and_an_attachment_are_not_asked_for_at_once(
    fleet: Fleet, charges: Charges
) -> None:
    node = await fleet.node(charges.handlers())
    with pytest.raises(InvalidOption, match="beside an id"):
        await _charged(node, job_id="mine", if_exists="attach")
    call = Call("customer", 5).identified(job_id="mine")
    [refused] = await node.options(if_exists="attach").dispatch_many("charge", [call])
    assert isinstance(refused, InvalidOption)
    assert not charges.done

    handlers = Handlers()

    @handlers.job("shared", if_exists="attach")
    async def shared(job: Job) -> None:
        await charges.gate.wait()

    away, here = await fleet.node(None), await fleet.node(handlers)
    live = await here.dispatch("shared", "k")
    for by in (away, here):  # who knows the handler's name, and who has it
        assert (await by.dispatch("shared", "k")).job_id == live.job_id
        with pytest.raises(JobExists):
            await by.options(job_id="mine").dispatch("shared", "k")
