"""SpanRow: one OpenTelemetry span as plain data, lossless, whoever made it."""

from __future__ import annotations

from typing import Any

import msgspec

Attributes = dict[str, Any]
"""Attribute values: str, bool, int, float, or lists of them; structured values (dicts) are accepted on input."""


class SpanEvent(msgspec.Struct, frozen=True, gc=False):
    """A timed event on a span."""

    name: str
    time_ns: int
    attributes: Attributes = {}


class SpanLink(msgspec.Struct, frozen=True, gc=False):
    """A link to a span of this or another trace."""

    trace_id: str
    span_id: str
    attributes: Attributes = {}


class SpanRow(msgspec.Struct, frozen=True, gc=False, tag="span", omit_defaults=True):
    """One finished span.

    Ids are lower-case hex, 32 digits for the trace and 16 for the span, as in OTLP/JSON; times are nanoseconds
    since the Unix epoch; `kind` and `status_code` are OTLP's numbers (kind 1 internal, 3 client; status 0 unset,
    1 ok, 2 error).
    """

    trace_id: str
    span_id: str
    name: str
    start_ns: int
    end_ns: int
    parent_span_id: str | None = None
    kind: int = 1
    status_code: int = 0
    status_message: str = ""
    attributes: Attributes = {}
    events: list[SpanEvent] = []
    links: list[SpanLink] = []
    trace_state: str = ""
    resource: Attributes = {}
    scope_name: str = ""
    scope_version: str = ""
