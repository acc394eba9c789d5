"""What a dispatch is told beside handler, key and arguments: checked, and as the record has it."""

from __future__ import annotations

from typing import Any, Final, get_args

import attrs

from pool import checks
from pool.core.ids import id_of
from pool.core.options import LINE_MAX, IfExists, Options, policy_of
from pool.core.record import begin_limits, digest_of, pack_more
from pool.jobs.followers import Follower
from pool.jobs.handlers import QUEUE_MAX
from pool.names import OF_PLANS, check_idempotency_key, check_job_id, check_key
from pool.redis.commands.admission import AS_REGISTERED

WINDOW_S: Final = 3600.0  # for so long the id that a job was given is known once it has ended


@attrs.frozen(kw_only=True)
class DispatchOptions:
    """How a dispatch is done; see `Node.options`."""

    delay_s: float = 0.0
    if_exists: IfExists | None = None  # as the handler says
    queue_max: int = QUEUE_MAX
    attach_any: bool = False
    allow_unknown: bool = False
    job_id: str | None = None
    idempotency_key: str | None = None
    window_s: float = WINDOW_S
    retention_s: float | None = None
    then: tuple[Follower, ...] = ()
    otherwise: tuple[Follower, ...] = ()
    expires_s: float | None = None
    start_timeout_s: float | None = None
    known: str = attrs.field(init=False, default="")  # the id, if it was given
    is_special: bool = attrs.field(init=False, default=False)  # something goes into its record
    policy: str = attrs.field(init=False, default=AS_REGISTERED)  # what the script is told of it
    is_open: bool = attrs.field(init=False, default=True)  # it goes by what the handler says

    def __attrs_post_init__(self) -> None:
        delay_s = checks.seconds("delay_s", self.delay_s)
        object.__setattr__(self, "delay_s", delay_s)  # a plain one, whatever was given
        queue_max = checks.count("queue_max", self.queue_max, 1, LINE_MAX)
        attach_any = checks.flag("attach_any", self.attach_any)
        if self.if_exists is not None:
            checks.word("if_exists", self.if_exists, *get_args(IfExists))
            policy = policy_of(self.if_exists, queue_max=queue_max, attach_any=attach_any)
            object.__setattr__(self, "policy", policy)
            object.__setattr__(self, "is_open", False)
        checks.flag("allow_unknown", self.allow_unknown)
        known = new_id(self.job_id, self.idempotency_key)
        object.__setattr__(self, "known", known)
        window_s = checks.seconds("window_s", self.window_s)
        object.__setattr__(self, "window_s", window_s)
        retention_s = checks.seconds("retention_s", self.retention_s, or_none=True)
        object.__setattr__(self, "retention_s", retention_s)
        limits = begin_limits(self.expires_s, self.start_timeout_s, delay_s)
        object.__setattr__(self, "expires_s", limits[0])
        object.__setattr__(self, "start_timeout_s", limits[1])
        given = (retention_s, *limits)
        is_special = bool(known or self.then or self.otherwise) or given != (None, None, None)
        object.__setattr__(self, "is_special", is_special)

    def told(self) -> dict[str, Any]:
        """Return them as `Node.options` takes them, those that stand as they are left out."""
        fields = [each for each in attrs.fields(DispatchOptions) if each.init]
        found = {each.name: getattr(self, each.name) for each in fields}
        return {each.name: found[each.name] for each in fields if found[each.name] != each.default}


def check_named(key: object, job_id: object) -> None:
    """Refuse what names no job.

    Raises:
        InvalidKey, InvalidOption: It does not.
    """
    check_key(key)
    check_job_id(job_id)


def known_id(job_id: object, idempotency_key: object) -> str:
    """Return the id that a job is to have, by what its caller calls it; empty if any will do.

    Raises:
        InvalidOption: It cannot be called so, or both are given.
    """
    if idempotency_key is None:
        if job_id is None:
            return ""
        check_job_id(job_id)
        return str(job_id)
    if job_id is not None:
        raise checks.option("idempotency_key", idempotency_key, "None: there is a job_id")
    check_idempotency_key(idempotency_key)
    return id_of(str(idempotency_key))


def new_id(job_id: object, idempotency_key: object) -> str:
    """Return the same of a job that is to be dispatched: the ids of plans' jobs are theirs.

    Raises:
        InvalidOption: As of `known_id()`, or only a plan's job can be called so.
    """
    known = known_id(job_id, idempotency_key)
    if known.startswith(OF_PLANS):
        must = f"an id that does not begin with {OF_PLANS!r}, by which a plan knows its own jobs"
        raise checks.option("job_id", job_id, must)
    return known


def _begin(options: DispatchOptions, usual: Options | None) -> tuple[float | None, float | None]:
    """Return the same for one dispatch, also as its handler says, if we know it."""
    if usual is None:
        return options.expires_s, options.start_timeout_s
    expires_s, start_s = options.expires_s, options.start_timeout_s
    expires_s = usual.expires_s if expires_s is None else expires_s
    start_s = usual.start_timeout_s if start_s is None else start_s
    if usual.kind == "service" and (expires_s, start_s) != (None, None):
        name = "start_timeout_s" if expires_s is None else "expires_s"
        raise checks.option(name, expires_s or start_s, "None: it is a service")
    return begin_limits(expires_s, start_s, options.delay_s)


def more_of(
    options: DispatchOptions,
    known: str,
    handler: str,
    payload: bytes,
    followers: bytes,
    told: bytes,
    usual: Options | None,
) -> str:
    """Return what goes into the record of a job beside what all have; empty if nothing does.

    Raises:
        InvalidOption: Its limits are none that a job of its handler (`usual`) can have.
    """
    is_known = known or options.known
    expires_s, start_s = _begin(options, usual)
    return pack_more(
        expires=_ms(expires_s),
        start=_ms(start_s),
        digest=digest_of(handler, payload, told) if is_known else "",
        followers=len(payload) if followers else "",
        window=_ms(options.window_s) if is_known else "",
        retention=_ms(options.retention_s),
    )


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else str(max(1, round(seconds * 1000)))
