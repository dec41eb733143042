"""Sends trace requests to an OTLP/HTTP receiver and returns its answers.

Over the standard library's http.client, so that neither instrumentation of the user's HTTP clients, nor what their
tests put in place of them, ever sees it.
"""

from __future__ import annotations

import http.client
import math
import ssl
import time
import urllib.request
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import SplitResult, urlsplit

import msgspec

from arttrace.capture.base.receiver import Receiver
from arttrace.formats.otlp.protobuf_fields import BYTES, read_varint, walk
from arttrace.records.reward import Reward
from arttrace.records.span import SpanRow
from arttrace.records.values.nesting import UNREADABLE
from arttrace.system.addresses import is_loopback, login_of, trusting
from arttrace.system.errors import harmless

OURS_HEADER = "x-arttrace-collector"
_MAX_ANSWER_BYTES = 1 << 20
_MAX_REASON = 500
_MAX_RETRY_AFTER_S = 300.0
_GRPC_PORT = 4317
_LANGFUSE_TRACES, _SCORES = "/api/public/otel/v1/traces", "/api/public/scores"
_BAD_REQUEST = 400
_IN_PART = 207


@dataclass(frozen=True, slots=True)
class Answer:
    """What a receiver answered: whether it took the request, how many spans of it it refused and why.

    `ours` says that it is arttrace's collector; `retry_after_s` is 0 when it named no time.
    """

    status: int
    taken: bool
    rejected: int = 0
    reason: str = ""
    retry_after_s: float = 0.0
    ours: bool = False

    @property
    def said(self) -> str:
        """Status and reason, for a line that names who answers."""
        return f"{self.status}: {self.reason}" if self.reason else str(self.status)


class OtlpClient:
    """One connection to one receiver, opened when needed. Not for several threads at once."""

    def __init__(self, receiver: Receiver) -> None:
        """Raises ArttraceError when the receiver's URL, headers or limits are none."""
        receiver.check()
        self._receiver = receiver
        self._url = receiver.target()
        self._headers = receiver.request_headers()
        self._connection: http.client.HTTPConnection | None = None
        self._lists = True

    @property
    def name(self) -> str:
        """Where spans go, without credentials: for logs."""
        return self._receiver.called

    @property
    def takes_rewards(self) -> bool:
        """Whether rewards are sent, as spans."""
        return self._receiver.spans == "as captured"

    def formed(self, spans: list[SpanRow]) -> list[SpanRow]:
        """The spans in the form that the receiver wants."""
        if self._receiver.spans == "as captured":
            return spans
        from arttrace.formats.sdks.langfuse_live import formed  # slow to import

        return [formed(span) for span in spans]

    def score(self, reward: Reward) -> bytes | None:
        """The request for a reward's score, where the receiver takes scores and the reward's trace is known."""
        if self._receiver.spans != "langfuse":
            return None
        from arttrace.formats.sdks.langfuse_live import scored  # slow to import

        return scored(reward)

    def post_score(self, score: bytes) -> Answer:
        """Send one score to Langfuse. Newer servers take lists of them, older ones single scores."""
        if self._lists:
            answer = self._ask(b"[%b]" % score, _SCORES, {"content-type": "application/json"})
            if answer.status != _BAD_REQUEST:
                return answer
        answer = self._ask(score, _SCORES, {"content-type": "application/json"})
        self._lists = self._lists and not answer.taken
        return answer

    def post(self, request: bytes) -> Answer:
        """Send one ExportTraceServiceRequest. Raises OSError when there is no answer."""
        body = _gzipped(request) if self._receiver.compression == "gzip" else request
        return self._ask(body, None, self._headers)

    def _ask(self, body: bytes, path: str | None, headers: dict[str, str]) -> Answer:
        kept = self._connection is not None
        headers = {name: value for name, value in self._headers.items() if "content" not in name.lower()} | headers
        try:
            return self._post(body, path, headers)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if not kept or isinstance(error, TimeoutError):
                raise self._as_os_error(error) from error
        try:  # the receiver may have closed the idle connection just now
            return self._post(body, path, headers)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise self._as_os_error(error) from error

    def close(self) -> None:
        """Close the connection; a later `post` opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _post(self, body: bytes, path: str | None, headers: dict[str, str]) -> Answer:
        if self._connection is None:
            self._connection, self._target, self._proxy_headers = _connect(self._url, self._receiver)
        target = self._target if path is None else self._target.replace(_LANGFUSE_TRACES, path)
        unsent: OSError | None = None
        try:
            self._connection.request("POST", target, body, {**headers, **self._proxy_headers})
        except (BrokenPipeError, ConnectionResetError) as error:  # it may have said why before it closed
            if self._connection.sock is None:
                raise
            unsent = error
        try:
            with self._connection.getresponse() as response:
                text = response.read(_MAX_ANSWER_BYTES)
                if unsent is not None or not response.isclosed():  # of no more use: it says more than we read
                    self.close()
                answer = read_answer(response.status, response.headers, text)
        except (OSError, http.client.HTTPException):
            if unsent is not None:
                raise unsent from None
            raise
        if unsent is not None and answer.status < _BAD_REQUEST:
            raise unsent
        return replace(answer, reason=self._receiver.without_secrets(answer.reason))

    def _as_os_error(self, error: Exception) -> OSError:
        if isinstance(error, http.client.HTTPException) and self._url.port == _GRPC_PORT:
            return OSError("it does not speak HTTP/1.1: 4317 is the port of OTLP over gRPC, try that over HTTP, 4318")
        if isinstance(error, http.client.RemoteDisconnected):
            return OSError("it hung up without an answer")
        if isinstance(error, http.client.BadStatusLine | http.client.LineTooLong):
            return OSError("its answer is not HTTP/1.1")
        return error if isinstance(error, OSError) else OSError(f"{type(error).__name__}: {error}")


def _gzipped(request: bytes) -> bytes:
    packed = zlib.compressobj(1, wbits=16 + zlib.MAX_WBITS)
    return packed.compress(request) + packed.flush()


def _connect(url: SplitResult, receiver: Receiver) -> tuple[http.client.HTTPConnection, str, dict[str, str]]:
    """A connection, what to ask it for, and the headers a proxy wants. Proxies are those of the environment."""
    host, secure, timeout = url.hostname or "", url.scheme == "https", receiver.timeout_s
    path = f"{url.path}?{url.query}" if url.query else url.path
    port = url.port or (443 if secure else 80)
    proxy = None
    if not is_loopback(host) and not urllib.request.proxy_bypass(host):
        proxy = urllib.request.getproxies().get(url.scheme)
    if not proxy:
        if secure:
            return http.client.HTTPSConnection(host, port, timeout=timeout, context=_tls(receiver)), path, {}
        return http.client.HTTPConnection(host, port, timeout=timeout), path, {}
    try:
        via = urlsplit(proxy if "//" in proxy else f"//{proxy}")
        proxy_port = via.port or 80
    except ValueError:  # whose text quotes what may be a password
        raise OSError(f"{url.scheme}_proxy is no URL; percent-encode the password in it") from None
    login = login_of(via)
    headers = {} if login is None else {"proxy-authorization": login}
    if not secure:
        connection = http.client.HTTPConnection(via.hostname or "", proxy_port, timeout=timeout)
        return connection, f"http://{host}:{port}{path}", headers
    tunnel = http.client.HTTPSConnection(via.hostname or "", proxy_port, timeout=timeout, context=_tls(receiver))
    tunnel.set_tunnel(host, port, headers)
    return tunnel, path, {}


def _tls(receiver: Receiver) -> ssl.SSLContext:
    """Raises OSError where a file cannot be read."""
    context = trusting(receiver.certificate)
    if receiver.client_certificate:
        context.load_cert_chain(str(receiver.client_certificate), receiver.client_key and str(receiver.client_key))
    return context


def read_answer(status: int, headers: http.client.HTTPMessage | Mapping[str, str], body: bytes) -> Answer:
    """What an answer to a trace request says, in JSON or protobuf, or that it is none."""
    kind, taken = headers.get("content-type", "").lower(), 200 <= status < 300
    rejected, reason, is_page = 0, "", "html" in kind or body.lstrip()[:1] == b"<"
    try:
        if is_page:
            reason = "a web page, as of a proxy or a login"
        elif "json" in kind:
            said = msgspec.json.decode(body) if body.strip() else {}
            partial = (said.get("partialSuccess") or {}) if taken else {}
            rejected = int(partial.get("rejectedSpans") or (said.get("rejected") if status == _IN_PART else 0) or 0)
            errors = (said.get(name) for name in ("message", "error", "detail"))
            refusal = partial.get("errorMessage") or (said.get("errors") if rejected else "")
            reason = str((refusal if taken else next(filter(None, errors), "")) or "")
        elif kind.startswith("text/"):
            reason = "" if taken else " ".join(body.decode(errors="replace").split())
        else:
            fields = _fields(body)
            if taken:
                fields = _fields(fields.get(1, b""))
                rejected = count if isinstance(count := fields.get(1), int) else 0
            reason = fields.get(2, b"").decode()
    except (*UNREADABLE, TypeError, AttributeError, IndexError):
        reason = "" if taken else "what it says has not the form of OTLP"
    return Answer(
        status=status,
        taken=taken and not is_page,
        rejected=max(rejected, 0),
        reason=harmless(reason[:_MAX_REASON]),
        retry_after_s=seconds_to_wait(headers.get("retry-after", "")),
        ours=headers.get(OURS_HEADER) is not None,
    )


def seconds_to_wait(retry_after: str) -> float:
    """The seconds that a Retry-After header asks for, as a number or a date; 0 for one that is neither."""
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(retry_after).timestamp() - time.time()
        except (ValueError, OverflowError):
            return 0.0
    return min(max(seconds, 0.0), _MAX_RETRY_AFTER_S) if math.isfinite(seconds) else 0.0


def _fields(message: bytes) -> dict[int, Any]:
    """The varint and length-delimited fields of a protobuf message. Raises IndexError when it is none."""
    fields: dict[int, Any] = {}
    for _, value, end, tag in walk(message):
        if tag & 7 == BYTES:
            fields[tag >> 3] = message[value:end]
        elif tag & 7 == 0:
            fields[tag >> 3], _ = read_varint(message, value)
    return fields
