"""Server and path of a call are the same whether the HTTP client has a URL of its own type or its text."""

from __future__ import annotations

from typing import Any

import httpx
import httpx2
import pytest

from arttrace.capture.calls.model_call import address


@pytest.mark.parametrize("kind", [httpx.URL, httpx2.URL])
@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8000/v1/chat/completions?a=b/c", ("/v1/chat/completions", "127.0.0.1", 8000)),
        ("https://host.example:443/deployments/a%20b/chat", ("/deployments/a%20b/chat", "host.example", None)),
        ("http://user:word@Host.example/v1#part", ("/v1", "host.example", None)),
        ("http://[::1]:8000/v1/responses", ("/v1/responses", "::1", 8000)),
        ("https://b\u00fccher.example/\u00fc", ("/%C3%BC", "xn--bcher-kva.example", None)),
    ],
)
def test_an_address_is_taken_apart_alike(kind: Any, url: str, expected: tuple[str, str, int | None]) -> None:
    made = kind(url)
    assert address(made) == address(str(made)) == expected


def test_what_has_no_address_has_a_path() -> None:
    assert address("/chat/completions") == ("/chat/completions", None, None)
