"""Headers and bodies of the HTTP requests of tools: recorded where they are asked for, as content, without secrets."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import msgspec
import pytest
import requests
from http_site import BODY, Site, http_spans, in_tool

import arttrace
from arttrace.capture.base.settings import MAX_WAITING_BYTES, Settings
from arttrace.capture.calls.http_content import MAX_BYTES, body_json
from arttrace.capture.export import lifecycle
from arttrace.records import semconv
from arttrace.records.span import SpanRow

Spans = Callable[[], list[SpanRow]]


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


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        ("un café".encode("latin-1"), (None, False)),
        ("un café".encode(), ('"un café"', False)),
        (b'--b\r\ncontent-disposition: form-data; name="said"\r\n\r\nun caf\xe9\r\n--b--', ('{"said":null}', False)),
    ],
)
def test_a_body_whose_last_character_is_no_utf_8_is_no_text_unless_it_is_cut_there(
    body: bytes, kept: tuple[str | None, bool]
) -> None:
    assert body_json(body, "multipart/form-data; boundary=b" if body.startswith(b"--") else "text/plain") == kept
    shown, is_cut = body_json(b"x" * (MAX_BYTES - 1) + "é".encode(), "text/plain")
    assert (is_cut, shown is None) == (True, False)


def test_bodies_are_bounded_while_a_disk_hangs(
    site: Site, spans: Spans, on: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARTTRACE_RAISE", "0")
    arttrace.init(project="test", dir=tmp_path / "data", http_spans=["bodies"])
    disk = threading.Event()
    lifecycle.recorder().submit(lambda: disk.wait(60) and None, weight=MAX_WAITING_BYTES - 3 * len(BODY))
    for body in (b"x", b"x" * 4 * len(BODY)):
        in_tool(lambda body=body: httpx.post(f"{site.url}/found", content=body))  # type: ignore[misc]
    disk.set()
    (request,) = http_spans(spans())
    assert request.attributes[semconv.HTTP_REQUEST_SIZE] == 1


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
