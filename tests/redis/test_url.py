"""Addresses: what they mean, and that no text about them shows a password."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.errors import ConfigError
from pool.redis.url import Kind, Url


@pytest.mark.parametrize(
    ("text", "kind", "where", "db"),
    [
        ("redis://", "tcp", "localhost:6379", 0),
        ("redis://example.org", "tcp", "example.org:6379", 0),
        ("REDIS://example.org:7000/3", "tcp", "example.org:7000", 3),
        ("redis://example.org?db=3", "tcp", "example.org:6379", 3),
        ("valkey://[::1]:7000", "tcp", "[::1]:7000", 0),
        ("rediss://example.org", "tls", "example.org:6379", 0),
        ("valkeys://example.org/1", "tls", "example.org:6379", 1),
        ("unix:///run/redis.sock", "unix", "/run/redis.sock", 0),
        ("unix://me:secret@/run/a%20b%40c?db=2", "unix", "/run/a b@c", 2),
        ("redis+sentinel://a:1,b/main/2", "sentinel", "main (sentinels a:1,b:26379)", 2),
        ("redis+cluster://a:1,[::2]", "cluster", "a:1,[::2]:6379", 0),
        ("embedded://", "embedded", "embedded server", 0),
        ("embedded:///var/lib/pool/", "embedded", "embedded server /var/lib/pool", 0),
    ],
)
def test_an_address_names_a_place(text: str, kind: Kind, where: str, db: int) -> None:
    url = Url.parse(text)
    assert (url.kind, url.where, url.db) == (kind, where, db)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no scheme"),
        ("example.org:6379", "no scheme"),
        ("http://example.org", "unknown scheme 'http'"),
        ("redis://example.org:0", "port must be a number from 1 to 65535"),
        ("redis://example.org:65536", "port must be"),
        ("redis://example.org:", "port must be"),
        ("redis://example.org:\u0661", "port must be"),
        ("redis://example.org/main", "database must be a number"),
        ("redis://example.org/-1", "database must be a number"),
        ("redis://example.org/1?db=1", "named twice"),
        ("redis://example.org?ssl_cert_reqs=none", "unknown or repeated option"),
        ("rediss://example.org?db=1&db=2", "unknown or repeated option"),
        ("redis://a,b", "several hosts"),
        (f"redis://{64 * 'a'}.org", "no host has such a name"),
        ("rediss://a..org", "no host has such a name"),
        ("redis+sentinel://a:1,.b/main", "no host has such a name"),
        ("redis+cluster://a\u2024.\u00df..b", "no host has such a name"),
        ("unix:///run/a%00b", "absolute path"),
        ("embedded:///run/a%00b", "no directory has such a name"),
        ("redis://[::1", "malformed"),
        ("redis://a b", "spaces or control characters"),
        ("redis://a\n", "spaces or control characters"),
        ("redis://secret@example.org", "a user needs a password"),
        ("unix://run/redis.sock", "absolute path"),
        ("unix://", "absolute path"),
        ("redis+sentinel://a:1", "service"),
        ("redis+cluster://a/0", "no databases"),
        ("redis+cluster://a?db=0", "takes: none"),
        ("embedded://dir", "embedded:///dir"),
    ],
)
def test_what_is_no_address_is_refused_with_its_reason(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match="POOLCONFIG") as refused:
        Url.parse(text)
    assert refused.value.setting == "url"
    assert problem in refused.value.problem


def test_options_of_tls_are_kept() -> None:
    url = Url.parse("rediss://h?ssl_ca_certs=/ca.pem&ssl_check_hostname=false")
    assert dict(url.options) == {"ssl_ca_certs": "/ca.pem", "ssl_check_hostname": "false"}


def test_user_and_password_are_decoded() -> None:
    url = Url.parse("redis://an%40a:p%2Fw%3A%23@h:1/2")
    assert (url.username, url.password) == ("an@a", "p/w:#")
    assert str(url) == "redis://an@a:***@h:1/2"


@pytest.mark.parametrize(
    "text",
    ["redis://{}@h", "rediss://u{}@h:1/2", "unix://{}@/s?db=1", "redis+sentinel://{}@a,b/main"],
)
def test_no_text_of_an_address_shows_its_password(text: str) -> None:
    url = Url.parse(text.format(":canary-1"))
    assert url.password == "canary-1"
    assert "***" in repr(url)
    for shown in (str(url), repr(url), url.where, f"{[url]}"):
        assert "canary" not in shown


@given(
    st.text(alphabet=st.sampled_from("/:@?#[]%,&=.1a "), max_size=8),
    st.sampled_from(["redis", "unix", "redis+sentinel", "redis+cluster", "embedded", "http"]),
)
def test_an_unescaped_password_never_reaches_an_error(noise: str, scheme: str) -> None:
    """Typing slips move parts of a password into host, port, path, query or fragment."""
    text = f"{scheme}://:Canary{noise}Canary@h:6379/0"
    try:
        url = Url.parse(text)
    except ConfigError:
        with pytest.raises(ConfigError) as refused:
            Url.parse(text)
        assert "canary" not in str(refused.value).lower()
        assert refused.value.__cause__ is None
        return
    assert "Canary" in url.password
    assert "canary" not in str(url).lower()
