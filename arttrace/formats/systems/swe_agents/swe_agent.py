"""Trajectories of SWE-agent (`.traj`: `history`, `trajectory`, `info`, and `attempts` where it tried again). Pure.

`history` is what was said; demonstrations in it are context. What a call was given stands in the `query` of its step,
since prompts leave out what is old; steps hold the answers, too, that SWE-agent asked for again, without their tool
calls. A step that was given nothing is SWE-agent's own word on why it ends. Files without queries are read by their
history. The patch and how the run ended are its metadata; a score that was put beside them is its reward. Source:
SWE-agent 1.1, sweagent/agent/agents.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from arttrace.formats.content_ids import ItemOrigin
from arttrace.formats.imported_run import ImportedRun
from arttrace.formats.left_out import LeftOutItem, Read
from arttrace.records.message import REASONING, canonical_json, joined_text
from arttrace.records.values.lenient_json import json_object, json_objects

KIND = "swe-agent trajectories"
_REWARDS = ("reward", "score", "resolved")
_KEPT = ("exit_status", "submission", "model_stats", "swe_agent_version", "mini_version", "best_attempt_idx")
_FIELDS = ("role", "content", "tool_calls", "tool_call_id", "name", *REASONING)
_OWN_WORDS = ("Exit due to ", "Exiting due to ")

Entry = dict[str, Any]


def recognises(item: dict[str, Any]) -> bool:
    """Whether this is a trajectory, or has attempts that are."""
    return _is_run(item) or any(_is_run(one) for one in json_objects(item.get("attempts")))


def _is_run(item: dict[str, Any]) -> bool:
    history = item.get("history")
    return (
        isinstance(history, list)
        and bool(history)
        and all(isinstance(one, dict) and "role" in one for one in history)
        and any("agent" in one or "message_type" in one for one in history)
    )


def records(item: dict[str, Any], origin: ItemOrigin) -> Iterator[Read]:
    """Its run, or one for each attempt: the one that SWE-agent chose stands in the item, too."""
    chosen = json_object(item.get("info")).get("best_attempt_idx") if _is_run(item) else None
    if _is_run(item):
        yield from _run(item, origin)
    for at, one in enumerate(json_objects(item.get("attempts"))):
        if at != chosen:
            yield from _run({"instance_id": item.get("instance_id"), **one}, origin)


def _run(item: dict[str, Any], origin: ItemOrigin) -> Iterator[Read]:
    history: list[Entry] = item["history"]
    for at, one in enumerate(history, 1):
        if not isinstance(one, dict) or not isinstance(one.get("role"), str):
            raise ValueError(f"entry {at} of the history is no message")
    run = ImportedRun(origin.source, origin.id_of(item), name="swe-agent")
    read = _Messages()
    steps = json_objects(item.get("trajectory"))
    by_step = _answers_of(history, steps)
    if by_step is None:
        yield from _by_history(run, history, steps, read, _model(item))
    else:
        yield from _by_steps(run, history, steps, by_step, read, _model(item))
    yield from ended(run, item, item.get("instance_id") or item.get("environment"))


def ended(run: ImportedRun, item: Mapping[str, Any], task: Any) -> Iterator[Read]:
    """The run's own span, and its rewards."""
    info = json_object(item.get("info"))
    metadata = {key: info[key] for key in _KEPT if info.get(key) is not None}
    yield run.end(task=task, metadata=metadata, result=info.get("submission"))
    beside = {key: value for part in (item, info) for key in _REWARDS if (value := part.get(key)) is not None}
    yield from run.rewards({key: float(value) if isinstance(value, bool) else value for key, value in beside.items()})


def _model(item: Mapping[str, Any]) -> str | None:
    name = json_object(item.get("info")).get("model_name")
    return name if isinstance(name, str) else None


def _answers_of(history: Sequence[Entry], steps: Sequence[Entry]) -> list[int | None] | None:
    """Of each step the place of its answer in the history, None for one that was asked for again; None in all where
    steps do not say what was asked, or do not go with the history."""
    places = [at for at, one in enumerate(history) if one["role"] == "assistant" and not one.get("is_demo")]
    if not steps or not all(isinstance(one.get("query"), list) for one in steps):
        return None
    found: list[int | None] = []
    for number, step in enumerate(steps):
        again = _asked_again(steps[number + 1]["query"]) if number + 1 < len(steps) else None
        is_kept = again is None and bool(places) and _text(history[places[0]].get("content")) == step.get("response")
        found.append(places.pop(0) if is_kept else None)
    return None if places else found


def _asked_again(query: Sequence[Any]) -> Entry | None:
    """The answer that a prompt asks for again, which stands in it before the reason."""
    before = query[-2] if len(query) > 1 else None
    return before if isinstance(before, dict) and before.get("message_type") == "assistant" else None


def _by_steps(
    run: ImportedRun,
    history: Sequence[Entry],
    steps: Sequence[Entry],
    places: Sequence[int | None],
    read: _Messages,
    model: str | None,
) -> Iterator[Read]:
    has_tools = any(one.get("tool_calls") for one in history)
    for number, (step, place) in enumerate(zip(steps, places, strict=True)):
        if not any(step["query"]):
            continue
        if place is None and has_tools:
            yield LeftOutItem("answers that were asked for again, kept without their tool calls")
            continue
        said = {"role": "assistant", "content": step.get("response")} if place is None else history[place]
        prompt = [read.message(one) for one in step["query"]]
        yield run.call(["step", number] if place is None else place, prompt, [read.message(said)], model=model)


def _by_history(
    run: ImportedRun, history: Sequence[Entry], steps: Sequence[Entry], read: _Messages, model: str | None
) -> Iterator[Read]:
    last = steps[-1] if steps else {}
    messages: list[Entry] = []
    for at, one in enumerate(history):
        message = read.message(one)
        is_own_word = message["content"] == last.get("response") and str(message["content"]).startswith(_OWN_WORDS)
        if message["role"] == "assistant" and not one.get("is_demo") and not (is_own_word and not last.get("action")):
            yield run.call(at, messages, [message], model=model)
        messages.append(message)


class _Messages:
    """Entries in OpenAI's form; equal ones are one object, so that a prompt that grows is known as such."""

    def __init__(self) -> None:
        self._known: dict[bytes, Entry] = {}

    def message(self, entry: Any) -> Entry:
        """Raises ValueError where it is none."""
        if not isinstance(entry, dict) or not isinstance(entry.get("role"), str):
            raise ValueError("what a step was given is no list of messages")
        message = _message(entry)
        return self._known.setdefault(canonical_json(message), message)


def _message(entry: Entry) -> Entry:
    message = {key: entry[key] for key in _FIELDS if entry.get(key) is not None}
    message["content"] = _text(entry.get("content"))
    ids = entry.get("tool_call_ids")
    if message["role"] == "tool" and isinstance(ids, list) and ids:
        message.setdefault("tool_call_id", ids[0])
    return message


def _text(content: Any) -> Any:
    """Text, also where it stands in a part as a mark for the provider's cache does; anything else as it is."""
    text = joined_text(content) if isinstance(content, list) and len(content) == 1 else None
    return content if text is None else text
