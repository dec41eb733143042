"""A stand-in for Ollama's server on 127.0.0.1: chats and prompts, whole and as lines of JSON, embeddings, and what goes
wrong there. It keeps what it was sent. Its answers are as `api/types.go` and `server/routes.go` of Ollama have them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from provider_server import StandIn, stand_in

CALL = {"function": {"name": "weather", "arguments": {"town": "Rome"}}}
MESSAGE: dict[str, Any] = {
    "role": "assistant", "content": "Let me look.", "thinking": "I should look.", "tool_calls": [CALL],
}  # fmt: skip
DONE = {
    "done": True, "done_reason": "stop", "total_duration": 4883583458, "load_duration": 1334875,
    "prompt_eval_count": 10, "prompt_eval_duration": 342546000, "eval_count": 7, "eval_duration": 4535599000,
}  # fmt: skip
LOGPROBS = [-0.5, -0.25]


def message_of(content: str = "", *tool_calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    """An answer of a chat."""
    return {"role": "assistant", "content": content, **({"tool_calls": list(tool_calls)} if tool_calls else {}), **more}


@dataclass
class OllamaServer:
    """The server's side of a test: `url` for clients, `sent` as (path, headers, body) in order of arrival.

    `failures` are the statuses of the next answers, `cut` breaks the next streams off after so many lines, `error` is
    what the streams have in the place of their second line, which waits until `goes_on`. `answers` are the messages of
    the next answers in place of the usual, `done` what the last line of each says.
    """

    url: str = ""
    sent: list[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=list)
    failures: list[int] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)
    error: bytes | None = None
    answers: list[dict[str, Any]] = field(default_factory=list)
    done: dict[str, Any] = field(default_factory=lambda: dict(DONE))
    goes_on: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.goes_on.set()


class _Handler(StandIn):
    state: OllamaServer

    def do_POST(self) -> None:
        request, state = self.read_request(), self.state
        model = {"model": request.get("model"), "created_at": "2026-01-05T12:00:00.5Z"}
        if state.failures:
            return self.send_json(state.failures.pop(0), {"error": f"model '{model['model']}' not found"})
        if self.path.endswith("/api/embed"):
            return self.send_json(200, {**model, "embeddings": [[0.5, 0.25]], "prompt_eval_count": 3})
        if self.path.endswith("/api/embeddings"):
            return self.send_json(200, {"embedding": [0.5, 0.25]})
        chats = self.path.endswith("/api/chat")
        if not request.get("messages" if chats else "prompt"):
            said = {"message": message_of()} if chats else {"response": ""}
            return self.send_json(200, {**model, **said, "done": True, "done_reason": "load"})
        message = state.answers.pop(0) if state.answers else MESSAGE
        if request.get("stream") is False:
            said = self._said(message, chats)
            probs = {"logprobs": _logprobs(*LOGPROBS)} if request.get("logprobs") else {}
            return self.send_json(200, {**model, **said, **probs, **state.done})
        return self.stream(self._lines(model, message, chats, bool(request.get("logprobs"))), "application/x-ndjson")

    def _said(self, message: dict[str, Any], chats: bool) -> dict[str, Any]:
        if chats:
            return {"message": message}
        return {"response": message["content"], **{name: message[name] for name in ("thinking",) if name in message}}

    def _lines(self, model: dict[str, Any], message: dict[str, Any], chats: bool, probs: bool) -> Iterator[bytes]:
        pieces = [*_pieces(message)]
        for number, piece in enumerate(pieces):
            if number == 1:
                self.state.goes_on.wait(60)
                if self.state.error is not None:
                    yield self.state.error
                    return
            beside = {"logprobs": _logprobs(LOGPROBS[number])} if probs and number < len(LOGPROBS) else {}
            if chats or "tool_calls" not in piece:
                yield json.dumps({**model, **self._said(piece, chats), "done": False, **beside}).encode() + b"\n"
        yield json.dumps({**model, **self._said(message_of(), chats), **self.state.done}).encode() + b"\n"


def _pieces(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A message as it streams: each text in two pieces, each tool call by itself."""
    for name in ("thinking", "content"):
        text = message.get(name) or ""
        for piece in (text[: len(text) // 2], text[len(text) // 2 :]) if text else ():
            yield {"role": "assistant", "content": "", name: piece}
    for call in message.get("tool_calls", ()):
        yield message_of("", call)


def _logprobs(*values: float) -> list[dict[str, Any]]:
    return [{"token": "a", "logprob": value, "bytes": [97], "top_logprobs": [{"token": "a", "logprob": value}]}
            for value in values]  # fmt: skip


def serve_ollama() -> AbstractContextManager[OllamaServer]:
    """A running stand-in for Ollama's server."""
    return stand_in(_Handler, OllamaServer())
