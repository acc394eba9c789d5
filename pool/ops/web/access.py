"""Access to the gateway: bearer secrets of roles, and signed tokens of workers.

What a worker is and has, as signed texts: opaque to clients, the same at every gateway.

    claim --pack, sign with the first secret--> token --any of the secrets fits--> claim

Who knows one can use it, as a worker; nobody can make one.  They hold no secret: the names of keys
and handlers can be read in them.

Who asks, and what they may do: bearer secrets of roles, two at once while one replaces another.

    admin > operate > read        worker: apart, for workers alone

A secret is kept as its keyed hash alone, with a key of this process, so nothing that is shown or
dumped tells one; what is presented is hashed likewise and compared with all of them, in the same
time whatever it is.

Without secrets only who is on this machine is answered, and only as a program: the browser of
whoever works here would send what any page asks it to.  So a request that a page has made (`Origin`
of elsewhere), or to which a proxy has added anything (`X-Forwarded-For`, `Via`, ...), or to another
name (`Host`) is refused.  A proxy on this machine that adds nothing and names us by our address
cannot be told from a program: behind one there have to be secrets.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import re
import secrets
import shlex
import tomllib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

import attrs
from itsdangerous import BadData, URLSafeSerializer

from pool import checks
from pool.errors import ConfigError, PoolError, shown
from pool.jobs.remote.claims import JobClaim, WorkerClaim
from pool.ops.web.problems import WebRefusal

_HINT: Final = "it was signed with another secret: all gateways of a pool need the same"


def _serializer(keys: Sequence[str], of: str) -> URLSafeSerializer:
    # The newest comes last there, and signs.
    options = {"key_derivation": "hmac", "digest_method": staticmethod(hashlib.sha256)}
    return URLSafeSerializer(list(reversed(keys)), salt=f"pool.{of}", signer_kwargs=options)


@attrs.frozen(repr=False)
class Tokens:
    """Makes them and reads them; without secrets by one that this process has made."""

    keys: Sequence[str]
    _workers: Any = attrs.field(init=False)
    _jobs: Any = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        keys = self.keys or (secrets.token_urlsafe(32),)
        object.__setattr__(self, "_workers", _serializer(keys, "worker"))
        object.__setattr__(self, "_jobs", _serializer(keys, "job"))

    def of_worker(self, claim: WorkerClaim) -> str:
        """Return the token of a worker."""
        token: str = self._workers.dumps(claim.pack())
        return token

    def of_job(self, claim: JobClaim) -> str:
        """Return the token of a job that a worker has."""
        token: str = self._jobs.dumps(claim.pack())
        return token

    def worker(self, token: str) -> WorkerClaim:
        """Return whose it is.

        Raises:
            WebRefusal: It is none.
        """
        try:
            return WorkerClaim.parse(self._workers.loads(token))
        except (BadData, PoolError, ValueError, TypeError):
            detail = "worker_token is none of this gateway's: register again"
            raise WebRefusal("WEBWORKER", detail, _HINT, facts={"of": "worker"}) from None

    def job(self, token: str) -> JobClaim:
        """Return of which job it is.

        Raises:
            WebRefusal: It is none.
        """
        try:
            return JobClaim.parse(self._jobs.loads(token))
        except (BadData, PoolError, ValueError, TypeError):
            detail = "the token of the job is none"
            raise WebRefusal("WEBTOKEN", detail, _HINT, facts={"of": "job"}) from None


Role: TypeAlias = Literal["read", "operate", "admin", "worker"]

ROLES: Final[tuple[Role, ...]] = get_args(Role)
VARIABLES: Final[Mapping[Role, str]] = {role: f"POOL_WEB_{role.upper()}" for role in ROLES}
SIGNING_VARIABLE: Final = "POOL_WEB_SIGNING"
AT_ONCE_MAX: Final = 2  # secrets of one name: the old one and the new one
SECRET_CHARS_MIN, SECRET_CHARS_MAX = 16, 512
FILE_BYTES_MAX: Final = 256 * 1024
_SECRET: Final = re.compile(r"[!-+\--~]+")  # visible ASCII, no comma
_NAME: Final = re.compile(r"[A-Za-z0-9_.@-]{1,64}")
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:,\[\]\s]+)(?::[0-9]*)?")
# What proxies, balancers and CDNs add, and programs do not send: whole names, then beginnings.
_ADDED: Final = re.compile(
    r"forwarded|via|cdn-loop|proxy-connection|client-ip|true-client-ip|wl-proxy-client-ip"
    r"|x-(real-ip|client-ip|cluster-client-ip|remote-(ip|addr)|originating-ip|proxyuser-ip"
    r"|amzn-trace-id|amz-cf-id|cloud-trace-context|varnish)"
    r"|(x-forwarded|x-envoy|x-original|x-proxy|x-appengine|x-azure|x-arr|x-akamai|akamai|cf|fastly"
    r"|fly)(-.*)?"
)
_INCLUDED: Final[Mapping[Role, frozenset[Role]]] = {
    "read": frozenset({"read"}),
    "operate": frozenset({"read", "operate"}),
    "admin": frozenset({"read", "operate", "admin"}),
    "worker": frozenset({"worker"}),
}


@attrs.frozen
class Caller:
    """Who asks: a name, as the journal has it, and what they may do.

    Raises:
        ConfigError: The name is not 1 to 64 of A-Z, a-z, 0-9, _, ., @ and -, or a role is none.
    """

    name: str
    roles: tuple[Role, ...]

    def __attrs_post_init__(self) -> None:
        if type(self.name) is not str or not _NAME.fullmatch(self.name):
            problem = f"{shown(self.name)!r} is not 1 to 64 of A-Z, a-z, 0-9, _, ., @ and -"
            raise ConfigError(setting="caller", problem=problem)
        for role in checks.several("roles", self.roles, "roles", refuse=checks.setting):
            checks.word("roles", role, *ROLES, refuse=checks.setting)

    def may(self, role: Role) -> bool:
        """Whether this one may do what needs that role."""
        return any(role in _INCLUDED[each] for each in self.roles)


LOCAL: Final = Caller("local", ("admin", "worker"))  # whoever is on this machine, without secrets
Authenticator: TypeAlias = Callable[[Mapping[str, str]], Awaitable[Caller | None]]


class Keyring:
    """The bearer secrets of a control plane: `Keyring(operate={"deploy": ["...", "..."]})`.

    Each has the name that the journal tells; two at once, while one replaces the other.
    """

    def __init__(
        self,
        *,
        read: Mapping[str, Sequence[str]] | None = None,
        operate: Mapping[str, Sequence[str]] | None = None,
        admin: Mapping[str, Sequence[str]] | None = None,
        worker: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Take the secrets of each role by name; they are not kept in clear.

        Raises:
            ConfigError: A name or a secret cannot be one, or a secret is there twice; it is not
                repeated.
        """
        self._salt = secrets.token_bytes(32)
        self._known: list[tuple[bytes, Caller]] = []
        given = {"read": read, "operate": operate, "admin": admin, "worker": worker}
        for role in ROLES:
            for name, texts in (given[role] or {}).items():
                caller = Caller(name, (role,))
                for text in checked_secrets(f"{role}.{name}", texts):
                    digest = self._digest(text)
                    if any(hmac.compare_digest(digest, each) for each, _ in self._known):
                        problem = f"the secret of {name} is there twice"
                        raise ConfigError(setting=f"{role}.{name}", problem=problem)
                    self._known.append((digest, caller))

    def __repr__(self) -> str:
        return f"Keyring({len(self._known)} secrets)"

    def __bool__(self) -> bool:
        return bool(self._known)

    def has(self, role: Role) -> bool:
        """Whether somebody may have that role."""
        return any(role in caller.roles for _, caller in self._known)

    def find(self, secret: str) -> Caller | None:
        """Return whose secret it is; None: nobody's."""
        digest, found = self._digest(secret), None
        for each, caller in self._known:  # all of them, whichever it is
            if hmac.compare_digest(digest, each):
                found = caller
        return found

    def _digest(self, secret: str) -> bytes:
        return hmac.digest(self._salt, secret.encode(errors="surrogatepass"), hashlib.sha256)


def checked_secrets(of: str, given: object) -> tuple[str, ...]:
    """Return one or two secrets; what is wrong is told without them.

    Raises:
        ConfigError: They cannot be used.
    """
    texts = (given,) if type(given) is str else tuple(_listed(of, given))
    if not 0 < len(texts) <= AT_ONCE_MAX:
        problem = f"{len(texts)} secrets: one, or two while one replaces the other"
        raise ConfigError(setting=of, problem=problem)
    found = list[str]()
    for text in texts:
        if type(text) is not str or not _SECRET.fullmatch(text):
            problem = "a secret is not visible ASCII without spaces and commas"
            raise ConfigError(setting=of, problem=problem)
        if not SECRET_CHARS_MIN <= len(text) <= SECRET_CHARS_MAX:
            problem = f"a secret has {len(text)} characters: {SECRET_CHARS_MIN} to "
            raise ConfigError(setting=of, problem=f"{problem}{SECRET_CHARS_MAX} are good")
        found.append(text)
    return tuple(found)


def _listed(of: str, given: object) -> Sequence[Any]:
    if not isinstance(given, list | tuple):
        raise ConfigError(setting=of, problem="give one secret, or a list of two")
    return given


@attrs.frozen(kw_only=True)
class Secrets:
    """What the environment and a file say."""

    keyring: Keyring
    signing: tuple[str, ...] = attrs.field(default=(), repr=False)


def gather(environ: Mapping[str, str], path: str = "") -> Secrets:
    """Return the secrets of a file (TOML: a table for each role, `name = secret`) and of variables.

    Whoever names a file, or a variable of a role, wants secrets: without any in them it is refused.

    Raises:
        ConfigError: They cannot be read, or used; or others may read the file.
    """
    found: dict[str, dict[str, Any]] = {role: {} for role in ROLES}
    signing: object = ()
    if path:
        told = _file(path)
        signing = told.pop("signing", ())
        for name, table in told.items():
            if name not in found or not isinstance(table, dict):
                problem = f"{shown(path)}: {shown(name)!r} is none of {', '.join(ROLES)}, signing"
                raise ConfigError(setting="secrets", problem=problem)
            found[name] |= table
    for role, variable in VARIABLES.items():
        if text := environ.get(variable, ""):
            found[role][role] = checked_secrets(variable, text.replace(",", " ").split())
    if text := environ.get(SIGNING_VARIABLE, ""):
        signing = text.replace(",", " ").split()
    keyring = Keyring(**found)
    if not keyring and (meant := _meant(environ, path)):
        problem = f"{meant} has no secret of {', '.join(ROLES)}: whoever is on this machine could "
        raise ConfigError(setting="secrets", problem=f"{problem}do everything")
    return Secrets(keyring=keyring, signing=checked_secrets("signing", signing) if signing else ())


def _meant(environ: Mapping[str, str], path: str) -> str:
    """Return what was to tell secrets; nothing: none are wanted."""
    return shown(path) or next((each for each in VARIABLES.values() if each in environ), "")


def _check_private(path: str, found: os.stat_result) -> None:
    """Refuse a file that others may read, as ssh does a key.

    The group may if the file is somebody else's: so an orchestrator hands secrets to a service.
    """
    others = 0o077 if found.st_uid == os.geteuid() else 0o007
    if found.st_mode & others:
        name = shlex.quote(path) if path.isprintable() else shown(path)
        problem = f"others can read it (mode {found.st_mode & 0o777:04o}): chmod 600 {name}"
        raise ConfigError(setting="secrets", problem=problem)


def _file(path: str) -> dict[str, Any]:
    try:
        with Path(path).open("rb") as file:
            _check_private(path, os.fstat(file.fileno()))
            raw = file.read(FILE_BYTES_MAX + 1)
        if len(raw) > FILE_BYTES_MAX:
            raise ConfigError(setting="secrets", problem=f"{shown(path)} is over 256 KiB")
        return tomllib.loads(raw.decode())
    except (OSError, ValueError, RecursionError) as error:  # what is in it stays untold
        why = getattr(error, "strerror", None) or f"no TOML in UTF-8 ({type(error).__name__})"
        raise ConfigError(setting="secrets", problem=f"{shown(path)}: {why}") from None


# --- without secrets --------------------------------------------------------------------------


def is_loopback(host: str) -> bool:
    """Whether it is an address, or the name, of this machine alone."""
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def from_elsewhere(client: Sequence[Any] | None, headers: Mapping[str, str]) -> dict[str, str]:
    """Return by what a request is not from a program on this machine, or not from it alone."""
    if client and not is_loopback(str(client[0])):
        return {"client": shown(str(client[0]))}
    if added := next(filter(is_added, headers), ""):
        return {"header": shown(added)}
    if not is_loopback(host_of(host := headers.get("host", ""))):
        return {"host": shown(host)}
    return {}


def is_added(name: str) -> bool:
    """Whether it is a header that only who passes requests on adds."""
    return _ADDED.fullmatch(name.replace("_", "-")) is not None


def is_of_a_page(headers: Mapping[str, str]) -> bool:
    """Whether a page of elsewhere has made a browser ask."""
    origin = headers.get("origin")
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return True
    return origin is not None and origin.partition("://")[2] != headers.get("host", "")


def host_of(text: str) -> str:
    """Return the name or address in a `Host` header, without its port; nothing: it is none."""
    found = _HOST.fullmatch(text)
    return found[1].strip("[]") if found else ""
