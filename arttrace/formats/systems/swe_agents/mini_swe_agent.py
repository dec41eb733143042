"""Trajectories of mini-swe-agent (`trajectory_format`, `messages`, `info`). Pure.

Messages are what the API was given: those of chat completions, or items of the Responses API, of which an answer is a
whole response. What the API said of an answer stands under `extra`; of one that could not be parsed, which no later
prompt holds, in the message that says so. Source: mini-swe-agent 2.4, models/ and agents/default.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from arttrace.formats.content_ids import ItemOrigin
from arttrace.formats.imported_run import ImportedRun, answered
from arttrace.formats.left_out import LeftOutItem, Read
from arttrace.formats.systems.exchanges import RESPONSES, attributes_of
from arttrace.formats.systems.swe_agents.swe_agent import ended
from arttrace.records.message import REASONING
from arttrace.records.values.finish_reasons import stated_reason
from arttrace.records.values.lenient_json import json_object, json_objects
from arttrace.records.values.times import time_ns

KIND = "mini-swe-agent trajectories"
_NO_JSON = "answers that could not be parsed, kept as no JSON"
_FIELDS = ("role", "content", "tool_calls", "tool_call_id", "name", *REASONING)

Entry = dict[str, Any]


def recognises(item: dict[str, Any]) -> bool:
    """Whether this is a trajectory."""
    return str(item.get("trajectory_format")).startswith("mini-swe-agent") and isinstance(item.get("messages"), list)


def records(item: dict[str, Any], origin: ItemOrigin) -> Iterator[Read]:
    """One run."""
    entries = item["messages"]
    for number, one in enumerate(entries, 1):
        if not isinstance(one, dict) or not (isinstance(one.get("role"), str) or _is_item(one)):
            raise ValueError(f"entry {number} of the messages is no message")
    info = json_object(item.get("info"))
    model = json_object(json_object(info.get("config")).get("model")).get("model_name") or info.get("model_name")
    times = [at for one in entries if (at := _time(one)) is not None]
    run = ImportedRun(origin.source, origin.id_of(item), name="swe-agent", start_ns=min(times, default=None))
    told = [one for one in entries if one.get("role") != "exit"]  # its word to itself
    read = _of_responses if any(map(_is_item, told)) else _of_chat
    yield from read(run, told, model if isinstance(model, str) else None)
    yield from ended(run, item, item.get("instance_id") or item.get("environment"))


def _is_item(entry: Entry) -> bool:
    """Whether only the Responses API has it."""
    return entry.get("object") == "response" or str(entry.get("type")).endswith("_output")


def _of_chat(run: ImportedRun, entries: Sequence[Entry], model: str | None) -> Iterator[Read]:
    messages: list[Entry] = []
    before: int | None = None
    for at, one in enumerate(entries):
        message = {"content": None, **{key: one[key] for key in _FIELDS if one.get(key) is not None}}
        extra = json_object(one.get("extra"))
        response = extra.get("response")
        choice: Entry = next(iter(json_objects(json_object(response).get("choices"))), {})
        is_answer, refused = one["role"] == "assistant", json_object(choice.get("message"))
        if is_answer or refused:
            answer = {**(message if is_answer else refused), "finish_reason": stated_reason(choice)}
            about = answered(given := json_object(response), given.get("usage"), extra.get("cost"))
            key = at if is_answer else ["refused", at]
            yield run.call(key, messages, [answer], model=model, start_ns=before, end_ns=_time(one), attributes=about)
        elif response is not None:
            yield LeftOutItem(_NO_JSON)
        messages.append(message)
        before = _time(one)


def _of_responses(run: ImportedRun, entries: Sequence[Entry], model: str | None) -> Iterator[Read]:
    items: list[Entry] = []
    before: int | None = None
    for at, one in enumerate(entries):
        is_answer = one.get("object") == "response"
        extra = json_object(one.get("extra"))
        response = one if is_answer else extra.get("response")
        if isinstance(response, dict):
            attributes, _ = attributes_of({"model": model, "input": items}, None, _plain(response), RESPONSES)
            about = {**answered({}, None, extra.get("cost")), **attributes}
            yield run.exchange(at if is_answer else ["refused", at], about, start_ns=before, end_ns=_time(one))
        elif response is not None:
            yield LeftOutItem(_NO_JSON)
        items += [_plain(part) for part in (json_objects(one.get("output")) if is_answer else [one])]
        before = _time(one)


def _plain(entry: Entry) -> Entry:
    return {name: value for name, value in entry.items() if name != "extra"}


def _time(entry: Entry) -> int | None:
    """When it was said."""
    return time_ns(entry.get("timestamp", json_object(entry.get("extra")).get("timestamp")))
