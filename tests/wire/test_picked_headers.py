"""The headers that a recorder keeps are read as the HTTP client itself reads them, in one pass."""

from __future__ import annotations

from typing import Any

import httpx
from hypothesis import given
from hypothesis import strategies as st

from arttrace.wire.exchange import picked

NAMES = ("content-type", "x-api-key", "cookie")
spelt = st.sampled_from([*NAMES, "Content-Type", "X-API-Key", "COOKIE", "accept", "x-api-key2"])
values = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=6)
encoded = st.tuples(values, st.sampled_from(["utf-8", "iso-8859-1"])).map(
    lambda each: each[0].encode(each[1], "replace")
)


@given(st.lists(st.tuples(spelt, encoded), max_size=8))
def test_they_are_what_httpx_says_of_each_name(pairs: list[tuple[str, bytes]]) -> None:
    headers = httpx.Headers([(name.encode(), value) for name, value in pairs])
    assert picked(headers, NAMES) == {name: headers[name] for name in NAMES if name in headers}


def test_a_mapping_of_another_client_is_asked_name_by_name() -> None:
    headers: dict[str, Any] = {"content-type": "text/html", "accept": "*/*"}
    assert picked(headers, NAMES) == {"content-type": "text/html"}
