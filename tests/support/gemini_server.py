"""A stand-in for Gemini's server on 127.0.0.1, with Vertex AI's paths: contents whole, as events and as a JSON array,
embeddings, and what goes wrong there. It keeps what it was sent."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from provider_server import StandIn, stand_in

CALL = {"functionCall": {"name": "weather", "args": {"town": "Rome"}}, "thoughtSignature": "c2ln"}
PARTS: list[dict[str, Any]] = [{"text": "I should look.", "thought": True}, {"text": "Let me look."}, CALL]
USAGE = {
    "promptTokenCount": 10, "candidatesTokenCount": 4, "thoughtsTokenCount": 3, "cachedContentTokenCount": 6,
    "totalTokenCount": 17,
}  # fmt: skip


def answer_of(*parts: dict[str, Any], reason: str = "STOP", **more: Any) -> dict[str, Any]:
    """An answer that says these parts."""
    content = {"role": "model", "parts": list(parts)}
    candidate = {"content": content, "finishReason": reason, "index": 0}
    said = {"candidates": [candidate], "usageMetadata": USAGE, "modelVersion": "gemini-x-001", "responseId": "r1"}
    return {**said, **more}


@dataclass
class GeminiServer:
    """The server's side of a test: `url` for clients, `sent` as (path, headers, body) in order of arrival.

    `failures` are the statuses of the next answers, `cut` breaks the next streams off after so many chunks, `error` is
    what the streams have in the place of their second chunk, which waits until `goes_on`. `answers` are the next
    answers in place of the usual.
    """

    url: str = ""
    sent: list[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=list)
    failures: list[int] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)
    error: bytes | None = None
    answers: list[dict[str, Any]] = field(default_factory=list)
    goes_on: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.goes_on.set()


def chunks_of(answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """An answer as it streams: each text in two pieces, and the counts with each chunk."""
    for index, candidate in enumerate(answer.get("candidates", [{}])):
        pieces = [piece for part in candidate.get("content", {}).get("parts", ()) for piece in _pieces(part)]
        for number, piece in enumerate(pieces, 1):
            said = {"content": {"role": "model", "parts": [piece]}, "index": index}
            ended = {"finishReason": candidate["finishReason"]} if number == len(pieces) else {}
            usage = answer["usageMetadata"] if ended else {"promptTokenCount": 10, "candidatesTokenCount": number}
            yield {**answer, "candidates": [{**said, **ended}], "usageMetadata": usage}
        if not pieces:
            yield answer


def _pieces(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    text = part.get("text")
    if text is None:
        yield part
        return
    yield {
        **{name: value for name, value in part.items() if name != "thoughtSignature"},
        "text": text[: len(text) // 2],
    }
    yield {**part, "text": text[len(text) // 2 :]}


class _Handler(StandIn):
    state: GeminiServer

    def do_POST(self) -> None:
        self.read_request()
        state, path = self.state, urlsplit(self.path)
        if state.failures:
            status = state.failures.pop(0)
            error = {"error": {"code": status, "message": "scripted", "status": "UNAVAILABLE"}}
            return self.send_json(status, [error] if "stream" in path.path else error)
        if path.path.endswith(":countTokens"):
            return self.send_json(200, {"totalTokens": 12})
        if path.path.endswith(":batchEmbedContents"):
            return self.send_json(200, {"embeddings": [{"values": [0.5, 0.25]}]})
        if path.path.endswith(":predict"):
            counted = {"statistics": {"token_count": 3, "truncated": False}, "values": [0.5, 0.25]}
            return self.send_json(200, {"predictions": [{"embeddings": counted}]})
        answer = state.answers.pop(0) if state.answers else answer_of(*PARTS)
        if "stream" not in path.path:
            return self.send_json(200, answer)
        if "alt=sse" in path.query:
            return self.stream(self._events(answer), "text/event-stream")
        return self.stream(self._items(answer), "application/json; charset=UTF-8")

    def _events(self, answer: dict[str, Any]) -> Iterator[bytes]:
        for number, chunk in enumerate(chunks_of(answer)):
            if number == 1:
                self.state.goes_on.wait(60)
                if self.state.error is not None:
                    yield self.state.error
                    return
            yield f"data: {json.dumps(chunk)}\r\n\r\n".encode()

    def _items(self, answer: dict[str, Any]) -> Iterator[bytes]:
        for number, chunk in enumerate(chunks_of(answer)):
            yield ("[" if number == 0 else ",\r\n").encode() + json.dumps(chunk, indent=2).encode()
        yield b"]"


def serve_gemini() -> AbstractContextManager[GeminiServer]:
    """A running stand-in for Gemini's server."""
    return stand_in(_Handler, GeminiServer())
