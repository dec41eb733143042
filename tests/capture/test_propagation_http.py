"""The trajectory follows the program over HTTP hops to listed hosts, and nobody else hears of it."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote
from wsgiref.simple_server import WSGIRequestHandler, make_server

import aiohttp
import httpx
import pytest
import requests
from chat_server import ChatServer
from click.testing import CliRunner
from joined_program import agents
from opentelemetry import baggage
from opentelemetry.context import attach, detach
from spool import read_spans

import arttrace
from arttrace.capture import middleware
from arttrace.capture.base.guard import failures
from arttrace.capture.base.remote_context import BAGGAGE
from arttrace.capture.patches import outgoing_headers
from arttrace.capture.patches.processes import programs
from arttrace.commands import cli
from arttrace.records import semconv
from arttrace.records.reward import Reward
from arttrace.records.span import SpanRow
from arttrace.trajectories import build_trajectories

Spans = Callable[[], list[SpanRow]]


def test_a_failure_of_ours_is_not_noticed(
    spans: Spans, server: ChatServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("ours")

    monkeypatch.delenv("ARTTRACE_RAISE")
    service = Service(server)
    before = failures.copy()
    with serving(arttrace.WSGIMiddleware(service)) as url:
        arttrace.init(project="test", dir=tmp_path / "data", propagate=["127.0.0.1"])
        with arttrace.trajectory(name="run"):
            ours = (programs, "outgoing_context"), (outgoing_headers, "outgoing_context"), (middleware, "parse")
            for module, name in ours:
                with monkeypatch.context() as patch:
                    patch.setattr(module, name, broken)
                    assert subprocess.run([sys.executable, "-S", "-c", "pass"]).returncode == 0
                    assert httpx.get(url, timeout=60).text == "done"
    for part in ("telling a child process its", "telling a server its", "joining a"):
        assert any(name.startswith(part) for name in failures - before), part


def test_a_request_names_no_file_that_is_made_here(spans: Spans, server: ChatServer, tmp_path: Path) -> None:
    """The file is for a child process to make: a request may come from anybody."""
    made, line = tmp_path / "made", f"00-{'a' * 32}-{'b' * 16}-01;trajectory=t"

    def opened() -> None:
        with arttrace.agent(name="remote"):
            pass

    with serving(arttrace.WSGIMiddleware(Service(server))) as url:
        header = quote(f"{line};mark={made};dir={made};project=theirs")
        assert httpx.get(url, headers={"baggage": f"{BAGGAGE}={header}"}).text == "done"
    token = attach(baggage.set_baggage(BAGGAGE, f"{line};mark={made}"))
    try:
        opened()
    finally:
        detach(token)
    assert [span.attributes[semconv.TRAJECTORY_ID] for span in spans() if span.parent_span_id == "b" * 16] == ["t"] * 2
    assert not made.exists()


def sub_agent(server: ChatServer) -> None:
    @arttrace.agent(name="remote")
    def remote() -> None:
        import openai

        with openai.OpenAI(base_url=server.url, api_key="sk-test-0123456789") as client:
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hop"}])

    threading.Thread(target=remote).run()


class Quiet(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(app: Any) -> Iterator[str]:
    with make_server("127.0.0.1", 0, app, handler_class=Quiet) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{running.server_port}/"
        finally:
            running.shutdown()
            thread.join()


class Service:
    """A service of the user's own: what it was sent, and a sub-agent that works for each request."""

    def __init__(self, server: ChatServer) -> None:
        self.server = server
        self.headers: list[dict[str, str]] = []

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        self.headers.append(
            {
                name: environ[f"HTTP_{name.upper()}"]
                for name in ("traceparent", "baggage")
                if f"HTTP_{name.upper()}" in environ
            }
        )
        start_response("200 OK", [])
        sub_agent(self.server)  # lazily: when the answer is read
        yield b"done"


@pytest.mark.parametrize("library", ["httpx", "httpx2"])
@pytest.mark.parametrize("instrumented", [False, True])
def test_a_listed_host_joins_over_http(
    library: str, instrumented: bool, server: ChatServer, spans: Spans, tmp_path: Path
) -> None:
    module = pytest.importorskip(library)
    service = Service(server)
    instrumentor: Any = None
    if instrumented:
        from opentelemetry.instrumentation import httpx as instrumentation

        instrumentor = getattr(
            instrumentation, {"httpx": "HTTPXClientInstrumentor", "httpx2": "HTTPX2ClientInstrumentor"}[library]
        )()
        instrumentor.instrument()
    try:
        with serving(arttrace.WSGIMiddleware(service)) as url:
            host = url.split("/")[2]
            arttrace.init(project="test", dir=tmp_path / "data", propagate=[host])
            with arttrace.trajectory(name="caller") as root:
                assert module.get(url).text == "done"

                async def hop() -> str:
                    async with module.AsyncClient() as client:
                        return str((await client.get(url)).text)

                assert asyncio.run(hop()) == "done"
                with arttrace.no_capture():
                    module.get(url)
            module.get(url)
    finally:
        if instrumentor is not None:
            instrumentor.uninstrument()
    (trajectory,) = [each for each in build_trajectories(spans()) if each.id == root.id]
    assert agents(trajectory) == [("caller", None, 0), ("remote", "caller", 1), ("remote", "caller", 1)]
    assert trajectory.incomplete == ""
    assert [sorted(headers) for headers in service.headers[:2]] == [["baggage", "traceparent"]] * 2
    assert not any("arttrace" in headers.get("baggage", "") for headers in service.headers[2:])
    trace_ids = {span.trace_id for span in spans() if span.attributes.get(semconv.TRAJECTORY_ID) == root.id}
    assert {headers["traceparent"].split("-")[1] for headers in service.headers[:2]} == trace_ids


def get_by_requests(url: str) -> str:
    return str(requests.get(url, timeout=60).text)


def get_by_aiohttp(url: str) -> str:
    async def get() -> str:
        async with aiohttp.ClientSession() as client, client.get(url) as answer:
            return await answer.text()

    return asyncio.run(get())


@pytest.mark.parametrize("http_spans", [False, True])
@pytest.mark.parametrize("get", [get_by_requests, get_by_aiohttp])
def test_a_listed_host_joins_over_requests_and_aiohttp(
    get: Callable[[str], str], http_spans: bool, server: ChatServer, spans: Spans, tmp_path: Path
) -> None:
    service, elsewhere = Service(server), Service(server)
    with serving(arttrace.WSGIMiddleware(service)) as url, serving(elsewhere) as other:
        listed = [url.split("/")[2]]
        arttrace.init(project="test", dir=tmp_path / "data", propagate=listed, http_spans=http_spans)
        with arttrace.trajectory(name="caller") as root:
            assert get(url) == "done"
            get(other)
            with arttrace.no_capture():
                get(url)
        get(url)
    (trajectory,) = [each for each in build_trajectories(spans()) if each.id == root.id]
    assert agents(trajectory) == [("caller", None, 0), ("remote", "caller", 1)]
    assert trajectory.incomplete == ""
    assert [sorted(headers) for headers in service.headers] == [["baggage", "traceparent"], [], []]
    assert elsewhere.headers == [{}]


@pytest.mark.parametrize("get", [get_by_requests, get_by_aiohttp])
def test_their_redirects_to_another_host_take_nothing_along(
    get: Callable[[str], str], server: ChatServer, spans: Spans, tmp_path: Path
) -> None:
    service = Service(server)

    def redirecting(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        asked.append("HTTP_BAGGAGE" in environ)
        start_response("302 Found", [("location", target)])
        return []

    asked: list[bool] = []
    with serving(service) as target, serving(redirecting) as url:
        arttrace.init(project="test", dir=tmp_path / "data", propagate=[url.split("/")[2]])
        with arttrace.trajectory(name="caller"):
            assert get(url) == "done"
    assert asked == [True]
    assert service.headers == [{}]


@pytest.mark.parametrize(
    ("listed", "url"),
    [
        ("search", "http://search/find"),
        ("search:80", "http://search/find"),
        ("search:443", "https://search/find"),
        ("Search.Internal:8080", "http://search.internal:8080/find"),
        ("[::1]:8080", "http://[::1]:8080/find"),
        ("::1", "http://[::1]:8080/find"),
    ],
)
def test_a_host_is_the_listed_one_however_it_is_written(listed: str, url: str, spans: Spans, tmp_path: Path) -> None:
    heard = []

    def answer(request: httpx.Request) -> httpx.Response:
        heard.append("baggage" in request.headers)
        return httpx.Response(200)

    arttrace.init(project="test", dir=tmp_path / "data", propagate=[listed])
    with arttrace.trajectory(name="caller"), httpx.Client(transport=httpx.MockTransport(answer)) as client:
        client.get(url)
        client.get(url.replace("search", "research").replace("::1", "::2"))
    assert heard == [True, False]


def test_a_host_that_is_not_listed_hears_nothing(server: ChatServer, spans: Spans, tmp_path: Path) -> None:
    service = Service(server)
    with serving(service) as url:
        arttrace.init(project="test", dir=tmp_path / "data", propagate=["example.org"])
        with arttrace.trajectory(name="caller"):
            httpx.get(url)
    assert service.headers == [{}]


def test_a_redirect_to_another_host_takes_nothing_along(server: ChatServer, spans: Spans, tmp_path: Path) -> None:
    service = Service(server)

    def redirecting(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("302 Found", [("location", target)])
        return []

    with serving(service) as target, serving(redirecting) as url:
        arttrace.init(project="test", dir=tmp_path / "data", propagate=[url.split("/")[2]])
        with arttrace.trajectory(name="caller"):
            assert httpx.get(url, follow_redirects=True).text == "done"
    assert service.headers == [{}]


async def test_asgi_middleware_and_a_service_with_instrumentation_of_its_own(
    server: ChatServer, spans: Spans, tmp_path: Path
) -> None:
    from opentelemetry import context
    from opentelemetry.propagate import extract

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.to_thread(sub_agent, server)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    async def instrumented(scope: Any, receive: Any, send: Any) -> None:
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        token = context.attach(extract(headers))  # as OpenTelemetry's ASGI instrumentation does
        try:
            await app(scope, receive, send)
        finally:
            context.detach(token)

    arttrace.init(project="test", dir=tmp_path / "data", propagate=["service"])
    with arttrace.trajectory(name="caller"):
        for served in (arttrace.ASGIMiddleware(app), instrumented):
            transport = httpx.ASGITransport(served)

            async def as_elsewhere(transport: Any = transport) -> Any:
                async with httpx.AsyncClient(transport=transport) as client:
                    return await client.get("http://service/")

            assert (await as_elsewhere()).text == "done"
    (trajectory,) = build_trajectories(spans())
    assert agents(trajectory) == [("caller", None, 0), ("remote", "caller", 1), ("remote", "caller", 1)]


async def answer(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"done"})


async def ask(app: Any) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(arttrace.ASGIMiddleware(app))) as client:
        assert (await client.get("http://service/")).text == "done"


def test_what_a_service_says_of_the_trajectory_that_reached_it_is_recorded(
    tmp_path: Path, spans: Spans, records: Callable[[], list[Any]], caplog: pytest.LogCaptureFixture
) -> None:
    late: list[Callable[[], None]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        arttrace.update()
        arttrace.update(tags=["slow"], metadata={"user": "me", "step": 1, "mine": 0})
        arttrace.update(metadata={"step": 2})
        with arttrace.agent(name="remote") as remote:
            arttrace.update(tags=["slow", "remote"], metadata={"step": 3})
            with arttrace.agent(name="below"):
                arttrace.update(tags=["below"])
            arttrace.reward(0.5, name="found")
            context = contextvars.copy_context()
            late.append(lambda: context.run(arttrace.update, tags=["late"], metadata={"step": 4}))
        for update in (*late, lambda: remote.update(tags="later")):
            update()
        current = arttrace.current_trajectory()
        assert current is not None
        current.update(tags=["through the object"])
        current.reward(0.25, name="through the object")
        await answer(scope, receive, send)

    arttrace.init(project="test", dir=tmp_path / "data", propagate=["service"])
    with arttrace.trajectory(name="caller") as caller:
        arttrace.update(tags=["mine"], metadata={"mine": 1})
        asyncio.run(ask(app))
    rewards = [record for record in records() if isinstance(record, Reward)]
    assert [(reward.trajectory_id, reward.value) for reward in rewards] == [(caller.id, 0.5), (caller.id, 0.25)]
    (trajectory,) = build_trajectories(spans())
    tags = ["mine", "slow", "remote", "below", "late", "later", "through the object"]
    metadata = {"mine": 1, "user": "me", "step": 4}
    assert (list(trajectory.tags), trajectory.metadata) == (tags, metadata)
    assert agents(trajectory) == [("below", "remote", 0), ("caller", None, 0), ("remote", "caller", 0)]
    assert (trajectory.incomplete, trajectory.calls, trajectory.tool_calls) == ("", (), ())
    assert [record.message for record in caplog.records] == []
    for lost in ("invoke_agent below", "invoke_agent remote", "invoke_agent caller"):
        (trajectory,) = build_trajectories([span for span in spans() if span.name != lost])
        assert trajectory.incomplete, lost

    arttrace.shutdown()
    invoke = functools.partial(CliRunner().invoke, cli, catch_exceptions=False)
    (listed,) = json.loads(invoke(["ls", "--json", "--dir", str(tmp_path / "data")]).output)
    shown = json.loads(invoke(["show", caller.id, "--json", "--dir", str(tmp_path / "data")]).output)["trajectory"]
    query = "SELECT tags, metadata, recorded_agents, calls FROM trajectories"
    (row,) = json.loads(invoke(["sql", query, "--json", "--dir", str(tmp_path / "data")]).output)
    assert (row["recorded_agents"], row["calls"]) == (3, 0)
    row["metadata"] = json.loads(row["metadata"]) if isinstance(row["metadata"], str) else row["metadata"]
    assert [(one["tags"], one["metadata"]) for one in (listed, shown, row)] == [(tags, metadata)] * 3


def test_a_call_right_inside_a_service_is_recorded_and_hides_no_span_that_is_missing(
    tmp_path: Path, spans: Spans, server: ChatServer
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        import openai

        async with openai.AsyncOpenAI(base_url=server.url, api_key="sk-test-0123456789") as client:
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hop"}])
        await answer(scope, receive, send)

    arttrace.init(project="test", dir=tmp_path / "data", propagate=["service"])
    with arttrace.trajectory(name="caller"):
        with arttrace.agent(name="leaf"):
            pass
        asyncio.run(ask(app))
    (trajectory,) = build_trajectories(spans())
    assert agents(trajectory) == [("caller", None, 1), ("leaf", "caller", 0)]
    assert trajectory.incomplete == ""
    (trajectory,) = build_trajectories([span for span in spans() if span.name != "invoke_agent leaf"])
    assert trajectory.incomplete == "1 of 3 spans missing"


def test_what_a_service_says_keeps_to_the_rules_of_content(tmp_path: Path, spans: Spans) -> None:
    class Hostile:
        def __str__(self) -> str:
            raise RuntimeError("user")

        __repr__ = __str__

    async def app(scope: Any, receive: Any, send: Any) -> None:
        arttrace.update(
            metadata={"key": "sk-" + "a1B2" * 12, "odd": Hostile(), "long": "x" * (9 << 20)}, tags=[Hostile()]
        )  # type: ignore[list-item]
        await answer(scope, receive, send)

    arttrace.init(project="test", dir=tmp_path / "data", propagate=["service"])
    with arttrace.trajectory(name="caller"):
        asyncio.run(ask(app))
    (said,) = [span for span in spans() if span.name == "update"]
    assert "a1B2a1B2" not in said.attributes[semconv.METADATA]
    assert len(said.attributes[semconv.METADATA]) < 9 << 20
    assert said.attributes[semconv.TRUNCATED] == [semconv.METADATA]


def test_a_service_that_records_nothing_records_no_update(
    tmp_path: Path, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        monkeypatch.setenv("ARTTRACE_DISABLED", "1")
        arttrace.init(dir=tmp_path / "other")
        arttrace.update(tags=["slow"])
        await answer(scope, receive, send)

    arttrace.init(project="test", dir=tmp_path / "data", propagate=["service"])
    with arttrace.trajectory(name="caller"):
        asyncio.run(ask(app))
    arttrace.flush()
    assert not [span for span in read_spans(tmp_path / "data") if span.name == "update"]
    assert not (tmp_path / "other").exists()
