"""SpanRow: one OpenTelemetry span as plain data, lossless, from any SDK."""

from __future__ import annotations

import msgspec

from arttrace.records.values.integers import Int64
from arttrace.records.values.json_types import Attributes as Attributes
from arttrace.records.values.json_types import Typed as Typed


def _none() -> Attributes:
    """Encoded even when empty: revisions are hashes over the JSON, which must not change for a stored span."""
    return {}


class SpanEvent(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A timed event on a span."""

    name: str
    time_ns: int
    attributes: Attributes = msgspec.field(default_factory=_none)
    dropped_attributes: int = 0
    typed: Typed = {}


class SpanLink(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A link to a span of this or another trace."""

    trace_id: str
    span_id: str
    attributes: Attributes = msgspec.field(default_factory=_none)
    trace_state: str = ""
    flags: int = 0
    dropped_attributes: int = 0
    typed: Typed = {}


class SpanRest(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What few spans have: how much the sender left out, and values that JSON cannot represent."""

    dropped_attributes: int = 0
    dropped_events: int = 0
    dropped_links: int = 0
    typed: Typed = {}


class EntityRef(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The attributes of a resource that make up an entity."""

    schema_url: str = ""
    type: str = ""
    id_keys: list[str] = []
    description_keys: list[str] = []


class OriginRest(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What few resources and instrumentation scopes have; `schema_url` is that of the scope's spans."""

    resource_schema_url: str = ""
    resource_dropped_attributes: int = 0
    resource_typed: Typed = {}
    entities: list[EntityRef] = []
    scope_attributes: Attributes = {}
    scope_dropped_attributes: int = 0
    scope_typed: Typed = {}
    schema_url: str = ""


class SpanRow(msgspec.Struct, frozen=True, gc=False, tag="span", omit_defaults=True):
    """One finished span.

    Ids are lower-case hex, 32 digits for the trace and 16 for the span, as in OTLP/JSON; times are nanoseconds
    since the Unix epoch; `kind` and `status_code` are OTLP's numbers (kind 1 internal, 3 client; status 0 unset,
    1 ok, 2 error).
    """

    trace_id: str
    span_id: str
    name: str
    start_ns: Int64
    end_ns: Int64
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
    flags: int = 0
    rest: SpanRest | None = None
    origin: OriginRest | None = None

    @property
    def characters(self) -> int:
        """How many characters the texts of its attributes have: nearly all of what a span takes."""
        return sum(len(value) for value in self.attributes.values() if isinstance(value, str))
