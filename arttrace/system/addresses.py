"""Addresses of servers: which are the loopback interface's, and which are asked by plain HTTP."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

_PORTS = {"http": ":80", "https": ":443"}


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
    """Why no request can be sent to an address with a bearer's key; None where one can. The text has neither."""
    if not url.isprintable():
        return "the address has letters that cannot be printed"
    try:
        parts = urlsplit(url)
        if not parts.hostname or parts.port == 0:
            return "the address names no host, or port 0"
        parts.hostname.encode("idna")
    except ValueError as error:
        return f"the address cannot be read: {error}"
    if key and not (key.isascii() and key.isprintable()):
        return "the key has letters beyond ASCII or a line break, which no header can have"
    return None


def with_plain_port(url: str) -> str:
    """An address without the port that its scheme has anyway: some HTTP clients leave that out, and others do not."""
    parts = urlsplit(url)
    port = _PORTS.get(parts.scheme, "")
    return parts._replace(netloc=parts.netloc.removesuffix(port)).geturl() if port else url


def without_login(url: str) -> str:
    """An address as it may be shown: without what stands before an @ in its place of the host, if there is any."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl() if "@" in parts.netloc else url


def written_plainly(url: str) -> str:
    """An address as those of requests are written, however it was: host in small letters, and `with_plain_port`."""
    parts = urlsplit(url)
    return with_plain_port(parts._replace(netloc=parts.netloc.lower()).geturl())


def needs_certificates(url: str) -> bool:
    """Whether a client of this address has to verify certificates: unless it is one of plain HTTP, for which reading
    them, 20 ms each time that a client is made, is for nothing."""
    return not url.lower().startswith("http:")
