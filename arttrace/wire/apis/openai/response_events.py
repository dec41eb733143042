"""A response put together from its events: the last one holds it whole; without it, as far as the others have it.

Events may be lost to an early exit at any point. Items are distinguished by their `output_index`, parts of their
content by `content_index` or `summary_index`; a finished item replaces what its deltas made.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from arttrace.records.values.lenient_json import json_object, json_objects
from arttrace.wire.apis.openai.completion_response import logprobs_of
from arttrace.wire.span_attributes import error_of, json_or_none

_LAST = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")
# Deltas of an item's own text fields, by event.
_FIELDS = {
    "response.function_call_arguments.delta": "arguments",
    "response.mcp_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "input",
    "response.code_interpreter_call_code.delta": "code",
}
# Deltas of one part of an item's list of parts: (list, index, part's type, part's text field).
_PARTS = {
    "response.output_text.delta": ("content", "content_index", "output_text", "text"),
    "response.refusal.delta": ("content", "content_index", "refusal", "refusal"),
    "response.reasoning_text.delta": ("content", "content_index", "reasoning_text", "text"),
    "response.reasoning_summary_text.delta": ("summary", "summary_index", "summary_text", "text"),
}


_COMMAND, _PRINTED = "response.shell_call_command.", "response.shell_call_output_content."


@dataclass(slots=True)
class ResponseStream:
    """What came of a stream. `done` is False when its last event did not come."""

    response: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    done: bool = False
    unreadable_events: int = 0


def read_events(events: Iterable[bytes]) -> ResponseStream:
    """The response from the data of its events."""
    stream = ResponseStream()
    items: dict[int, _Item] = {}
    for data in events:
        if data.startswith(b"[DONE]"):  # vLLM and others end with it, OpenAI does not
            break
        event = json_or_none(data)
        if not isinstance(event, dict):
            stream.unreadable_events += 1
            continue
        kind = event.get("type")
        response = event.get("response")
        if isinstance(response, dict):
            stream.response = response
        stream.done = stream.done or kind in _LAST
        if kind == "error" or (error_of(event) and kind is None):
            stream.error = error_of(event) or error_of({"error": event.get("message") or event.get("code") or "error"})
        elif isinstance(kind, str) and isinstance(event.get("output_index"), int):
            items.setdefault(event["output_index"], _Item()).add(kind, event)
    if items and not stream.response.get("output"):
        stream.response = {**stream.response, "output": [items[index].item() for index in sorted(items)]}
    return stream


class _Item:
    """One item while its events come. Pieces are joined at the end: a long answer costs no more per event."""

    def __init__(self) -> None:
        self._item: dict[str, Any] = {}
        self._done = False
        self._fields: dict[str, list[str]] = {}
        self._parts: dict[tuple[str, int], tuple[str, str, list[str]]] = {}
        self._logprobs: dict[int, list[Any]] = {}
        self._commands: dict[int, list[str]] = {}
        self._printed: dict[int, dict[str, list[str]] | list[Any]] = {}  # pieces, or what was printed in the end

    def add(self, kind: str, event: dict[str, Any]) -> None:
        if kind in ("response.output_item.added", "response.output_item.done"):
            if isinstance(event.get("item"), dict):
                self._item, self._done = event["item"], kind.endswith("done")
            return
        if kind.startswith((_COMMAND, _PRINTED)) and isinstance(event.get("command_index"), int):
            self._add_of_shell(kind, event["command_index"], event)
            return
        delta = event.get("delta")
        if not isinstance(delta, str):
            return
        if kind in _FIELDS:
            self._fields.setdefault(_FIELDS[kind], []).append(delta)
        elif kind in _PARTS:
            where, index, part, text = _PARTS[kind]
            number = event.get(index)
            number = number if isinstance(number, int) else 0
            self._parts.setdefault((where, number), (part, text, []))[2].append(delta)
            if isinstance(event.get("logprobs"), list):
                self._logprobs.setdefault(number, []).extend(event["logprobs"])

    def _add_of_shell(self, kind: str, number: int, event: dict[str, Any]) -> None:
        """Of a command: how it begins, more of it, or all of it; of what it printed: more of it, or all of it."""
        delta, command, output = event.get("delta"), event.get("command"), event.get("output")
        if kind == f"{_COMMAND}delta" and isinstance(delta, str):
            self._commands.setdefault(number, []).append(delta)
        elif kind in (f"{_COMMAND}added", f"{_COMMAND}done") and isinstance(command, str):
            self._commands[number] = [command]
        elif kind == f"{_PRINTED}done" and isinstance(output, list):
            self._printed[number] = output
        elif kind == f"{_PRINTED}delta" and isinstance(delta, dict):
            pieces = self._printed.setdefault(number, {})
            for name in ("stdout", "stderr"):
                if isinstance(pieces, dict) and isinstance(piece := delta.get(name), str):
                    pieces.setdefault(name, []).append(piece)

    def item(self) -> dict[str, Any]:
        if self._done:
            return self._item
        item = {**self._item, **{name: "".join(pieces) for name, pieces in self._fields.items()}}
        for where in {where for where, _ in self._parts}:
            item[where] = []
        for (where, number), (part, text, pieces) in sorted(self._parts.items()):
            made: dict[str, Any] = {"type": part, text: "".join(pieces)}
            if part == "output_text" and number in self._logprobs:
                made["logprobs"] = self._logprobs[number]
            item[where].append(made)
        if self._commands:
            action = json_object(item.get("action"))
            commands = ["".join(pieces) for _, pieces in sorted(self._commands.items())]
            item["action"] = {**action, "commands": commands}
        if self._printed:
            item["output"] = [one for _, printed in sorted(self._printed.items()) for one in _outputs(printed)]
        return item


def _outputs(printed: dict[str, list[str]] | list[Any]) -> list[Any]:
    if isinstance(printed, list):
        return printed
    return [{name: "".join(printed.get(name, ())) for name in ("stdout", "stderr")}]


def output_logprobs(items: Iterable[Any]) -> list[float | None] | None:
    """The log-probabilities of all output text, in order; None where the engine gave none."""
    found: list[float | None] | None = None
    for item in items:
        for part in json_objects(item.get("content")) if isinstance(item, dict) else []:
            if isinstance(part.get("logprobs"), list) and part["logprobs"]:
                found = (found or []) + logprobs_of(part["logprobs"])
    return found
