"""A node whose loop hangs under `on_overrun = "report"`: what it has not begun is not stuck."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pool.names import Names, lane_of

if TYPE_CHECKING:
    from tests.process.conftest import Fleet, Member

SLACK_S = 0.5  # processes of a busy machine
SLOTS = 12
HANGS = "-"


def keys_of(fleet: Fleet, client: Member, owner: Member, count: int) -> list[str]:
    """Return keys that this member is the first for."""
    tried = [f"k{n}" for n in range(6 * count)]
    for at in range(0, len(tried), SLOTS):  # no more at once than it has slots for
        fleet.results(client, fleet.dispatch(client, "nap", tried[at : at + SLOTS], 0.0))
    found = [run.key for run in fleet.runs(tried) if run.node == owner.name]
    assert len(found) >= count
    return found[:count]


def said_last(fleet: Fleet, member: Member, key: str) -> tuple[str, int]:
    """Return what the last renewal said of its worker in the lane of a key, and its number."""
    [worker] = fleet.said("ready", node=member.name)[0]["worker"]
    with fleet.client() as client:
        text: Any = client.hget(Names(fleet.pool, lane_of(key, fleet.lanes)).open, worker)
    _, says, at = text.decode().split("|")
    return says, int(at)


def test_starts_behind_a_hung_loop_begin_elsewhere_and_nowhere_else(fleet: Fleet) -> None:
    """B2, G-05: taken back within TTL + 1 s, and not begun a second time when the loop turns."""
    fleet.ttl_s = 2.0
    client = fleet.start("client", is_client=True)[0]
    hung = fleet.start("a", capacity=SLOTS, on_overrun="report")[0]
    idle = fleet.start("b", on_overrun="report")[0]
    stuck, *rest = keys_of(fleet, client, hung, SLOTS)
    blocked = fleet.dispatch(client, "stuck", [stuck], 2 * fleet.ttl_s + 2.0)
    fleet.until(lambda: [run for run in fleet.runs([stuck]) if run.job == blocked[stuck]])
    began_s = fleet.now_s()
    unread = fleet.dispatch(client, "nap", rest, 0.0)
    answers = fleet.results(client, unread)
    assert {answer["node"] for answer in answers.values()} == {idle.name}
    assert fleet.took_s(began_s) < fleet.ttl_s + 1.0 + SLACK_S
    assert fleet.results(client, blocked)[stuck]["node"] == hung.name
    _, turned_at = said_last(fleet, hung, stuck)

    def says_that_it_turns() -> bool:
        says, at = said_last(fleet, hung, stuck)
        assert says != HANGS or at <= turned_at + 2  # what was on its way, and the one behind it
        return says != HANGS

    def takes_keys() -> bool:
        again = fleet.dispatch(client, "nap", [stuck], 0.0)
        return bool(fleet.results(client, again)[stuck]["node"] == hung.name)

    fleet.until(says_that_it_turns, what="its first renewal since then")
    fleet.until(takes_keys, what="it takes keys again")
    begun = [run for run in fleet.runs(rest) if run.job in unread.values()]
    assert {run.node for run in begun} == {idle.name}
    assert len(begun) == len(unread)
    fleet.is_sound()
