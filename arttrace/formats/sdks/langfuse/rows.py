"""Rows of the tables that Langfuse exports, to blob storage or from its pages: observations and scores. Pure.

Sources: the server's documentation of blob storage exports (field reference), whose columns are in snake case, and the
rows that its pages export, in camel case. There the scores of an observation are columns of their own, each a list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from arttrace.formats.left_out import LeftOutItem, Read
from arttrace.formats.sdks.langfuse.api import NotNumeric, observation, reward
from arttrace.formats.sdks.langfuse.reading import hex_id
from arttrace.trajectories.decoding.attribute_values import from_json

_OF_LISTS = {
    "tags", "traceTags", "comments", "toolCalls", "toolCallNames", "input", "output", "metadata", "availableTools",
    "modelParameters", "usageDetails", "costDetails", "toolDefinitions",
}  # fmt: skip
"""Columns of lists that are no scores."""
_snake = re.compile(r"_([a-z])")


def recognises(item: dict[str, Any]) -> bool:
    """Whether this is an observation, a score or a trace of a table."""
    return _is_observation(item) or _is_score(item) or _is_trace(item)


def row(item: dict[str, Any]) -> Iterator[Read]:
    """The span of an observation with its scores, or the reward of a score. Raises ValueError for a trace's row, and
    for one that is neither."""
    if _is_trace(item):
        raise ValueError(
            "a row of Langfuse's table of traces, which holds no calls: import the rows of its observations"
            " (observations_v2/), and those of its scores (scores/)"
        )
    named = {_snake.sub(lambda found: found[1].upper(), name): value for name, value in item.items()}
    return _score(named) if _is_score(item) else single(named)


def single(item: dict[str, Any]) -> Iterator[Read]:
    """The span of one exported observation, and the scores beside it. Raises ValueError when it is none."""
    whole = {"isRootObservation": not item.get("parentObservationId"), **item}
    whole["metadata"] = from_json(item.get("metadata"))
    whole["tags"] = item.get("tags") or item.get("traceTags")
    span = observation(whole)
    yield span
    for name, values in item.items():
        if name in _OF_LISTS or not isinstance(values, list):
            continue
        for number, one in enumerate(values):
            given = {
                "id": hex_id(f"{span.trace_id}/{span.span_id}/{name}/{number}", 32),
                "name": name,
                "value": one,
                "timestamp": item.get("endTime") or item.get("startTime"),
                "subject": {"kind": "observation", "id": item["id"], "traceId": item["traceId"]},
            }
            yield from _given(given)


def _score(item: dict[str, Any]) -> Iterator[Read]:
    trace, observed = item.get("traceId"), item.get("observationId")
    if not trace:
        yield LeftOutItem("scores of sessions and experiments")
        return
    of = {"kind": "observation", "id": observed, "traceId": trace} if observed else {"kind": "trace", "id": trace}
    yield from _given({**item, "subject": of})


def _given(score: dict[str, Any]) -> Iterator[Read]:
    try:
        found = reward(score)
    except NotNumeric:
        yield LeftOutItem("scores that are no numbers")
    else:
        if found is not None:
            yield found


def _is_observation(item: dict[str, Any]) -> bool:
    return isinstance(item.get("trace_id"), str) and "start_time" in item and "parent_observation_id" in item


def _is_score(item: dict[str, Any]) -> bool:
    is_typed = "data_type" in item or "dataType" in item
    return is_typed and isinstance(item.get("name"), str) and "source" in item and "timestamp" in item


def _is_trace(item: dict[str, Any]) -> bool:
    return "bookmarked" in item and "timestamp" in item and "id" in item and "observations" not in item
