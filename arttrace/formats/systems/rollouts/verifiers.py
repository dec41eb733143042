"""Results that evaluations of verifiers save (`results.jsonl`): a prompt, its completion and its reward. Pure.

Messages are OpenAI's, with each tool call as JSON text; a prompt of a base model is text. Rollouts of one example of a
task are a group. One with an error is incomplete, as prime-rl trained on none of its tokens. Source: verifiers 0.1,
utils/save_utils.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from arttrace.formats.content_ids import ItemOrigin
from arttrace.formats.imported_run import ImportedRun, counted_as_failed
from arttrace.formats.left_out import LeftOutItem, Read
from arttrace.formats.sdks.anthropic_messages import unread_parts
from arttrace.formats.sdks.openai_messages import offered_tools
from arttrace.records import semconv
from arttrace.records.values.lenient_json import json_object, read_json

KIND = "verifiers results"
_NUMBERS = ("example_id", "id")
_READ = frozenset(
    {"prompt", "completion", "reward", "tool_defs", "trajectory", "error", "error_chain", "long_error_chain"}
)


def recognises(item: dict[str, Any]) -> bool:
    """Whether this is the result of a rollout."""
    is_numbered = "example_id" in item or ("id" in item and "task" in item)
    return is_numbered and all(name in item for name in ("prompt", "completion", "reward"))


def records(item: dict[str, Any], origin: ItemOrigin) -> Iterator[Read]:
    """The rollout. Raises ValueError where its messages are none, or it has no answer and no error."""
    run = ImportedRun(origin.source, origin.id_of([origin.place, item]))
    history = _messages(item["prompt"], "user")
    said = _messages(item["completion"], "assistant")
    yield from unread_parts([*history, *said])
    last = max((at for at, one in enumerate(said) if one["role"] == "assistant"), default=-1)
    error = _error(item)
    if last < 0 and error is None:
        raise ValueError("a rollout without an answer")
    offered = offered_tools(item.get("tool_defs"))
    for at, message in enumerate(said):
        if message["role"] == "assistant":
            cut = at == last and item.get("is_truncated") is True
            answer = {**message, "finish_reason": "length"} if cut else message
            yield run.call(at, history, [answer], offered=offered)
        history.append(message)
    numbers = json_object(item.get("metrics"))
    beside = {name: value for name, value in item.items() if name not in _READ and not _is_same(numbers, name, value)}
    number = next((item[name] for name in _NUMBERS if item.get(name) is not None), None)
    task = "/".join(str(one) for one in (item.get("task"), number) if one is not None)
    result = said[-1].get("content") if said else None
    failed = None if error is None else counted_as_failed("verifiers", why=error)
    yield run.end(task=task, metadata=beside, result=result, error=error, attributes={semconv.INTERRUPTED: failed})
    yield from run.rewards({"reward": item["reward"]})
    if item.get("trajectory"):
        yield LeftOutItem("steps of a trajectory, whose messages were read")


def _messages(given: Any, role: str) -> list[dict[str, Any]]:
    """In OpenAI's form; a text is one message of `role`."""
    found = [{"role": role, "content": given}] if isinstance(given, str) else given or []
    if not isinstance(found, list) or not all(
        isinstance(one, dict) and isinstance(one.get("role"), str) for one in found
    ):
        raise ValueError("a prompt or a completion is no list of messages with roles")
    return [_message(one, role) for one in found]


def _message(one: dict[str, Any], role: str) -> dict[str, Any]:
    calls = one.get("tool_calls")
    given = calls if isinstance(calls, list) else []
    made = {"tool_calls": [read_json(call) if isinstance(call, str) else call for call in given]} if given else {}
    return {**one, "role": role if one["role"] == "text" else one["role"], **made}


def _error(item: Mapping[str, Any]) -> str | None:
    error = item.get("error")
    if isinstance(error, dict):
        return str(error.get("error_chain_str") or error.get("error") or "") or None
    return error if isinstance(error, str) and error else None


def _is_same(metrics: Mapping[str, Any], name: str, value: Any) -> bool:
    """Whether it is a metric that stands among `metrics` as well."""
    return name in metrics and metrics[name] == value
