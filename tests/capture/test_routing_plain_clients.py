"""Routes and the wish for tokens reach the calls that HTTP clients make of themselves, where captured."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import httpx2
import pytest
import requests
from model_server import IDS, ModelServer, serve_model
from spool import finished_spans

import arttrace
from arttrace.capture.calls import routing
from arttrace.records import semconv

KEY, POLICY_KEY = "sk-secret-0123456789", "policy-key-0123456789"
HEADERS = {"authorization": f"Bearer {KEY}", "openai-organization": "org-1", "x-mine": "yes"}
BODY = {"model": "gpt-4o", "messages": [{"role": "user", "content": 'the "model": "gpt-4o", é'}], "temperature": 1.0}


@pytest.fixture
def vendor() -> Iterator[ModelServer]:
    with serve_model() as server:
        yield server


@pytest.fixture
def policy() -> Iterator[ModelServer]:
    with serve_model() as server:
        yield server


@pytest.fixture(autouse=True)
def _plain_clients(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ARTTRACE_ROUTE", "ARTTRACE_TRAINABLE", "ARTTRACE_POLICY_URL", "ARTTRACE_POLICY_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(routing, "_warned", set())
    arttrace.init(project="test", dir=tmp_path / "data", capture_http=True)


def spans(tmp_path: Path) -> list[Any]:
    arttrace.flush()
    return [span for span in finished_spans(tmp_path / "data") if semconv.OPENAI_API_TYPE in span.attributes]


def of_the_session(url: str, body: Any, stream: bool, **more: Any) -> Any:
    """The key is the session's, the cookie too."""
    with requests.Session() as session:
        session.headers.update(HEADERS)
        session.cookies.set("who", "secret")
        answer = session.post(url, **body, stream=stream, **more)
        said = b"".join(answer.iter_content(7)) if stream else answer.content
        assert session.headers["authorization"] == f"Bearer {KEY}"
        return answer.status_code, said


def of_the_request(url: str, body: Any, stream: bool, **more: Any) -> Any:
    with requests.Session() as session:
        prepared = session.prepare_request(
            requests.Request("POST", url, headers=HEADERS, cookies={"who": "secret"}, **body, **more)
        )
        before = (prepared.url, prepared.body, dict(prepared.headers))
        answer = session.send(prepared, stream=stream)
        assert (prepared.url, prepared.body, dict(prepared.headers)) == before
        return answer.status_code, answer.content


def of_aiohttp(url: str, body: Any, stream: bool, **more: Any) -> Any:
    async def ask() -> Any:
        jar = aiohttp.CookieJar(unsafe=True)
        async with aiohttp.ClientSession(headers=HEADERS, cookie_jar=jar) as session:
            async with session.post(url, **body, cookies={"who": "secret"}, **more) as answer:
                chunks = [chunk async for chunk in answer.content.iter_any()] if stream else [await answer.read()]
            assert session.headers["authorization"] == f"Bearer {KEY}"
            return answer.status, b"".join(chunks)

    return asyncio.run(ask())


def of_aiohttp_with_a_base(url: str, body: Any, stream: bool, **more: Any) -> Any:
    async def ask() -> Any:
        base, _, rest = url.partition("/v1/")
        async with aiohttp.ClientSession(f"{base}/v1/") as session:
            answer = await session.post(rest, **body, headers=HEADERS, **more)
            return answer.status, await answer.read()

    return asyncio.run(ask())


def of_httpx(library: Any) -> Callable[..., Any]:
    def ask(url: str, body: Any, stream: bool, **more: Any) -> Any:
        with library.Client(headers=HEADERS, cookies={"who": "secret"}) as client:
            with client.stream("POST", url, **as_content(body), **more) as answer:
                said = b"".join(answer.iter_raw()) if stream else answer.read()
            assert client.headers["authorization"] == f"Bearer {KEY}"
            return answer.status_code, said

    return ask


def of_async_httpx(library: Any) -> Callable[..., Any]:
    async def ask(url: str, body: Any, stream: bool, **more: Any) -> Any:
        async with library.AsyncClient(headers=HEADERS, cookies={"who": "secret"}) as client:
            if not stream:
                answer = await client.post(url, **as_content(body), **more)
                return answer.status_code, answer.content
            async with client.stream("POST", url, **as_content(body), **more) as answer:
                return answer.status_code, b"".join([chunk async for chunk in answer.aiter_bytes()])

    return lambda *args, **more: asyncio.run(ask(*args, **more))


def as_content(body: dict[str, Any]) -> dict[str, Any]:
    return {"content" if name == "data" else name: value for name, value in body.items()}


CLIENTS: dict[str, Callable[..., Any]] = {
    **{each.__name__: each for each in (of_the_session, of_the_request, of_aiohttp, of_aiohttp_with_a_base)},
    **{f"of_{library.__name__}": of_httpx(library) for library in (httpx, httpx2)},
    **{f"of_async_{library.__name__}": of_async_httpx(library) for library in (httpx, httpx2)},
}
BODIES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "json": lambda body: {"json": body},
    "bytes": lambda body: {"data": json.dumps(body).encode()},
    "text": lambda body: {"data": json.dumps(body)},
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("form", BODIES)
@pytest.mark.parametrize("name", CLIENTS)
def test_a_routed_call_differs_in_nothing_else(
    name: str, form: str, stream: bool, vendor: ModelServer, policy: ModelServer, tmp_path: Path
) -> None:
    body = BODIES[form](BODY | {"stream": stream})
    more: dict[str, Any] = {"params": {"api-version": "2026-01-01", "a": "b c"}}
    with arttrace.no_capture():
        bare = CLIENTS[name](f"{vendor.url}/chat/completions", body, stream, **more)
    with (
        arttrace.trajectory(name="root"),
        arttrace.route("gpt-4o", to="m-ids", base_url=policy.url, api_key=POLICY_KEY),
    ):
        status, said = CLIENTS[name](f"{vendor.url}/chat/completions", body, stream, **more)
    assert (status, b"Hello" in said or b"token_ids" in said) == (bare[0], True)
    [at_home], [sent] = vendor.sent, policy.sent
    expected = at_home.request.replace(b'"gpt-4o"', b'"m-ids"', 1).removesuffix(b"}")
    assert sent.request == expected + b',"logprobs":true,"return_token_ids":true}'
    private = {"cookie", "openai-organization"}
    changed = {
        "host": policy.url[7:-3],
        "content-length": str(len(sent.request)),
        "authorization": f"Bearer {POLICY_KEY}",
    }
    assert sent.headers == {n: changed.get(n, v) for n, v in at_home.headers.items() if n not in private}
    assert private <= set(at_home.headers) or name == "of_aiohttp_with_a_base"
    [call] = spans(tmp_path)
    assert call.name == "chat m-ids"
    assert call.attributes[semconv.ROUTED_FROM] == "gpt-4o"
    assert call.attributes[semconv.SERVER_PORT] == int(policy.url.split(":")[-1].removesuffix("/v1"))
    assert semconv.TOKEN_IDS in call.attributes
    assert len(IDS) == 3


@pytest.mark.parametrize("name", CLIENTS)
def test_a_trainable_server_is_asked_for_tokens(
    name: str, vendor: ModelServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ARTTRACE_TRAINABLE", vendor.url)
    arttrace.init(dir=tmp_path / "data", capture_http=True)
    with arttrace.trajectory(name="root"):
        CLIENTS[name](f"{vendor.url}/chat/completions", {"json": BODY | {"model": "m-ids"}}, False, params={"a": "b"})
    [sent] = vendor.sent
    assert json.loads(sent.request)["return_token_ids"] is True
    assert sent.headers["authorization"] == f"Bearer {KEY}"
    [call] = spans(tmp_path)
    assert semconv.TOKEN_IDS in call.attributes
    assert semconv.ROUTED_FROM not in call.attributes


def test_which_proxy_leads_to_the_policy_is_asked_anew(
    vendor: ModelServer, policy: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy of the vendor's address, which is not reached here, is none of the policy's."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with arttrace.trajectory(name="root"), arttrace.route("*", to="m-ids", base_url=policy.url):
        answer = requests.post(
            "http://vendor.invalid/v1/chat/completions", json=BODY, proxies={"http": "http://127.0.0.1:9"}, timeout=20
        )
    assert (answer.status_code, len(policy.sent)) == (200, 1)


def _pieces() -> Iterator[bytes]:
    yield json.dumps(BODY).encode()


def test_what_a_route_does_not_reach_is_said_once(
    vendor: ModelServer, policy: ModelServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"{vendor.url}/chat/completions"

    async def with_auth() -> None:
        async with aiohttp.ClientSession(auth=aiohttp.BasicAuth("user", "pw")) as session:
            await session.post(url, json=BODY)

    with caplog.at_level(logging.WARNING, "arttrace"):
        to_policy = arttrace.route("*", to="m-ids", base_url=policy.url)
        for _ in range(2):
            with arttrace.trajectory(name="root"):
                requests.post(url, data=_pieces())
                asyncio.run(with_auth())
        arttrace.init(dir=tmp_path / "data", capture_http=False)
        for _ in range(2):
            with arttrace.trajectory(name="root"):
                requests.post(url, json=BODY)
        to_policy.remove()
        requests.post(url, json=BODY)
    assert (len(vendor.sent), len(policy.sent)) == (7, 0)
    shown = [record.getMessage() for record in caplog.records if record.name == "arttrace"]
    assert len(shown) == 3, shown
    assert "requests whose body cannot be read" in shown[0]
    assert "aiohttp session with an `auth`" in shown[1]
    assert "ARTTRACE_CAPTURE_HTTP=1" in shown[2]
