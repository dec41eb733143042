"""Trajectories of SWE-agent (`.traj`: `history`, `trajectory`, `info`) and mini-swe-agent (`messages`, `info`). Pure.

SWE-agent keeps what was said in `history`; demonstrations in it are context. The patch and how the run ended are its
metadata; a score that was put beside them is its reward.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from arttrace.formats.content_ids import ContentIds
from arttrace.formats.imported_run import ImportedRun
from arttrace.formats.left_out import Read
from arttrace.records import semconv
from arttrace.records.values.lenient_json import json_object
from arttrace.records.values.times import time_ns
from arttrace.wire.span_attributes import usage_attributes

KIND = "swe-agent trajectories"
_REWARDS = ("reward", "score", "resolved")
_KEPT = ("exit_status", "submission", "model_stats", "swe_agent_version", "mini_version")


def recognises(item: dict[str, Any]) -> bool:
    """Whether this is a trajectory of either."""
    if str(item.get("trajectory_format")).startswith("mini-swe-agent"):
        return isinstance(item.get("messages"), list)
    history = item.get("history")
    return (
        isinstance(history, list)
        and bool(history)
        and all(isinstance(one, dict) and "role" in one for one in history)
        and any("agent" in one or "message_type" in one for one in history)
    )


def records(item: dict[str, Any], source: str, ids: ContentIds) -> Iterator[Read]:
    """One run."""
    history = item["messages"] if "history" not in item else item["history"]
    info = json_object(item.get("info"))
    task = item.get("instance_id") or item.get("environment")
    times = [at for one in history if isinstance(one, dict) and (at := _time(one)) is not None]
    run = ImportedRun(source, ids.next(source, item), name="swe-agent", start_ns=min(times, default=None))
    model = json_object(json_object(info.get("config")).get("model"))
    name = model.get("model_name") or info.get("model_name")
    messages: list[dict[str, Any]] = []
    before: int | None = None
    for at, one in enumerate(history):
        if not isinstance(one, dict) or not isinstance(one.get("role"), str):
            raise ValueError(f"entry {at + 1} of the history is no message")
        if one["role"] == "exit":  # mini-swe-agent's word to itself
            continue
        message = _message(one)
        if message["role"] == "assistant" and not one.get("is_demo"):
            yield run.call(
                at,
                messages,
                [message],
                model=name if isinstance(name, str) else None,
                start_ns=before,
                end_ns=_time(one),
                attributes=_answered(one),
            )
        messages.append(message)
        before = _time(one)
    submitted = info.get("submission")
    yield run.end(
        task=task,
        metadata={key: info[key] for key in _KEPT if info.get(key) is not None},
        result=submitted,
    )
    beside = {key: value for part in (item, info) for key in _REWARDS if (value := part.get(key)) is not None}
    yield from run.rewards({key: float(value) if isinstance(value, bool) else value for key, value in beside.items()})


def _message(one: dict[str, Any]) -> dict[str, Any]:
    kept = ("role", "content", "tool_calls", "tool_call_id", "name", "reasoning_content")
    message = {key: one[key] for key in kept if one.get(key) is not None}
    ids = one.get("tool_call_ids")
    if message["role"] == "tool" and isinstance(ids, list) and ids:
        message.setdefault("tool_call_id", ids[0])
    message.setdefault("content", None)
    return message


def _answered(one: dict[str, Any]) -> dict[str, Any]:
    """What the API said of an answer."""
    response = json_object(one.get("extra")).get("response")
    if not isinstance(response, dict):
        return {}
    usage = response.get("usage")
    named = {semconv.RESPONSE_MODEL: response.get("model"), semconv.RESPONSE_ID: response.get("id")}
    return {
        **{name: value for name, value in named.items() if isinstance(value, str)},
        **(usage_attributes(usage) if isinstance(usage, dict) else {}),
    }


def _time(one: dict[str, Any]) -> int | None:
    """When it was said, in mini-swe-agent."""
    return time_ns(one.get("timestamp"))
