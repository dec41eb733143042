"""The HTTP requests of tools: recorded below them where that is asked for, and nothing else changed by it."""

from __future__ import annotations

import asyncio
import gc
import gzip
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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

import arttrace
from arttrace.capture.base import guard
from arttrace.capture.base.settings import Settings
from arttrace.capture.calls.http_content import MAX_BYTES
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
BODY = b"found " * 100


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.seen.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        size = int(self.headers.get("content-length") or 0)
        self.rfile.read(size)
        path = self.path.partition("?")[0]
        if path == "/moved":
            self._answer(302, b"", location="/found")
        elif path == "/missing":
            self._answer(404, b"nothing here")
        elif path == "/zipped":
            self._answer(200, gzip.compress(BODY), **{"content-encoding": "gzip"})
        elif path == "/cookie":
            said = {"access-control-allow-credentials": "true", "x-auth": "k3y-of-the-server-0123"}
            self._answer(200, b"", **said, cookie2="session=abc; Expires=Wed 2026; SameSite=lax")
        elif path == "/linked":
            self._answer(200, b"", link="</a>", Link="</b>")
        elif path == "/torn":
            self.send_response(200)
            self.send_header("content-length", "1000")
            self.end_headers()
            self.wfile.write(b"x" * 10)
            self.close_connection = True
        else:
            self._answer(200, BODY)

    do_POST = do_GET

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(body)), "set-cookie": "session=of-the-server"}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


class Site:
    """A server on loopback, and what it was sent."""

    def __init__(self, running: Any) -> None:
        self.seen: list[tuple[str, dict[str, str]]] = running.seen
        self.host = f"127.0.0.1:{running.server_port}"
        self.url = f"http://{self.host}"


@contextmanager
def serving() -> Iterator[Site]:
    running: Any = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    running.seen = []
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    try:
        yield Site(running)
    finally:
        running.shutdown()
        running.server_close()
        thread.join()


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as running:
        yield running


@pytest.fixture
def on(spans: Spans, tmp_path: Path) -> Callable[..., None]:
    """Switches the spans on, with further settings."""

    def switch(**settings: Any) -> None:
        arttrace.init(project="test", dir=tmp_path / "data", http_spans=True, **settings)

    switch()
    return switch


def http_spans(spans: list[SpanRow]) -> list[SpanRow]:
    return [span for span in spans if semconv.HTTP_METHOD in span.attributes]


def by_httpx(module: Any, method: str, url: str, **options: Any) -> bytes:
    answer = module.request(method, url, follow_redirects=True, **options)
    return bytes(answer.content)


def by_async_httpx(module: Any, method: str, url: str, **options: Any) -> bytes:
    async def ask() -> bytes:
        async with module.AsyncClient(follow_redirects=True) as client:
            return bytes((await client.request(method, url, **options)).content)

    return asyncio.run(ask())


def by_requests(_: Any, method: str, url: str, **options: Any) -> bytes:
    data = options.pop("content", None)
    return requests.request(method, url, data=data, timeout=30, **options).content


def by_aiohttp(_: Any, method: str, url: str, **options: Any) -> bytes:
    async def ask() -> bytes:
        data = options.pop("content", None)
        async with aiohttp.ClientSession() as session, session.request(method, url, data=data, **options) as answer:
            return await answer.read()

    return asyncio.run(ask())


CLIENTS = {
    "httpx": ("httpx", by_httpx),
    "httpx, async": ("httpx", by_async_httpx),
    "httpx2": ("httpx2", by_httpx),
    "httpx2, async": ("httpx2", by_async_httpx),
    "requests": ("requests", by_requests),
    "aiohttp": ("aiohttp", by_aiohttp),
}


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> Callable[..., bytes]:
    library, ask = CLIENTS[request.param]
    module = pytest.importorskip(library)
    return lambda *args, **options: ask(module, *args, **options)


def in_tool(ask: Callable[[], Any]) -> None:
    """Runs it in a tool of a run."""
    with arttrace.trajectory(name="agent"):
        arttrace.tool(name="look_up")(ask)()


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


@pytest.mark.parametrize("asked", [["headers"], ["bodies"], ["headers", "bodies"]])
def test_headers_and_bodies_are_recorded_where_they_are_asked_for(
    asked: list[str], client: Callable[..., bytes], site: Site, spans: Spans, on: Callable[..., None], tmp_path: Path
) -> None:
    arttrace.init(project="test", dir=tmp_path / "data", http_spans=asked)
    headers = {"x-trace": "seen", "x-api-key": "key-of-the-tool-012345", "content-type": "application/json"}
    content = b'{"city": "Oslo", "password": "hunter2hunter2"}'
    in_tool(lambda: client("POST", f"{site.url}/zipped", content=content, headers=headers))
    (request,) = http_spans(spans())
    kept = {
        name: msgspec.json.decode(request.attributes[name])
        for name in (
            semconv.HTTP_REQUEST_HEADERS,
            semconv.HTTP_RESPONSE_HEADERS,
            semconv.HTTP_REQUEST_BODY,
            semconv.HTTP_RESPONSE_BODY,
        )
        if name in request.attributes
    }
    if "headers" in asked:
        assert kept.pop(semconv.HTTP_REQUEST_HEADERS).items() >= {"x-trace": "seen", "x-api-key": "[secret]"}.items()
        answered = kept.pop(semconv.HTTP_RESPONSE_HEADERS)
        assert (answered["content-encoding"], answered["set-cookie"]) == ("gzip", "[secret]")
    if "bodies" in asked:
        assert kept.pop(semconv.HTTP_REQUEST_BODY) == {"city": "Oslo", "password": "[secret]"}
        assert kept.pop(semconv.HTTP_RESPONSE_BODY) == BODY.decode()
    assert kept == {}
    assert request.attributes[semconv.HTTP_RESPONSE_SIZE] == len(gzip.compress(BODY))
    written = msgspec.json.encode(request)
    assert not any(word in written for word in (b"key-of-the-tool", b"hunter2", b"of-the-server"))


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("1", ("requests",)),
        ("0", ()),
        ("headers", ("requests", "headers")),
        ("bodies, headers", ("requests", "headers", "bodies")),
        ("cookies", ()),
    ],
)
def test_the_environment_asks_for_headers_and_bodies(
    said: str, kept: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARTTRACE_HTTP_SPANS", said)
    assert Settings.resolve().http_spans == kept
    assert Settings.resolve(http_spans=False).http_spans == ()
    monkeypatch.delenv("ARTTRACE_HTTP_SPANS")
    assert Settings.resolve(http_spans=said).http_spans == kept


def test_what_is_asked_for_is_content_and_a_body_that_is_no_text_is_none(
    site: Site, spans: Spans, on: Callable[..., None], tmp_path: Path
) -> None:
    kinds: set[str] = set()

    def mask(value: Any, *, kind: str) -> Any:
        kinds.add(kind)
        return "***" if kind in ("headers", "body") else value

    for given in ({"capture_content": "off"}, {"mask": mask}, {}):
        arttrace.init(project="test", dir=tmp_path / "data", http_spans=["headers", "bodies"], **given)  # type: ignore[arg-type]
        in_tool(lambda: httpx.post(f"{site.url}/found", content=b"\x89PNG\xff", headers={"x-trace": "seen"}))
    hidden, masked, open = http_spans(spans())
    for one in (hidden, masked):
        assert "seen" not in msgspec.json.encode(one).decode()
        assert BODY.decode() not in msgspec.json.encode(one).decode()
    assert {"headers", "body"} <= kinds
    assert semconv.HTTP_REQUEST_BODY not in open.attributes
    assert msgspec.json.decode(open.attributes[semconv.HTTP_RESPONSE_BODY]) == BODY.decode()


def test_redacted_keeps_the_names_of_headers_and_the_length_of_a_body(
    site: Site, spans: Spans, on: Callable[..., None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings: Any = {"http_spans": ["headers", "bodies"], "capture_content": "redacted"}
    arttrace.init(project="test", dir=tmp_path / "data", **settings)
    in_tool(lambda: httpx.post(f"{site.url}/found", json={"type": "private"}, headers={"x-trace": "seen"}))
    (request,) = http_spans(spans())
    headers = msgspec.json.decode(request.attributes[semconv.HTTP_REQUEST_HEADERS])
    assert headers["x-trace"] == "[redacted, 4 characters]"
    assert msgspec.json.decode(request.attributes[semconv.HTTP_REQUEST_BODY]) == "[redacted, 18 characters]"
    assert msgspec.json.decode(request.attributes[semconv.HTTP_RESPONSE_BODY]) == f"[redacted, {len(BODY)} characters]"
    assert "mask" not in caplog.text


def test_headers_that_are_named_like_credentials_are_secrets(
    client: Callable[..., bytes], site: Site, spans: Spans, on: Callable[..., None], tmp_path: Path
) -> None:
    arttrace.init(project="test", dir=tmp_path / "data", http_spans=["headers"])
    names = ["ocp-apim-subscription-key", "x-auth-key", "x-functions-key", "x-session-id", "x-auth", "x-hub-signature"]
    in_tool(lambda: client("GET", f"{site.url}/found", headers={**dict.fromkeys(names, "s3cr3t"), "x-author": "Ann"}))
    (request,) = http_spans(spans())
    headers = msgspec.json.decode(request.attributes[semconv.HTTP_REQUEST_HEADERS])
    assert {name: headers[name] for name in names} == dict.fromkeys(names, "[secret]")
    assert "s3cr3t" not in msgspec.json.encode(request).decode()


def test_words_of_a_header_that_is_hidden_stay_in_later_results(
    site: Site, spans: Spans, on: Callable[..., None], tmp_path: Path
) -> None:
    arttrace.init(project="test", dir=tmp_path / "data", http_spans=["headers"])

    @arttrace.tool
    def look_up() -> str:
        httpx.get(f"{site.url}/cookie")
        return "true: Wed 2026 is lax, and k3y-of-the-server-0123"

    with arttrace.trajectory(name="agent"):
        look_up()
    (request,) = http_spans(spans())
    headers = msgspec.json.decode(request.attributes[semconv.HTTP_RESPONSE_HEADERS])
    assert headers["x-auth"] == "[secret]"
    (tool,) = [span for span in spans() if span.name == "execute_tool look_up"]
    result = msgspec.json.decode(tool.attributes[semconv.TOOL_CALL_RESULT])
    assert result == "true: Wed 2026 is lax, and [secret]"


def by_form(library: str, url: str, fields: dict[str, str]) -> None:
    async def ask() -> None:
        async with aiohttp.ClientSession() as session, session.post(url, data=fields) as answer:
            await answer.read()

    if library == "aiohttp":
        asyncio.run(ask())
    else:
        {"httpx": httpx.post, "requests": requests.post}[library](url, data=fields)  # type: ignore[operator]


@pytest.mark.parametrize("library", ["httpx", "requests", "aiohttp"])
def test_a_form_s_fields_are_recorded_by_name(
    library: str, site: Site, spans: Spans, on: Callable[..., None], tmp_path: Path
) -> None:
    arttrace.init(project="test", dir=tmp_path / "data", http_spans=["bodies"])
    in_tool(lambda: by_form(library, f"{site.url}/found", {"password": "short", "comment": "a & b"}))
    (request,) = http_spans(spans())
    fields = msgspec.json.decode(request.attributes[semconv.HTTP_REQUEST_BODY])
    assert fields == {"password": "[secret]", "comment": "a & b"}


def test_a_form_of_parts_is_recorded_without_its_secrets_and_files(
    site: Site, spans: Spans, on: Callable[..., None], tmp_path: Path
) -> None:
    arttrace.init(project="test", dir=tmp_path / "data", http_spans=["bodies"])
    files: Any = {"city": (None, "Oslo"), "password": (None, "short"), "image": ("a.png", b"\x89PNG\xff")}
    in_tool(lambda: requests.post(f"{site.url}/found", files=files, timeout=30))
    (request,) = http_spans(spans())
    fields = msgspec.json.decode(request.attributes[semconv.HTTP_REQUEST_BODY])
    assert fields == {"city": "Oslo", "password": "[secret]", "image": None}


def test_a_body_that_is_cut_is_named_and_a_secret_at_its_end_is_not_kept(
    client: Callable[..., bytes], site: Site, spans: Spans, on: Callable[..., None], tmp_path: Path
) -> None:
    arttrace.init(project="test", dir=tmp_path / "data", http_spans=["bodies"])
    beginning = b'{"city": "%s", "password": "hunter2' % (b"O" * (MAX_BYTES - 40))
    content = beginning + b"hunter2" * 10 + b'"}'
    in_tool(lambda: client("POST", f"{site.url}/found", content=content))
    (request,) = http_spans(spans())
    assert request.attributes[semconv.TRUNCATED] == [semconv.HTTP_REQUEST_BODY]
    kept = msgspec.json.decode(request.attributes[semconv.HTTP_REQUEST_BODY])
    assert "hunter2" not in kept
    assert kept.endswith("[secret]")


def test_each_attempt_has_the_headers_that_it_sent(
    site: Site, spans: Spans, on: Callable[..., None], tmp_path: Path
) -> None:
    arttrace.init(project="test", dir=tmp_path / "data", http_spans=["headers"])

    class TwoAttempts(httpx.Auth):
        def auth_flow(self, request: httpx.Request) -> Any:
            for attempt in ("1", "2"):
                request.headers["x-attempt"] = attempt
                yield request

    in_tool(lambda: httpx.get(f"{site.url}/found", auth=TwoAttempts()))
    sent = [msgspec.json.decode(one.attributes[semconv.HTTP_REQUEST_HEADERS]) for one in http_spans(spans())]
    assert [headers["x-attempt"] for headers in sent] == ["1", "2"]


def test_a_header_that_comes_twice_is_kept_whole(
    client: Callable[..., bytes], site: Site, spans: Spans, on: Callable[..., None], tmp_path: Path
) -> None:
    arttrace.init(project="test", dir=tmp_path / "data", http_spans=["headers"])
    in_tool(lambda: client("GET", f"{site.url}/linked"))
    (request,) = http_spans(spans())
    assert msgspec.json.decode(request.attributes[semconv.HTTP_RESPONSE_HEADERS])["link"] == "</a>, </b>"


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
    told = site.seen[0][1]["traceparent"].split("-")
    assert (told[1], told[2]) == (request.trace_id, request.parent_span_id)


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
