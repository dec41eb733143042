"""Messages of Anthropic's API, wherever another format holds them, in OpenAI's form. Pure.

`wire.apis.anthropic.chat` reads the blocks, as it does for capture and for `arttrace serve`. Here is what a file needs
beside: messages of the other APIs between, results that are errors, and what cannot be read, by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from arttrace.formats.left_out import LeftOutItem
from arttrace.records.message import part_of_reasoning
from arttrace.wire.apis.anthropic.chat import blocks_of, chat_messages, holds_blocks

FAILED = "is_error"
"""Set in the message of a tool's result that is an error: OpenAI's form has no place for it."""
_KEPT_KINDS = frozenset(
    {
        "text", "refusal", "image", "image_url", "input_image", "audio", "audio_url", "input_audio", "video",
        "video_url", "file", "input_file", "document", "search_result", "container_upload", "redacted_thinking",
        "server_tool_use", "mcp_tool_use",
    }
)  # fmt: skip


def in_openais_form(message: dict[str, Any]) -> list[dict[str, Any]]:
    """A message; one of Anthropic's as several where it holds results of tools, which come first."""
    if message.get("role") not in ("user", "assistant") or not holds_blocks(message.get("content")):
        return [message]
    said = chat_messages(None, [message]) or []
    failed = iter(
        [
            block.get("is_error") is True
            for block in message["content"]
            if isinstance(block, dict) and block.get("type") == "tool_result"
        ]
    )
    beside = {name: value for name, value in message.items() if name not in ("role", "content")}
    for one in said:
        if one["role"] != "tool":
            one |= {name: value for name, value in beside.items() if name not in one}
        elif next(failed, False):
            one[FAILED] = True
    return said


def whole_conversation(messages: Iterable[dict[str, Any]], system: Any = None) -> list[dict[str, Any]]:
    """Messages in OpenAI's form, after the `system` text that stands beside them."""
    instructions = chat_messages(system, []) or []
    return [*instructions, *(chat for message in messages for chat in in_openais_form(message))]


def is_system_text(value: Any) -> bool:
    """Whether this is what Anthropic's API takes for system text."""
    return (isinstance(value, str) and value != "") or (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(block, dict) and isinstance(block.get("text"), str) for block in value)
    )


def unread_parts(messages: Iterable[dict[str, Any]]) -> Iterator[LeftOutItem]:
    """What of messages, as a file has them, is kept as it came since nobody knows how to read it; and citations."""
    for message in messages:
        for part in blocks_of(message.get("content")):
            if isinstance(part, dict) and isinstance(part.get("citations"), list) and part["citations"]:
                yield LeftOutItem("citations")
        for chat in in_openais_form(message):
            content = chat.get("content")
            if chat.get("role") not in ("tool", "function") and not isinstance(content, str):
                yield from (item for part in blocks_of(content) for item in _unknown(part))


def are_parts(content: Any) -> bool:
    """Whether this is a content in parts, or blocks, of kinds that are known here."""
    return isinstance(content, list) and bool(content) and all(map(_is_known, content))


def _is_known(part: Any) -> bool:
    kind = part.get("type") if isinstance(part, dict) else None
    return isinstance(kind, str) and (kind in _KEPT_KINDS or holds_blocks([part]))


def _unknown(part: Any) -> Iterator[LeftOutItem]:
    kind = part.get("type") if isinstance(part, dict) else "text" if isinstance(part, str) else None
    kind = kind if isinstance(kind, str) else "none"
    if kind not in _KEPT_KINDS and not part_of_reasoning(part) and not kind.endswith("_tool_result"):
        yield LeftOutItem(f"unknown parts of type {kind[:40]}, kept as they came")
