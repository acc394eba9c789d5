r"""The control keys: what a pool was made as, who makes it, and who puts that back.

They belong to the pool as a whole and are in one slot, apart from all lanes: `config`, replicated
maps (`workers` is one), streams.  `config` says the protocol, the number of lanes, the TTL, and the
pool's generation; a call of a map names that, and is refused where it is another or gone.  The
lanes know it too: the pool's generation is <drawn>.<number of lanes>, a lane's is
<the pool's>.<when>, and each lane keeps the TTL.

    missing --open_pool.lua: as the lanes say it was--> there   `control.lost`, told by who wrote
      ^  \----open_pool.lua: drawn, by the settings---> there   a new pool, or another than before
      |                                               |
      +--------------------- lost --------------------+

Who finds `config` gone, or without a TTL (opening, joining anew, or a map's call was told), asks
all lanes before it writes:

    one has our generation                        `config` as it was; nobody in a lane is touched
    else some have any                            as most of these have it: who opens joins that
                                                  pool; whoever was in another has lost it
    those that answer have none, one is silent    as it was, if we have a generation: each lane
    or refuses us (as who has rights to maps)     tells its own loss.  Who opens has none: refused,
                                                  he fails with that; else it is as if none has one
    none has one                                  a new one: the pool is lost, with all lanes
    none answers                                  nothing is written; who does not open asks again

The TTL, as `config` has it, and who changes it:

    missing --node or client without `lease_ttl_s`--> 10 s, by default --node with one--> named
       \-------------------node with one, or put back from the lanes---------------------> named
    10 s, by default, or named --`pool ttl`--> named

open_pool.lua decides between nodes that come at once, so a client never fixes the TTL, and the
first node that names one does.  A lane may have been joined, or be joined, with the default: so a
node that names the TTL and finds another one in a lane that it joins brings what `config` says
there (`Membership`), and reads `config` again behind that, as `pool ttl` does.  All that are open
hear of it with a renewal, as of `pool ttl`.  If the node dies between, lanes are apart: `doctor`
says so, and the next node that names the TTL finishes that.  Maps and streams alone name none: they
have no rights to lanes.  Whether a TTL was named is not kept in lanes: one that is put back counts
as named, so that nobody replaces a TTL that somebody chose.

Who writes: in `config` open_pool.lua alone, and only what is missing, or a TTL that nobody has
named; but the TTL `pool ttl` replaces.  Of several at once the first decides, and those that put it
back write the same.  One that makes it anew at that moment has seen no lane that knew; if it is
first (it opens, and those that knew were silent to it for all of a call's time), the pool is
another, and lanes of before are taken over with what they hold, see `stale` in join.lua.  A late
copy finds `config` there; or, after another loss, puts a generation there whose lanes are gone too,
which each lane says by itself.

Dying after any step: until open_pool.lua has written, nothing has changed.  A `config` made new is
the pool that whoever comes next joins.  One put back and nobody announced is a map that lost its
entries: each node finds its own missing when its copy is fetched anew, at the latest two probes
later; only `control.lost` is told by nobody.
"""

from __future__ import annotations

from collections import Counter

import anyio
import attrs

from pool.core.ids import number_or
from pool.core.lease import Timing
from pool.errors import ConfigError, PoolError, StoreUnavailable, again
from pool.events import ControlLost
from pool.names import Names
from pool.redis.commands.member import (
    OPEN_POOL,
    PROTOCOL,
    PoolConfig,
    check_protocol,
    generation_of_pool,
    lanes_of_pool,
    new_generation,
)
from pool.runtime.session import Session
from pool.settings import Settings


async def open_pool(session: Session, *, any_lanes: bool = False) -> PoolConfig:
    """Make the pool, or learn how it was made; `any_lanes` if the caller uses none.

    From then on the session's settings name the number of lanes: an open node has it for life.

    Raises:
        ConfigError: It was made with another number of lanes than the settings name, or with more
            than can share what they allow the pool.
        WrongProtocol: It was made by an incompatible version of this library.
        StoreUnavailable: The server does not answer; or `config` is gone, and no lane answers.
        AuthError, StoreFault: `config` is gone, and who opens may not ask the lanes, see `_kept`.
    """
    names_ttl = session.settings.lease_ttl_s is not None and not any_lanes
    named_ms = session.timing.ttl_ms if names_ttl else 0
    made = await _open_pool(session, named_ms=named_ms)
    if not made.generation or not Timing.is_ttl(made.ttl_ms):
        lanes = lanes_of_pool(session.generation) or session.settings.lanes or 1
        kept = await _kept(session, lanes)
        if kept is None:
            generation, ttl_ms = new_generation(session.ids.next("i"), lanes), 0
        else:
            generation, ttl_ms = kept
        lanes = lanes_of_pool(generation)
        was_gone = kept is not None and not made.generation
        if kept is not None and session.generation:
            ttl_ms = ttl_ms or session.timing.ttl_ms  # we have gone by it
        made = await _open_pool(
            session, lanes, generation, ttl_ms or session.timing.ttl_ms, ttl_ms or named_ms
        )
        if was_gone:
            made = attrs.evolve(made, was_gone=True)
            if made.wrote:  # else another did, or it was a new pool that another has just made
                session.emit(ControlLost(pool=session.pool, generation=generation))
    check_protocol(session.pool, made.protocol)
    if not any_lanes:
        session.settings = _of_lanes(session, made.lanes)
    return made


def _of_lanes(session: Session, lanes: int) -> Settings:
    named = session.settings.lanes
    if named is None:
        return attrs.evolve(session.settings, lanes=lanes)
    if named != lanes:
        problem = f"pool {session.pool!r} was made with {lanes}, not {named}: name none, or {lanes}"
        raise ConfigError(setting="lanes", problem=problem)
    return session.settings


def check_ttl(session: Session, made: PoolConfig) -> None:
    """Refuse settings that name another TTL than was named before; one by default binds nobody.

    Raises:
        ConfigError: The settings name another one.
    """
    named_s, pool, ttl_ms = session.settings.lease_ttl_s, session.pool, made.ttl_ms
    if named_s is not None and made.is_named and Timing(named_s).ttl_ms != ttl_ms:
        command = f"pool ttl {named_s:g} --pool {pool} --url ..."
        raise ConfigError(
            setting="lease_ttl_s",
            problem=f"pool {pool!r} goes by {ttl_ms / 1000:g} s, not {named_s:g} s: name none, "
            f"or change it for all with `{command}`",
        )


async def learn_ttl(session: Session) -> None:
    """Go by the pool's TTL, if it has one already.

    Raises:
        ConfigError: The settings name another one.
        StoreUnavailable: The server does not answer.
    """
    made = await _open_pool(session)
    if made.ttl_ms > 0:
        check_ttl(session, made)
        session.timing = Timing(made.ttl_ms / 1000)


async def _open_pool(
    session: Session, lanes: int = 0, generation: str = "", ttl_ms: int = 0, named_ms: int = 0
) -> PoolConfig:
    """Write what is missing in `config`, of what is given; return what stands there."""
    call = OPEN_POOL((session.control.config,), (PROTOCOL, lanes, generation, ttl_ms, named_ms))
    made: PoolConfig = await session.pipeline.call(call, repeatable=True)
    return made


async def _kept(session: Session, lanes: int) -> tuple[str, int] | None:
    """Ask the lanes as what the pool was made; None if nothing says that it was.

    Our own generation if any lane has it, else that of most lanes; and the TTL that was set last
    (0: not known).  A lane that is silent, or refuses us, may have ours: so then, if no other says
    anything, ours it is.

    Raises:
        StoreUnavailable: None of them answers.
        AuthError, StoreFault: One refuses, no other says anything, and we have no generation.
    """
    told: list[tuple[str, int, int]] = []
    silent: list[PoolError] = []
    refused: list[PoolError] = []

    async def ask(name: str) -> None:
        asked = ("HMGET", name, "incarnation", "term", "ttl")
        try:
            texts = await session.pipeline.execute(*asked, repeatable=True)
        except StoreUnavailable as error:
            silent.append(error)
            return
        except PoolError as error:  # such as a right that who uses only maps lacks
            refused.append(error)
            return
        pool = generation_of_pool((texts[0] or b"").decode(errors="replace"))
        term, ttl_ms = (number_or(0, text) for text in texts[1:])
        told.append((pool, term, ttl_ms if Timing.is_ttl(ttl_ms) else 0))

    async with anyio.create_task_group() as asking:
        for number in range(lanes):
            asking.start_soon(ask, Names(session.pool, number).lane)
    if not told and not refused:
        raise again(silent[0])
    own = session.generation
    named = [pool for pool, _, _ in told if lanes_of_pool(pool)]
    if not named:
        if (silent or refused) and lanes_of_pool(own):
            return own, 0  # what is lost besides, each lane says by itself
        if refused:
            raise again(refused[0])
        return None
    pool = own if own in named else Counter(named).most_common(1)[0][0]
    return pool, max((term, ttl_ms) for each, term, ttl_ms in told if each == pool)[1]
