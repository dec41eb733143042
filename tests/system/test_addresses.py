"""What is shown of an address, and of one that cannot be asked: never the login that may be in it."""

from __future__ import annotations

from base64 import b64decode
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arttrace.system.addresses import login_of, why_never_asked, without_login


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://host:80/v1", "http://host:80/v1"),
        ("http://me:secret@host:80/v1", "http://host:80/v1"),
        ("HTTPS://secret@host", "HTTPS://host"),
        ("http://me:p@ss@host:80", "http://host:80"),
        ("http://me:[p@host", "http://host"),
        ("http://me:p/ss@host/v1", "http://[secret]@host/v1"),
        ("http://me:1/ss@host", "http://[secret]@host"),
        ("http://me:p?ss@host", "http://[secret]@host"),
        ("http://me:p#ss@host", "http://[secret]@host"),
        ("http://me:p@s/s@host/v1", "http://[secret]@host/v1"),
        ("http:/me:pass@host", "[secret]@host"),
        ("//me:pass@host", "//host"),
        ("me:pass@host:80", "host:80"),
        ("https://tok/en@host/v1", "https://[secret]@host/v1"),
        ("https://tok?en@host/v1", "https://[secret]@host/v1"),
        ("https://tok#en@host", "https://[secret]@host"),
        ("https://tok/@host", "https://[secret]@host"),
        ("https://t.ok/en@host", "https://[secret]@host"),
        ("https://a@tok/en@host", "https://[secret]@host"),
        ("tok/en@host", "[secret]@host"),
        ("https://example.com/@me/v1", "https://example.com/@me/v1"),
        ("http://localhost/accounts/@me/v1", "http://localhost/accounts/@me/v1"),
        ("http://token@localhost/@me", "http://localhost/@me"),
        ("unix:/run/user@1000/engine", "unix:/run/user@1000/engine"),
        ("", ""),
    ],
)
def test_what_is_shown_of_an_address(url: str, shown: str) -> None:
    assert without_login(url) == shown


_WORDS = st.text(st.characters(exclude_characters="@", min_codepoint=33, max_codepoint=0x2FF), min_size=1)


@given(_WORDS, st.lists(_WORDS, min_size=1, max_size=3), st.sampled_from(["http://", "https://", "", "ftp://", "//"]))
def test_no_password_is_shown_whatever_is_in_it(user: str, password: list[str], scheme: str) -> None:
    secret = f"S3CR3T{'@'.join(password)}S3CR3T"
    url = f"{scheme}{user}:{secret}@host:8000/v1"
    assert "S3CR3T" not in without_login(url)
    assert without_login(url).endswith("host:8000/v1")
    assert "S3CR3T" not in str(why_never_asked(url, None))


@given(_WORDS, st.sampled_from(["http://", "https://", "", "ftp://", "//"]))
def test_no_token_is_shown_whatever_is_in_it(token: str, scheme: str) -> None:
    url = f"{scheme}S3CR3T{token}S3CR3T@host:8000/v1"
    assert "S3CR3T" not in without_login(url)
    assert without_login(url).endswith("host:8000/v1")
    assert "S3CR3T" not in str(why_never_asked(url, None))


@pytest.mark.parametrize(
    "url",
    [
        "http://me:S3C/ss@host",
        "http://me:[S3C@host",
        "http://me:S3C\u2100@host",
        "http://me:8/S3C@host",
        "https://S3C/ss@host",
        "https://S3C?ss@host",
        "https://S3C#ss@host",
        "https://S3C/@host",
    ],
)
def test_an_address_that_cannot_be_read_is_refused_without_its_login(url: str) -> None:
    why = why_never_asked(url, None)
    assert why is not None
    assert why.startswith("the address cannot be read")
    assert "percent-encoded" in why
    assert "S3C" not in why


@pytest.mark.parametrize(
    ("url", "login"),
    [
        ("http://host", None),
        ("http://@host", None),
        ("http://me@host", "me:"),
        ("http://me:p%40s%2Fs@host", "me:p@s/s"),
        ("http://:p@host", ":p"),
        ("http://m\u00eb:\u00fc@host", "m\u00eb:\u00fc"),
    ],
)
def test_the_login_of_an_address_as_a_header_says_it(url: str, login: str | None) -> None:
    said = login_of(urlsplit(url))
    assert said is None or b64decode(said.removeprefix("Basic ")).decode() == login
    assert (said is None) is (login is None)


@pytest.mark.parametrize(
    "url",
    ["https://example.com/@me/v1", "http://localhost:3000/of/a@b", "http://127.0.0.1:9/?who=a@b", "http://[::1]/@a"],
)
def test_an_at_sign_behind_what_is_a_host_is_of_the_path(url: str) -> None:
    assert why_never_asked(url, None) is None
