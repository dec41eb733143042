"""Messages, requests and answers of Anthropic's Messages API, as people keep them in files."""

from __future__ import annotations

from typing import Any

PIXEL = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
SYSTEM: list[Any] = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
SCHEMA = {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}
WEATHER: Any = {"name": "weather", "description": "Of a town", "input_schema": SCHEMA}
SEARCH: Any = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
ASKED: Any = {
    "role": "user",
    "content": [
        {"type": "text", "text": "Where is this, "},
        {"type": "text", "text": "and is it warm?"},
        {"type": "image", "source": PIXEL},
        {"type": "image", "source": {"type": "url", "url": "https://x.test/b.png"}},
        {"type": "document", "title": "Guide", "source": {"type": "text", "media_type": "text/plain", "data": "Rome."}},
    ],
}
CALLS: Any = {
    "role": "assistant",
    "content": [
        {"type": "thinking", "thinking": "Rome or Oslo.", "signature": "c2ln"},
        {"type": "text", "text": "Let me look."},
        {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"town": "Rome"}},
        {"type": "tool_use", "id": "toolu_2", "name": "weather", "input": {"town": "Oslø"}},
    ],
}
RESULTS: Any = {
    "role": "user",
    "content": [
        {
            "type": "tool_result", "tool_use_id": "toolu_1",
            "content": [{"type": "text", "text": "sun"}, {"type": "image", "source": PIXEL}],
        },
        {"type": "tool_result", "tool_use_id": "toolu_2", "content": "no such town", "is_error": True},
        {"type": "text", "text": "And?"},
    ],
}  # fmt: skip
ANSWER: Any = {"role": "assistant", "content": [{"type": "text", "text": "Rome, and it is."}]}
TALK = {"system": SYSTEM, "messages": [ASKED, CALLS, RESULTS, ANSWER], "tools": [WEATHER, SEARCH]}
SEARCHED: Any = {
    "role": "assistant",
    "content": [
        {"type": "redacted_thinking", "data": "EmwK"},
        {"type": "text", "text": "I search."},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "oslo"}},
        {
            "type": "web_search_tool_result", "tool_use_id": "srvtoolu_1",
            "content": [{"type": "web_search_result", "url": "u", "title": "t", "encrypted_content": "e"}],
        },
        {"type": "text", "text": "It is cold."},
    ],
}  # fmt: skip
TEXTS = [
    {"role": "user", "content": [{"type": "text", "text": "Rome?"}]},
    {"role": "assistant", "content": [*CALLS["content"][:3]]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": RESULTS["content"][2:]}]},
    {"role": "assistant", "content": [{"type": "text", "text": "Sun."}]},
]
FUNCTION = {"type": "function", "function": {"name": "weather", "description": "Of a town", "parameters": SCHEMA}}
REPLY: dict[str, Any] = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x-20260101", "content": CALLS["content"],
    "stop_reason": "tool_use", "stop_sequence": None,
    "usage": {"input_tokens": 10, "cache_read_input_tokens": 6, "cache_creation_input_tokens": 1, "output_tokens": 4},
}  # fmt: skip
REQUEST: dict[str, Any] = {
    "model": "claude-x", "max_tokens": 64, "temperature": 0.5, "stop_sequences": ["END"], "system": SYSTEM,
    "messages": [ASKED], "tools": [WEATHER],
}  # fmt: skip
END = {**REPLY, "id": "msg_2", "content": ANSWER["content"], "stop_reason": "max_tokens"}
PAIRS = [
    {"request": REQUEST, "response": REPLY, "task_id": "t1"},
    {"request": {**REQUEST, "messages": [ASKED, CALLS, RESULTS]}, "response": END, "task_id": "t1", "reward": 0.5},
]
