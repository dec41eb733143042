"""What can be copied out of a run: as JSON, as Markdown, and one call as a `curl` command."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

import msgspec

from arttrace.formats.datasets.chat import openai_form
from arttrace.records.call import Call
from arttrace.records.span import SpanRow
from arttrace.records.values.tokens import plain_or_text
from arttrace.trajectories.messages.tool_results import with_call_ids
from arttrace.views.web.models.transcript import TranscriptEntry


def as_json(value: Any) -> str:
    """Any record as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value, enc_hook=plain_or_text), indent=2).decode()


def as_markdown(title: str, entries: Sequence[TranscriptEntry]) -> str:
    """A transcript for an issue or a chat."""
    lines = [f"# {title}", ""]
    for entry in entries:
        mark = {"tool": "tool ", "agent": "agent "}.get(entry.kind, "")
        lines += [f"{'#' * min(entry.level + 2, 6)} {mark}{entry.title}{f' ({entry.note})' if entry.note else ''}", ""]
        for part in (*entry.parts, *((entry.result,) if entry.result else ())):
            if part.kind == "image":
                lines += ["(image)", ""]
            elif part.kind in ("call", "result", "other"):
                lines += [f"{part.name}".strip(), fenced(part.text), ""]
            else:
                lines += [part.text, ""]
            if part.missing:
                lines += [f"({part.missing})", ""]
        if entry.ended:
            lines += [f"({entry.ended})", ""]
        if entry.error:
            lines += [f"**error:** {entry.error}", ""]
    return "\n".join(lines)


def fenced(text: str) -> str:
    """A code block that the text itself cannot close."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text}\n{fence}"


def as_curl(call: Call) -> str:
    """The call as a command: the same messages and tools, to whatever server $OPENAI_BASE_URL names."""
    body: dict[str, Any] = {"model": call.request_model or call.response_model}
    body["messages"] = [openai_form(message) for message in with_call_ids(call.messages)]
    if call.tools:
        body["tools"] = list(call.tools)
    if call.temperature is not None:
        body["temperature"] = call.temperature
    data = shlex.quote(msgspec.json.encode(body).decode())
    return (
        'curl "$OPENAI_BASE_URL/chat/completions" -H "Authorization: Bearer $OPENAI_API_KEY" '
        f"-H 'Content-Type: application/json' \\\n  -d {data}"
    )


def fullest_first(versions: Sequence[SpanRow]) -> list[SpanRow]:
    """The stored versions of a span."""
    return sorted(versions, key=lambda span: (span.end_ns > 0, len(msgspec.json.encode(span))), reverse=True)
