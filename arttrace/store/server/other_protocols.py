"""What a client speaks that takes this server for one of another protocol: it gets no answer that it understands, so
that the log says, once, what helps."""

from __future__ import annotations

_BEGINNINGS = {
    b"PRI * HTTP/2": "a client speaks HTTP/2, as OTLP over gRPC does, to a port that answers HTTP/1.1: nothing of it is"
    " taken. `arttrace collect --grpc-port 4317` takes gRPC; OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf, in the client's"
    " environment, makes it send HTTP/1.1",
    b"\x16\x03": "a client speaks TLS to a port that answers plain HTTP: nothing of it is taken. Give it an address"
    " that begins with http://, or put a proxy that has a certificate before this port",
}

_said: set[bytes] = set()


def is_other_protocol(first: bytes) -> bool:
    """Whether the first bytes of a connection are no HTTP/1.1, but one of those."""
    return any(map(first.startswith, _BEGINNINGS))


def hint(first: bytes) -> str | None:
    """What to say of it; None where it was said."""
    for beginning, line in _BEGINNINGS.items():
        if first.startswith(beginning) and beginning not in _said:
            _said.add(beginning)
            return f"{line} (said once)"
    return None
