"""Pure: whose call a request is, by its URL, a header or a traceparent; and the ids that follow from it.

Ids are derived from the trajectory's name, so that a gateway that was started again, or another one, gives the same.

A call is recorded here only when the request says so itself. Our capture inside a Python process sends nothing of
the kind by default, and where it does send servers its trajectory it says so in `baggage`: such a call is recorded in
its process, never here. A traceparent is sent by many instrumentations unasked, beside our capture too, so it counts
only where the gateway is configured so.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from arttrace.records.values.nesting import UNREADABLE
from trainer.gateway.errors import Refusal

TRAJECTORY_HEADER = "x-arttrace-trajectory-id"
_CAPTURED_BAGGAGE = b"arttrace.context="  # what arttrace.capture sends to other servers
_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")
_NAME = re.compile(r"[!-~](?:[ -~]{0,254}[!-~])?")
_TRACE_ID = re.compile(r"(?!0{32})[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class CallOwner:
    """What a call belongs to. `trajectory` is None for a call placed in a foreign trace by a traceparent alone;
    `agent` names a sub-agent of the trajectory."""

    trace_id: str
    parent_span_id: str
    trajectory: str | None = None
    agent: str | None = None


def owner_of(
    path: Mapping[str, str], headers: Iterable[tuple[bytes, bytes]], *, traceparent: bool = False
) -> CallOwner | None:
    """The owner that a request names, its URL first; None when it names none. Raises Refusal (400): no good name."""
    found = {name: value for name, value in headers if name in _HEADERS}
    if "trajectory" in path:
        return trajectory_owner(path["trajectory"], path.get("agent"))
    if _CAPTURED_BAGGAGE in found.get(b"baggage", b""):
        return None
    if (named := found.get(TRAJECTORY_HEADER.encode())) is not None:
        return trajectory_owner(named.decode("latin-1"))
    match = _TRACEPARENT.fullmatch(found.get(b"traceparent", b"")) if traceparent else None
    return None if match is None else CallOwner(match[1].decode(), match[2].decode())


_HEADERS = frozenset({b"baggage", b"traceparent", TRAJECTORY_HEADER.encode()})


def owner_in_body(body: bytes, headers: Iterable[tuple[bytes, bytes]]) -> CallOwner | None:
    """The owner that a request's JSON names, as clients of ART do: {"art": {"trajectory_id": ...}}. None when it names
    none, or its own process records it. Raises Refusal (400): no good name."""
    if b'"art"' not in body or any(name == b"baggage" and _CAPTURED_BAGGAGE in value for name, value in headers):
        return None
    try:
        named = msgspec.json.decode(body, type=_NamesItsRun).art.trajectory_id
    except UNREADABLE:
        return None  # another field of that name, or no JSON, which is refused elsewhere
    if named is None:
        return None
    if not isinstance(named, str):
        shown = msgspec.json.encode(named)[:40].decode("utf-8", "replace")
        raise Refusal(400, "invalid_request_error", f"a trajectory's name is a text, not {shown}")
    return trajectory_owner(named)


class _ArtField(msgspec.Struct, frozen=True):
    trajectory_id: Any = None


class _NamesItsRun(msgspec.Struct, frozen=True):
    art: _ArtField = _ArtField()


def trajectory_owner(trajectory: str, agent: str | None = None) -> CallOwner:
    """The owner for a trajectory's name, and that of a sub-agent. Raises Refusal (400) for what is no name."""
    for name in (trajectory, agent):
        if name is not None and _NAME.fullmatch(name) is None:
            raise Refusal(400, "invalid_request_error", "a trajectory's name is 1 to 256 printable ASCII characters")
    trace_id = trajectory if _TRACE_ID.fullmatch(trajectory) else derived_id(16, trajectory)
    parent = root_span_id(trajectory) if agent is None else derived_id(8, trajectory, "agent", agent)
    return CallOwner(trace_id, parent, trajectory, agent)


def root_span_id(trajectory: str) -> str:
    """The id of a trajectory's root span."""
    return derived_id(8, trajectory, "root")


def derived_id(size: int, *parts: str) -> str:
    """Hex of `size` bytes that follow from the parts."""
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=size, person=b"arttrace.gateway").hexdigest()
