"""Streams whose connection outlasts their own end mark, as behind a proxy or a busy server."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, OpenAI

import arttrace
from arttrace.capture.calls.attempt import Attempt
from arttrace.capture.calls.model_call import ModelCall, begin_call
from arttrace.records import semconv
from arttrace.records.span import SpanRow

Spans = Callable[[], list[SpanRow]]
ASKED: Any = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}


class _Holding(BaseHTTPRequestHandler):
    """Says all of an answer, and keeps the connection until it is let go, or breaks it off."""

    protocol_version = "HTTP/1.1"
    let_go: threading.Event

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        choices = [{"index": 0, "delta": {"content": "whole"}, "finish_reason": "stop"}]
        chunk = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices}
        said = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode()
        self.wfile.write(b"%x\r\n%b\r\n" % (len(said), said))
        self.wfile.flush()
        if request["model"] == "m":
            self.let_go.wait(300)
        self.close_connection = True


@pytest.fixture
def url() -> Iterator[str]:
    let_go = threading.Event()
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Holding,), {"let_go": let_go})) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        let_go.set()
        server.shutdown()


@pytest.mark.parametrize("model", ["m", "breaks off"])
async def test_an_answer_that_was_read_to_its_end_mark_has_not_failed(model: str, url: str, spans: Spans) -> None:
    with arttrace.trajectory(name="run"):
        async with AsyncOpenAI(base_url=url, api_key="sk-test-0123456789", max_retries=0) as client:
            told = [chunk async for chunk in await client.chat.completions.create(**{**ASKED, "model": model})]
        with OpenAI(base_url=url, api_key="sk-test-0123456789", max_retries=0) as client_too:
            assert list(client_too.chat.completions.create(**{**ASKED, "model": model})) == told
    *calls, _ = spans()
    assert len(calls) == 2
    for call in calls:
        assert call.status_code == 0
        assert {semconv.ERROR_TYPE, semconv.INTERRUPTED}.isdisjoint(call.attributes)
        assert call.attributes[semconv.RESPONSE_FINISH_REASONS] == ["stop"]


def test_a_client_that_reads_no_further_than_the_end_mark_has_ended_its_call(url: str, spans: Spans) -> None:
    """So litellm 1.100 does, which closes nothing either: its call was recorded when the program ended."""
    with OpenAI(base_url=url, api_key="sk-test-0123456789", max_retries=0) as client:
        with arttrace.trajectory(name="run"):
            answer = client.chat.completions.with_raw_response.create(**ASKED).http_response
            lines = answer.iter_lines()
            assert "data: [DONE]" in lines
        call, root = spans()
        assert (call.status_code, call.attributes[semconv.RESPONSE_FINISH_REASONS]) == (0, ["stop"])
        assert semconv.INTERRUPTED not in call.attributes
        assert (root.name, root.attributes[semconv.TRAJECTORY_SPAN_COUNT]) == ("invoke_agent run", 1)


CHUNKS = b'data: {"choices": [{"delta": {"content": "\\ndata: [DONE]\\n\\n"}}]}\n\n: data: [DONE]\n\ndata: [DONE]'


@pytest.mark.parametrize("size", [1, 2, 5, 13, 1000])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("mark", [b"data: [DONE]", b"data:[DONE]"])
def test_the_end_mark_is_an_event_of_its_own_however_it_arrives(size: int, line_end: bytes, mark: bytes) -> None:
    for said in (CHUNKS, b"data: [DONE]"):
        attempt = Attempt()
        attempt.may_end_by_mark()
        body = (said + b"\n\n").replace(b"\n", line_end).replace(b"data: [DONE]", mark)
        usage = b"data: {}" + line_end * 2
        ends = [attempt.chunk(body[at : at + size]) for at in range(0, len(body), size)]
        assert ends == [False] * (len(ends) - 1) + [True]
        assert not attempt.chunk(usage)
        assert b"".join(attempt.body) == body


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/models/gemini:streamGenerateContent"])
def test_a_stream_of_another_api_has_no_such_mark(path: str, spans: Spans) -> None:
    with arttrace.trajectory(name="run"):
        call = begin_call(None, path=path, provider="p")
        assert isinstance(call, ModelCall)
        call.sending(b"{}", f"http://h{path}", {})
        attempt = call.answered(200, {"content-type": "text/event-stream"})
        assert not attempt.chunk(b"data: [DONE]\n\n")
        call.returned()
        assert spans() == []
        call.stream_ended(attempt, "complete")
    assert len(spans()) == 2


def test_a_first_chunk_is_not_earlier_than_its_call_where_the_clock_was_set_back(
    url: str, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    def set_back(_: httpx.Request) -> None:
        at = time.time_ns()
        monkeypatch.setattr("time.time_ns", lambda: at - 3600 * 10**9)

    http = httpx.Client(event_hooks={"request": [set_back]})
    with http, OpenAI(base_url=url, api_key="sk-test-0123456789", max_retries=0, http_client=http) as client:
        list(client.chat.completions.create(**{**ASKED, "model": "breaks off"}))
    monkeypatch.undo()
    [call] = [span for span in spans() if span.kind == 3]
    assert call.attributes[semconv.RESPONSE_TIME_TO_FIRST_CHUNK] == 0


async def test_a_run_that_fails_after_it_fails_by_itself(url: str, spans: Spans) -> None:
    @arttrace.trajectory
    async def run() -> float:
        async with AsyncOpenAI(base_url=url, api_key="sk-test-0123456789", max_retries=0) as client:
            async for _ in await client.chat.completions.create(**{**ASKED, "model": "breaks off"}):
                pass
        return 1 / 0

    with pytest.raises(ZeroDivisionError):
        await run()
    *_, root = spans()
    assert root.attributes[semconv.ERROR_TYPE] == "ZeroDivisionError"
    assert semconv.INTERRUPTED not in root.attributes
