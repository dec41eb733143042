"""Langfuse's exports in JSON: traces with their observations and scores. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from arttrace.formats.left_out import LeftOutItem, Read
from arttrace.formats.sdks.langfuse.api import NotNumeric, observation, reward
from arttrace.formats.sdks.langfuse.reading import hex_id
from arttrace.trajectories.decoding.attribute_values import from_json
from arttrace.trajectories.identity.stand_ins import stand_in

_OF_TRACE = ("tags", "sessionId", "userId", "environment", "release")


def records(trace: dict[str, Any]) -> Iterator[Read]:
    """Spans and rewards of one exported trace: an object with `id`, `observations` and, where there are, `scores`.

    Raises ValueError when it is none. Ids that are no OpenTelemetry ids are hashed into some.
    """
    observations = trace.get("observations")
    if not isinstance(trace.get("id"), str) or not isinstance(observations, list):
        raise ValueError("a trace of Langfuse has an id and a list of observations")
    for item in observations:
        if isinstance(item, dict) and isinstance(item.get("id"), str):
            yield observation(_of_trace(item, trace))
        else:
            yield LeftOutItem("observations without an id")
            if (missed := stand_in("an observation without an id", trace_id=hex_id(trace["id"], 32))) is not None:
                yield missed
    scores = trace.get("scores")
    for score in scores if isinstance(scores, list) else ():
        if not isinstance(score, dict):
            yield LeftOutItem("scores with nothing but an id")
            continue
        try:
            given = reward(_of_api(score, trace["id"]))
        except NotNumeric:
            yield LeftOutItem("scores that are no numbers")
        else:
            if given is not None:
                yield given


def _of_trace(item: Mapping[str, Any], trace: Mapping[str, Any]) -> dict[str, Any]:
    """An observation as version 4 of the API has it: with what is said of its trace."""
    parent = item.get("parentObservationId")
    parent = None if parent == trace["id"] else parent
    inherited = {name: trace[name] for name in _OF_TRACE if trace.get(name) and not item.get(name)}
    metadata = [from_json(one.get("metadata")) for one in (item, trace) if one.get("metadata") is not None]
    return {
        **item,
        **inherited,
        "traceId": trace["id"],
        "traceName": trace.get("name"),
        "parentObservationId": parent,
        "isRootObservation": parent is None,
        "startTime": item.get("startTime") or trace.get("timestamp"),
        "metadata": {
            name: value
            for one in metadata
            for name, value in (one if isinstance(one, dict) else {"metadata": one}).items()
        },
    }


def _of_api(score: Mapping[str, Any], trace_id: str) -> dict[str, Any]:
    """A score as version 3 of its API has it: with what it is given to."""
    observed = score.get("observationId")
    kept = score.get("id") or hex_id(f"{hex_id(trace_id, 32)}/{score.get('name')}", 32)
    of = {"kind": "observation", "id": observed, "traceId": trace_id} if observed else {"kind": "trace", "id": trace_id}
    return {**score, "id": str(kept), "subject": of}
