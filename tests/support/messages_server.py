"""A stand-in for Anthropic's server on 127.0.0.1: /v1/messages, whole and streamed, Bedrock's and Vertex AI's paths,
and what goes wrong there. It keeps what it was sent."""

from __future__ import annotations

import base64
import binascii
import json
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CONTENT = [
    {"type": "thinking", "thinking": "I should look.", "signature": "sig"},
    {"type": "text", "text": "Let me look."},
    {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"town": "Rome"}},
]
USAGE = {"input_tokens": 3, "cache_read_input_tokens": 6, "cache_creation_input_tokens": 1, "output_tokens": 4}
TOKENS = {"prompt_token_ids": [1, 2, 3], "token_ids": [7, 8], "logprobs": [-0.5, -0.25]}


@dataclass
class MessagesServer:
    """The server's side of a test: `url` for clients, `sent` as (path, headers, body) in order of arrival.

    `failures` are the statuses of the next answers, `cut` breaks the next streams off after so many events, and
    `tokens` puts token ids beside the answer, as `arttrace serve` does. `answers` are what the next answers have in the
    place of the usual.
    """

    url: str
    sent: list[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=list)
    failures: list[int] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)
    tokens: bool = False
    error_event: bool = False
    answers: list[dict[str, Any]] = field(default_factory=list)


def whole(model: str) -> dict[str, Any]:
    """The answer to every request."""
    start = {"id": "msg_1", "type": "message", "role": "assistant", "model": model, "content": CONTENT}
    return {**start, "stop_reason": "tool_use", "stop_sequence": None, "usage": USAGE}


def events(model: str, tokens: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
    """The same answer as it streams."""
    empty = {"content": [], "stop_reason": None, "usage": {**USAGE, "output_tokens": 1}}
    yield {"type": "message_start", "message": {**whole(model), **empty}}
    yield {"type": "ping"}
    thinking, text, tool = CONTENT
    starts = [{**thinking, "thinking": "", "signature": ""}, {**text, "text": ""}, {**tool, "input": {}}]
    deltas = [
        [{"type": "thinking_delta", "thinking": "I should "}, {"type": "thinking_delta", "thinking": "look."}],
        [{"type": "text_delta", "text": "Let me "}, {"type": "text_delta", "text": "look."}],
        [{"type": "input_json_delta", "partial_json": part} for part in ('{"town"', ': "Rome"}')],
    ]
    deltas[0].append({"type": "signature_delta", "signature": "sig"})
    for index, start in enumerate(starts):
        yield {"type": "content_block_start", "index": index, "content_block": start}
        for delta in deltas[index]:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    end = {"delta": {"stop_reason": "tool_use", "stop_sequence": None}, "usage": {"output_tokens": 4}}
    yield {"type": "message_delta", **end, **({} if tokens is None else {"arttrace": tokens})}
    yield {"type": "message_stop"}


def streamed(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """An answer as it streams, each block in one piece."""
    yield {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}}
    for index, block in enumerate(message["content"]):
        yield {"type": "content_block_start", "index": index, "content_block": block}
        yield {"type": "content_block_stop", "index": index}
    ended = {name: message[name] for name in ("stop_reason", "stop_sequence", "stop_details") if name in message}
    yield {"type": "message_delta", "delta": ended, "usage": {"output_tokens": 4}}
    yield {"type": "message_stop"}


def aws_frame(payload: bytes, **headers: str) -> bytes:
    """One frame of Amazon's event stream."""
    head = b"".join(
        bytes([len(name)]) + name.encode() + b"\x07" + len(value).to_bytes(2) + value.encode()
        for name, value in headers.items()
    )
    prelude = (16 + len(head) + len(payload)).to_bytes(4) + len(head).to_bytes(4)
    frame = prelude + binascii.crc32(prelude).to_bytes(4) + head + payload
    return frame + binascii.crc32(frame).to_bytes(4)


class StandIn(BaseHTTPRequestHandler):
    """What stand-ins of this kind share: they keep what they are sent, and the connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or each answer waits 40 ms for an acknowledgement
    state: Any

    def log_message(self, *_: Any) -> None:
        pass

    def read_request(self) -> Any:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.state.sent.append((self.path, {name.lower(): value for name, value in self.headers.items()}, request))
        return request

    def send_json(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in (("content-type", "application/json"), ("content-length", len(data)), ("retry-after", "0")):
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(data)

    def stream(self, parts: Iterator[bytes], content_type: str) -> None:
        self.send_response(200)
        self.send_header("content-type", content_type)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        cut = self.state.cut.pop(0) if self.state.cut else None
        for number, part in enumerate(parts):
            if number == cut:
                self.close_connection = True
                return
            self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")


class _Handler(StandIn):
    state: MessagesServer

    def do_POST(self) -> None:
        request, state = self.read_request(), self.state
        model = request.get("model", "claude")
        if state.failures:
            error = {"type": "error", "error": {"type": "api_error", "message": "scripted"}}
            return self.send_json(state.failures.pop(0), error)
        if "count_tokens" in self.path:
            return self.send_json(200, {"input_tokens": 12})
        if self.path.endswith("/invoke-with-response-stream"):
            return self.stream(self._framed(model), "application/vnd.amazon.eventstream")
        if request.get("stream") or self.path.endswith(":streamRawPredict"):
            return self.stream(self._lines(model), "text/event-stream; charset=utf-8")
        answer = whole(model) | (state.answers.pop(0) if state.answers else {})
        return self.send_json(200, answer | ({"arttrace": TOKENS} if state.tokens else {}))

    def _lines(self, model: str) -> Iterator[bytes]:
        answers = self.state.answers
        usual = events(model, TOKENS if self.state.tokens else None)
        for event in streamed(whole(model) | answers.pop(0)) if answers else usual:
            if self.state.error_event and event["type"] == "content_block_stop":
                event = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
            yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()

    def _framed(self, model: str) -> Iterator[bytes]:
        kinds = {":event-type": "chunk", ":content-type": "application/json", ":message-type": "event"}
        for event in events(model):
            payload = {"bytes": base64.b64encode(json.dumps(event).encode()).decode()}
            yield aws_frame(json.dumps(payload).encode(), **kinds)


@contextmanager
def stand_in(handler: type[StandIn], state: Any) -> Iterator[Any]:
    """A running stand-in on a free port, for the length of a `with` block: `state`, whose `url` is set."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (handler,), {"state": state}))
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()


def serve_messages() -> AbstractContextManager[MessagesServer]:
    """A running stand-in for Anthropic's server."""
    return stand_in(_Handler, MessagesServer(""))
