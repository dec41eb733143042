"""What stands in for an item of a file that was refused and is one span: its ids are read as those of a good one."""

from __future__ import annotations

import contextlib
from typing import Any

from arttrace.formats.sdks.langfuse.reading import hex_id
from arttrace.formats.systems.tracers import braintrust, langsmith, phoenix
from arttrace.formats.systems.tracers.weave import calls as weave
from arttrace.records.span import SpanRow
from arttrace.records.values.lenient_json import json_object, json_objects, read_json
from arttrace.records.values.nesting import UNREADABLE
from arttrace.trajectories.identity.stand_ins import stand_in

_TRACERS = (langsmith, braintrust, weave, phoenix)


def instead_of(item: Any, why: str) -> SpanRow | None:
    """None where the item is no span of a known form, or its trace is not known."""
    if isinstance(item, str):
        with contextlib.suppress(*UNREADABLE):
            item = read_json(item)
    if not isinstance(item, dict):
        return None
    if item.get("type") == "span" and "trace_id" in item and "root_span_id" not in item:
        return stand_in(
            why,
            **{name: item.get(name) for name in ("trace_id", "span_id", "parent_span_id", "name", "start_ns")},
            attributes=json_object(item.get("attributes")),
            links=[(link.get("trace_id"), link.get("span_id")) for link in json_objects(item.get("links"))],
            content=item,
        )
    trace, own, parent = _ids(item)
    return stand_in(
        why,
        trace_id=_hex(trace, 32),
        span_id=_hex(own, 16),
        parent_span_id=_hex(parent, 16),
        name=item.get("name"),
        content=item,
    )


def _ids(item: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Those of the trace, the span and its parent, as they stand there."""
    if isinstance(item.get("observations"), list):
        return None, None, None  # a whole run
    if isinstance(item.get("traceId"), str):
        return item["traceId"], item.get("id"), item.get("parentObservationId")
    return next((form.ids_of(item) for form in _TRACERS if form.recognises(item)), (None, None, None))


def _hex(id: Any, digits: int) -> str | None:
    return hex_id(id, digits) if isinstance(id, str) and id else None
