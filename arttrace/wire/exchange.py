"""Exchange: one request and its response as they were on the wire, as far as they got."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from arttrace.records import semconv

Ending = Literal["complete", "closed", "cancelled", "error"]
"""How reading the response ended: to its end, closed or dropped by the caller, cancelled, or by an error."""

COUNT_HEADERS = ("x-amzn-bedrock-input-token-count", "x-amzn-bedrock-output-token-count")
"""In which Bedrock counts the tokens of a call."""
KEPT_RESPONSE_HEADERS = (
    "content-type",
    "content-encoding",
    semconv.POLICY_VERSION_HEADER,
    semconv.SAMPLING_HEADER,
    semconv.END_TOKEN_HEADER,
    *COUNT_HEADERS,
)
"""The headers of a response that a span is made from, in lower case; a recorder keeps no others."""


def picked(headers: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    """Those of the headers that have one of these lower-case names. `headers` has lower-case names or minds no case.

    httpx's look through all of them for each name that they are asked for: those are gone through once.
    """
    pairs = getattr(headers, "raw", None)
    if not isinstance(pairs, list):
        return {name: value for name in names if (value := headers.get(name)) is not None}
    wanted, found = _as_bytes(names), dict[str, str]()
    for key, value in pairs:
        name = wanted.get(key.lower())
        if name is not None:  # httpx knows the encoding, and joins what came more than once
            found[name] = headers[name] if name in found or not value.isascii() else value.decode()
    return found


@lru_cache(maxsize=16)
def _as_bytes(names: tuple[str, ...]) -> dict[bytes, str]:
    return {name.encode(): name for name in names}


@dataclass(frozen=True, slots=True)
class Exchange:
    """One HTTP exchange of a model call.

    `body` is what was read of the response, still compressed if `headers` say so; `headers` have lower-case names and
    hold no secrets; `status` is None when no response came. `body_cut` says that the recorder kept only a beginning,
    `request_unread` that it could not read the request, which was streamed.
    `path` is that of the URL, without its query; it names the API, and on Azure the deployment.
    """

    request: bytes
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    ending: Ending = "complete"
    body_cut: bool = False
    request_unread: bool = False
    path: str = "/chat/completions"
