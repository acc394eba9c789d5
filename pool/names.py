"""Every Redis key is made here, and only here; so is every check of a name that ends up in one.

    pool:{P}:...      control: configuration and replicated maps
    pool:{P:k}:...    lane k: all that the jobs of one group of keys need

The braces make a Redis Cluster keep a lane together.  Within a lane no two names can meet: fixed
names have no colon, and a name with a part has its word, a colon, and then the part to its end.
"""

from __future__ import annotations

import re
import unicodedata
from hashlib import blake2b
from typing import Any

import attrs

from pool import checks
from pool.errors import ConfigError, InvalidKey, InvalidOption, name_of, shown

KEY_BYTES_MAX = 512
LABEL_BYTES_MAX = 128
MAP_BYTES_MAX = 128
STREAM_BYTES_MAX = 128
IDEMPOTENCY_KEY_BYTES_MAX = 256
STEP_BYTES_MAX = 128
OF_PLANS = "plan:"  # so begin the keys of the jobs that keep plans, and the ids of plans' jobs
WORKERS = "workers"  # the pool's own replicated map
_UTF8_BYTES_MAX = 4  # of one character
PAUSED = "paused"  # a field of `lane`, see `lib/pause.lua`
# No key begins with a control character: what stands beside keys, in the same hashes.
QUEUED, LINE, OUT, IN, FOLLOWERS = "\t", "\n", "\r", "\v", "\f"

# What a name may be, and how an error says so.
_POOL = re.compile(r"[a-z0-9_-]{1,64}"), "1 to 64 of a-z, 0-9, _ and -"
_HANDLER = re.compile(r"[A-Za-z0-9_.:-]{1,128}"), "1 to 128 of A-Z, a-z, 0-9, _, ., : and -"
_SCHEDULE = re.compile(r"[A-Za-z0-9_.:-]{1,96}"), "1 to 96 of A-Z, a-z, 0-9, _, ., : and -"
_JOB_ID = re.compile(r"[!-+\--{}~]{1,128}")  # printable ASCII but space, comma and bar


# --- hashing --------------------------------------------------------------------------------


def key_hash(text: str) -> int:
    """Return the 64-bit hash that lanes and placement agree on, in all processes and versions."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def lane_of(key: str, lanes: int) -> int:
    """Return the lane of a job key, from 0 to `lanes` - 1."""
    return key_hash(key) % lanes if lanes > 1 else 0


# --- names ----------------------------------------------------------------------------------


def pair(key: str, job_id: str) -> str:
    """Return what a job is called that may be over: an id is its key's, and holds no space."""
    return f"{job_id} {key}"


def queued(key: str, job_id: str) -> str:
    """Return the name in `jobs` of a record that waits behind another; see `lib/queue.lua`."""
    return QUEUED + pair(key, job_id)


def paused_key(key: str) -> str:
    """Return the field of `lane` that says that a key is paused; see `lib/pause.lua`."""
    return f"{PAUSED} {key}"


def line(key: str) -> str:
    """Return the name in `payloads` of the ids that wait behind a key's live job, in order."""
    return LINE + key


def out(to: int) -> str:
    """Return the name in `payloads` of what is for a lane; see `lib/channel.lua`."""
    return f"{OUT}{to}"


def followers(key: str, job_id: str) -> str:
    """Return the name in `payloads` of a job's followers, while it has not ended; likewise."""
    return FOLLOWERS + pair(key, job_id)


def key_of(name: str) -> str:
    """Return the key that a name in `jobs` is about."""
    return name.partition(" ")[2] if name[:1] == QUEUED else name


def split_pair(text: str) -> tuple[str, str]:
    """Return the key and the job id of a pair."""
    job_id, _, key = text.partition(" ")
    return key, job_id


def _fixed(name: str) -> Any:
    """A key name without a part, put together once: it is used in nearly every script call."""
    made = attrs.Factory(lambda self: self.prefix + name, takes_self=True)
    return attrs.field(init=False, repr=False, eq=False, default=made)


@attrs.frozen
class Names:
    """The keys of one lane.  `worker` is always a member's name (`id.n`), see `ids`."""

    pool: str
    number: int
    prefix: str = attrs.field(init=False, repr=False, eq=False)

    lane: str = _fixed("lane")
    keepalive: str = _fixed("keepalive")
    open: str = _fixed("open")
    handlers: str = _fixed("handlers")
    jobs: str = _fixed("jobs")
    pending: str = _fixed("pending")
    due: str = _fixed("due")
    payloads: str = _fixed("payloads")
    cleanup: str = _fixed("cleanup")
    parked: str = _fixed("parked")
    letters: str = _fixed("letters")
    checkpoints: str = _fixed("blobs")
    journal: str = _fixed("journal")
    trials: str = _fixed("trials")  # the suspected job that each worker began last
    deaths: str = _fixed("deaths")  # processes that died, and when
    attempts: str = _fixed("attempts")  # of live jobs, those that failed
    schedules: str = _fixed("schedules")  # by name
    scheduled: str = _fixed("scheduled")  # when which of them is due, by the server's own clock
    tickers: str = _fixed("tickers")  # by name, their latest ticks
    kept: str = _fixed("kept")  # until when the outcomes of which jobs are remembered
    batches: str = _fixed("batches")
    rates: str = _fixed("rates")  # of the first lane: what was counted in the minute under way
    rated: str = _fixed("rated")  # ... and in those before it

    @prefix.default
    def _prefix(self) -> str:
        return f"pool:{{{self.pool}:{self.number}}}:"

    def unassigned(self, handler: str) -> str:
        """Keys that wait for a worker which knows this handler."""
        return f"{self.prefix}unassigned:{handler}"

    def owned(self, worker: str) -> str:
        """Keys that this worker owns and has acknowledged."""
        return f"{self.prefix}owned:{worker}"

    def stream(self, worker: str) -> str:
        """Starts that this worker has been granted and has not acknowledged."""
        return f"{self.prefix}stream:{worker}"

    def inbox(self, key: str) -> str:
        """Messages accepted for a job and not yet handled."""
        return f"{self.prefix}inbox:{key}"

    def result(self, key: str, job_id: str) -> str:
        """The outcome of an ended job."""
        return f"{self.prefix}result:{job_id} {key}"  # a pair

    def batch(self, batch_id: str) -> str:
        """A batch, and what has become of its members."""
        return f"{self.prefix}batch:{batch_id}"

    def signal(self, identity: str) -> str:
        """Wake-ups for a worker, and replies for a node."""
        return f"{self.prefix}signal:{identity}"


@attrs.frozen
class Control:
    """The keys that belong to the pool as a whole."""

    pool: str
    prefix: str = attrs.field(init=False, repr=False, eq=False)

    config: str = _fixed("config")
    maps: str = _fixed("maps")  # the time by which maps end, and how far those came that have
    map_due: str = _fixed("map-due")  # when the time of which map is up

    @prefix.default
    def _prefix(self) -> str:
        return f"pool:{{{self.pool}}}:"

    def map_data(self, name: str) -> str:
        """Where a replicated map is in its history, and its strings."""
        return f"{self.prefix}map-data:{name}"

    def map_lists(self, name: str) -> str:
        """The items of a replicated map's lists, and where in its list a value is."""
        return f"{self.prefix}map-lists:{name}"

    def map_log(self, name: str) -> str:
        """A replicated map's latest deltas."""
        return f"{self.prefix}map-log:{name}"

    def stream(self, name: str) -> str:
        """A stream's events."""
        return f"{self.prefix}stream:{name}"

    def stream_meta(self, name: str) -> str:
        """How many events a stream had, and which of them its length cap took."""
        return f"{self.prefix}stream-meta:{name}"

    def stream_once(self, name: str) -> tuple[str, str]:
        """Which event was added under which id of its caller's, and how long that is remembered."""
        return f"{self.prefix}stream-once:{name}", f"{self.prefix}stream-once-ends:{name}"

    def sink(self, stream: str, name: str) -> str:
        """Who cleans a sink of a stream, and its time."""
        return f"{self.prefix}sink:{_of(stream, name)}"

    def sink_leases(self, stream: str, name: str) -> str:
        """The consumers of a sink of a stream, by lease end."""
        return f"{self.prefix}sink-leases:{_of(stream, name)}"

    def sink_parked(self, stream: str, name: str) -> str:
        """Events of a stream that a sink has given up."""
        return f"{self.prefix}sink-parked:{_of(stream, name)}"


def _of(stream: str, name: str) -> str:
    """Return both as one text, which no other two make."""
    return f"{len(stream)}:{stream}:{name}"


def hash_tag(key: str) -> str:
    """Return the part of one of these names that says in which group it is: `pool:{P:k}`."""
    return key[: key.find("}") + 1]


def key_patterns(pool: str) -> tuple[str, str]:
    """Return patterns, as access rules take them, of all keys of a pool and of no other's."""
    # Neither a brace nor a colon can stand in a pool's name: the second pattern ends its own.
    return f"{Control(pool).prefix}*", f"pool:{{{pool}:*"


# --- checks ---------------------------------------------------------------------------------


def check_key(key: object) -> None:
    """Refuse what cannot be a job key: it must be text, see `InvalidKey`.

    Keys are compared byte by byte: two that differ only before Unicode normalisation differ.

    Raises:
        InvalidKey: It is not a `str`, is empty or too long, or holds a character that is
            refused; the problem names the offset, counted in characters.
    """
    if _is_plainly_good(key, KEY_BYTES_MAX):
        return
    problem = _problem(key, KEY_BYTES_MAX)
    if problem:
        raise InvalidKey(key=shown(key), problem=problem)


def check_new_key(key: object) -> None:
    """Refuse what cannot be the key of a caller's job: those of the jobs that keep plans, too.

    Raises:
        InvalidKey: As of `check_key()`, or it begins with `plan:`.
    """
    check_key(key)
    if str(key).startswith(OF_PLANS):
        raise plans_own(str(key))


def plans_own(key: str) -> InvalidKey:
    """Say that only a plan's job may have this key."""
    problem = f"those that begin with {OF_PLANS!r} are of the jobs that keep plans: take another"
    return InvalidKey(key=shown(key), problem=problem)


def check_idempotency_key(key: object) -> None:
    """Refuse what cannot be an idempotency key: the rule of job keys, within 256 bytes."""
    if _is_plainly_good(key, IDEMPOTENCY_KEY_BYTES_MAX):
        return
    problem = _problem(key, IDEMPOTENCY_KEY_BYTES_MAX)
    if problem:
        raise InvalidOption(option="idempotency_key", value=shown(key), problem=problem)


def check_job_id(job_id: object) -> None:
    """Refuse what cannot be a job's id: 1 to 128 of printable ASCII but space, comma and bar."""
    if not (type(job_id) is str and _JOB_ID.fullmatch(job_id)):
        must = "1 to 128 characters of ASCII that can be seen, without comma and bar"
        raise checks.option("job_id", job_id, must)


def check_batch(batch_id: object) -> None:
    """Refuse what cannot be a batch's id: the rule of job ids."""
    if not (type(batch_id) is str and _JOB_ID.fullmatch(batch_id)):
        must = "1 to 128 characters of ASCII that can be seen, without comma and bar"
        raise checks.option("id", batch_id, must)


def check_step(name: object) -> None:
    """Refuse what cannot be the name of a step: the rule of job keys, within 128 bytes."""
    problem = _problem(name, STEP_BYTES_MAX)
    if problem:
        raise InvalidOption(option="step", value=shown(name), problem=problem)


def check_pool(name: object) -> None:
    """Refuse what cannot be a pool's name.

    The alphabet leaves out all that means something in key patterns, access rules and hash tags,
    so that no pool's keys can be taken for another's.
    """
    _check_word("pool", name, *_POOL)


def check_handler(name: object) -> None:
    """Refuse what cannot be a handler's name."""
    _check_word("handler", name, *_HANDLER)


def check_schedule(name: object) -> None:
    """Refuse what cannot be a schedule's name: it is in the ids of its jobs."""
    _check_word("schedule", name, *_SCHEDULE)


def check_label(label: object, setting: str = "label") -> None:
    """Refuse what cannot be a worker's label: nothing, or by the rule of job keys 128 bytes."""
    if type(label) is not str or label:
        _check_text(setting, label, LABEL_BYTES_MAX)


def check_map(name: object) -> None:
    """Refuse what cannot be a replicated map's name: the rule of job keys, within 128 bytes."""
    _check_text("map", name, MAP_BYTES_MAX)


def check_stream(name: object, setting: str = "stream") -> None:
    """Refuse what cannot be the name of a stream or a sink: the rule of maps."""
    _check_text(setting, name, STREAM_BYTES_MAX)


def _check_word(setting: str, name: object, words: re.Pattern[str], told: str) -> None:
    if type(name) is str and words.fullmatch(name):
        return
    problem = f"a name is {told}" if type(name) is str else _no_text(name)
    raise ConfigError(setting=setting, problem=f"{checks.told(name)}: {problem}")


def _check_text(setting: str, text: object, bytes_max: int) -> None:
    problem = _problem(text, bytes_max)
    if problem:
        raise ConfigError(setting=setting, problem=f"{checks.told(text)}: {problem}")


def _is_plainly_good(text: object, bytes_max: int) -> bool:
    """Say yes without encoding or looking at single characters; no means look closer."""
    # Not isinstance: an enum that is also a str formats as `Colour.RED` but encodes as `red`,
    # so its key names and its hash would not belong together.
    return (
        type(text) is str
        and 0 < len(text) * (1 if text.isascii() else _UTF8_BYTES_MAX) <= bytes_max
        and text.isprintable()  # has neither control characters nor surrogates
    )


def _no_text(given: object) -> str:
    kind = type(given)
    what = f"expected str, not {name_of(kind)}"
    return f"{what}: give its plain text" if issubclass(kind, str) else what


def _problem(text: object, bytes_max: int) -> str:
    if type(text) is not str:
        return _no_text(text)
    if not text:
        return "empty"
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError as error:
        return f"lone surrogate U+{ord(text[error.start]):04X} at offset {error.start}"
    if size_bytes > bytes_max:
        return f"{size_bytes} bytes, at most {bytes_max}"
    for offset, char in enumerate(text):
        if unicodedata.category(char) == "Cc":
            return f"control character U+{ord(char):04X} at offset {offset}"
    return ""
