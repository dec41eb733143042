"""What an engine answers a chat completion with, whole and streamed, and a message request that leads to one."""

from __future__ import annotations

import json
from typing import Any

USAGE = {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 6}}
WEATHER = {"name": "weather", "description": "Of a town", "input_schema": {"type": "object", "properties": {}}}
ASKED: dict[str, Any] = {"model": "policy:latest", "max_tokens": 16, "messages": [{"role": "user", "content": "hi"}]}


def completion(message: dict[str, Any], finish: str = "stop", **more: Any) -> tuple[int, str, bytes]:
    logprobs = {"content": [{"token": "x", "logprob": -0.5}, {"token": "y", "logprob": -0.25}]}
    choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": logprobs, "token_ids": [7, 8]}
    body = {"id": "chatcmpl-1", "model": "policy@0", "prompt_token_ids": [1, 2, 3], "usage": USAGE}
    return 200, "application/json", json.dumps(body | {"choices": [choice | more]}).encode()


def chunks(*deltas: dict[str, Any], finish: str = "stop", **more: Any) -> tuple[int, str, bytes]:
    frame = {"id": "chatcmpl-1", "model": "policy@0"}
    made = []
    for position, delta in enumerate(deltas):
        logprobs = {"content": [{"token": "x", "logprob": -0.5}]}
        choice = {"index": 0, "delta": delta, "token_ids": [position + 7], "logprobs": logprobs, "finish_reason": None}
        made.append({**frame, "prompt_token_ids": [1, 2, 3] if position == 0 else None, "choices": [choice]})
    made[-1]["choices"][0] |= {"finish_reason": finish, **more}
    made.append({**frame, "choices": [], "usage": USAGE})
    events = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in made)
    return 200, "text/event-stream", events + b"data: [DONE]\n\n"
