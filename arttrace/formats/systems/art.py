"""Trajectories of OpenPipe's ART: groups of `messages_and_choices` (JSON), and the rows of its Parquet logs. Pure.

A choice, or a row's message that is `trainable`, is an answer of the run. What `arttrace dataset --format art` wrote
comes back with its trajectory ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from arttrace.formats.content_ids import ContentIds
from arttrace.formats.imported_run import ImportedRun
from arttrace.formats.left_out import LeftOutItem, Read
from arttrace.records import semconv
from arttrace.records.values.lenient_json import json_object, read_json
from arttrace.records.values.tokens import encode_logprobs, encode_token_ids
from arttrace.trajectories.decoding.attribute_values import from_json

KIND = "art trajectories"
_TOKEN = "token_id:"
_VERSIONS = ("initial_policy_version", "final_policy_version")
_OF_GROUP = ("group_metadata", "group_metrics", "group_logs")


def recognises(item: dict[str, Any]) -> bool:
    """Whether this is a group, a trajectory, or a row of a Parquet log."""
    if isinstance(item.get("trajectories"), list):
        return any(isinstance(one, dict) and "messages_and_choices" in one for one in item["trajectories"])
    return "messages_and_choices" in item or ("group_index" in item and "messages" in item)


def records(item: dict[str, Any], source: str, place: str, ids: ContentIds) -> Iterator[Read]:
    """The runs of an item; those of one group are a group here, named by its metadata, or by its file and its place in
    it: groups of other files are others."""
    members = item.get("trajectories")
    shared = _object(item.get("metadata")) if isinstance(members, list) else {}
    group = shared.get("group", shared.get("scenario", f"{source} {place}"))
    of_group = (
        {f"group_{name}": item.get(name) for name in ("metadata", "metrics", "logs")}
        if isinstance(members, list)
        else {}
    )
    for at, one in enumerate(members if isinstance(members, list) else [item]):
        if not isinstance(one, dict):
            raise ValueError("a trajectory is no object")
        yield from _run(one, source, [group, at] if isinstance(members, list) else [place], group, ids, of_group or one)
    failed = item.get("exceptions")
    yield from (LeftOutItem("rollouts that failed") for _ in (failed if isinstance(failed, list) else ()))


def _run(
    item: dict[str, Any],
    source: str,
    place: list[Any],
    group: Any,
    ids: ContentIds,
    of_group: Mapping[str, Any],
) -> Iterator[Read]:
    """One run; `of_group` is what is said of its group, as the Parquet logs name it."""
    metadata = _object(item.get("metadata"))
    if "group_index" in item:
        group = _object(item.get("group_metadata")).get("group", f"{source} group {item['group_index']}")
    own = metadata.pop("trajectory_id", None)
    scenario = metadata.pop("scenario", None)
    tags = str(metadata.pop("tags", "") or "")
    id = own if isinstance(own, str) else None
    run = ImportedRun(source, id or ids.next(source, [place, item]), name=source, trajectory_id=id)
    histories = [item, *(one for one in item.get("additional_histories") or [] if isinstance(one, dict))]
    result: Any = None
    for number, history in enumerate(histories):
        agent = None
        if number:
            agent, spans = run.agent(str(number), f"history {number}")
            yield from spans
        said = history.get("messages_and_choices", history.get("messages"))
        if not isinstance(said, list):
            raise ValueError("a trajectory has no list of messages and choices")
        offered = history.get("tools")
        offered = read_json(offered) if isinstance(offered, str) else offered
        messages: list[dict[str, Any]] = []
        for at, one in enumerate(said):
            message, choice = _said(one)
            if choice is not None:
                attributes = _tokens(choice)
                answer = {**message, "finish_reason": choice.get("finish_reason")}
                yield run.call([number, at], messages, [answer], agent=agent, offered=offered, attributes=attributes)
                if not number:
                    result = message.get("content")
            messages.append(message)
    beside = {name: _json(value) for name in ("metrics", "logs") if (value := item.get(name))}
    beside |= {name: value for name in _VERSIONS if (value := item.get(name)) is not None}
    shared = {name: from_json(of_group.get(name)) for name in _OF_GROUP}
    if isinstance(named := shared["group_metadata"], dict):
        shared["group_metadata"] = {name: value for name, value in named.items() if name not in ("group", "scenario")}
    beside |= {name: value for name, value in shared.items() if value}
    yield run.end(
        metadata={**metadata, **beside},
        result=result,
        attributes={
            semconv.SCENARIO: scenario if isinstance(scenario, str) else None,
            semconv.GROUP: str(group) if group is not None else None,
            semconv.TAGS: tags.split(",") if tags else None,
        },
    )
    yield from run.rewards({"reward": item.get("reward")})
    exchanges = item.get("exchanges")
    yield from (LeftOutItem("exchanges") for _ in (exchanges if isinstance(exchanges, list) else ()))


def _said(one: Any) -> tuple[dict[str, Any], Mapping[str, Any] | None]:
    """The message, and its choice where it is an answer of the run."""
    if not isinstance(one, dict):
        raise ValueError("a message is no object")
    if isinstance(one.get("message"), dict):
        message = {name: value for name, value in one["message"].items() if value is not None}
        return {"content": None, **message, "role": "assistant"}, one
    message = {name: value for name, value in one.items() if name != "trainable" and value is not None}
    if isinstance(message.get("tool_calls"), str):
        message["tool_calls"] = read_json(message["tool_calls"])
    message.setdefault("content", None)
    return message, {} if one.get("trainable") else None


def _tokens(choice: Mapping[str, Any]) -> dict[str, Any]:
    content = json_object(choice.get("logprobs")).get("content")
    if not isinstance(content, list) or not content:
        return {}
    tokens = [one.get("token") for one in content if isinstance(one, dict)]
    ids = [
        int(number)
        for token in tokens
        if isinstance(token, str) and token.startswith(_TOKEN) and (number := token[len(_TOKEN) :]).isdecimal()
    ]
    values = [one.get("logprob") for one in content if isinstance(one, dict)]
    if len(ids) != len(content) or not all(isinstance(value, (int, float)) for value in values):
        return {}
    return {semconv.TOKEN_IDS: encode_token_ids(ids), semconv.LOGPROBS: encode_logprobs(values)}


def _json(value: Any) -> Any:
    return read_json(value) if isinstance(value, str) and value else value


def _object(value: Any) -> dict[str, Any]:
    found = _json(value)
    return dict(found) if isinstance(found, dict) else {}
