"""Spans exported from Braintrust: rows of a project's logs or of an experiment. Pure.

`span_attributes.type` distinguishes calls and tools, `scores` become rewards with their names: a root's of the trace,
another span's of that span. What a scorer did stands in the trace that it scored, marked as a scorer's (`purpose`):
it is no part of the run, and its scores are those of the span above it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from arttrace.formats.content_ids import ItemOrigin
from arttrace.formats.imported_run import said
from arttrace.formats.left_out import LeftOutItem, Read
from arttrace.formats.sdks.langfuse.reading import hex_id
from arttrace.formats.sdks.openai_messages import (
    answers,
    are_items,
    inputs,
    keywords,
    metadata_text,
    settings,
    text_of,
    tools,
)
from arttrace.records import semconv
from arttrace.records.reward import Reward
from arttrace.records.span import Attributes, SpanRow
from arttrace.records.values.costs import stated_cost
from arttrace.records.values.lenient_json import json_object
from arttrace.records.values.times import ended_ns, time_ns
from arttrace.trajectories.decoding.attribute_values import finite

KIND = "braintrust spans"
_SCORER, _SCORES = "scorer", ("score", "classifier")
_UNMARKED = "marks of scorers' spans, which older SDKs do not write: what models answered to a scorer is the run's"


def recognises(item: dict[str, Any]) -> bool:
    """Whether this is a row of a log."""
    return isinstance(item.get("root_span_id"), str) and isinstance(item.get("span_id"), str)


def ids_of(item: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The ids of a span's trace, of itself and of its parent, as they stand there."""
    above = item.get("span_parents")
    return item["root_span_id"], item["span_id"], above[0] if isinstance(above, list) and above else None


def records(item: dict[str, Any], origin: ItemOrigin) -> Iterator[Read]:
    """The span, and its scores."""
    trace, id, parent = ids_of(item)
    trace_id = hex_id(trace, 32)
    metrics, about = json_object(item.get("metrics")), json_object(item.get("span_attributes"))
    metadata = json_object(item.get("metadata"))
    start = time_ns(metrics.get("start")) or time_ns(item.get("created"))
    if start is None:
        raise ValueError("a span has neither metrics.start nor created")
    kind = str(about.get("type") or "task")
    error, end = item.get("error"), time_ns(metrics.get("end"))
    if about.get("purpose") == _SCORER:
        yield LeftOutItem("spans of scorers")
        if kind in _SCORES and isinstance(parent, str):
            yield from _rewards(item, trace_id, parent, hex_id(parent, 16), start)
        return
    if kind == _SCORES[0]:
        yield LeftOutItem(_UNMARKED)
    name = str(about.get("name") or kind)
    given, output = item.get("input"), item.get("output")
    found: Attributes
    if kind == "llm":
        found = _call(given, output, metadata, metrics)
    elif kind == "tool":
        found = {
            semconv.OPERATION_NAME: semconv.OPERATION_EXECUTE_TOOL,
            semconv.TOOL_NAME: name,
            semconv.TOOL_CALL_ID: metadata.get("tool_call_id"),
            semconv.TOOL_CALL_ARGUMENTS: text_of(keywords(given)),
            semconv.TOOL_CALL_RESULT: text_of(output),
        }
    elif parent is None:
        expected = {} if item.get("expected") is None else {"expected": item["expected"]}
        found = {
            semconv.OPERATION_NAME: semconv.OPERATION_INVOKE_AGENT,
            semconv.AGENT_NAME: name,
            semconv.ENTRY_ARGUMENTS: text_of(given),
            semconv.ENTRY_RESULT: text_of(output),
            semconv.PROJECT: origin.source,
            semconv.TAGS: item.get("tags") or None,
            semconv.METADATA: metadata_text({**metadata, **expected}) if metadata or expected else None,
        }
    else:
        found = {}
    own = hex_id(id, 16)
    yield SpanRow(
        trace_id=trace_id,
        span_id=own,
        parent_span_id=hex_id(parent, 16) if isinstance(parent, str) else None,
        name=name,
        start_ns=start,
        end_ns=ended_ns(start, end and max(end, start), has_answer=output is not None or bool(error)),
        kind=3 if kind == "llm" else 1,
        status_code=2 if error else 0,
        status_message=str(error)[:4000] if error else "",
        attributes=said(found),
        scope_name="braintrust-export",
    )
    # Later than a scorer's of the same name, as of this span: what stands here was corrected by a person.
    yield from _rewards(item, trace_id, id, None if parent is None else own, max(end or start, start))


def _rewards(item: dict[str, Any], trace_id: str, scored: str, span_id: str | None, time: int) -> Iterator[Read]:
    """The scores of a row as those of the span that was `scored`, or of the run where it has no `span_id`."""
    for score, value in json_object(item.get("scores")).items():
        number = finite(value)
        if number is not None:
            yield Reward(
                id=f"{trace_id}:{scored}:{score}",
                trajectory_id=trace_id,
                value=number,
                name=score,
                agent_id=span_id,
                time_ns=time,
                of_span=span_id is not None,
            )
        elif value is not None:
            yield LeftOutItem("scores that are no numbers")


def _call(given: Any, output: Any, metadata: dict[str, Any], metrics: dict[str, Any]) -> Attributes:
    messages = given.get("messages", given.get("input")) if isinstance(given, dict) else given
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    offered = metadata.get("tools") or json_object(given).get("tools")
    found: Attributes = {
        semconv.OPERATION_NAME: semconv.OPERATION_CHAT,
        **settings(metadata),
        semconv.REQUEST_MODEL: metadata.get("model"),
        semconv.PROVIDER_NAME: metadata.get("provider"),
        semconv.USAGE_INPUT_TOKENS: _count(metrics.get("prompt_tokens")),
        semconv.USAGE_OUTPUT_TOKENS: _count(metrics.get("completion_tokens")),
        semconv.USAGE_CACHE_READ_INPUT_TOKENS: _count(metrics.get("prompt_cached_tokens")),
        semconv.USAGE_CACHE_WRITE_INPUT_TOKENS: _count(metrics.get("prompt_cache_creation_tokens")),
        semconv.USAGE_REASONING_OUTPUT_TOKENS: _count(metrics.get("completion_reasoning_tokens")),
        semconv.USAGE_COST: stated_cost(metrics.get("estimated_cost")),
        semconv.TOOL_DEFINITIONS: tools(offered) if isinstance(offered, list) else None,
    }
    if isinstance(messages, list):
        instructions = metadata.get("instructions")
        instructed = [{"role": "system", "content": instructions}] if isinstance(instructions, str) else []
        found[semconv.INPUT_MESSAGES] = inputs([*instructed, *messages])
    replies = list(_replies(output))
    if replies:
        found[semconv.OUTPUT_MESSAGES] = answers(replies)
    return found


def _replies(output: Any) -> Iterator[Any]:
    if isinstance(output, dict) and isinstance(output.get("choices"), list):
        output = output["choices"]
    elif isinstance(output, dict) and isinstance(output.get("output"), list) and are_items(output["output"]):
        output = output["output"]
    if isinstance(output, list) and are_items(output):
        yield from output
        return
    for one in output if isinstance(output, list) else [output]:
        if isinstance(one, str):
            yield {"content": one}
        elif isinstance(one, dict) and isinstance(one.get("message"), dict):
            yield {**one["message"], "finish_reason": one.get("finish_reason")}
        elif isinstance(one, dict) and ("content" in one or "tool_calls" in one):
            yield {"role": "assistant", **one}


def _count(value: Any) -> int | None:
    number = finite(value)
    return int(number) if number is not None and number >= 0 else None
