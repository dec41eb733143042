"""Who may ask what: bearer tokens, and on loopback without one the Host header, against DNS rebinding."""

from __future__ import annotations

import hmac
from dataclasses import dataclass

from arttrace.store.server.responses import RequestRefused
from arttrace.system.addresses import is_loopback_authority

_OPEN = ("/health", "/ready")
_MAX_HEADERS, _MAX_HEADER_BYTES = 100, 32 << 10

Headers = dict[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Authorizer:
    """`api_key` opens everything; None: spans and metrics are taken and given without one, on loopback only.

    What was captured is given only to `owner_token`, which lies in `owner.json` for this user alone, or to the key.
    """

    owner_token: str
    api_key: str | None = None

    def headers(self, raw: list[tuple[bytes, bytes]]) -> Headers:
        """The headers by lower-case name. Raises RequestRefused (431) when they are too many."""
        if len(raw) > _MAX_HEADERS or sum(len(name) + len(value) for name, value in raw) > _MAX_HEADER_BYTES:
            raise RequestRefused(431, "the request's headers are too large")
        return dict(raw)

    def check(self, path: str, headers: Headers) -> None:
        """Raises RequestRefused: 403 for a foreign Host, 401 for a missing or wrong token."""
        if self.api_key is None and not is_loopback_authority(headers.get(b"host", b"localhost")):
            raise RequestRefused(
                403, "this server answers to localhost and 127.0.0.1 only: the Host header names another"
            )
        if path in _OPEN:
            return
        if path.startswith("/api/"):
            if not self.knows(headers.get(b"authorization", b"")):
                raise RequestRefused(
                    401, "send `Authorization: Bearer TOKEN`, with the token in owner.json or the API key"
                )
        elif self.api_key is not None and not self.knows(headers.get(b"authorization", b"")):
            raise RequestRefused(401, "send `Authorization: Bearer KEY`, with the key the collector was started with")

    def knows(self, authorization: bytes) -> bool:
        """Whether the value of an Authorization header holds the token or the key; takes as long for any value."""
        scheme, _, given = authorization.strip().partition(b" ")
        given = given.strip()
        good = hmac.compare_digest(given, self.owner_token.encode())
        if self.api_key is not None:
            good |= hmac.compare_digest(given, self.api_key.encode())
        return good and scheme.lower() == b"bearer"
