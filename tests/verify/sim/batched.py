"""Batches of a simulated pool: made by nodes that may die, and gone on with by others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs

from pool import Call, Follower, Node
from pool.core.batches import member_id
from pool.errors import PoolError, StoreError
from tests.verify.history import Type
from tests.verify.sim.config import ATTEMPTS_MAX, Plan, digest

if TYPE_CHECKING:  # it asks for what is made here
    from pool.batches import Batch
    from tests.verify.sim.fleet import Boot

_Said: TypeAlias = tuple[Type, dict[str, Any]]
OPEN_S: Final = 20.0  # longer than any call takes that is answered


@attrs.frozen(kw_only=True)
class Members:
    """One batch as it is to be: some members at a time, and what follows when it is done."""

    name: str
    chunks: Sequence[Sequence[tuple[str, str, Plan]]]  # key, token, plan
    then: tuple[str, str, Plan]
    least: int
    open_s: float = OPEN_S

    async def make(self, boot: Boot, node: Node, nonces: dict[str, str], *, is_first: bool) -> None:
        """Make it, or go on with it; only the first writes down what it is told of each."""
        said: dict[str, _Said] = {}
        key, token, plan = self.then
        everyone = [each for chunk in self.chunks for each in chunk]
        if is_first:
            extra = {"then": token, "least": self.least}
            boot.record("batch", "invoke", key=self.name, extra=extra)
            for its_key, its, its_plan in everyone:
                extra = _extra(its_plan)
                boot.record("dispatch", "invoke", key=its_key, idem=its, extra=extra)
        then = Follower("work", key, token, plan)
        try:
            if not is_first:  # where data were lost it would be another one
                await node.batches.get(self.name).status()
            made = node.batch(self.name, then=then, success_min=self.least, open_s=self.open_s)
            async with made as batch:
                if nonces.setdefault(self.name, batch._nonce) != batch._nonce:
                    return  # that is another one: data were lost
                if is_first:
                    boot.record("batch", key=self.name, nonce=batch._nonce)
                for chunk in self.chunks:
                    if not is_first:
                        self._say_again(boot, batch, chunk)
                    await self._add(batch, chunk, said)
        except PoolError as error:
            boot.record("event", extra={"event": "refused", "error": error.code})
        finally:
            for its_key, its, its_plan in everyone if is_first else ():
                word, facts = said.get(its, ("info", {"err": "CANCELLED"}))
                facts["extra"] = _extra(its_plan)
                boot.record("dispatch", word, key=its_key, idem=its, **facts)

    async def put_within(self, boot: Boot, node: Node, outer: str) -> None:
        """Enter it within another one, when it has settled, say; or go on with that."""
        boot.record("batch", "invoke", key=outer, extra={"then": "", "least": 0})
        try:
            around = node.batch(outer, success_min=0, open_s=self.open_s)
            async with around, node.batch(self.name, within=around) as batch:
                boot.record("batch", key=outer, nonce=around._nonce)
                for chunk in self.chunks:
                    self._say_again(boot, batch, chunk)
                    await self._add(batch, chunk, {})
        except PoolError as error:
            boot.record("event", extra={"event": "refused", "error": error.code})

    def _say_again(self, boot: Boot, batch: Batch, chunk: Sequence[tuple[str, str, Plan]]) -> None:
        for key, token, _ in chunk:
            boot.record("again", key=key, idem=token, extra={"lane": str(batch._lane.number)})

    async def _add(
        self,
        batch: Batch,
        chunk: Sequence[tuple[str, str, Plan]],
        said: dict[str, _Said],
    ) -> None:
        first = batch.added
        tokens = [token for _, token, _ in chunk]
        try:
            refused = await batch.add(
                "work", [Call(key, token, plan) for key, token, plan in chunk]
            )
        except PoolError as error:
            word: Type = "info" if isinstance(error, StoreError) else "fail"
            said |= {token: (word, {"err": error.code}) for token in tokens}
            raise
        for n, token in enumerate(tokens, first):
            said[token] = "ok", {"job": member_id(batch._nonce, n)}
        for each in refused:
            said[tokens[each.index - first]] = "fail", {"err": each.error.code}


def _extra(plan: Plan) -> dict[str, Any]:
    extra = {"digest": digest(plan), "kind": "job", "attempts_max": ATTEMPTS_MAX}
    return {**extra, "within_s": 1000.0}
