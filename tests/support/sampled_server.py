"""A stand-in for an engine that keeps, of every answer, the prompt's and the sampled ids and their log-probabilities,
no two of which are the same: what a learner was given can be looked up by them.

A request's `user` tells what happens to it: `busy` (429 once, then an answer), `cut` (a stream that breaks).
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from arttrace.records import semconv

MARK, END = 1, 2


class Answer(NamedTuple):
    """What was sampled for one choice; `sent` is how many of its ids went out, or None for all."""

    prompt: list[int]
    ids: list[int]
    logprobs: list[float]
    text: str
    sent: int | None


@dataclass
class SampledServer:
    url: str
    answers: list[Answer] = field(default_factory=list)
    words: dict[str, int] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def render(self, message: dict[str, Any]) -> list[int]:
        text = str(message.get("content") or "")
        ids = [self.words.setdefault(word, len(self.words) + 10) for word in re.findall(r"\S+", text)]
        return [*([MARK] if message["role"] == "assistant" else []), *ids, END]

    def sample(self, request: dict[str, Any]) -> list[Answer]:
        with self.lock:
            prompt = [id for message in request["messages"] for id in self.render(message)] + [MARK]
            found = []
            for _ in range(request.get("n") or 1):
                number = len(self.answers)
                text = f"answer {number if number % 5 else 'once more'}"
                ids = self.render({"role": "assistant", "content": text})[1:]
                logprobs = [-(number * 16 + place + 1) / 4096 for place in range(len(ids))]
                sent = 1 if "cut" in str(request.get("user")) else None
                self.answers.append(Answer(prompt, ids, logprobs, text, sent))
                found.append(self.answers[-1])
            return found


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    state: SampledServer

    def log_message(self, *_: Any) -> None: ...

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        user = str(request.get("user"))
        if "busy" in user and user not in self.state.refused:
            self.state.refused.add(user)
            return self._send(429, "application/json", b'{"error": {"message": "busy"}}')
        answers = self.state.sample(request)
        if request.get("stream"):
            body = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks(answers))
            if answers[0].sent is None:
                return self._send(200, "text/event-stream", body + b"data: [DONE]\n\n")
            self._send(200, "text/event-stream", body, missing=1)
            self.close_connection = True
            return None
        return self._send(200, "application/json", json.dumps(completion(answers)).encode())

    def _send(self, status: int, kind: str, body: bytes, missing: int = 0) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body) + missing))
        self.send_header("retry-after-ms", "1")
        self.send_header(semconv.POLICY_VERSION_HEADER, "policy@3")
        self.end_headers()
        self.wfile.write(body)


def completion(answers: list[Answer]) -> dict[str, Any]:
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": one.text, "refusal": None},
            "finish_reason": "stop",
            "token_ids": one.ids,
            "logprobs": _logprobs(one.logprobs),
        }
        for index, one in enumerate(answers)
    ]
    usage = {"prompt_tokens": len(answers[0].prompt), "completion_tokens": sum(len(one.ids) for one in answers)}
    head = {"id": f"r{answers[0].logprobs[0]}", "object": "chat.completion", "created": 1, "model": "m"}
    return head | {"choices": choices, "usage": usage | {"total_tokens": 0}, "prompt_token_ids": answers[0].prompt}


def chunks(answers: list[Answer]) -> Iterator[dict[str, Any]]:
    head = {"id": f"r{answers[0].logprobs[0]}", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    yield {**head, "choices": [], "prompt_token_ids": answers[0].prompt}
    for index, one in enumerate(answers):
        words = [*re.findall(r"\S+\s*", one.text), ""]
        for word, id, logprob in list(zip(words, one.ids, one.logprobs, strict=True))[: one.sent]:
            choice = {"index": index, "delta": {"content": word}, "finish_reason": None, "token_ids": [id]}
            yield {**head, "choices": [{**choice, "logprobs": _logprobs([logprob])}]}
        if one.sent is None:
            yield {**head, "choices": [{"index": index, "delta": {}, "finish_reason": "stop"}]}


def _logprobs(values: list[float]) -> dict[str, Any]:
    return {"content": [{"token": "", "logprob": value, "bytes": None, "top_logprobs": []} for value in values]}


@contextmanager
def serve_sampled() -> Iterator[SampledServer]:
    """A running stand-in on a free port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    state = SampledServer(f"http://127.0.0.1:{server.server_port}/v1")
    server.RequestHandlerClass = type("Handler", (_Handler,), {"state": state})
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
