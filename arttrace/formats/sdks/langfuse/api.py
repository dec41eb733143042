"""Langfuse's API, version 4: observations and scores as spans and rewards, and rewards as scores. Pure.

Source: the server's published OpenAPI document: `GET /api/public/v2/observations`, `GET /api/public/v3/scores` and
`POST /api/public/scores`. Its metadata comes back flat: `{"attributes.gen_ai.request.model": "gpt-4o"}`, as text.
"""

from __future__ import annotations

import datetime
import hashlib
import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from arttrace.formats.otlp.validate import checked
from arttrace.formats.sdks.langfuse import names
from arttrace.formats.sdks.langfuse.reading import hex_id
from arttrace.formats.sdks.langfuse.writing import AsCaptured, chat_attributes
from arttrace.formats.sdks.openai_messages import text_of
from arttrace.records import semconv
from arttrace.records.reward import Reward
from arttrace.records.span import Attributes, SpanRow
from arttrace.records.values.lenient_json import json_object
from arttrace.records.values.nesting import UNREADABLE
from arttrace.records.values.times import ended_ns, time_ns
from arttrace.trajectories.decoding.attribute_values import as_text, as_written, finite, from_json, text

FIELDS: Final = "core,basic,time,io,metadata,model,usage,trace_context"
"""The groups of fields that `observation` reads."""
EXPANDED: Final = names.SPAN_KEY
"""The key of the metadata that must be asked for in full; of others the first 200 characters do."""
_ADVANTAGE: Final = "advantage"
_REWARD_KEY: Final = "arttrace_reward"
_COMMENT: Final = 10_000
_USUAL: Final = "DEFAULT"
_CATEGORIES: Final = ("CATEGORICAL", "TEXT")
_NESTED: Final = ("attributes", "resourceAttributes", "scope")
_captured = msgspec.json.Decoder(AsCaptured)
_reward = msgspec.json.Decoder(Reward)


class NotNumeric(ValueError):
    """A score whose value is a category or a text: no reward."""


def observation(item: Mapping[str, Any]) -> SpanRow:
    """The span of one observation: the very one that `writing.observation` was given, or what an observation of
    somebody else's says. Raises ValueError when it is none, or one that OTLP could not hold."""
    trace, id = item.get("traceId"), item.get("id")
    if not isinstance(trace, str) or not isinstance(id, str):
        raise ValueError("an observation of Langfuse has an id and a traceId")
    metadata = _flat(item.get("metadata"))
    found = _as_captured(item, metadata) or _foreign(item, metadata)
    checked(found)
    return found


def _flat(metadata: Any) -> dict[str, Any]:
    """Metadata as the API has it; exports have what OpenTelemetry said in objects of their own."""
    if not isinstance(metadata, dict):
        return {}
    found: dict[str, Any] = {}
    for key, value in metadata.items():
        if key in _NESTED and isinstance(value, dict):
            found.update({f"{key}.{name}": inner for name, inner in value.items()})
        else:
            found[key] = value
    return found


def _as_captured(item: Mapping[str, Any], metadata: Mapping[str, Any]) -> SpanRow | None:
    """None unless it carries the span that it was made from."""
    document = as_text(metadata.get(names.SPAN_KEY))
    if document is None:
        return None
    try:
        captured = _captured.decode(document)
    except UNREADABLE:
        return None
    span = captured.span
    if (span.trace_id, span.span_id) != (item["traceId"], item["id"]):
        return None
    given, output = as_written(item.get("input")), as_written(item.get("output"))
    back: Attributes = {
        semconv.TOOL_CALL_ARGUMENTS: given,
        semconv.ENTRY_ARGUMENTS: given,
        semconv.TOOL_CALL_RESULT: output,
        semconv.ENTRY_RESULT: output,
        **chat_attributes(from_json(given), from_json(output), span.attributes.get(semconv.RESPONSE_FINISH_REASONS)),
    }
    shown = {name: back[name] for name in captured.shown if back.get(name) is not None}
    if len(shown) < len(captured.shown):  # edited or cut meanwhile
        return None
    return msgspec.structs.replace(span, attributes={**span.attributes, **shown})


def _foreign(item: Mapping[str, Any], metadata: Mapping[str, Any]) -> SpanRow:
    kind = str(item.get("type") or "span").lower()
    level = str(item.get("level") or _USUAL).upper()
    failed = level == "ERROR"
    begin = time_ns(item.get("startTime"))
    if begin is None:
        raise ValueError(f"observation {item['id'][:100]}: startTime is no time")
    found: Attributes = {names.TYPE: kind}
    given: dict[str, Any] = {
        names.INPUT: item.get("input"),
        names.OUTPUT: item.get("output"),
        names.MODEL: item.get("model") or item.get("providedModelName"),  # its name in servers up to 4.16
        names.MODEL_PARAMETERS: item.get("modelParameters"),
        names.USAGE_DETAILS: item.get("usageDetails") or item.get("usage"),
        names.COST_DETAILS: _cost(item),
        names.SESSION_ID: item.get("sessionId"),
        names.USER_ID: item.get("userId"),
        names.TRACE_NAME: item.get("traceName"),
        names.LEVEL: None if failed or level == _USUAL else level,
        names.STATUS_MESSAGE: None if failed else item.get("statusMessage"),
    }
    found.update({name: as_written(value) for name, value in given.items() if value not in (None, "", {}, [])})
    for key, value in metadata.items():
        if key.startswith("attributes.gen_ai.") and isinstance(value, (str, int, float)):
            found[key.removeprefix("attributes.")] = value
    if item.get("isRootObservation"):
        found.update(_of_run(item, metadata))
    resource = {
        key.removeprefix("resourceAttributes."): value
        for key, value in metadata.items()
        if key.startswith("resourceAttributes.") and isinstance(value, (str, int, float))
    }
    of_program = {names.ENVIRONMENT: text(item.get("environment")), names.RELEASE: text(item.get("release"))}
    resource = {**{name: value for name, value in of_program.items() if value is not None}, **resource}
    parent = item.get("parentObservationId")
    answered = names.OUTPUT in found
    return SpanRow(
        trace_id=hex_id(item["traceId"], 32),
        span_id=hex_id(item["id"], 16),
        parent_span_id=hex_id(parent, 16) if isinstance(parent, str) and parent else None,
        name=str(item.get("name") or kind),
        start_ns=begin,
        end_ns=ended_ns(begin, time_ns(item.get("endTime")), has_answer=kind != "generation" or failed or answered),
        status_code=2 if failed else 0,
        status_message=str(item.get("statusMessage") or "") if failed else "",
        attributes=found,
        resource=resource,
        scope_name=str(metadata.get("scope.name") or "langfuse"),
    )


def _cost(item: Mapping[str, Any]) -> Any:
    """By kind of token, or the total alone, which servers give in their stead; 0 where they know none."""
    total = next((item[name] for name in ("totalCost", "calculatedTotalCost") if item.get(name)), None)
    return item.get("costDetails") or (total and {"total": total})


def _of_run(item: Mapping[str, Any], metadata: Mapping[str, Any]) -> Attributes:
    """Tags and metadata of the trace, which stand on its root."""
    found: Attributes = {}
    tags = item.get("tags")
    if isinstance(tags, list) and tags:
        found[semconv.TAGS] = [str(tag) for tag in tags]
    own = {
        key: value
        for key, value in metadata.items()
        if not key.startswith(("attributes.", "resourceAttributes.", "scope.")) and key != names.SPAN_KEY
    }
    for key, name in (("userId", "user_id"), ("sessionId", "session_id"), ("release", "release")):
        if text(item.get(key)):
            own[name] = item[key]
    if own:
        found[semconv.METADATA] = text_of(own)
    return found


# --- scores ------------------------------------------------------------------------------------------------


class Scored(msgspec.Struct, frozen=True):
    """What a score is given to: a trace, or one observation of it."""

    trace_id: str
    observation_id: str | None = None


def score(reward: Reward, of: Scored, *, environment: str | None, time_ns: int) -> dict[str, Any]:
    """The body of one `POST /api/public/scores`. Its id, name and time are those of the reward (`time_ns` where it has
    none), so that sending it again changes nothing. Raises NotNumeric for a value that JSON cannot hold."""
    if not math.isfinite(reward.value):
        raise NotNumeric(f"the reward {reward.name!r} is {reward.value}")
    return _score(
        ["reward", reward.trajectory_id, reward.id, reward.name],
        name=reward.name,
        value=reward.value,
        of=of,
        environment=environment,
        time_ns=reward.time_ns or time_ns,
        comment=reward.explanation,
        metadata={_REWARD_KEY: msgspec.json.encode(reward).decode()},
    )


def advantage(
    value: float, trajectory_id: str, of: Scored, *, of_runs: int, environment: str | None, time_ns: int
) -> dict[str, Any]:
    """The score that says how much better than its group, of so many runs, a run did."""
    return _score(
        ["advantage", trajectory_id],
        name=_ADVANTAGE,
        value=value,
        of=of,
        environment=environment,
        time_ns=time_ns,
        comment=f"the reward less the mean of its group's {of_runs} runs",
        metadata={"arttrace_derived": _ADVANTAGE},
    )


def _score(
    key: list[str],
    *,
    name: str,
    value: float,
    of: Scored,
    environment: str | None,
    time_ns: int,
    comment: str,
    metadata: dict[str, str],
) -> dict[str, Any]:
    at = datetime.datetime.fromtimestamp(time_ns // 1_000_000 / 1000, tz=datetime.UTC)
    body: dict[str, Any] = {
        "id": hashlib.blake2b(msgspec.json.encode(key), digest_size=16).hexdigest(),
        "name": name,
        "value": value,
        "dataType": "NUMERIC",
        "traceId": of.trace_id,
        "timestamp": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "metadata": metadata,
    }
    if of.observation_id is not None:
        body["observationId"] = of.observation_id
    if environment:
        body["environment"] = environment
    if comment:
        body["comment"] = comment[:_COMMENT]
    return body


def scored_trace(item: Mapping[str, Any]) -> str | None:
    """The id of the trace that a score is given to, or its observation; None for one of a session or an experiment."""
    subject = item.get("subject")
    if not isinstance(subject, dict):
        return None
    id = {"observation": subject.get("traceId"), "trace": subject.get("id")}.get(str(subject.get("kind")))
    return id if isinstance(id, str) else None


def reward(item: Mapping[str, Any]) -> Reward | None:
    """The reward of one score; None for one that was worked out from rewards, or that belongs to no trace. Raises
    NotNumeric for a category or a text, ValueError when it is no score."""
    metadata = json_object(item.get("metadata"))
    if "arttrace_derived" in metadata:
        return None
    captured = as_text(metadata.get(_REWARD_KEY))
    if captured is not None:
        try:
            return _reward.decode(captured)
        except UNREADABLE:
            pass
    trace = scored_trace(item)
    if trace is None:
        return None
    value = item.get("value")
    if (
        str(item.get("dataType")).upper() in _CATEGORIES
    ):  # their value is a place among others, or 0 where there is none
        value = item.get("stringValue") or value
        raise NotNumeric(f"the score {str(item.get('name'))[:100]!r} is {str(value)[:100]!r}, no number")
    number = float(value) if isinstance(value, bool) else finite(value)
    if number is None:
        raise NotNumeric(f"the score {str(item.get('name'))[:100]!r} is {str(value)[:100]!r}, no number")
    if not isinstance(item.get("id"), str):
        raise ValueError("a score of Langfuse has an id")
    subject = item["subject"]
    observed = subject.get("id") if subject.get("kind") == "observation" else None
    return Reward(
        id=item["id"],
        trajectory_id=hex_id(trace, 32),
        value=number,
        name=str(item.get("name") or "reward"),
        source="judge" if str(item.get("source")).upper() == "EVAL" else "code",
        agent_id=hex_id(observed, 16) if isinstance(observed, str) else None,
        of_span=isinstance(observed, str),
        explanation=str(item.get("comment") or ""),
        time_ns=time_ns(item.get("updatedAt")) or time_ns(item.get("timestamp")) or 0,
    )
