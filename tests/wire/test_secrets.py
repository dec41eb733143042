"""The search for secrets, also in texts that are made to keep it busy: the user's program stands still meanwhile."""

from __future__ import annotations

import pytest

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


def test_signatures_of_requests_do_not_push_out_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "_known", {})
    key = "k3y-of-another-client-0123456789"
    secrets.remember_headers({"authorization": f"Bearer {key}"})
    for number in range(100):
        signed = f"AWS4-HMAC-SHA256 Credential=AKIAX/a, SignedHeaders=host, Signature={number:064x}"
        secrets.remember_headers({"authorization": signed, "x-amz-security-token": "session-token-0123456789"})
    assert secrets.without_known(f"{key} session-token-0123456789") == "[secret] [secret]"
