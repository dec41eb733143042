"""The HTTP requests of tools: recorded below them where that is asked for, and nothing else changed by it."""

from __future__ import annotations

import asyncio
import gc
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import msgspec
import openai
import pytest
import requests
from chat_server import ChatServer
from click.testing import CliRunner
from http_site import BODY, Site, by_aiohttp, http_spans, in_tool, serving

import arttrace
from arttrace.capture.base import guard
from arttrace.capture.calls.http_request import OpenHttpRequest, shown_url
from arttrace.capture.patches import requests_aiohttp
from arttrace.commands import cli
from arttrace.formats.sdks.langfuse_live import formed
from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.trajectories import build_trajectories
from arttrace.wire.content import ContentRules, Hidden

Spans = Callable[[], list[SpanRow]]


def test_a_request_stands_below_its_tool(
    client: Callable[..., bytes], site: Site, spans: Spans, on: Callable[..., None]
) -> None:
    url = site.url.replace("//", "//user:pass-word@") + "/found?q=oslo&api_key=sk-0123456789abcdef#part"
    content = b"what I sent"
    in_tool(lambda: client("POST", url, content=content, headers={"x-api-key": "key-of-the-tool-012345"}))
    (request,) = http_spans(spans())
    (tool,) = [span for span in spans() if span.name == "execute_tool look_up"]
    assert (request.name, request.kind, request.parent_span_id) == ("POST 127.0.0.1", 3, tool.span_id)
    assert request.attributes == {
        semconv.HTTP_METHOD: "POST",
        semconv.SERVER_ADDRESS: "127.0.0.1",
        semconv.SERVER_PORT: int(site.host.partition(":")[2]),
        semconv.URL_FULL: f"{site.url}/found?q=[secret]&api_key=[secret]",
        semconv.HTTP_STATUS_CODE: 200,
        semconv.HTTP_REQUEST_SIZE: len(content),
        semconv.HTTP_RESPONSE_SIZE: len(BODY),
        semconv.TRAJECTORY_ID: tool.attributes[semconv.TRAJECTORY_ID],
        semconv.TRAJECTORY_SPAN_COUNT: 0,
    }
    assert tool.start_ns <= request.start_ns <= request.end_ns <= tool.end_ns
    written = msgspec.json.encode(request)
    assert not any(word in written for word in (b"oslo", b"sk-0123", b"pass-word", b"what I sent", b"found found"))
    assert b"key-of-the-tool" not in written
    assert b"of-the-server" not in written
    (sent,) = site.seen
    assert not {"traceparent", "tracestate", "baggage"} & sent[1].keys()


def test_each_hop_of_a_redirect_an_error_and_a_compressed_answer(
    client: Callable[..., bytes], request: pytest.FixtureRequest, site: Site, spans: Spans, on: Callable[..., None]
) -> None:
    in_tool(lambda: client("GET", f"{site.url}/moved"))
    hops = [
        (span.attributes[semconv.URL_FULL], span.attributes[semconv.HTTP_STATUS_CODE]) for span in http_spans(spans())
    ]
    if "aiohttp" in request.node.callspec.id:
        assert hops == [(f"{site.url}/moved", 200)]
    else:
        assert hops == [(f"{site.url}/moved", 302), (f"{site.url}/found", 200)]
    in_tool(lambda: client("GET", f"{site.url}/missing"))
    missing = http_spans(spans())[-1]
    assert (missing.status_code, missing.status_message, missing.attributes[semconv.ERROR_TYPE]) == (2, "", "404")
    in_tool(lambda: client("GET", f"{site.url}/zipped"))
    assert http_spans(spans())[-1].attributes[semconv.HTTP_RESPONSE_SIZE] == len(gzip.compress(BODY))


def test_what_fails_is_the_users_and_its_type_is_recorded(
    client: Callable[..., bytes], site: Site, spans: Spans, on: Callable[..., None]
) -> None:
    with serving() as gone:
        pass
    for url in (f"{gone.url}/secret-path?q=oslo", f"{site.url}/torn"):
        raised: list[BaseException] = []
        for asked in (lambda url=url: client("GET", url), lambda url=url: in_tool(lambda: client("GET", url))):
            try:
                asked()
            except Exception as error:
                raised.append(error)
        assert len({type(error) for error in raised}) == 1
        assert len(raised) == 2
        last = http_spans(spans())[-1]
        assert last.status_code == 2
        assert last.attributes[semconv.ERROR_TYPE].rpartition(".")[2]
        assert "oslo" not in msgspec.json.encode(last).decode()
    assert http_spans(spans())[-1].attributes[semconv.HTTP_STATUS_CODE] == 200  # torn after its headers


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("hunter2", "[secret]"),
        ("aHVudGVyMg==", "[secret]"),
        ("expires=1&hunter2", "expires=[secret]&[secret]"),
        ("aHVudGVyMg=&q=a=b;r=hunter2", "[secret]&q=[secret];r=[secret]"),
        ("", ""),
    ],
)
def test_of_a_query_the_names_alone_are_kept(query: str, shown: str) -> None:
    asked = shown_url(f"https://user:hunter2@example.com:8443/path?{query}#hunter2")
    assert asked == "https://example.com:8443/path" + (f"?{shown}" if shown else "")


def test_an_address_that_is_none_is_the_users_error_alone(
    client: Callable[..., bytes],
    spans: Spans,
    on: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As aiohttp hands it on: a password where a port is expected."""
    monkeypatch.delenv("ARTTRACE_RAISE")
    guard.failures.clear()
    for url in ("http://user:hunter2", "http://[user:hunter2"):
        with pytest.raises(Exception):  # noqa: B017, PT011  each client's own
            in_tool(lambda url=url: client("GET", url))
        found = spans()
        assert [span.attributes[semconv.TOOL_NAME] for span in found if semconv.TOOL_NAME in span.attributes]
        assert "hunter2" not in msgspec.json.encode(http_spans(found)).decode()
    assert not guard.failures


def test_what_cannot_be_read_of_a_request_as_aiohttp_sends_it_changes_nothing(
    site: Site, spans: Spans, on: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = OpenHttpRequest.sent

    def fails_at_the_last(self: OpenHttpRequest, url: Any, headers: Any, body: Any = None) -> None:
        if headers:
            raise LookupError("ours")
        sent(self, url, headers, body)

    monkeypatch.delenv("ARTTRACE_RAISE")
    monkeypatch.setattr(OpenHttpRequest, "sent", fails_at_the_last)
    guard.failures.clear()
    read: list[bytes] = []
    in_tool(lambda: read.append(by_aiohttp(None, "GET", f"{site.url}/found")))
    assert read == [BODY]
    [one] = http_spans(spans())
    assert one.attributes["http.response.status_code"] == 200
    assert guard.failures["reading a tool's HTTP request"] == 1


@pytest.mark.parametrize("library", ["httpx", "httpx2"])
def test_a_stream_ends_when_it_was_read_closed_or_dropped(
    library: str, site: Site, spans: Spans, on: Callable[..., None]
) -> None:
    module = pytest.importorskip(library)

    def stream(read: bool) -> None:
        with module.stream("GET", f"{site.url}/found") as answer:
            assert http_spans(spans())[-1:] == before
            if read:
                assert b"".join(answer.iter_bytes()) == BODY

    before = http_spans(spans())[-1:]
    in_tool(lambda: stream(True))
    before = http_spans(spans())
    assert before[0].attributes[semconv.HTTP_RESPONSE_SIZE] == len(BODY)
    in_tool(lambda: stream(False))
    closed = http_spans(spans())[-1]
    assert (closed.attributes[semconv.INTERRUPTED], closed.status_code) == ("closed", 0)

    async def cancelled() -> None:
        async with module.AsyncClient() as client:
            task = asyncio.ensure_future(client.get(f"{site.url}/found"))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    in_tool(lambda: asyncio.run(cancelled()))
    assert len(http_spans(spans())) <= 3


def test_requests_and_aiohttp_that_stream(site: Site, spans: Spans, on: Callable[..., None]) -> None:
    def by_lines() -> None:
        with requests.get(f"{site.url}/zipped", stream=True, timeout=30) as answer:
            assert b"".join(answer.iter_content(7)) == BODY

    async def early() -> None:
        async with aiohttp.ClientSession() as session, session.get(f"{site.url}/found") as answer:
            await answer.content.readany()

    in_tool(by_lines)
    in_tool(lambda: asyncio.run(early()))
    sizes = [span.attributes[semconv.HTTP_RESPONSE_SIZE] for span in http_spans(spans())]
    assert sizes == [len(gzip.compress(BODY)), len(BODY)]


def test_an_answer_of_aiohttp_that_is_dropped_unread_is_recorded_and_goes(
    site: Site, spans: Spans, on: Callable[..., None]
) -> None:
    async def status_alone() -> int:
        async with aiohttp.ClientSession() as session:
            answer = await session.get(f"{site.url}/found")
            while not answer.content.is_eof():
                await asyncio.sleep(0.001)
            return answer.status

    before = set(requests_aiohttp._readers)
    in_tool(lambda: asyncio.run(status_alone()))
    gc.collect()
    assert set(requests_aiohttp._readers) <= before
    (found,) = http_spans(spans())
    assert found.attributes[semconv.HTTP_RESPONSE_SIZE] == len(BODY)
    assert found.attributes[semconv.INTERRUPTED] == "closed"


@pytest.mark.parametrize("capture_http", [False, True])
def test_a_model_call_is_not_recorded_twice(
    capture_http: bool, server: ChatServer, site: Site, spans: Spans, on: Callable[..., None]
) -> None:
    on(capture_http=capture_http)
    body: Any = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}

    async def by_plain_aiohttp() -> None:
        path = f"{server.url}/chat/completions"
        async with aiohttp.ClientSession() as session, session.post(path, json=body) as answer:
            await answer.read()

    with arttrace.trajectory(name="agent"):
        model = openai.OpenAI(base_url=server.url, api_key="sk-test", max_retries=0)
        model.chat.completions.create(**body)
        list(model.chat.completions.create(**body, stream=True))
        httpx.post(f"{server.url}/chat/completions", json=body)
        requests.post(f"{server.url}/chat/completions", json=body, timeout=30)
        asyncio.run(by_plain_aiohttp())
        httpx.get(site.url)
    calls = [span for span in spans() if span.attributes.get(semconv.OPERATION_NAME) == "chat"]
    assert len(calls) == (5 if capture_http else 2)
    assert len(http_spans(spans())) == (1 if capture_http else 4)


def test_what_a_librarys_own_span_of_a_model_call_sends_is_that_call(
    server: ChatServer, site: Site, spans: Spans, on: Callable[..., None]
) -> None:
    """A client that no hook knows, whose library tells of the call by a span of its own."""
    from opentelemetry.sdk.trace import TracerProvider

    tracer = TracerProvider().get_tracer("library")
    body: Any = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    said = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
    with arttrace.trajectory(name="agent"):
        with tracer.start_as_current_span("chat m", attributes=said):
            httpx.post(f"{server.url}/chat/completions", json=body)
            requests.post(f"{server.url}/chat/completions", json=body, timeout=30)
        httpx.get(site.url)
    assert [span.name for span in spans() if span.attributes.get(semconv.OPERATION_NAME) == "chat"] == ["chat m"]
    assert [span.attributes[semconv.SERVER_PORT] for span in http_spans(spans())] == [int(site.host.partition(":")[2])]


def test_off_outside_a_run_muted_and_suppressed_nothing_is_recorded(
    site: Site, spans: Spans, on: Callable[..., None], tmp_path: Path
) -> None:
    from opentelemetry import context

    httpx.get(site.url)
    with arttrace.trajectory(name="agent"):
        with arttrace.no_capture():
            httpx.get(site.url)
        for key in ("suppress_instrumentation", "suppress_http_instrumentation"):
            token = context.attach(context.set_value(key, True))
            requests.get(site.url, timeout=30)
            context.detach(token)
    arttrace.init(project="test", dir=tmp_path / "data")
    in_tool(lambda: httpx.get(site.url))
    assert http_spans(spans()) == []
    assert not any(semconv.HTTP_REQUEST_COUNT in span.attributes for span in spans())


def test_the_environment_switches_it_on(
    site: Site, spans: Spans, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARTTRACE_HTTP_SPANS", "1")
    arttrace.init(project="test", dir=tmp_path / "data")
    in_tool(lambda: httpx.get(site.url))
    assert len(http_spans(spans())) == 1


@pytest.mark.parametrize("mode", ["redacted", "off"])
def test_without_content_the_path_is_not_kept(mode: Any, site: Site, spans: Spans, on: Callable[..., None]) -> None:
    on(capture_content=mode)
    in_tool(lambda: httpx.get(f"{site.url}/customers/4711"))
    (request,) = http_spans(spans())
    assert (request.attributes[semconv.SERVER_ADDRESS], request.attributes[semconv.HTTP_STATUS_CODE]) == (
        "127.0.0.1",
        200,
    )
    assert "4711" not in msgspec.json.encode(request).decode()


def test_a_mask_is_given_the_url(site: Site, spans: Spans, on: Callable[..., None]) -> None:
    kinds: list[str] = []

    def mask(value: Any, *, kind: str) -> Any:
        kinds.append(kind)
        return value.replace("4711", "***") if kind == "url" else value

    on(mask=mask)
    in_tool(lambda: httpx.get(f"{site.url}/customers/4711"))
    assert http_spans(spans())[0].attributes[semconv.URL_FULL] == f"{site.url}/customers/***"
    assert "url" in kinds
    assert ContentRules(mask=lambda value, *, kind: 1 / 0).url("http://a/", "full", Hidden()) is None


def test_a_run_that_is_not_sampled_leaves_none(site: Site, spans: Spans, on: Callable[..., None]) -> None:
    on(sample=0.0)
    in_tool(lambda: httpx.get(site.url))
    assert spans() == []


def test_a_lost_request_makes_no_run_incomplete_and_is_counted(
    site: Site, spans: Spans, on: Callable[..., None]
) -> None:
    in_tool(lambda: [httpx.get(site.url), requests.get(site.url, timeout=30)])
    found = spans()
    (whole,) = build_trajectories(found)
    assert (whole.incomplete, len(whole.http_requests), whole.http_lost) == ("", 2, 0)
    first = http_spans(found)[0]
    (without,) = build_trajectories([span for span in found if span is not first])
    assert (without.incomplete, len(without.http_requests), without.http_lost) == ("", 1, 1)
    # Nor does one stand in for a span that is missing.
    (torn,) = build_trajectories([span for span in found if span.name != "execute_tool look_up"])
    assert "1 of " in torn.incomplete


def test_a_listed_host_joins_beside_the_request(site: Site, spans: Spans, on: Callable[..., None]) -> None:
    on(propagate=[site.host])
    in_tool(lambda: httpx.get(site.url))
    (request,) = http_spans(spans())
    heard = site.seen[0][1]["traceparent"].split("-")
    assert (heard[1], heard[2]) == (request.trace_id, request.parent_span_id)


def test_the_users_own_instrumentation_keeps_its_spans(site: Site, spans: Spans, on: Callable[..., None]) -> None:
    from opentelemetry.instrumentation.httpx import HTTPXClientInstrumentor
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    HTTPXClientInstrumentor().instrument(tracer_provider=provider)
    try:
        in_tool(lambda: httpx.get(site.url))
    finally:
        HTTPXClientInstrumentor().uninstrument()
    assert len(exporter.get_finished_spans()) == len(http_spans(spans())) == 1


def test_uninstrument_takes_it_out(site: Site, on: Callable[..., None], spans: Spans) -> None:
    places = [
        (httpx.Client, "_send_single_request"),
        (httpx.AsyncClient, "_send_single_request"),
        (requests.adapters.HTTPAdapter, "send"),
        (aiohttp.ClientSession, "_request"),
    ]
    hooked = [getattr(owner, name) for owner, name in places]
    arttrace.uninstrument()
    assert [getattr(owner, name) for owner, name in places] != hooked
    assert not any(hasattr(getattr(owner, name), "__wrapped__") for owner, name in places)
    httpx.get(site.url)
    on()
    in_tool(lambda: httpx.get(site.url))
    assert len(http_spans(spans())) == 1


def test_show_sql_and_langfuse_have_it(site: Site, spans: Spans, on: Callable[..., None], tmp_path: Path) -> None:
    in_tool(lambda: httpx.get(f"{site.url}/missing?q=oslo"))
    (request,) = http_spans(spans())
    arttrace.shutdown()
    with Store.open(DataDir(tmp_path / "data")) as store:
        query = "SELECT tool, method, host, url, status, request_bytes, response_bytes, error FROM http_requests"
        assert store.sql(query)[1] == [
            ("look_up", "GET", "127.0.0.1", f"{site.url}/missing?q=[secret]", 404, None, 12, "404")
        ]
        (run,) = store.summaries()
    shown = CliRunner().invoke(cli, ["show", run.id, "--dir", str(tmp_path / "data")])
    assert f"http GET {site.url}/missing?q=[secret] failed: 404 [12 bytes received" in shown.output
    seen = formed(request).attributes
    assert msgspec.json.decode(seen["langfuse.observation.input"]) == {
        "method": "GET",
        "url": f"{site.url}/missing?q=[secret]",
    }
    assert msgspec.json.decode(seen["langfuse.observation.output"]) == {"status": 404, "bytes": 12}
