"""Spans exported from Arize Phoenix: its REST API's JSON, or rows of a dataframe of spans (JSON or Parquet). Pure.

Attributes are OpenInference's, flat or nested; flat again they are read as those that come over OTLP. Annotations
that stand beside a span become rewards with their names, a root's of its trace, another span's of that span, as those
in attributes do; what both say counts once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from arttrace.formats.content_ids import ItemOrigin
from arttrace.formats.left_out import LeftOutItem, Read
from arttrace.formats.sdks.langfuse.reading import hex_id
from arttrace.formats.sdks.openinference import flat
from arttrace.formats.sdks.openinference.feedback import rewards_in, source_of
from arttrace.records.reward import Reward
from arttrace.records.span import Attributes, SpanEvent, SpanRow
from arttrace.records.values.lenient_json import json_object, json_objects
from arttrace.records.values.times import ended_ns, time_ns
from arttrace.trajectories.decoding.attribute_values import finite

KIND = "phoenix spans"
_STATUS = {"OK": 1, "ERROR": 2}


def recognises(item: dict[str, Any]) -> bool:
    """Whether this is a span."""
    context = item.get("context")
    return "span_kind" in item and ("context.trace_id" in item or (isinstance(context, dict) and "trace_id" in context))


def ids_of(item: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The ids of a span's trace, of itself and of its parent, as they stand there."""
    context = json_object(item.get("context"))
    trace = item.get("context.trace_id", context.get("trace_id"))
    return trace, item.get("context.span_id", context.get("span_id")), item.get("parent_id")


def records(item: dict[str, Any], origin: ItemOrigin) -> Iterator[Read]:
    """The span, and its annotations."""
    trace, own, above = ids_of(item)
    start = time_ns(item.get("start_time"))
    if not isinstance(trace, str) or not isinstance(own, str) or start is None:
        raise ValueError("a span has no trace id, no span id or no start time")
    trace_id, span_id = hex_id(trace, 32), hex_id(own, 16)
    status = str(item.get("status_code") or "")
    parent = hex_id(above, 16) if isinstance(above, str) and above else None
    attributes = _attributes(item)
    span = SpanRow(
        trace_id=trace_id,
        span_id=span_id,
        parent_span_id=parent,
        name=str(item.get("name") or item["span_kind"]),
        start_ns=start,
        end_ns=ended_ns(start, time_ns(item.get("end_time")), has_answer=status == "ERROR" or _has_answer(attributes)),
        status_code=_STATUS.get(status, 0),
        status_message=str(item.get("status_message") or ""),
        attributes=attributes,
        events=[
            SpanEvent(str(one.get("name") or ""), time_ns(one.get("timestamp")) or start, flat(one.get("attributes")))
            for one in json_objects(item.get("events"))
        ],
        resource={"service.name": origin.source},
        scope_name="phoenix-export",
    )
    yield span
    said = {(one.name, one.value, one.source) for one in rewards_in(span) if one.counts}
    for one in (*json_objects(item.get("annotations")), *json_objects(item.get("span_annotations"))):
        result = one["result"] if isinstance(one.get("result"), dict) else one
        value = finite(result.get("score"))
        if value is None:
            yield LeftOutItem("annotations without a score")
            continue
        name, annotator = str(one.get("name") or "annotation"), source_of(str(one.get("annotator_kind") or "").upper())
        if (name, value, annotator) not in said:
            yield Reward(
                id=str(one.get("id") or f"{own}:{one.get('name')}"),
                trajectory_id=trace_id,
                value=value,
                name=name,
                agent_id=None if parent is None else span_id,
                source=annotator,
                explanation=str(result.get("explanation") or result.get("label") or ""),
                time_ns=time_ns(one.get("created_at")) or start,
                of_span=parent is not None,
            )


def _has_answer(attributes: Attributes) -> bool:
    return any(name.startswith(("output.value", "llm.output_messages")) for name in attributes)


def _attributes(item: dict[str, Any]) -> Attributes:
    found = flat(item.get("attributes"))
    for name, value in item.items():  # columns of a dataframe
        if name.startswith("attributes.") and value is not None:
            found.update(flat(value, name.removeprefix("attributes.")))
    for name, value in found.items():  # of a dataframe: where other rows have none, whole numbers are floats
        if name.startswith("llm.token_count.") and isinstance(value, float) and value.is_integer():
            found[name] = int(value)
    kind = item["span_kind"]
    if isinstance(kind, str) and kind and kind != "UNKNOWN":
        found.setdefault("openinference.span.kind", kind)
    return found
