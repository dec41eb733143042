"""A stand-in for an OpenAI-compatible server on 127.0.0.1: answers what the last user message asks for, and keeps
what it was sent. With `return_token_ids` it gives token ids and log-probabilities in the places where vLLM does."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOOL_CALLS = [
    {"index": 0, "id": "call_a", "type": "function", "function": {"name": "look", "arguments": '{"q": "x"}'}},
    {"index": 1, "id": "call_b", "type": "function", "function": {"name": "add", "arguments": '{"a":1,"b":2}'}},
]


@dataclass
class ChatServer:
    """The server's side of a test: `url` for clients, `requests` as (headers, body) in order of arrival."""

    url: str
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    failures: list[tuple[int, bytes]] = field(default_factory=list)
    hold: threading.Event = field(default_factory=threading.Event)
    disconnected: threading.Event = field(default_factory=threading.Event)


def words(text: str) -> list[str]:
    return [word + " " for word in text.split()]


def ids(text: str) -> list[int]:
    return [sum(word.encode()) for word in words(text)]


def logprobs(text: str) -> dict[str, Any]:
    return {"content": [{"token": w, "logprob": -len(w) / 8, "bytes": None, "top_logprobs": []} for w in words(text)]}


def reply(request: dict[str, Any], index: int) -> str:
    return f"answer {index} to {request['messages'][-1]['content']}"


def completion(request: dict[str, Any]) -> dict[str, Any]:
    choices = []
    for index in range(request.get("n") or 1):
        text = reply(request, index)
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        finish = "stop"
        if request.get("tools"):
            message["tool_calls"] = [{k: v for k, v in call.items() if k != "index"} for call in TOOL_CALLS]
            finish = "tool_calls"
        choice: dict[str, Any] = {"index": index, "message": message, "finish_reason": finish, "logprobs": None}
        if request.get("return_token_ids"):
            choice |= {"token_ids": ids(text), "logprobs": logprobs(text)}
        choices.append(choice)
    body = {"id": "c1", "object": "chat.completion", "created": 1, "model": request["model"], "choices": choices}
    body["usage"] = {
        "prompt_tokens": 7,
        "completion_tokens": 5,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    if request.get("return_token_ids"):
        body["prompt_token_ids"] = [1, 2, 3]
    return body


def chunks(request: dict[str, Any]) -> list[dict[str, Any]]:
    frame = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": request["model"]}
    n = request.get("n") or 1
    first: dict[str, Any] = {**frame, "choices": []}
    if request.get("return_token_ids"):
        first["prompt_token_ids"] = [1, 2, 3]
    out = [first]
    texts = [words(reply(request, index)) for index in range(n)]
    opening = {"delta": {"role": "assistant", "content": ""}, "token_ids": None}
    out += [{**frame, "choices": [{"index": index, **opening}]} for index in range(n)]
    for position in range(max(map(len, texts))):
        for index in range(n):
            if position < len(texts[index]):
                word = texts[index][position]
                choice: dict[str, Any] = {"index": index, "delta": {"content": word}, "finish_reason": None}
                if request.get("return_token_ids"):
                    choice |= {"token_ids": ids(word), "logprobs": logprobs(word)}
                out.append({**frame, "choices": [choice]})
    finish = "stop"
    if request.get("tools"):
        finish = "tool_calls"
        for call in TOOL_CALLS:
            head = {**call, "function": {**call["function"], "arguments": None}}
            out.append({**frame, "choices": [{"index": 0, "delta": {"tool_calls": [head]}}]})
        for piece in range(2):
            for call in TOOL_CALLS:
                arguments = call["function"]["arguments"]
                half = arguments[:4] if piece == 0 else arguments[4:]
                delta = {"tool_calls": [{"index": call["index"], "function": {"arguments": half}}]}
                out.append({**frame, "choices": [{"index": 0, "delta": delta}]})
    out += [{**frame, "choices": [{"index": index, "delta": {}, "finish_reason": finish}]} for index in range(n)]
    out.append({**frame, "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}})
    return out


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or each answer waits 40 ms for an acknowledgement
    state: ChatServer

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.state.requests.append(({k.lower(): v for k, v in self.headers.items()}, body))
        if self.state.failures:
            status, text = self.state.failures.pop(0)
            return self._send(status, text)
        request = json.loads(body)
        asked = str((request.get("messages") or [{}])[-1].get("content"))
        if "hang" in asked:
            self.state.hold.wait(60)
        if request.get("stream"):
            return self._stream(request, asked)
        if "garbage" in asked:
            return self._send(200, b"{not json")
        data = json.dumps(completion(request)).encode()
        if "compressed" in asked:
            return self._send(200, gzip.compress(data), {"content-encoding": "gzip"})
        return self._send(200, data)

    def _send(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.send_header("x-arttrace-policy-version", "market@3")
        self.send_header("retry-after-ms", "1")
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, request: dict[str, Any], asked: str) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("x-arttrace-policy-version", "market@3")
        self.send_header("connection", "close")
        self.end_headers()
        try:
            self.wfile.write(b": ping\n\n")
            for position, chunk in enumerate(chunks(request)):
                self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
                self.wfile.flush()
                if "slow" in asked:
                    time.sleep(0.02)
                if "stall" in asked and position == 3:
                    self.state.hold.wait(60)
                if "break" in asked and position == 3:
                    self.connection.close()
                    return
                if "fail inside" in asked and position == 3:
                    self.wfile.write(b'data: {"error": {"message": "engine died", "code": 500}}\n\n')
                    return
            self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            self.state.disconnected.set()
        self.close_connection = True


@contextmanager
def serve() -> Iterator[ChatServer]:
    """A running stand-in on a free port, for the length of a `with` block."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    state = ChatServer(f"http://127.0.0.1:{server.server_address[1]}/v1")
    server.RequestHandlerClass = type("Handler", (_Handler,), {"state": state})
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield state
    finally:
        state.hold.set()
        server.shutdown()
        server.server_close()
