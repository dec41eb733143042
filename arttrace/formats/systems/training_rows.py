"""Rows of training data: prompts with completions, preferences (TRL's and OpenAI's), and ShareGPT. Pure.

What the row has to train on are the answers of a run: of a prompt with a completion the completion, of a preference
either way, each a run of its own; the two are a group, rewarded with 1 and 0 under the name `preferred`. A `reward` or
`score` beside the answers is theirs. Rows of plain conversations are read by `formats.conversations`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from arttrace.formats.content_ids import ItemOrigin
from arttrace.formats.conversations import REWARDS, without_rewards
from arttrace.formats.imported_run import BEHIND, ImportedRun
from arttrace.formats.left_out import LeftOutItem, Read
from arttrace.formats.sdks.anthropic_messages import unread_parts, whole_conversation
from arttrace.formats.sdks.openai_messages import offered_tools, text_of
from arttrace.records import semconv
from arttrace.records.values.lenient_json import read_json

KIND = "training rows"
_ROLES = {
    "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant",
    "system": "system", "observation": "tool", "tool": "tool", "function_response": "tool",
}  # fmt: skip
_CALLS = ("function_call", "tool_call")
_WAYS = (("chosen", "rejected"), ("preferred_output", "non_preferred_output"))
_ANSWERS = (("prompt", "completion"), *_WAYS)

Messages = list[dict[str, Any]]


def recognises(item: dict[str, Any], *, has_messages: bool = False) -> bool:
    """Whether this is a row; one that `has_messages` of a plain conversation too is none where its own are texts."""
    turns = item.get("conversations")
    if any(
        all(name in item and (not has_messages or isinstance(item[name], (list, dict))) for name in names)
        for names in _ANSWERS
    ):
        return True
    are_turns = (
        isinstance(turns, list) and bool(turns) and all(isinstance(one, dict) and "from" in one for one in turns)
    )
    return are_turns and not has_messages


def records(item: dict[str, Any], origin: ItemOrigin) -> Iterator[Read]:
    """The row's run, or its two; rows of the same words at other places are others."""
    key = [origin.id_of([origin.place, item])]
    if "conversations" in item:
        messages, offered = _sharegpt(item)
        beside = _beside(item, "conversations", "system", "tools")
        yield from _run(origin.source, key, [], messages, offered, without_rewards(beside), rewards=_rewards(beside))
        return
    within = item.get("input")
    asked: dict[str, Any] = within if isinstance(within, dict) else item
    offered = offered_tools(asked.get("tools"))
    if "completion" in item:
        beside = _beside(item, "prompt", "completion", "tools", "label")
        ways = [(_messages(item, "completion"), {"label": item.get("label"), **_rewards(beside)})]
        beside = without_rewards(beside)
        shared = _messages(item, "prompt")
    else:
        names = next(one for one in _WAYS if one[0] in item)
        beside = _beside(item, "prompt", "input", "tools", *names)
        better, worse = (_messages(item, name) for name in names)
        shared = _messages(asked, "messages") if asked is not item else _prompt(item)
        if not shared:  # they are split where they first differ
            count = next((at for at, (one, other) in enumerate(zip(better, worse, strict=False)) if one != other), 0)
            shared, better, worse = better[:count], better[count:], worse[count:]
        ways = [(better, {"preferred": 1.0}), (worse, {"preferred": 0.0})]
    group = f"{origin.source} {origin.place}" if len(ways) > 1 else None
    for number, (said, rewards) in enumerate(ways):
        given = {name: float(value) if isinstance(value, bool) else value for name, value in rewards.items()}
        yield from unread_parts([*shared, *said] if number == 0 else said)
        yield from _run(origin.source, [*key, number], shared, said, offered, beside, group=group, rewards=given)


def _run(
    source: str,
    key: Sequence[Any],
    shared: Messages,
    said: Messages,
    offered: Any,
    beside: dict[str, Any],
    *,
    group: str | None = None,
    rewards: dict[str, Any] | None = None,
) -> Iterator[Read]:
    run = ImportedRun(source, key)
    history = list(shared)
    answer: int | None = None
    for at, message in enumerate(said):
        if message["role"] == "assistant":
            if answer is not None:
                yield from run.results(history, answer)
            yield run.call(at, history, [message], offered=offered)
            answer = len(history)
        history.append(message)
    if answer is None:
        raise ValueError("a row without an answer")
    yield from run.results(history, answer)
    yield from (LeftOutItem(BEHIND) for _ in history[answer + 1 :])
    yield run.end(metadata=beside, result=said[-1].get("content"), attributes={semconv.GROUP: group})
    yield from run.rewards(rewards or {})


def _messages(item: dict[str, Any], name: str) -> Messages:
    """In OpenAI's form."""
    found = item.get(name)
    found = [found] if isinstance(found, dict) else found
    if not isinstance(found, list) or not all(
        isinstance(one, dict) and isinstance(one.get("role"), str) for one in found
    ):
        raise ValueError(f"`{name}` is no list of messages with roles: text alone is no conversation")
    return whole_conversation(found)


def _prompt(item: dict[str, Any]) -> Messages:
    """None where each way has it at its beginning, with a text of it beside."""
    return _messages(item, "prompt") if isinstance(item.get("prompt"), (list, dict)) else []


def _rewards(beside: dict[str, Any]) -> dict[str, Any]:
    """What stands beside a row's answers as their reward; what is no number is counted."""
    return {name: beside[name] for name in REWARDS if beside.get(name) is not None}


def _beside(item: dict[str, Any], *without: str) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name not in without}


def _sharegpt(item: dict[str, Any]) -> tuple[Messages, Any]:
    """Its turns as messages; a result of a tool answers the call before it."""
    system = item.get("system")
    messages: Messages = [{"role": "system", "content": system}] if isinstance(system, str) and system else []
    waiting: list[str] = []
    for number, turn in enumerate(item["conversations"], 1):
        who, value = turn["from"], turn.get("value")
        if not isinstance(value, str):
            raise ValueError(f"turn {number} has no text")
        if who in _CALLS:
            given = read_json(value)
            calls = [
                _call(one, f"call_{number}_{at}")
                for at, one in enumerate(given if isinstance(given, list) else [given])
            ]
            waiting += [call["id"] for call in calls]
            messages.append({"role": "assistant", "content": None, "tool_calls": calls})
        elif (role := _ROLES.get(who) if isinstance(who, str) else None) is None:
            raise ValueError(f"turn {number} is from {str(who)[:40]!r}")
        elif role == "tool":
            messages.append({"role": role, "content": value, "tool_call_id": waiting.pop(0) if waiting else None})
        else:
            messages.append({"role": role, "content": value})
    return messages, offered_tools(item.get("tools"))


def _call(given: Any, id: str) -> dict[str, Any]:
    if not isinstance(given, dict) or not isinstance(given.get("name"), str):
        raise ValueError("a tool call has no name")
    arguments = given.get("arguments")
    text = arguments if isinstance(arguments, str) else text_of(arguments) or "{}"
    return {"id": id, "type": "function", "function": {"name": given["name"], "arguments": text}}
