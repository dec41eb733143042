"""Spans grouped as an OTLP request holds them: under their resource, then under their instrumentation scope. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from arttrace.records.span import OriginRest, SpanRow

_encode = msgspec.json.Encoder(order="sorted").encode
_USUAL = OriginRest()

Origin = tuple[SpanRow, OriginRest]
"""A resource or a scope, as one of its spans has it."""


def grouped(spans: Iterable[SpanRow]) -> list[tuple[Origin, list[tuple[Origin, list[SpanRow]]]]]:
    """Each resource with its scopes, and each of those with its spans, in the order in which they come."""
    resources: dict[bytes, tuple[Origin, dict[bytes, tuple[Origin, list[SpanRow]]]]] = {}
    for span in spans:
        rest = span.origin or _USUAL
        origin = span, rest
        resource = (span.resource, rest.resource_schema_url, rest.resource_dropped_attributes, rest.resource_typed)
        scope = (span.scope_name, span.scope_version, rest.schema_url, rest.scope_dropped_attributes, rest.scope_typed)
        _, scopes = resources.setdefault(_encode((resource, rest.entities)), (origin, {}))
        _, members = scopes.setdefault(_encode((scope, rest.scope_attributes)), (origin, []))
        members.append(span)
    return [(origin, list(scopes.values())) for origin, scopes in resources.values()]
