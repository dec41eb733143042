"""Rollouts of Agent Lightning 1.0: one of its server's API, with its events as a hook or that API gives them. Pure.

`events` are a list, or lists by the attempt; the run is the last attempt. Each request that the gateway passed on is a
call, with what is captured of such a call: token ids and log-probabilities too. The last `reward` counts if it is a
number, as there, where true and false are none.
Rollouts of the same input are a group, and validations (`is_train` false) are held out. One that had not ended when it
was written is incomplete. Source: Agent Lightning 1.0.2, schemas.py, server/proxy.py and verl/agl_rollout_manager.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from arttrace.formats.content_ids import ItemOrigin
from arttrace.formats.imported_run import NO_NUMBERS, SECOND, ImportedRun, hashed
from arttrace.formats.left_out import LeftOutItem, Read
from arttrace.formats.sdks.openai_messages import text_of
from arttrace.formats.systems.exchanges import CHAT, attributes_of
from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.records.values.lenient_json import json_object
from arttrace.records.values.times import time_ns
from arttrace.trajectories.decoding.attribute_values import finite, whole_number
from arttrace.wire.messages import parse_message

KIND = "agent lightning rollouts"
_COMPLETIONS = "/completions"
_REQUEST, _REWARD = "model_request", "reward"
_STATES = ("queuing", "running", "succeeded", "failed")
_FAILED_STATUS = 400
OTHER_ATTEMPTS = "events of earlier attempts"
EARLIER_REWARDS = "rewards that a later one took the place of"
ROUTING = "routings of experts"

Event = dict[str, Any]


def recognises(item: dict[str, Any]) -> bool:
    """Whether this is a rollout, or what the server's API says of one."""
    return _is_rollout(item.get("rollout")) or _is_rollout(item) or _is_event(item)


def _is_rollout(given: Any) -> bool:
    return (
        isinstance(given, dict)
        and isinstance(given.get("rollout_id"), str)
        and json_object(given.get("status")).get("state") in _STATES
    )


def _is_event(given: Any) -> bool:
    return isinstance(given, dict) and all(isinstance(given.get(name), str) for name in ("event_type", "rollout_id"))


def records(item: dict[str, Any], origin: ItemOrigin) -> Iterator[Read]:
    """The rollout's run. Raises ValueError where the rollout or its events are missing, or an answer is none."""
    rollout, given = item.get("rollout"), item.get("events")
    if not isinstance(rollout, dict) or not isinstance(given, list | dict):
        raise ValueError(
            'a rollout is {"rollout": ..., "events": ...}, as docs/formats/rollouts.md writes it; this is a part of one'
        )
    status = json_object(rollout["status"])
    events, others = _of_last_attempt(given, status)
    yield from (LeftOutItem(OTHER_ATTEMPTS) for _ in range(others))
    requests = [one for one in events if one["event_type"] == _REQUEST]
    times = [_times(one) for one in requests]
    began = min((start for start, _ in times if start is not None), default=time_ns(status.get("created_at")))
    run = ImportedRun(origin.source, trace_id=origin.id_of_own(KIND, rollout["rollout_id"]), start_ns=began)
    result: Any = None
    for number, (one, (start, end)) in enumerate(zip(requests, times, strict=True)):
        data = json_object(one.get("data"))
        span, said = _call(run, number, data, start, end)
        result = said or result
        yield span
        if data.get("routed_experts") is not None:
            yield LeftOutItem(ROUTING)
    rewards = [json_object(one.get("data")) for one in events if one["event_type"] == _REWARD]
    yield from (LeftOutItem(EARLIER_REWARDS) for _ in rewards[:-1])
    yield _end(run, rollout, events, rewards, result)
    value = rewards[-1].get("value") if rewards else None
    if isinstance(value, bool):
        yield LeftOutItem(NO_NUMBERS)
    else:
        yield from run.rewards({"reward": value})


def _of_last_attempt(given: list[Any] | dict[str, Any], status: dict[str, Any]) -> tuple[list[Event], int]:
    """Its events, and how many there are of others."""
    listed = given if isinstance(given, list) else [one for some in given.values() for one in _checked(some)]
    attempts: dict[str, list[Event]] = {}
    for one in _checked(listed):
        attempts.setdefault(str(one.get("attempt_id")), []).append(one)
    last = str(status.get("last_attempt_id") or "0")
    events = attempts.get(last) or next(reversed(attempts.values()), [])
    return events, len(listed) - len(events)


def _checked(given: Any) -> list[Event]:
    if not isinstance(given, list) or not all(map(_is_event, given)):
        raise ValueError("the events of a rollout are no list of events")
    return given


def _times(request: Event) -> tuple[int | None, int | None]:
    """When a call began and ended, as far as it is known."""
    end = time_ns(request.get("timestamp"))
    took = finite(json_object(request.get("data")).get("latency_ms"))
    return (None if end is None or took is None or took < 0 else max(end - int(took * SECOND / 1000), 0)), end


def _call(
    run: ImportedRun, number: int, data: dict[str, Any], start: int | None, end: int | None
) -> tuple[SpanRow, str | None]:
    """A call, and the text of its answer. Raises ValueError where what came is none."""
    request, response = json_object(data.get("request")), json_object(data.get("response"))
    status = whole_number(data.get("http_status")) or 0
    if (data.get("status") == "error" or status >= _FAILED_STATUS) and not response.get("error"):
        message = response.get("message") or (text_of(response) if response else "no answer")
        response = {"error": {"type": str(status or "error"), "message": str(message)}}
    messages = request.get("messages")
    is_chat = isinstance(messages, list) and all(isinstance(one, dict) for one in messages)
    if not is_chat and "prompt" not in request:
        raise ValueError("a request of a rollout has neither messages nor a prompt")
    asked = messages if is_chat else None
    attributes, error = attributes_of(request, asked, response, CHAT if is_chat else _COMPLETIONS)
    span = run.exchange(number, attributes, start_ns=start, end_ns=end, error=error)
    choices = response.get("choices")
    first = json_object(choices[0]) if isinstance(choices, list) and choices else {}
    message = json_object(first.get("message"))
    return span, parse_message(message).text if message else first.get("text")


def _end(
    run: ImportedRun, rollout: dict[str, Any], events: list[Event], rewards: list[dict[str, Any]], result: Any
) -> SpanRow:
    status, given = json_object(rollout["status"]), rollout.get("input")
    state = status["state"]
    own = [one for one in events if one["event_type"] not in (_REQUEST, _REWARD)]
    about = {
        "rollout_id": rollout["rollout_id"],
        "input": None if isinstance(given, dict) else given,
        "reward_said": {name: value for name, value in (rewards or [{}])[-1].items() if name != "value" and value},
        "events": [{"event_type": one["event_type"], "data": one.get("data")} for one in own],
        **json_object(rollout.get("metadata")),
    }
    return run.end(
        task=_task(given),
        metadata={name: value for name, value in about.items() if value not in (None, [], {})},
        result=result,
        error=str(status.get("error_message") or state) if state == "failed" else None,
        attributes={
            semconv.ENTRY_ARGUMENTS: text_of(given) if isinstance(given, dict) else None,
            semconv.TAGS: [semconv.HELD_OUT_TAG] if rollout.get("is_train") is False else None,
            semconv.INTERRUPTED: f"it was {state} when it was written" if state in _STATES[:2] else None,
        },
    )


def _task(given: Any) -> str:
    """What rollouts of a sample have in common: the id by which the server lists it, else the input."""
    named = json_object(given)
    return str(named.get("data_id") or named.get("instance_id") or hashed(16, given))
