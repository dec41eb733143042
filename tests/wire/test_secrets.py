"""The search for secrets, also in texts that are made to keep it busy: the user's program stands still meanwhile."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from arttrace.wire.content import secrets


@pytest.mark.timeout(60)  # of minutes to hours where each beginning is looked at to the text's end
@pytest.mark.parametrize(
    "piece", ["sk-", "hf-pk-", "-eyJ", "token=", "token:", "Bearer a", "?key", "api_key", "://a:", "<key"]
)
def test_a_text_of_beginnings_alone_is_searched_once(piece: str) -> None:
    text = piece * (300_000 // len(piece))
    assert secrets.scrubbed(text) == text


@pytest.mark.parametrize(
    "key",
    [
        "sk-" + "x" * 90 + "1",
        "gho_" + "A1" * 60,
        "token=" + "y" * 90 + "2",
        "Bearer " + "z" * 500 + "3",
        "eyJ" + "a" * 900 + ".payload8.signed",
    ],
)
def test_a_digit_far_behind_the_beginning_makes_a_key(key: str) -> None:
    assert key not in secrets.scrubbed(f"it was {key} then")


_NAMES = [
    *("api_key", "API-Keys", "ap\u0131key", "authorization", "Author\u0130Zation", "password", "passphrase", "pwd"),
    *("PASS", "secret", "\u017fecret_key", "secretkey", "jwt", "credent\u0131als", "cookie", "access_token", "token"),
    *("reFresh-toKen", "eos_token", "next-page-token", "session", "id_token", "encryption_key", "signing-key", "key"),
]
_JOINTS = [*('": ', "': '", '\\\\": \\\\"', ": ", "=", " = bearer ", " ", '", "', ">"), ""]
_VALUES = [*("12345678", "-1.5", "abcdefgh", "a1b2c3d4e5f6g7h8", "[secret]", "A" * 16, "x" * 30, "é"), ""]
_PIECES = [
    *('"', "'", "\\\\", ":", "=", " ", "--", "-", "<", "</", "[", "]", ",", ";", "?", "&", "://", "@", "Bearer "),
    *("basic ", "sk-", "hf_", "xoxb-", "ghp_", "glpat-", "AKIA", "AIza", "eyJ", ".", "_", "signature", "code", "\n"),
]
_named = st.tuples(st.sampled_from(_NAMES), st.sampled_from(_JOINTS), st.sampled_from(_VALUES)).map("".join)
_pieces = st.sampled_from([*_PIECES, *_NAMES, *_VALUES])


@example("credent\u0131als: abcdefgh")
@example("\u017fecret: abcdefgh")
@example("AUTHOR\u0130ZATION: abcdefgh")
@example('encryption_key": 12345678, access_token=abcdefgh')
@given(st.lists(_named | _pieces, max_size=12).map("".join))
def test_where_a_pattern_is_not_tried_it_matches_nothing(text: str) -> None:
    expected = text
    for pattern, replacement in (*(of_form[1:] for of_form in secrets._OF_FORM), *secrets._OF_NAMES):
        expected = re.sub(pattern, replacement, expected, flags=re.IGNORECASE | re.DOTALL)
    assert secrets.scrubbed(text) == expected


def test_signatures_of_requests_do_not_push_out_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "_known", {})
    key = "k3y-of-another-client-0123456789"
    secrets.remember_headers({"authorization": f"Bearer {key}"})
    for number in range(100):
        signed = f"AWS4-HMAC-SHA256 Credential=AKIAX/a, SignedHeaders=host, Signature={number:064x}"
        secrets.remember_headers({"authorization": signed, "x-amz-security-token": "session-token-0123456789"})
    assert secrets.without_known(f"{key} session-token-0123456789") == "[secret] [secret]"
