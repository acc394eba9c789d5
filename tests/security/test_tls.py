"""rediss://: verified by default, and an error says what to do."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import pytest
import trustme

from pool import Handlers, Job, Node
from pool.errors import ConfigError, StoreUnavailable
from pool.events import PasswordInClear
from pool.redis.url import Url

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.security.conftest import Authority, Serve

handlers = Handlers()


@handlers.job("echo")
async def echo(job: Job, value: int) -> int:
    return value


def server_side(ca: Authority, host: str = "localhost") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.authority.issue_cert(host).configure_cert(context)
    return context


def address(url: str, port: int, query: str, host: str = "localhost") -> str:
    given = Url.parse(url)
    return f"rediss://{given.username}:{given.password}@{host}:{port}/0{query}"


async def works(pool: str, url: str) -> None:
    events: list[object] = []
    async with Node(pool, url, handlers=handlers, observers=(events.append,)) as node:
        assert await (await node.dispatch(echo, "k", 1)).result(timeout_s=30) == 1
    assert not [event for event in events if isinstance(event, PasswordInClear)]


@pytest.mark.anyio
async def test_a_node_works_through_tls(
    ca: Authority, serve_tls: Serve, pool_url: str, pool_name: str
) -> None:
    """With the CA that the address names; `valkeys://` is the same."""
    with serve_tls(server_side(ca)) as port:
        url = address(pool_url, port, f"?ssl_ca_certs={ca.file}")
        await works(pool_name, url)
        await works(pool_name, url.replace("rediss", "valkeys"))


@handlers.job("give_back")
async def give_back(job: Job, value: str) -> str:
    return value


@pytest.mark.anyio
async def test_what_takes_many_records_of_tls_is_whole(
    ca: Authority, serve_tls: Serve, pool_url: str, pool_name: str
) -> None:
    """A record is 16 KB, and the socket does not tell of those that TLS has read ahead."""
    text = "0123456789" * 26_000
    with serve_tls(server_side(ca)) as port:
        url = address(pool_url, port, f"?ssl_ca_certs={ca.file}")
        async with Node(pool_name, url, handlers=handlers, observers=()) as node:
            refs = [await node.dispatch(give_back, f"k{n}", text) for n in range(5)]
            for ref in refs:
                assert await ref.result(timeout_s=30) == text


@pytest.mark.anyio
async def test_a_certificate_that_does_not_verify_is_refused(
    ca: Authority, serve_tls: Serve, pool_url: str, pool_name: str, tmp_path: Path
) -> None:
    """By default as well: an unknown CA, another CA, another host, and no TLS at all."""
    other = type(ca).make(tmp_path / "other.pem")
    cases = [
        (server_side(ca), "", "localhost"),  # the system knows no such CA
        (server_side(ca), f"?ssl_ca_certs={other.file}", "localhost"),
        (server_side(ca, "elsewhere.example"), f"?ssl_ca_certs={ca.file}", "localhost"),
        (server_side(ca, "localhost"), f"?ssl_ca_certs={ca.file}", "127.0.0.1"),
    ]
    for context, query, host in cases:
        with serve_tls(context) as port:
            with pytest.raises(StoreUnavailable) as refused:
                await works(pool_name, address(pool_url, port, query, host))
            assert "does not verify" in refused.value.problem
            assert "ssl_ca_certs" in refused.value.problem
            assert Url.parse(pool_url).password not in str(refused.value)


@pytest.mark.anyio
async def test_a_host_name_is_left_unchecked_only_when_the_address_says_so(
    ca: Authority, serve_tls: Serve, pool_url: str, pool_name: str
) -> None:
    """The CA is checked all the same."""
    with serve_tls(server_side(ca, "elsewhere.example")) as port:
        unchecked = f"?ssl_check_hostname=false&ssl_ca_certs={ca.file}"
        await works(pool_name, address(pool_url, port, unchecked))
        with pytest.raises(StoreUnavailable, match="does not verify"):
            await works(pool_name, address(pool_url, port, "?ssl_check_hostname=false"))
    with pytest.raises(ConfigError):
        Url.parse("rediss://localhost?ssl_cert_reqs=none")


@pytest.mark.anyio
async def test_old_protocols_are_refused(
    ca: Authority, serve_tls: Serve, pool_url: str, pool_name: str
) -> None:
    """TLS 1.2 at least."""
    context = server_side(ca)
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.minimum_version = ssl.TLSVersion.TLSv1_1
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with serve_tls(context) as port, pytest.raises(StoreUnavailable, match="TLS"):
        await works(pool_name, address(pool_url, port, f"?ssl_ca_certs={ca.file}"))


@pytest.mark.anyio
async def test_a_server_may_ask_for_the_clients_certificate(
    ca: Authority, serve_tls: Serve, pool_url: str, pool_name: str, tmp_path: Path
) -> None:
    context = server_side(ca)
    context.verify_mode = ssl.CERT_REQUIRED
    ca.authority.configure_trust(context)
    mine: trustme.LeafCert = ca.authority.issue_cert("worker-1")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    mine.private_key_pem.write_to_path(str(key))
    mine.cert_chain_pems[0].write_to_path(str(certificate))
    with serve_tls(context) as port:
        with_mine = f"?ssl_ca_certs={ca.file}&ssl_certfile={certificate}&ssl_keyfile={key}"
        await works(pool_name, address(pool_url, port, with_mine))
        with pytest.raises(StoreUnavailable):
            await works(pool_name, address(pool_url, port, f"?ssl_ca_certs={ca.file}"))


@pytest.mark.anyio
@pytest.mark.parametrize(
    "query",
    [
        "ssl_ca_certs=/no/such/file",
        "ssl_certfile=/no/such/file",
        "ssl_ca_certs={here}",
        "ssl_certfile={here}",
        "ssl_keyfile=/no/such/file",
    ],
)
async def test_a_file_that_cannot_be_used_is_named(
    ca: Authority, serve_tls: Serve, pool_url: str, pool_name: str, query: str
) -> None:
    """It was said that the server does not exist."""
    with serve_tls(server_side(ca)) as port:
        query = query.format(here=__file__)  # no path belongs into a test's name
        with pytest.raises(ConfigError) as refused:
            await works(pool_name, address(pool_url, port, f"?{query}"))
        assert query.partition("=")[0] in refused.value.problem


def test_a_password_in_clear_is_noticed() -> None:
    """Over a network; not on this machine, not in TLS, and not where there is none to read."""
    for url, is_in_clear in (
        ("redis://:secret@redis.example", True),
        ("redis+sentinel://:secret@localhost,s2.example/primary", True),
        ("redis://redis.example", False),
        ("redis://:secret@localhost:7000", False),
        ("redis://:secret@127.0.0.1", False),
        ("redis://:secret@[::1]", False),
        ("redis://:secret@127.0.0.1.example", True),
        ("rediss://:secret@redis.example", False),
        ("unix://u:secret@/run/redis.sock", False),
    ):
        assert Url.parse(url).is_in_clear == is_in_clear, url


@pytest.mark.anyio
async def test_a_password_in_clear_is_said_once(
    pool_url: str, pool_name: str, make_remote: Callable[[], None]
) -> None:
    events: list[object] = []
    make_remote()
    async with Node(pool_name, pool_url, observers=(events.append,)):
        said = [event for event in events if isinstance(event, PasswordInClear)]
    assert len(said) == 1
    assert Url.parse(pool_url).password not in str(said)


@pytest.fixture
def make_remote(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what makes every address look like another machine's: there is none to connect to."""
    return lambda: monkeypatch.setattr(Url, "is_in_clear", property(lambda url: bool(url.password)))
