"""Addresses of servers: which are the loopback interface's, which are asked by plain HTTP, the logins in them, and whom
clients trust to sign a server's certificate.

HTTP clients bring a list of trusted authorities (certifi), in which no company's own stands; here it is this machine's.
One client of ours is not to miss a server that another reaches.
"""

from __future__ import annotations

import re
from base64 import b64encode
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import SplitResult, unquote, urlsplit

if TYPE_CHECKING:
    import ssl

_PORTS = {"http": ":80", "https": ":443"}
_PARTS = re.compile(r"((?:[a-z][a-z0-9+.-]*:)?//|)([^/?#]*)(.*)", re.IGNORECASE | re.DOTALL)
_SURELY_A_HOST = re.compile(r"(localhost|.*\..*|\[.*\])(:[0-9]*)?", re.IGNORECASE | re.DOTALL)
"""Of what may as well be a user, a token, or the beginning of one that has a / in it."""


def is_loopback(host: str) -> bool:
    """Whether a host is localhost or a name below it, in 127.0.0.0/8, or ::1 (in brackets or not)."""
    name = host.lower().removeprefix("[").removesuffix("]")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


@lru_cache(maxsize=64)
def is_loopback_authority(authority: bytes) -> bool:
    """Whether the value of a Host header, or of an Origin behind its scheme, is a loopback host, with a port or not."""
    name, colon, port = authority.rpartition(b":")
    host = name if colon and port.isdigit() else authority
    return is_loopback(host.decode("latin-1")) and (b":" not in host or host.startswith(b"["))


def is_http(url: str) -> bool:
    """Whether an address is one of a server that is asked by HTTP; the scheme may be written in capitals."""
    return url.lower().startswith(("http://", "https://"))


def why_never_asked(url: str, key: str | None) -> str | None:
    """Why no request can be sent to an address with a bearer's key; None where one can. The text has neither.

    `https://tok/en@host` is to an HTTP client a path at the host `tok`. It would be asked for there, and name it in its
    errors: so an address whose @ comes late is asked only where what it begins with is surely a host.
    """
    if not url.isprintable():
        return "the address has letters that cannot be printed"
    _, place, path = _split(url)
    if "@" in path and not _SURELY_A_HOST.fullmatch(without_userinfo(place)):
        return "the address cannot be read: is what its login, or its path, holds of / ? # @ [ and ] percent-encoded?"
    try:
        parts = urlsplit(url)
        if not parts.hostname or parts.port == 0:
            return "the address names no host, or port 0"
        parts.hostname.encode("idna")
    except ValueError as error:  # whose text quotes what may be of a password
        why = "is what its login holds of / ? # @ [ and ] percent-encoded?" if "@" in url else error
        return f"the address cannot be read: {why}"
    if key and not (key.isascii() and key.isprintable()):
        return "the key has letters beyond ASCII or a line break, which no header can have"
    return None


def with_plain_port(url: str) -> str:
    """An address without the port that its scheme has anyway: some HTTP clients leave that out, and others do not."""
    parts = urlsplit(url)
    port = _PORTS.get(parts.scheme, "")
    return parts._replace(netloc=parts.netloc.removesuffix(port)).geturl() if port else url


def without_userinfo(authority: str) -> str:
    """The host and port of a URL's authority (its `netloc`), without the login before them."""
    return authority.rpartition("@")[2]


def without_login(url: str) -> str:
    """An address as it may be shown, be it one that can be asked or not: without what stands before an @ in its place
    of the host. Where an @ comes later, behind what may be a login with a / ? or # that is not percent-encoded, all
    before it is "[secret]": only a path's "/@name" at what is surely a host is shown. A socket's path (unix:...) has no
    login."""
    if url[:5].lower() == "unix:":
        return url
    scheme, place, path = _split(url)
    before, at, after = path.rpartition("@")
    host = without_userinfo(place)
    if at and (":" in place + before or not before.endswith("/") or not _SURELY_A_HOST.fullmatch(host)):
        return f"{scheme}[secret]@{after}"
    return scheme + host + path


def _split(url: str) -> tuple[str, str, str]:
    """Scheme with its slashes, what a URL parser takes for the authority, and what comes behind; each may be empty."""
    scheme, place, path = _PARTS.match(url).groups()  # type: ignore[union-attr]  # it matches any text
    return scheme, place, path


def basic_authorization(user: str, password: str) -> str:
    """The value of an Authorization or Proxy-Authorization header that says a login (RFC 7617), in UTF-8."""
    return "Basic " + b64encode(f"{user}:{password}".encode()).decode()


def login_of(address: SplitResult) -> str | None:
    """The value of the header that says the login in an address, None where it has none."""
    if not (address.username or address.password):
        return None
    return basic_authorization(unquote(address.username or ""), unquote(address.password or ""))


def written_plainly(url: str) -> str:
    """An address as those of requests are written, however it was: host in small letters, and `with_plain_port`."""
    parts = urlsplit(url)
    return with_plain_port(parts._replace(netloc=parts.netloc.lower()).geturl())


def trusting(certificate: str | Path | None = None) -> ssl.SSLContext:
    """A context for clients that trusts the authorities in a file; without one those of this machine's store, for which
    SSL_CERT_FILE and SSL_CERT_DIR stand in, and where it has none at once, as a slim image, also those that came with
    httpx. Raises OSError where the file cannot be read."""
    import ssl

    context = ssl.create_default_context(cafile=str(certificate) if certificate else None)
    if not certificate and not context.cert_store_stats()["x509_ca"]:
        import certifi

        context.load_verify_locations(certifi.where())
    return context


def verified(url: str) -> ssl.SSLContext | Literal[False]:
    """How a client of this address verifies certificates; False for plain HTTP, for which reading them, 20 ms each time
    that a client is made, is for nothing."""
    return False if url.lower().startswith("http:") else trusting()
