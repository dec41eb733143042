"""Sends trace requests to an OTLP/HTTP receiver and says what it answered.

Over the standard library's http.client, so that neither instrumentation of the user's HTTP clients, nor what their
tests put in place of them, ever sees it.
"""

from __future__ import annotations

import base64
import http.client
import ssl
import urllib.request
import zlib
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from arttrace.errors import ArttraceError

TIMEOUT_S = 10.0
OURS_HEADER = "x-arttrace-collector"
_MAX_ANSWER_BYTES = 1 << 20
_MAX_REASON = 500
_MAX_RETRY_AFTER_S = 300.0
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a receiver answered: the status (200 when it took the request), how many spans of it it refused and why.

    `ours` says that it is arttrace's collector; `retry_after_s` is 0 when it named no time.
    """

    status: int
    rejected: int = 0
    reason: str = ""
    retry_after_s: float = 0.0
    ours: bool = False


class OtlpClient:
    """One connection to one receiver, opened when needed. Not for several threads at once."""

    def __init__(self, endpoint: str, api_key: str | None = None) -> None:
        """`endpoint` is the base URL; spans go to `{endpoint}/v1/traces`. Raises ArttraceError when it is none."""
        url = urlsplit(endpoint.strip().rstrip("/").removesuffix("/v1/traces"))
        try:
            port = url.port
        except ValueError:
            port = -1
        if url.scheme not in ("http", "https") or not url.hostname or port == -1:
            raise ArttraceError(
                "the endpoint to ship to is no URL of the form http://host:port",
                "Set ARTTRACE_ENDPOINT (or init(endpoint=...), or --endpoint) to the base URL of the collector.",
            )
        self._url = url
        self._path = f"{url.path}/v1/traces"
        self._headers = {"content-type": "application/x-protobuf", "content-encoding": "gzip", "user-agent": "arttrace"}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._connection: http.client.HTTPConnection | None = None

    @property
    def name(self) -> str:
        """Where spans go, without credentials: for logs."""
        host = f"[{self._url.hostname}]" if ":" in (self._url.hostname or "") else self._url.hostname
        return f"{self._url.scheme}://{host}" + (f":{self._url.port}" if self._url.port else "")

    def post(self, request: bytes) -> Answer:
        """Send one ExportTraceServiceRequest. Raises OSError when there is no answer."""
        packed = zlib.compressobj(1, wbits=16 + zlib.MAX_WBITS)
        body = packed.compress(request) + packed.flush()
        kept = self._connection is not None
        try:
            return self._post(body)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if not kept:
                raise _as_os_error(error) from error
        try:  # the receiver may have closed the idle connection just now
            return self._post(body)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise _as_os_error(error) from error

    def close(self) -> None:
        """Close the connection; a later `post` opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _post(self, body: bytes) -> Answer:
        if self._connection is None:
            self._connection, self._target, self._proxy_headers = _connect(self._url, self._path)
        self._connection.request("POST", self._target, body, {**self._headers, **self._proxy_headers})
        with self._connection.getresponse() as response:
            text = response.read(_MAX_ANSWER_BYTES)
            if not response.isclosed():  # it says more than we read: the connection is of no more use
                self.close()
            return _answer(response.status, response.headers, text)


def _connect(url: SplitResult, path: str) -> tuple[http.client.HTTPConnection, str, dict[str, str]]:
    """A connection, what to ask it for, and the headers a proxy wants. Proxies are those of the environment."""
    host, secure = url.hostname or "", url.scheme == "https"
    port = url.port or (443 if secure else 80)
    proxy = None
    if host not in _LOOPBACK and not urllib.request.proxy_bypass(host):
        proxy = urllib.request.getproxies().get(url.scheme)
    if not proxy:
        if secure:
            return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=_tls()), path, {}
        return http.client.HTTPConnection(host, port, timeout=TIMEOUT_S), path, {}
    via = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    headers = {}
    if via.username:
        login = f"{unquote(via.username)}:{unquote(via.password or '')}"
        headers["proxy-authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
    if not secure:
        connection = http.client.HTTPConnection(via.hostname or "", via.port or 80, timeout=TIMEOUT_S)
        return connection, f"http://{host}:{port}{path}", headers
    tunnel = http.client.HTTPSConnection(via.hostname or "", via.port or 80, timeout=TIMEOUT_S, context=_tls())
    tunnel.set_tunnel(host, port, headers)
    return tunnel, path, {}


def _tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    if not context.cert_store_stats()["x509_ca"]:  # a slim image without certificates: those that came with httpx
        import certifi

        context.load_verify_locations(certifi.where())
    return context


def _answer(status: int, headers: http.client.HTTPMessage, body: bytes) -> Answer:
    json = "json" in headers.get("content-type", "")
    rejected, reason = 0, ""
    try:
        if json:
            said = msgspec.json.decode(body) if body.strip() else {}
            partial = (said.get("partialSuccess") or {}) if status == 200 else {}
            rejected = int(partial.get("rejectedSpans") or 0)
            reason = str((partial.get("errorMessage") if status == 200 else said.get("message")) or "")
        else:
            fields = _fields(body)
            if status == 200:
                fields = _fields(fields.get(1, b""))
                rejected = fields.get(1, 0)
            reason = fields.get(2, b"").decode()
    except (ValueError, TypeError, AttributeError, IndexError):
        reason = "its answer is not one of OTLP"
    return Answer(
        status=status,
        rejected=max(rejected, 0),
        reason=reason[:_MAX_REASON],
        retry_after_s=_seconds(headers.get("retry-after", "")),
        ours=headers.get(OURS_HEADER) is not None,
    )


def _seconds(retry_after: str) -> float:
    """The seconds of a Retry-After header; 0 for one that names a date, or none."""
    try:
        return min(max(float(retry_after), 0.0), _MAX_RETRY_AFTER_S)
    except ValueError:
        return 0.0


def _fields(message: bytes) -> dict[int, Any]:
    """The varint and length-delimited fields of a protobuf message. Raises IndexError or ValueError when it is none."""
    fields: dict[int, Any] = {}
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        value, at = _varint(message, at)
        if tag & 7 == 2:
            if at + value > len(message):
                raise IndexError(at)
            fields[tag >> 3] = message[at : at + value]
            at += value
        elif tag & 7 == 0:
            fields[tag >> 3] = value
        else:
            raise ValueError("a field of a kind that OTLP's answers do not have")
    return fields


def _varint(message: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = message[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7


def _as_os_error(error: Exception) -> OSError:
    return error if isinstance(error, OSError) else OSError(f"{type(error).__name__}: {error}")
