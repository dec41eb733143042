"""Anthropic's messages in the form of OpenAI's chat messages: for the gateway, which asks an engine so, for spans, and
for files that hold them.

One message there may hold results of tools and text side by side; here each result is a message of role "tool", as chat
templates render it. Source of the fields: the Messages API reference (https://platform.claude.com/docs/en/api/messages).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from arttrace.records.message import part_of_reasoning
from arttrace.records.values.lenient_json import json_object

_BILLING = "x-anthropic-billing-header:"
"""A block of system text that Claude Code sends for its provider's accounting: it changes with every call."""


_KINDS = frozenset(
    {
        "tool_use", "tool_result", "thinking", "redacted_thinking", "document", "search_result", "server_tool_use",
        "mcp_tool_use", "container_upload",
    }
)  # fmt: skip


def holds_blocks(content: Any) -> bool:
    """Whether a message's content is what Anthropic's messages alone have, and no other API's."""
    return isinstance(content, list) and any(map(_is_anthropics, content))


def _is_anthropics(block: Any) -> bool:
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(kind, str):
        return False
    return (
        kind in _KINDS or kind.endswith("_tool_result") or (kind == "image" and isinstance(block.get("source"), dict))
    )


def chat_messages(system: Any, messages: Any) -> list[dict[str, Any]] | None:
    """The chat messages that a request's `system` and `messages` say; None when these are no list of objects.

    Blocks of unknown types stay among a message's content parts as they came.
    """
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        return None
    instructions = _system(system)
    chat: list[dict[str, Any]] = [] if instructions is None else [instructions]
    for message in messages:
        content = message.get("content")
        if message.get("role") == "assistant":
            chat.append(_assistant(blocks_of(content)))
        elif message.get("role") == "system" and chat:
            chat.append(_reminder(content))
        elif message.get("role") == "system":
            chat += [said for said in [_system(content)] if said]
        else:
            chat += _user(blocks_of(content))
    return chat


def blocks_of(content: Any) -> list[Any]:
    """The blocks of a message's content; a text is one block, and so is what is neither a text nor a list."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content if isinstance(content, list) else [] if content is None else [content]


def _system(content: Any) -> dict[str, Any] | None:
    parts = [_part(block) for block in blocks_of(content) if not _text_of(block).startswith(_BILLING)]
    return {"role": "system", "content": _plain(parts)} if parts else None


def _reminder(content: Any) -> dict[str, Any]:
    """System text inside a conversation. Many chat templates refuse it there, and at the front it would change the
    beginning of every prompt: so it is the user's, marked as Claude Code marks it."""
    text = "\n".join(_text_of(block) for block in blocks_of(content))
    return {"role": "user", "content": f"<system-reminder>\n{text}\n</system-reminder>"}


def _assistant(blocks: list[Any]) -> dict[str, Any]:
    parts: list[Any] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in blocks:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "text":
            if parts and _is_text(parts[-1]):
                parts[-1] = {"type": "text", "text": parts[-1]["text"] + _text_of(block)}
            else:
                parts.append({"type": "text", "text": _text_of(block)})
        elif kind == "thinking" and isinstance(block.get("thinking"), str):
            thoughts.append(block["thinking"])
        elif thought := part_of_reasoning(block):  # of another API, beside these
            thoughts.append(thought)
        elif kind == "tool_use" and isinstance(block.get("name"), str):
            function = {"name": block["name"], "arguments": _arguments(block.get("input"))}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        else:
            parts.append(_as_it_is(block))
    content: Any = [part for part in parts if not _is_text(part) or part["text"]]
    if all(map(_is_text, content)):
        content = content[0]["text"] if content else (None if calls else "")
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _arguments(value: Any) -> str:
    try:
        return value if isinstance(value, str) else msgspec.json.encode({} if value is None else value).decode()
    except RecursionError:
        return "{}"


def _user(blocks: list[Any]) -> Iterator[dict[str, Any]]:
    parts: list[Any] = []
    for block in blocks:
        if not isinstance(block, dict) or block.get("type") != "tool_result":
            parts.append(_part(block))
            continue
        inside = [_part(one) for one in blocks_of(block.get("content"))]
        # Templates render text alone as a tool's result, and results in a row: the rest follows as the user's.
        parts += [part for part in inside if not _is_text(part)]
        texts = [part["text"] for part in inside if _is_text(part)]
        yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": "\n".join(texts)}
    if parts:
        yield {"role": "user", "content": _plain(parts)}


def _part(block: Any) -> Any:
    """One content part of a chat message."""
    kind = block.get("type") if isinstance(block, dict) else None
    source = json_object(json_object(block).get("source"))
    if kind == "text":
        return {"type": "text", "text": _text_of(block)}
    if kind == "image" and source.get("type") == "url":
        return {"type": "image_url", "image_url": {"url": source.get("url")}}
    if kind == "image" and source.get("type") == "base64":
        url = f"data:{source.get('media_type')};base64,{source.get('data')}"
        return {"type": "image_url", "image_url": {"url": url}}
    if kind == "document" and source.get("type") == "text":
        return {"type": "text", "text": _titled(block, str(source.get("data") or ""))}
    if kind in ("document", "search_result") and (texts := blocks_of(source.get("content") or block.get("content"))):
        return {"type": "text", "text": _titled(block, "\n".join(map(_text_of, texts)))}
    return _as_it_is(block)


def _as_it_is(block: Any) -> Any:
    """A block but for where the server's cache is to end, which clients move with every turn: the model sees nothing of
    it."""
    if not isinstance(block, dict) or "cache_control" not in block:
        return block
    return {name: value for name, value in block.items() if name != "cache_control"}


def _titled(block: dict[str, Any], text: str) -> str:
    title = block.get("title")
    return f"{title}\n\n{text}" if isinstance(title, str) and title else text


def _text_of(block: Any) -> str:
    text = block.get("text") if isinstance(block, dict) else block
    return text if isinstance(text, str) else ""


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text"


def _plain(parts: list[Any]) -> Any:
    return parts[0]["text"] if len(parts) == 1 and _is_text(parts[0]) else parts


def chat_tools(tools: Any) -> list[Any]:
    """A request's tools as OpenAI's chat completions take them; those without a schema stay as they came."""
    return [_function(tool) if isinstance(tool, dict) else tool for tool in tools] if isinstance(tools, list) else []


def _function(tool: dict[str, Any]) -> dict[str, Any]:
    if "input_schema" not in tool:
        return tool
    described = {name: tool[name] for name in ("name", "description") if tool.get(name) is not None}
    return {"type": "function", "function": {**described, "parameters": tool["input_schema"]}}
