"""The other side of benchmarks/capture.py, in a process of its own: a model server and a sink for spans.

A raw asyncio protocol that answers with bytes built beforehand and reads no body, so that what is measured in the
client is not the server. The answer is chosen by the path: `/{row}/v1/chat/completions`. `POST /v1/traces` takes what
an OTLP exporter sends; `GET /sink` gives it back, and forgets it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from capture_worker import take_core

WORDS = ("over", "a", "lazy", "dog", "while", "seven", "wizards", "box", "calmly", "near", "quartz", "hills")
TOKEN_ID = 151_643
LOGPROB = -0.123456789
CHUNKS = 200


def _text(words: int) -> str:
    return " ".join(WORDS[position % len(WORDS)] for position in range(words))


def _answer(message: dict[str, Any], tokens: int, **choice: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "model",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", **message}, **choice}],
        "usage": {"prompt_tokens": 100, "completion_tokens": tokens, "total_tokens": 100 + tokens},
    }


def _plain(document: dict[str, Any]) -> bytes:
    body = json.dumps(document).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def _stream() -> bytes:
    """One chunk of HTTP for one event, so that the client gets as many pieces whatever the network joins."""
    frame = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "model"}
    events = [
        json.dumps({**frame, "choices": [{"index": 0, "delta": {"content": f"{WORDS[position % len(WORDS)]} "}}]})
        for position in range(CHUNKS - 1)
    ]
    events.append(json.dumps({**frame, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}))
    pieces = [f"data: {event}\n\n".encode() for event in [*events, "[DONE]"]]
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def _answers() -> dict[bytes, bytes]:
    call = {"id": "call_9", "type": "function", "function": {"name": "search", "arguments": '{"query": "quartz"}'}}
    entries = [
        {"token": WORDS[position % len(WORDS)], "logprob": LOGPROB, "bytes": [116, 104], "top_logprobs": []}
        for position in range(CHUNKS)
    ]
    tokens = _answer(
        {"content": _text(CHUNKS)},
        CHUNKS,
        logprobs={"content": entries, "refusal": None},
        token_ids=[TOKEN_ID] * CHUNKS,
    )
    short = _plain(_answer({"content": _text(20)}, 20))
    return {
        b"short": short,
        b"tools": _plain(_answer({"content": None, "tool_calls": [call]}, 20)),
        b"stream": _stream(),
        b"tokens": _plain({**tokens, "prompt_token_ids": [TOKEN_ID] * 100}),
        b"parallel": short,
    }


class _Protocol(asyncio.Protocol):
    def __init__(self, answers: dict[bytes, bytes], sink: bytearray) -> None:
        self._answers = answers
        self._sink = sink
        self._buffer = b""
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end]
            _, _, rest = head.lower().partition(b"content-length:")
            whole = end + 4 + int(rest.partition(b"\r\n")[0] or 0)
            if len(self._buffer) < whole:
                return
            body, self._buffer = self._buffer[end + 4 : whole], self._buffer[whole:]
            self._transport.write(self._answer(head.split(b" ", 2)[1], body))

    def _answer(self, path: bytes, body: bytes) -> bytes:
        if path == b"/v1/traces":
            self._sink += body
            return b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n"
        if path == b"/sink":
            kept = bytes(self._sink)
            self._sink.clear()
            return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(kept), kept)
        return self._answers[path.split(b"/")[1]]


async def _serve() -> None:
    answers, sink = _answers(), bytearray()
    server = await asyncio.get_running_loop().create_server(lambda: _Protocol(answers, sink), "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)  # until the parent is gone


if __name__ == "__main__":
    take_core(1)
    asyncio.run(_serve())
