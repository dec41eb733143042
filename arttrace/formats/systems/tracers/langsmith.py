"""Runs exported from LangSmith: `Run` objects as its API, its SDK and its bulk export write them. Pure.

A run of type llm is a call; others have the sums of what the calls below them cost. `feedback_stats` (averages) or
`feedback` become rewards of the trace with their keys as names. With `load_child_runs` the SDK gives a run with those
below it in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from arttrace.formats.content_ids import ItemOrigin
from arttrace.formats.imported_run import SECOND, hashed, said
from arttrace.formats.left_out import LeftOutItem, Read
from arttrace.formats.sdks.langfuse.reading import hex_id
from arttrace.formats.sdks.langsmith import agent, call, object_of, tool
from arttrace.records import semconv
from arttrace.records.reward import Reward
from arttrace.records.span import Attributes, SpanRow
from arttrace.records.values.costs import whole_cost
from arttrace.records.values.lenient_json import json_objects
from arttrace.records.values.times import ended_ns, time_ns
from arttrace.trajectories.decoding.attribute_values import finite

KIND = "langsmith runs"


def recognises(item: dict[str, Any]) -> bool:
    """Whether this is a run."""
    return isinstance(item.get("run_type"), str) and ("trace_id" in item or "dotted_order" in item or "id" in item)


def ids_of(item: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The ids of a run's trace, of itself and of its parent, as they stand there."""
    own = item.get("id") or item.get("run_id")
    return item.get("trace_id") or own, own, item.get("parent_run_id")


def records(item: dict[str, Any], origin: ItemOrigin) -> Iterator[Read]:
    """The run's span, its feedback, and the runs below it, where they stand in it."""
    trace, id, parent = ids_of(item)
    own = str(id or hashed(32, item))
    trace_id = hex_id(str(trace or own), 32)
    start = time_ns(item.get("start_time"))
    if start is None:
        raise ValueError("a run has no start_time")
    kind, name = item["run_type"], str(item.get("name") or item["run_type"])
    given, output = object_of(item.get("inputs")), object_of(item.get("outputs"))
    extra = object_of(item.get("extra"))
    metadata = object_of(extra.get("metadata"))
    error = item.get("error")
    found: Attributes
    if kind == "llm":
        found = call(given, output, extra, metadata)
    elif kind == "tool":
        found = tool(name, given, output, metadata)
    elif parent is None:
        found = {
            **agent(name, given, output, metadata),
            semconv.PROJECT: item.get("session_name") or origin.source,
            semconv.TAGS: item.get("tags") or None,
            semconv.SCENARIO: item.get("reference_example_id"),
        }
    else:
        found = {}
    counts = ((semconv.USAGE_INPUT_TOKENS, "prompt_tokens"), (semconv.USAGE_OUTPUT_TOKENS, "completion_tokens"))
    if kind == "llm":
        found.update({to: item[name] for to, name in counts if isinstance(item.get(name), int) and item[name]})
        cost = whole_cost(*(item.get(name) for name in ("total_cost", "prompt_cost", "completion_cost")))
        found |= {} if cost is None else {semconv.USAGE_COST: cost}
    yield SpanRow(
        trace_id=trace_id,
        span_id=hex_id(own, 16),
        parent_span_id=hex_id(parent, 16) if isinstance(parent, str) else None,
        name=name,
        start_ns=start,
        end_ns=ended_ns(start, time_ns(item.get("end_time")), has_answer=bool(output or error)),
        kind=3 if kind == "llm" else 1,
        status_code=2 if error else 0,
        status_message=str(error)[:4000] if error else "",
        attributes=said(found),
        scope_name="langsmith-export",
    )
    yield from _feedback(item, trace_id, own, start)
    for below in json_objects(item.get("child_runs")):
        told = {name: value for name, value in below.items() if value is not None}
        yield from records({"trace_id": trace or own, "parent_run_id": own, **told}, origin)


def _given(often: Any) -> int:
    """By how many nanoseconds an average stands behind the run's start: the one of more feedback is the later."""
    return often if isinstance(often, int) and 0 < often < SECOND else 0


def _feedback(item: dict[str, Any], trace_id: str, own: str, start: int) -> Iterator[Read]:
    """A root's is the trace's, another run's that run's."""
    given = [one for one in item.get("feedback") or [] if isinstance(one, dict)]
    stats = object_of(item.get("feedback_stats"))
    given += [
        {"key": key, "score": one.get("avg"), "of": one.get("n")}
        for key, one in stats.items()
        if isinstance(one, dict) and key not in {one.get("key") for one in given}
    ]
    for one in given:
        value = finite(one.get("score"))
        if value is not None:
            kind = object_of(one.get("feedback_source")).get("type")
            yield Reward(
                id=str(one.get("id") or f"{own}:{one.get('key')}"),
                trajectory_id=trace_id,
                value=value,
                name=str(one.get("key") or "feedback"),
                agent_id=None if item.get("parent_run_id") is None else hex_id(own, 16),
                source="judge" if kind == "model" else "code",
                explanation=str(one.get("comment") or ""),
                time_ns=time_ns(one.get("modified_at") or one.get("created_at")) or start + _given(one.get("of")),
                of_span=item.get("parent_run_id") is not None,
            )
        else:
            yield LeftOutItem("feedback without a score")
