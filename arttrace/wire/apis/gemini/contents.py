"""Gemini's contents as our messages: for spans of its calls, and for those of SDKs that hold contents.

A content that the model wrote may come in several, one for each chunk of a stream that a client keeps: those in a row
are one message. Each result of a function is a message. Names of fields come as the API writes them or, as it takes
them too and SDKs write them, in snake case. Source of the fields: https://ai.google.dev/api/caching#Content
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import msgspec

from arttrace.records.message import Message, OtherPart, Part, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from arttrace.records.values.lenient_json import json_objects
from arttrace.wire.apis.gemini.members import member
from arttrace.wire.apis.gemini.partial_calls import whole_calls
from arttrace.wire.messages import arguments_text


class SignedText(TextPart, frozen=True, gc=False, tag="text"):
    """Text with the signature of the thoughts before it, which are hidden: a client sends it back as it came."""

    thought_signature: str = ""


class SignedReasoning(ReasoningPart, frozen=True, gc=False, tag="reasoning"):
    """The summary of a thought with its signature."""

    thought_signature: str = ""


class SignedToolCall(ToolCallPart, frozen=True, gc=False, tag="tool_call"):
    """A tool call with the signature of the thoughts before it."""

    thought_signature: str = ""


def messages_of(contents: Any) -> tuple[Message, ...] | None:
    """The messages of a request's `contents`; None where these are no list of contents, nor one."""
    listed = [contents] if isinstance(contents, dict) else contents
    if not isinstance(listed, list) or not all(isinstance(content, dict) for content in listed):
        return None
    messages: list[Message] = []
    for is_answer, row in groupby(listed, lambda content: content.get("role") == "model"):
        if is_answer:
            messages.append(Message("assistant", parts_of(row)))
        else:
            messages += (message for content in row for message in _others(content))
    return tuple(messages)


def parts_of(contents: Iterable[dict[str, Any]]) -> tuple[Part, ...]:
    """What contents in a row say, each text that came in pieces as one."""
    parts: list[Part] = []
    for part in whole_calls(part for content in contents for part in _listed(content)):
        _add(parts, _part(part))
    return tuple(parts)


def instructions_of(content: Any) -> tuple[Part, ...]:
    """The parts of a system instruction, which is a content, a text, or a list of either."""
    if isinstance(content, list):
        return tuple(part for one in content for part in instructions_of(one))
    if isinstance(content, str):
        return (TextPart(content),) if content else ()
    if not isinstance(content, dict):
        return ()
    return tuple(map(_part, _listed(content) if "parts" in content else [content]))


def _listed(content: dict[str, Any]) -> list[Any]:
    parts = content.get("parts")
    return parts if isinstance(parts, list) else [] if parts is None else [parts]


def _others(content: dict[str, Any]) -> Iterator[Message]:
    """What anyone but the model says: results of functions stand for themselves, before what else is said."""
    role = _text(content.get("role")) or "user"
    said: list[Part] = []
    results = False
    for part in _listed(content):
        given = member(part, "functionResponse") if isinstance(part, dict) else None
        if isinstance(given, dict):
            results = True
            yield _result(given)
        else:
            said.append(_part(part))
    if said or not results:
        yield Message(role if role not in ("function", "tool") else "user", tuple(said))


def _result(given: dict[str, Any]) -> Message:
    name = given.get("name")
    beside = (_part(part) for part in json_objects(given.get("parts")))
    result = ToolResultPart(response=given.get("response"), id=_text(given.get("id")))
    return Message("tool", (result, *beside), name if isinstance(name, str) else None)


def _part(part: Any) -> Part:
    if not isinstance(part, dict):
        return TextPart(part) if isinstance(part, str) else OtherPart({"type": "content", "content": part})
    signature, text = member(part, "thoughtSignature"), part.get("text")
    called = member(part, "functionCall")
    if isinstance(called, dict) and isinstance(called.get("name"), str):
        arguments = arguments_text(called.get("args") or {})
        if arguments is not None:
            named = (called["name"], arguments, _text(called.get("id")))
            return SignedToolCall(*named, signature) if isinstance(signature, str) else ToolCallPart(*named)
    elif isinstance(text, str) and part.get("thought") is True:
        return SignedReasoning(text, signature) if isinstance(signature, str) else ReasoningPart(text)
    elif isinstance(text, str):
        return SignedText(text, signature) if isinstance(signature, str) else TextPart(text)
    elif isinstance(signature, str) and len(part) == 1:
        return SignedText("", signature)
    for name, form in (("inlineData", "blob"), ("fileData", "uri")):
        if isinstance(data := member(part, name), dict):
            return OtherPart(_media(form, data))
    return OtherPart({"type": next(iter(part), "part"), **part})


_MEMBERS = {"data": "content", "fileUri": "uri", "file_uri": "uri", "mimeType": "mime_type"}


def _media(form: str, data: dict[str, Any]) -> dict[str, Any]:
    """Inline data, or a file, as the conventions have it."""
    said = {_MEMBERS.get(name, name): value for name, value in data.items()}
    kind = str(said.get("mime_type") or "").partition("/")[0]
    return {"type": form, **({"modality": kind} if kind in ("image", "audio", "video") else {}), **said}


def _add(parts: list[Part], part: Part) -> None:
    """Add a part; a text that only goes on the one before it is one with it."""
    if isinstance(part, TextPart | ReasoningPart):
        last, kind = (parts[-1] if parts else None), TextPart if isinstance(part, TextPart) else ReasoningPart
        if isinstance(last, kind) and not hasattr(last, "thought_signature"):
            parts[-1] = msgspec.structs.replace(part, content=last.content + part.content)
            return
        if not part.content and not hasattr(part, "thought_signature"):
            return
    parts.append(part)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
