"""The events of a streamed Converse, as far as they came, in the form of the answer that comes whole."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from arttrace.records.values.lenient_json import json_object, json_objects
from arttrace.wire.span_attributes import error_of, json_or_none


@dataclass(slots=True)
class ConverseEvents:
    """What came of a stream."""

    answer: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    unreadable_events: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether the message has come to its end; only the counts come after it."""
        return isinstance(self.answer.get("stopReason"), str)


def read_events(events: Iterable[bytes]) -> ConverseEvents:
    """The answer from the data of its events, each an object with the event under its name."""
    stream = ConverseEvents()
    blocks: dict[int, _StreamedBlock] = {}
    begun = False
    for data in events:
        said = json_or_none(data)
        if not isinstance(said, dict):
            stream.unreadable_events += 1
            continue
        stream.error = stream.error or error_of(said)
        for name in ("contentBlockStart", "contentBlockDelta"):
            event = json_object(said.get(name))
            index = event.get("contentBlockIndex", 0)
            if event and type(index) is int:
                blocks.setdefault(index, _StreamedBlock()).add(event)
        begun = begun or "messageStart" in said
        stream.answer |= json_object(said.get("messageStop")) | json_object(said.get("metadata"))
    if begun or blocks:
        content = [blocks[index].block() for index in sorted(blocks)]
        stream.answer["output"] = {"message": {"role": "assistant", "content": content}}
    return stream


class _StreamedBlock:
    """One content block while its events come."""

    def __init__(self) -> None:
        self._start: dict[str, Any] = {}
        self._texts: dict[str, list[str]] = {}
        self._results: list[Any] = []
        self._others: dict[str, Any] = {}

    def add(self, event: dict[str, Any]) -> None:
        """One event of it."""
        self._start |= json_object(event.get("start"))
        delta = json_object(event.get("delta"))
        thought = json_object(delta.get("reasoningContent"))
        self._piece("text", delta.get("text"))
        self._piece("input", json_object(delta.get("toolUse")).get("input"))
        self._piece("thought", thought.get("text"))
        self._piece("signature", thought.get("signature"))
        self._piece("redacted", thought.get("redactedContent"))
        self._results += json_objects(delta.get("toolResult"))
        self._others |= {name: value for name, value in delta.items() if name not in _KNOWN}

    def _piece(self, name: str, text: Any) -> None:
        if isinstance(text, str):
            self._texts.setdefault(name, []).append(text)

    def block(self) -> dict[str, Any]:
        """It, as far as it came; the input of a tool is the text that was sampled."""
        texts = {name: "".join(pieces) for name, pieces in self._texts.items()}
        for name, given in (("toolUse", {"input": texts.get("input")}), ("toolResult", {"content": self._results})):
            if isinstance(start := self._start.get(name), dict):
                return {name: {**start, **given}}
        if "thought" in texts or "signature" in texts:
            signed = {"signature": texts["signature"]} if "signature" in texts else {}
            return {"reasoningContent": {"reasoningText": {"text": texts.get("thought", ""), **signed}}}
        if "redacted" in texts:
            return {"reasoningContent": {"redactedContent": texts["redacted"]}}
        if isinstance(start := self._start.get("image"), dict):
            return {"image": {**start, **json_object(self._others.get("image"))}}
        return {"text": texts["text"]} if "text" in texts else self._others or {"text": ""}


_KNOWN = ("text", "toolUse", "reasoningContent", "toolResult", "citation")
