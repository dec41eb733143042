"""Answers that no UTF-8 holds, or that cannot be written: the program has what the OpenAI client gives all the same."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from openai.types.chat import ChatCompletionChunk

from arttrace.capture.base import guard
from arttrace.loop.remote.clients import AsyncClient, Client

HALF, OTHER_HALF = "\ud83d", "\ude00"
ASKED: Any = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


class _Handler(BaseHTTPRequestHandler):
    """Answers with half a surrogate pair, streamed with one half in each of two events."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        frame = {"id": "c1", "created": 1, "model": "m"}
        kind = "application/json"
        if request.get("stream"):
            kind = "text/event-stream"
            deltas = [({"content": HALF}, None), ({"content": OTHER_HALF}, "stop")]
            choices = [{"index": 0, "delta": delta, "finish_reason": reason} for delta, reason in deltas]
            events = [{**frame, "object": "chat.completion.chunk", "choices": [choice]} for choice in choices]
            said = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        else:
            choice = {"index": 0, "text": HALF, "finish_reason": "stop"}
            said = json.dumps({**frame, "object": "text_completion", "choices": [choice]})
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(said)))
        self.end_headers()
        self.wfile.write(said.encode())


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


async def test_halves_of_a_pair_are_streamed_and_kept(url: str) -> None:
    with Client(url, "key") as client:
        stream = client.chat.completions.create(**ASKED, stream=True)
        assert [chunk.choices[0].delta.content for chunk in stream] == [HALF, OTHER_HALF]
        [_, answer] = stream.trajectory.messages_and_choices
        assert answer.message.content == "\ufffd\ufffd"
        completion = client.completions.create(model="m", prompt="hi")
        assert completion.choices[0].text == HALF
        assert completion.trajectory.messages_and_choices[1].message.content == "\ufffd"
    async with AsyncClient(url, "key") as client:
        stream = await client.chat.completions.create(**ASKED, stream=True)
        assert [chunk.choices[0].delta.content async for chunk in stream] == [HALF, OTHER_HALF]
        assert len(stream.trajectory.messages_and_choices) == 2


def test_nothing_is_kept_of_a_stream_of_which_an_event_cannot_be_written(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(self: ChatCompletionChunk, **_: Any) -> str:
        raise RuntimeError("no")

    monkeypatch.setenv("ARTTRACE_RAISE", "0")
    with Client(url, "key") as client:
        stream = client.chat.completions.create(**ASKED, stream=True)
        chunks = iter(stream)
        next(chunks)
        with monkeypatch.context() as patched:
            patched.setattr(ChatCompletionChunk, "model_dump_json", refuses)
            assert next(chunks).choices[0].delta.content == OTHER_HALF
        assert list(chunks) == []
        assert len(stream.trajectory.messages_and_choices) == 1
    assert guard.failures.pop("reading a server's stream") == 1
