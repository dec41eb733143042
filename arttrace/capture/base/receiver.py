"""A receiver of spans over OTLP/HTTP: its address and what it requires; and those that the environment names. Pure.

`OTEL_EXPORTER_OTLP_*` follow OpenTelemetry's specification of the exporter's variables: those for traces go before the
general ones, `/v1/traces` is appended to the general endpoint alone, headers are percent-encoded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import SplitResult, quote, unquote, urlsplit

from arttrace.system.addresses import login_of, why_never_asked, without_login, without_userinfo, written_plainly
from arttrace.system.errors import ArttraceError

Compression = Literal["gzip", "none"]

_TRACES = "/v1/traces"
_TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_AS_THEY_ARE = "%/:?@!$&'()*+,;=~[]"
"""Of an address: what separates its parts, and what is percent-encoded already."""
_BEHIND_A_LOGIN = re.compile(r".*\[secret\]@[^/?#&]*", re.DOTALL)
"""Of an address without its login, what is no path."""
_SHORTEST_TIMEOUT_S = 1.0
_LONGEST_TIMEOUT_S = 86_400
_SHORTEST_SECRET = 6


@dataclass(frozen=True, slots=True, repr=False)
class Receiver:
    """Where spans are sent over OTLP/HTTP, in protobuf.

    Args:
        url: The base URL, to which `/v1/traces` is appended where it does not end so. A user and password in it are
            sent as basic authentication.
        headers: Sent with each request; they appear in no log.
        compression: Of the body: "gzip" or "none".
        timeout_s: The seconds after which an unanswered request is given up and sent again later.
        certificate: A file with the certificates to trust, in place of the system's.
        client_certificate: A file with the certificate to show to the receiver.
        client_key: A file with the key of that certificate.
        name: What logs call the receiver, by default its host. Two receivers at one URL need different names.
        exact: Take `url` as the whole, with nothing appended.
        spans: "langfuse" sends spans as Langfuse shows them best (docs/langfuse.md), without rewards.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    compression: Compression = "gzip"
    timeout_s: float = 10.0
    certificate: str | Path | None = None
    client_certificate: str | Path | None = None
    client_key: str | Path | None = None
    name: str = ""
    exact: bool = False
    spans: Literal["as captured", "langfuse"] = "as captured"

    def __repr__(self) -> str:
        return f"Receiver({self.called!r})"

    @property
    def called(self) -> str:
        """What logs call it: its name, else scheme, host and port, behind "[secret]" where the URL may have a login in
        its path."""
        hidden = _BEHIND_A_LOGIN.match(without_login(self.url.strip()))
        return self.name or (hidden[0] if hidden else _origin(parts_of(self.url)))

    @property
    def is_reachable(self) -> bool:
        """Whether its URL is one that requests can go to."""
        try:
            self.target()
        except ArttraceError:
            return False
        return True

    def target(self) -> SplitResult:
        """The URL that requests go to, without credentials. Raises ArttraceError where it is none."""
        url = parts_of(self.url)
        if url.scheme not in ("http", "https") or why_never_asked(self.url.strip(), None):
            raise ArttraceError(
                "the endpoint to ship to is not a URL of the form http://host:port",
                "Set ARTTRACE_ENDPOINT (or init(endpoint=...), receivers=, or --endpoint) to a receiver's base URL.",
            )
        path = url.path or "/"
        if not self.exact:
            path = path.rstrip("/").removesuffix(_TRACES) + _TRACES
        path, query = (quote(part, safe=_AS_THEY_ARE) for part in (path, url.query))
        return SplitResult(url.scheme, without_userinfo(url.netloc), path, query, "")

    def check(self) -> None:
        """Raise ArttraceError where nothing can be sent by its time limit or compression."""
        limit: Any = self.timeout_s
        if not isinstance(limit, (int, float)) or not 0 < limit <= _LONGEST_TIMEOUT_S:
            raise ArttraceError(
                f"timeout_s={limit!r} of {self.called} is no number of seconds that can be waited",
                f"Give a number above 0, and {_LONGEST_TIMEOUT_S} at most.",
            )
        if self.compression not in get_args(Compression):
            raise ArttraceError(
                f"compression={self.compression!r} of {self.called} is not supported", 'Give "gzip" or "none".'
            )

    def request_headers(self) -> dict[str, str]:
        """The headers of each request. Raises ArttraceError where one cannot be sent, without its value."""
        found = {"content-type": "application/x-protobuf", "user-agent": "arttrace"}
        if self.compression == "gzip":
            found["content-encoding"] = "gzip"
        if (login := login_of(parts_of(self.url))) is not None:
            found["authorization"] = login
        for name, value in self.headers.items():
            if not is_header(name, value):
                raise ArttraceError(
                    f"a header for {self.called} cannot be sent: {name[:50]!r}",
                    "Names are letters, digits and hyphens; values are printable ASCII.",
                )
            found[name.lower()] = value
        return found

    def without_secrets(self, text: str) -> str:
        """A text of the receiver's with what it repeats of the credentials taken out."""
        password = unquote(parts_of(self.url).password or "")
        for value in (*self.headers.values(), password):
            for secret in (value, value.rpartition(" ")[2]):
                if len(secret) >= _SHORTEST_SECRET:
                    text = text.replace(secret, "[secret]")
        return text

    def folder(self) -> str:
        """The name of its outbox's folder: the same in each process, whatever the headers are."""
        where = self.target().geturl()
        readable = "".join(letter if letter.isalnum() else "-" for letter in (self.name or self.target().netloc))
        return f"{readable[:40]}-{sha256(f'{self.name} {where}'.encode()).hexdigest()[:8]}"


def is_header(name: str, value: str) -> bool:
    """Whether a header can be sent."""
    return bool(name) and _TOKEN.issuperset(name) and value.isascii() and (value.isprintable() or not value)


def collector(endpoint: str, api_key: str | None) -> Receiver:
    """The collector at a base URL, or another receiver that takes a bearer token."""
    return Receiver(endpoint, {"authorization": f"Bearer {api_key}"} if api_key else {})


def as_receiver(given: Receiver | str) -> Receiver:
    """A receiver, or one by its URL."""
    return Receiver(given) if isinstance(given, str) else given


def same(one: Receiver, other: Receiver) -> bool:
    """Whether requests to both go to one URL. Never where one of them has none."""
    return one.is_reachable and other.is_reachable and _place(one) == _place(other)


def _place(receiver: Receiver) -> str:
    """The URL that requests go to."""
    return written_plainly(receiver.target().geturl())


def distinct(receivers: Iterable[Receiver]) -> tuple[Receiver, ...]:
    """Each receiver once: of two at one URL and of one name, the first."""
    found: dict[tuple[str, str], Receiver] = {}
    for receiver in receivers:
        found.setdefault((receiver.name, receiver.url), receiver)
    return tuple(found.values())


def by_environment(environ: Mapping[str, str]) -> tuple[Receiver | None, list[str]]:
    """The receiver that OTEL_EXPORTER_OTLP_* name, if they name one that can be shipped to; and what to say of them."""
    complaints: list[str] = []

    def said(name: str) -> tuple[str, str]:
        for variable in (f"OTEL_EXPORTER_OTLP_TRACES_{name}", f"OTEL_EXPORTER_OTLP_{name}"):
            if value := environ.get(variable, "").strip():
                return variable, value
        return "", ""

    variable, url = said("ENDPOINT")
    exporters = [word.strip() for word in environ.get("OTEL_TRACES_EXPORTER", "").lower().split(",") if word.strip()]
    is_off = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if not url or is_off or (exporters and "otlp" not in exporters):
        return None, complaints
    of_protocol, protocol = said("PROTOCOL")
    if protocol.lower() not in ("", "http/protobuf"):
        complaints.append(
            f"{of_protocol}={protocol} is not supported: nothing is sent to {variable}. "
            "Set it to http/protobuf, with the port for OTLP over HTTP (4318 in most receivers; 4317 is gRPC's)"
        )
        return None, complaints
    headers, bad = _headers(*said("HEADERS"))
    complaints += bad
    of_compression, compression = said("COMPRESSION")
    if compression.lower() not in ("", "none", "gzip"):
        complaints.append(f"{of_compression}={compression} is not supported: requests are not compressed")
    of_timeout, timeout = said("TIMEOUT")
    timeout_s = 10.0
    try:
        if timeout:
            timeout_s = min(max(_SHORTEST_TIMEOUT_S, float(timeout) / 1000), _LONGEST_TIMEOUT_S)
    except ValueError:
        complaints.append(f"{of_timeout} is no number of milliseconds: 10 s are waited for an answer")
    receiver = Receiver(
        url=url,
        headers=headers,
        compression="gzip" if compression.lower() == "gzip" else "none",
        timeout_s=timeout_s,
        certificate=said("CERTIFICATE")[1] or None,
        client_certificate=said("CLIENT_CERTIFICATE")[1] or None,
        client_key=said("CLIENT_KEY")[1] or None,
        exact=variable == "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    )
    if not receiver.is_reachable:
        complaints.append(f"{variable} is not a URL of the form http://host:port: nothing is sent to it")
        return None, complaints
    return receiver, complaints


def resource_attributes(environ: Mapping[str, str]) -> dict[str, str]:
    """What OTEL_RESOURCE_ATTRIBUTES says of the program: some receivers find the project by it."""
    pairs = (item.partition("=") for item in environ.get("OTEL_RESOURCE_ATTRIBUTES", "").split(","))
    return {unquote(name.strip()): unquote(value.strip()) for name, equals, value in pairs if name.strip() and equals}


def with_credentials(receiver: Receiver, other: Receiver) -> Receiver:
    """One receiver with what another at the same URL says of its headers and its TLS."""
    return replace(
        receiver,
        headers={**receiver.headers, **other.headers},
        certificate=receiver.certificate or other.certificate,
        client_certificate=receiver.client_certificate or other.client_certificate,
        client_key=receiver.client_key or other.client_key,
    )


def _headers(variable: str, text: str) -> tuple[dict[str, str], list[str]]:
    """`key=value` pairs with commas between, percent-encoded; and what to say of those that are none."""
    found: dict[str, str] = {}
    bad = 0
    for pair in filter(None, (item.strip() for item in text.split(","))):
        name, equals, value = pair.partition("=")
        name, value = unquote(name.strip()).lower(), unquote(value.strip())
        if equals and is_header(name, value):
            found[name] = value
        else:
            bad += 1
    what = "one of the headers" if bad == 1 else f"{bad} of the headers"
    return found, [f"{variable}: {what} is not of the form key=value and is not sent"] if bad else []


def parts_of(url: str) -> SplitResult:
    """The parts of a URL; none where it is no URL."""
    try:
        return urlsplit(url.strip())
    except ValueError:  # an unclosed bracket
        return SplitResult("", "", "", "", "")


def _origin(url: SplitResult) -> str:
    host = f"[{url.hostname}]" if ":" in (url.hostname or "") else url.hostname
    try:
        port = url.port
    except ValueError:
        port = None
    return f"{url.scheme}://{host}" + (f":{port}" if port else "")
