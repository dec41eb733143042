"""A completion, or one chunk of it, as its JSON has it: read into the fields that are wanted, the others passed over.

That costs a third of what objects for all of it would. A document in which something has another form than it should is
read in the long way, which leaves out just that.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from arttrace.records.values.nesting import UNREADABLE
from arttrace.wire.span_attributes import json_or_none


class Delta(msgspec.Struct, gc=False):
    """What a chunk adds to a message."""

    role: Any = None
    content: Any = None
    refusal: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_details: Any = None
    tool_calls: Any = None
    function_call: Any = None
    audio: Any = None


class TokenLogprob(msgspec.Struct, gc=False):
    """One sampled token among log-probabilities."""

    logprob: Any = None


class Logprobs(msgspec.Struct, gc=False):
    """Log-probabilities in the form of chat, or in that of legacy completions."""

    content: list[TokenLogprob | None] | None = None
    token_logprobs: Any = None


class ChunkChoice(msgspec.Struct, gc=False):
    """One choice, of a whole completion or of a chunk."""

    index: Any = None
    message: Any = None
    delta: Delta | None = None
    text: Any = None
    finish_reason: Any = None
    stop_reason: Any = UNSET
    token_ids: Any = None
    prompt_token_ids: Any = None
    logprobs: Logprobs | None = None


class CompletionChunk(msgspec.Struct, gc=False):
    """A completion, or a chunk."""

    choices: list[ChunkChoice] | None = None
    id: Any = None
    model: Any = None
    usage: Any = None
    prompt_token_ids: Any = None
    error: Any = None
    x_groq: Any = None


_frame = msgspec.json.Decoder(CompletionChunk)
_frames = msgspec.json.Decoder(list[CompletionChunk])


def read_chunk(data: bytes) -> CompletionChunk | None:
    """One JSON document as a frame; None when it is no object."""
    try:
        return _frame.decode(data)
    except UNREADABLE:
        return _in_the_long_way(data)


def read_chunks(events: list[bytes]) -> list[CompletionChunk | None]:
    """The documents of a stream, one for each event."""
    try:
        frames: list[CompletionChunk | None] = list(_frames.decode(b"[" + b",".join(events) + b"]"))
    except UNREADABLE:
        frames = []
    if len(frames) == len(events):  # not so where an event holds two, or a half that the next one ends
        return frames
    return [read_chunk(event) for event in events]


def _in_the_long_way(data: bytes) -> CompletionChunk | None:
    document = json_or_none(data)
    return chunk_of(document) if isinstance(document, dict) else None


def chunk_of(document: dict[str, Any]) -> CompletionChunk:
    """An object as a frame; what has none of the forms that it should have is left out."""
    choices = document.get("choices")
    return CompletionChunk(
        choices=[_choice(each) for each in choices if isinstance(each, dict)] if isinstance(choices, list) else None,
        **{name: document.get(name) for name in ("id", "model", "usage", "prompt_token_ids", "error", "x_groq")},
    )


def _choice(choice: dict[str, Any]) -> ChunkChoice:
    delta, logprobs = choice.get("delta"), choice.get("logprobs")
    return ChunkChoice(
        delta=Delta(**_of(Delta, delta)) if isinstance(delta, dict) else None,
        logprobs=_logprobs(logprobs) if isinstance(logprobs, dict) else None,
        stop_reason=choice.get("stop_reason", UNSET),
        **{name: choice.get(name) for name in _PLAIN},
    )


_PLAIN = ("index", "message", "text", "finish_reason", "token_ids", "prompt_token_ids")


def _logprobs(logprobs: dict[str, Any]) -> Logprobs:
    content = logprobs.get("content")
    return Logprobs(
        content=[TokenLogprob(**_of(TokenLogprob, entry)) if isinstance(entry, dict) else None for entry in content]
        if isinstance(content, list)
        else None,
        token_logprobs=logprobs.get("token_logprobs"),
    )


def _of(kind: type[msgspec.Struct], values: dict[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in kind.__struct_fields__ if name in values}
