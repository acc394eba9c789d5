"""The one place where a foreign error becomes one of ours.

Two sources: the words of an error reply, and what a socket raises.  Neither kind of text ever holds
a credential: a server does not repeat them, and of an address only `Url.where` is used.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Final

import attrs

from pool.errors import (
    AuthError,
    ConfigError,
    Gone,
    MapFull,
    PoolError,
    StorageFull,
    StoreFault,
    StoreLost,
    StoreUnavailable,
    UnsupportedServer,
    WrongValue,
    shown,
)

CLOSED: Final = "closed the connection"  # what is said of a server that did

# As Redis 7.0 and Valkey say it, of a command and of what a script calls.
_TAG = re.compile(r"\{([^}:]+)(?::\d+)?\}")  # what all keys of a pool have
_REFUSED_COMMAND = re.compile(r"permissions to run the '([^']{1,64})' command")
_REFUSED_KEY = re.compile(r"o permissions to access (?:a|one of the) key|can't access at least one")


class Unanswered(Exception):
    """A sentinel or a node named no primary.  Never leaves the connection; why is its cause."""


class Held(Exception):
    """A failover is under way, and nobody knows yet where to.  Never leaves the connection."""


class NoScript(Exception):
    """The server does not have the script.  Never leaves `BodyIO`: it loads and sends again."""


class Garbled(ConnectionError):
    """What came over a connection is no reply: nothing that follows on it can be believed."""


class Moved(Exception):
    """Another node of the cluster has these keys.  Never leaves `BodyIO`: it sends again, there."""


def _refused_now(text: str) -> PoolError:
    # The server looked at the command and did not run it: nothing is half done.
    return StoreUnavailable(problem=shown(text), maybe_done=False)


def _half_moved(text: str) -> PoolError:
    problem = (
        f"{shown(text)}: a slot of the pool is being moved, and keys of it are on two nodes; if "
        "nobody moves it any more, `redis-cli --cluster fix HOST:PORT` ends the move"
    )
    return StoreUnavailable(problem=problem, maybe_done=False)


def _refused_credentials(text: str) -> PoolError:
    if refused := _REFUSED_COMMAND.search(text):
        text = f"its user may not run '{refused[1]}': the ACL rule +{refused[1]} is missing"
    elif _REFUSED_KEY.search(text):
        text = "its user may not use the keys of this pool: an ACL rule ~PATTERN is missing"
    elif text.startswith("ERR The user executing"):
        text = "its user may not run all commands of pool's scripts: ACL rules are missing"
    elif text.startswith("NOAUTH"):  # the server's own sentence is a paragraph about HELLO
        text = "the server wants a password and the address has none"
    elif text.startswith("WRONGPASS"):
        text = "no such user with this password, or it is disabled"
    return AuthError(problem=shown(text))


def _cannot_save(text: str) -> PoolError:
    # Not the memory limit: most often its disk is full or cannot be written.
    return StoreUnavailable(
        problem=f"the server cannot save to its disk, so it refuses writes: {shown(text)}",
        maybe_done=False,
    )


def _full(_: str) -> PoolError:
    return StorageFull()


def _wrong_type(text: str) -> PoolError:
    # Scripts look before they write, and a plain command does nothing.
    return StoreFault(problem=shown(text), maybe_done=False)


def _tail(text: str) -> str:
    return text.partition(" ")[2]


def _map_full(text: str) -> PoolError:
    items, _, items_max = _tail(text).partition(" ")
    return MapFull(items=int(items), items_max=int(items_max))


def _pool(name: str) -> str:
    """Return the pool of which a key is."""
    found = _TAG.search(name)
    return found[1] if found else name


_NAMED_MAX: Final = 8  # keys that an error names

CANNOT_SAVE: Final = "MISCONF"  # the word of a server that refuses writes: it cannot save them

# Errors by their first word.  Those of our own scripts carry their facts behind it.
_WORDS: dict[str, Callable[[str], PoolError]] = {
    **dict.fromkeys(("NOAUTH", "WRONGPASS", "NOPERM"), _refused_credentials),
    **dict.fromkeys(
        ("LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "READONLY", "NOREPLICAS"), _refused_now
    ),
    # While a slot moves key by key, no node can run a script on it: half of its names are no key
    # at all, and both nodes say TRYAGAIN.  ASK, for those that are, would help a single command.
    **dict.fromkeys(("ASK", "TRYAGAIN"), _half_moved),
    "MOVED": _refused_now,  # again, at the node that was named
    "UNBLOCKED": _refused_now,  # a blocked read ended because its server became a replica
    "WRONGTYPE": _wrong_type,
    "OOM": _full,
    CANNOT_SAVE: _cannot_save,
    StoreLost.code: lambda text: StoreLost(pool=_pool(_tail(text))),
    Gone.code: lambda text: Gone(identity=_tail(text)),
    WrongValue.code: lambda text: WrongValue(problem=_tail(text)),
    MapFull.code: _map_full,
}

# Errors whose first word is only ERR, by how they go on.
_SENTENCES: dict[str, Callable[[str], PoolError]] = {
    "ERR max number of clients reached": _refused_now,
    "ERR DB index is out of range": lambda _: ConfigError(
        setting="url", problem="the server has no database of this number"
    ),
    "ERR SELECT is not allowed in cluster mode": lambda _: ConfigError(
        setting="url", problem="a server in cluster mode has no databases"
    ),
    "ERR unknown command 'HELLO'": lambda _: UnsupportedServer(
        problem="it is older than Redis 7.0"
    ),
    "ERR The user executing the script can't": _refused_credentials,
    "ERR ACL failure in script": _refused_credentials,
    "ERR AUTH <password> called without any password": _refused_credentials,
}

# After these the connection leads to a server that is the wrong one by now.
_STALE = ("READONLY", "UNBLOCKED", "MOVED")
# After these it may be: a primary that is cut off from its replicas or its cluster says so.
_DOUBTFUL = (*_STALE, "NOREPLICAS", "CLUSTERDOWN", "MASTERDOWN")


def from_words(text: str) -> PoolError:
    """Return the error which an error reply means; its first word decides."""
    make = _WORDS.get(text.partition(" ")[0])
    if make is None:
        found = (make for start, make in _SENTENCES.items() if text.startswith(start))
        make = next(found, lambda text: StoreFault(problem=shown(text)))
    try:
        return make(text)
    except (ValueError, TypeError):  # one of our words without its facts: ours never say that
        return StoreFault(problem=shown(text))


def naming(fault: StoreFault, keys: Sequence[str]) -> StoreFault:
    """Return it with the keys of its call, if it is a foreign value that no key is named of.

    The server does not say under which of them it has met that.
    """
    if not fault.problem.startswith("WRONGTYPE") or any(key in fault.problem for key in keys):
        return fault
    which, them = ("the key", "it") if len(keys) == 1 else ("one of the keys", "them")
    more = f" and {len(keys) - _NAMED_MAX} more" if len(keys) > _NAMED_MAX else ""
    problem = (
        f"WRONGTYPE: {which} {', '.join(map(shown, keys[:_NAMED_MAX]))}{more} holds what is none "
        f"of pool's; look at {them} with TYPE, and rename or delete the value that is foreign"
    )
    return attrs.evolve(fault, problem=problem)


def is_stale(text: str) -> bool:
    """Say whether an error reply means that this connection leads to the wrong server."""
    return text.startswith(_STALE)


def is_doubtful(text: str) -> bool:
    """Say whether an error reply is a reason to ask who is the primary now."""
    return text.startswith(_DOUBTFUL)


def from_host(error: Exception, where: str, *, maybe_done: bool) -> StoreUnavailable:
    """Return the error for a connection to `where` that failed or could not be opened."""
    return StoreUnavailable(problem=f"{where} {_what_happened(error)}", maybe_done=maybe_done)


def _what_happened(error: Exception) -> str:
    if isinstance(error, Held):
        return "is replaced just now: a sentinel promotes a replica"
    if isinstance(error, Unanswered):
        return f"names no primary ({shown(str(error.__cause__))})"
    match _root(error):
        case ConnectionRefusedError():
            return "refused the connection"
        case socket.gaierror():
            return "has no address: the host name cannot be resolved"
        case TimeoutError():
            return "did not answer in time"
        case FileNotFoundError():
            return "does not exist"
        case PermissionError():
            return "may not be opened by this user"
        case ssl.SSLCertVerificationError() as refused:
            why = refused.verify_message.rstrip(".")
            return (
                f"has a certificate that does not verify ({why}); name its CA with "
                "?ssl_ca_certs=FILE, and the host as the certificate does"
            )
        case ssl.SSLError() as broken:
            return f"does not speak TLS as expected: {broken.strerror}"
        case Garbled() as garbled:
            return f"sent what is no reply ({shown(str(garbled))})"
        case ConnectionError() as lost:
            return f"{CLOSED} ({lost.strerror or 'end of stream'})"
        case OSError() as other:
            return f"cannot be reached: {other.strerror or type(other).__name__}"
        case other:
            return f"cannot be reached: {shown(str(other))}"


def _root(error: BaseException) -> BaseException:
    """Return the socket's own error, which may be the cause of another."""
    cause = error.__cause__ or error.__context__
    return error if isinstance(error, OSError) or cause is None else _root(cause)
