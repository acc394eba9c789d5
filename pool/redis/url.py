"""Where the store is: one frozen value made from an address, which never shows its password.

Its `Credentials` alone hold what is secret, and the address as it was given: whatever else keeps an
address keeps the value, and may be shown, logged or dumped with all its attributes.

An address may hold a password in places where a typing slip puts it (an unescaped `/` or `#`
moves the rest of a password into the path), so no error text repeats any part of an address but
its scheme.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal
from urllib.parse import SplitResult, parse_qsl, unquote

import attrs

from pool.core.ids import is_number
from pool.errors import ConfigError, name_of
from pool.names import hash_tag

Kind = Literal["tcp", "tls", "unix", "sentinel", "cluster", "embedded"]

_KINDS: dict[str, Kind] = {
    "redis": "tcp",
    "valkey": "tcp",
    "rediss": "tls",
    "valkeys": "tls",
    "unix": "unix",
    "redis+sentinel": "sentinel",
    "redis+cluster": "cluster",
    "embedded": "embedded",
}
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{0,20}")  # what may be repeated in an error text
_HOST = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.%]+)\]|(?P<name>[^:\[\]]*))(?::(?P<port>.*))?")
_PORT = 6379
_SENTINEL_PORT = 26379
_PORT_MAX = 65_535
DB_MAX = 2**31 - 1  # the server has its own, smaller limit and names it

# Query options by kind of address; the names are redis-py's, so that its addresses work here too.
_OPTIONS: dict[Kind, frozenset[str]] = {
    "tcp": frozenset({"db"}),
    "tls": frozenset({"db", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname"}),
    "unix": frozenset({"db"}),
    "sentinel": frozenset(),
    "cluster": frozenset(),
    "embedded": frozenset(),
}


@attrs.frozen(repr=False)
class Credentials:
    """Who we are; nothing else holds a password."""

    username: str = ""
    password: str = ""
    text: str = attrs.field(default="", eq=False)  # the address as it was given

    def __repr__(self) -> str:
        return "Credentials(***)"


@attrs.frozen(kw_only=True, repr=False)
class Url:
    """The address of a store.  `str()` and `repr()` show `***` for a password."""

    scheme: str
    kind: Kind
    hosts: tuple[tuple[str, int], ...] = ()
    path: str = ""  # of a unix socket, or of the directory of an embedded server
    service: str = ""  # what the sentinels call the server
    db: int = 0
    credentials: Credentials = Credentials()
    options: tuple[tuple[str, str], ...] = ()
    tag: str = ""  # of a cluster: the keys whose primary is meant, `pool:{P:0}`

    @classmethod
    def parse(cls, text: object) -> Url:
        """Return the address that `text` spells; of one that is parsed already, itself.

        Raises:
            ConfigError: It is not an address of a store; `problem` says why, without repeating it.
        """
        if type(text) is Url:
            return text
        if type(text) is not str:
            raise _wrong(f"expected str, not {name_of(type(text))}")
        if not text.isprintable() or " " in text:
            raise _wrong("the address contains spaces or control characters")
        scheme, found, _ = text.partition("://")
        scheme = scheme.lower()
        kind = _KINDS.get(scheme)
        if kind is None:
            known = ", ".join(_KINDS)
            named = found and _SCHEME.fullmatch(scheme)
            problem = f"unknown scheme {scheme!r}" if named else "the address has no scheme"
            raise _wrong(f"{problem}; write redis://localhost:6379, say; there are {known}")
        parts = _split(scheme, text[len(scheme) + len("://") :])
        if parts.fragment or "@" in parts.query + parts.path:
            raise _wrong("percent-encode '/', '?', '#' and '@' where a name or password has them")
        told = _READERS[kind](parts)
        credentials = Credentials(told.pop("username", ""), told.pop("password", ""), text)
        return cls(scheme=scheme, kind=kind, credentials=credentials, **told)

    @property
    def username(self) -> str:
        """Whose password it is; "": the default user's."""
        return self.credentials.username

    @property
    def password(self) -> str:
        """The password; "": there is none."""
        return self.credentials.password

    def at(self, key: str) -> Url:
        """Return where this key lives: in a cluster one of its primaries, else all is one place."""
        if self.kind != "cluster":
            return self
        return attrs.evolve(self, tag=hash_tag(key))

    @property
    def place(self) -> Url:
        """Return which store it is, whoever asks and how."""
        return attrs.evolve(self, scheme="", credentials=Credentials(), options=())

    @property
    def where(self) -> str:
        """Return the place alone, for error texts: host:port, path or service."""
        places = ",".join(_host_port(host, port) for host, port in self.hosts)
        match self.kind:
            case "unix":
                return self.path
            case "embedded":
                return f"embedded server {self.path}".rstrip()
            case "sentinel":
                return f"{self.service} (sentinels {places})"
            case "cluster" if self.tag:
                return f"{self.tag}... (cluster {places})"
            case _:
                return places

    def where_of(self, place: tuple[str, int] | None) -> str:
        """Return one of its servers, for error texts; None: nobody has named one."""
        return self.where if place is None else f"{_host_port(*place)} of {self.where}"

    @property
    def is_in_clear(self) -> bool:
        """Whether it sends a password to another machine without TLS."""
        is_plain = self.kind in ("tcp", "sentinel", "cluster")
        return is_plain and bool(self.password) and not all(_is_here(h) for h, _ in self.hosts)

    def __str__(self) -> str:
        places = ",".join(_host_port(host, port) for host, port in self.hosts)
        secret = ":***" if self.password else ""
        who = f"{self.username}{secret}@" if self.username or self.password else ""
        tail = f"/{self.service}" if self.service else self.path
        db = f"/{self.db}" if self.db and self.kind != "unix" else ""
        query = f"?db={self.db}" if self.db and self.kind == "unix" else ""
        return f"{self.scheme}://{who}{places}{tail}{db}{query}"

    def __repr__(self) -> str:
        return f"Url({str(self)!r})"


def _is_here(host: str) -> bool:
    return host in ("localhost", "::1") or re.fullmatch(r"127(\.\d{1,3}){3}", host) is not None


def _wrong(problem: str) -> ConfigError:
    return ConfigError(setting="url", problem=problem)


def _split(scheme: str, rest: str) -> SplitResult:
    """Split as RFC 3986 says; `urlsplit` of some Python versions refuses several hosts."""
    rest, _, fragment = rest.partition("#")
    rest, _, query = rest.partition("?")
    places, slash, path = rest.partition("/")
    return SplitResult(scheme, places, slash + path, query, fragment)


def _host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _number(text: str, *, what: str, low: int, high: int) -> int:
    if not (is_number(text) and low <= int(text) <= high):
        raise _wrong(f"the {what} must be a number from {low} to {high}")
    return int(text)


def _host(text: str, default_port: int) -> tuple[str, int]:
    match = _HOST.fullmatch(text)
    if match is None:
        raise _wrong("the host part is malformed")
    port = match["port"]
    host = match["six"] or match["name"] or "localhost"
    try:
        host.encode("idna")  # as looking it up does
    except UnicodeError:
        problem = "no host has such a name: a part of it is empty, too long, or no text"
        raise _wrong(problem) from None
    if port is None:
        return host, default_port
    return host, _number(port, what="port", low=1, high=_PORT_MAX)


def _db(text: str) -> int:
    return _number(text, what="database", low=0, high=DB_MAX)


def _who(parts: SplitResult) -> tuple[dict[str, str], str]:
    """Return user and password, and what is left of the network part."""
    who, _, places = parts.netloc.rpartition("@")
    username, _, password = who.partition(":")
    if who and not password:  # else a password written alone would be shown as a user's name
        raise _wrong("a user needs a password; write :password@ for the default user")
    return {"username": unquote(username), "password": unquote(password)}, places


def _query(parts: SplitResult, kind: Kind) -> dict[str, str]:
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    allowed = _OPTIONS[kind]
    if parts.query and (len(dict(pairs)) < len(pairs) or not allowed.issuperset(dict(pairs))):
        names = ", ".join(sorted(allowed)) or "none"
        raise _wrong(f"unknown or repeated option after '?'; this kind of address takes: {names}")
    return dict(pairs)


def _read_server(parts: SplitResult) -> dict[str, Any]:
    kind = _KINDS[parts.scheme]
    who, places = _who(parts)
    if "," in places:
        raise _wrong("several hosts need redis+sentinel:// or redis+cluster://")
    options = _query(parts, kind)
    path_db, query_db = parts.path.strip("/"), options.pop("db", "")
    if path_db and query_db:
        raise _wrong("the database is named twice")
    db = _db(path_db or query_db or "0")
    hosts = (_host(places, _PORT),)
    return {**who, "hosts": hosts, "db": db, "options": tuple(sorted(options.items()))}


def _read_unix(parts: SplitResult) -> dict[str, Any]:
    who, places = _who(parts)
    path = unquote(parts.path)
    if places or len(path) < 2 or path.endswith("/") or "\0" in path:
        raise _wrong(
            "a unix address needs the absolute path of a socket, as in unix:///run/redis.sock"
        )
    return {**who, "path": path, "db": _db(_query(parts, "unix").get("db", "0"))}


def _read_sentinel(parts: SplitResult) -> dict[str, Any]:
    who, places = _who(parts)
    _query(parts, "sentinel")
    service, _, db = parts.path.strip("/").partition("/")
    if not places or not service:
        raise _wrong("write redis+sentinel://host:port,host:port/service/db")
    hosts = tuple(_host(place, _SENTINEL_PORT) for place in places.split(","))
    return {**who, "hosts": hosts, "service": unquote(service), "db": _db(db or "0")}


def _read_cluster(parts: SplitResult) -> dict[str, Any]:
    who, places = _who(parts)
    _query(parts, "cluster")
    if parts.path.strip("/"):
        raise _wrong("a cluster has no databases: leave out what follows the hosts")
    return {**who, "hosts": tuple(_host(place, _PORT) for place in places.split(","))}


def _read_embedded(parts: SplitResult) -> dict[str, Any]:
    _query(parts, "embedded")
    if parts.netloc:
        raise _wrong("write embedded:// or, with an absolute directory, embedded:///dir")
    path = unquote(parts.path)
    if "\0" in path:
        raise _wrong("no directory has such a name")
    return {"path": path.rstrip("/") or path}


_READERS: dict[Kind, Callable[[SplitResult], dict[str, Any]]] = {
    "tcp": _read_server,
    "tls": _read_server,
    "unix": _read_unix,
    "sentinel": _read_sentinel,
    "cluster": _read_cluster,
    "embedded": _read_embedded,
}
