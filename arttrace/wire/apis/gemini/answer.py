"""An answer of Gemini's API, whole or in the chunks of a stream, each of which has the form of the whole.

A stream has no end mark: it is whole when every candidate has a reason to have ended, or the prompt was blocked.
Without `alt=sse` it is a JSON array whose items are the chunks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from arttrace.records.message import OtherPart, Part, ToolCallPart
from arttrace.records.values.finish_reasons import finish_reason
from arttrace.records.values.lenient_json import bounded_integer, json_objects, well_formed
from arttrace.records.values.nesting import UNREADABLE
from arttrace.wire.apis.gemini.contents import parts_of
from arttrace.wire.apis.gemini.members import member, object_in
from arttrace.wire.apis.openai.completion_response import numbers
from arttrace.wire.messages import OutputMessage
from arttrace.wire.span_attributes import error_of, json_or_none

_decoder = json.JSONDecoder(parse_int=bounded_integer)
_GAP = re.compile(r"[\s,]*")
_UNSPECIFIED = "FINISH_REASON_UNSPECIFIED"


@dataclass(slots=True)
class GeneratedContent:
    """What came. `candidates` are by their index, `usage` and the names of the last chunk that has them."""

    candidates: dict[int, Candidate] = field(default_factory=dict)
    feedback: dict[str, Any] = field(default_factory=dict)
    usage: dict[str, Any] = field(default_factory=dict)
    id: Any = None
    model: Any = None
    error: str | None = None
    unreadable_chunks: int = 0

    @property
    def is_blocked(self) -> bool:
        """Whether the prompt was refused, so that there is no candidate."""
        return not self.candidates and bool(member(self.feedback, "blockReason"))

    def is_whole(self, candidates: int) -> bool:
        """Whether all that were asked for have come to their end."""
        ended = [candidate.stated for candidate in self.candidates.values()]
        return self.is_blocked or (len(ended) >= max(candidates, 1) and all(ended))

    def messages(self) -> list[OutputMessage]:
        """One for each candidate. A prompt that was refused has an empty answer, with what is said about it."""
        if self.is_blocked:
            said = OtherPart({"type": "prompt_feedback", **self.feedback})
            return [OutputMessage("assistant", (said,), "content_filter")]
        return [self.candidates[index].message() for index in sorted(self.candidates)]


@dataclass(slots=True)
class Candidate:
    """One of the alternatives, as far as it came."""

    contents: list[dict[str, Any]] = field(default_factory=list)
    stated: str | None = None
    logprobs: list[float | None] = field(default_factory=list)

    def add(self, chunk: dict[str, Any]) -> None:
        """What one chunk has of it."""
        self.contents.append(object_in(chunk, "content"))
        reason = member(chunk, "finishReason")
        if isinstance(reason, str) and reason != _UNSPECIFIED:
            self.stated = reason
        chosen = json_objects(member(object_in(chunk, "logprobsResult"), "chosenCandidates"))
        self.logprobs += numbers([member(token, "logProbability") for token in chosen])

    def message(self) -> OutputMessage:
        """What it says, and why it ended: by its tool calls, where it has some and nothing cut it short."""
        parts: tuple[Part, ...] = parts_of(self.contents)
        reason = finish_reason(self.stated)
        if reason == "stop" and any(isinstance(part, ToolCallPart) for part in parts):
            reason = "tool_calls"
        return OutputMessage("assistant", parts, reason)


def read_answer(chunks: Iterable[bytes | dict[str, Any]]) -> GeneratedContent:
    """The answer from its chunks, as text or read already, as far as they came."""
    answer = GeneratedContent()
    for data in chunks:
        chunk = json_or_none(data) if isinstance(data, bytes) else data
        if not isinstance(chunk, dict):
            answer.unreadable_chunks += 1
            continue
        answer.error = answer.error or error_of(chunk)
        for position, candidate in enumerate(json_objects(chunk.get("candidates"))):
            index = candidate.get("index")
            place = index if type(index) is int else position
            answer.candidates.setdefault(place, Candidate()).add(candidate)
        answer.feedback = object_in(chunk, "promptFeedback") or answer.feedback
        counted = object_in(chunk, "usageMetadata")
        answer.usage |= {name: count for name, count in counted.items() if count is not None}
        answer.id = member(chunk, "responseId") or answer.id
        answer.model = member(chunk, "modelVersion") or answer.model
    return answer


def array_items(body: bytes) -> tuple[list[Any], bool]:
    """The items of a JSON array, and whether it came to its end; of one that was cut those that are whole."""
    document = json_or_none(body)
    if document is not None:
        return document if isinstance(document, list) else [document], True
    return list(_items(body.decode(errors="replace"))), False


def _items(text: str) -> Iterator[Any]:
    at = text.find("[") + 1
    with suppress(*UNREADABLE):
        while at:
            item, at = _decoder.raw_decode(text, _between(text, at))
            yield well_formed(item)


def _between(text: str, at: int) -> int:
    """Where the next item begins."""
    found = _GAP.match(text, at)
    return at if found is None else found.end()


def counts(usage: dict[str, Any]) -> dict[str, Any]:
    """The counts as OpenAI's APIs have them: what the server's own tools brought is read as the prompt is, and thoughts
    are sampled as the rest of an answer is."""
    prompt, brought, said, thoughts, cached = (
        count if type(count := member(usage, f"{name}TokenCount")) is int else None
        for name in ("prompt", "toolUsePrompt", "candidates", "thoughts", "cachedContent")
    )
    found: dict[str, Any] = {}
    if prompt is not None:
        found["input_tokens"] = prompt + (brought or 0)
    if said is not None or thoughts is not None:
        found["output_tokens"] = (said or 0) + (thoughts or 0)
    if cached:
        found["input_tokens_details"] = {"cached_tokens": cached}
    if thoughts:
        found["output_tokens_details"] = {"reasoning_tokens": thoughts}
    return found
