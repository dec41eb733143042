"""Clients that mean no good, or do badly: endless heads, slow requests, unread answers, odd names, errors in a row."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket

import httpx
import pytest
from gateway_site import Site

from trainer.gateway.http import server as http_server
from trainer.gateway.recording.identity import trajectory_owner

CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
BODY = b'{"model":"policy","messages":[]}'
WHOLE = CHAT + b"content-length: %d\r\n\r\n%b" % (len(BODY), BODY)


class Client:
    """A raw connection to the gateway."""

    def __init__(self, site: Site) -> None:
        self._url = site.http.base_url

    async def __aenter__(self) -> Client:
        self.reader, self.writer = await asyncio.open_connection(self._url.host, self._url.port, limit=1 << 24)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    async def send(self, content: bytes) -> None:
        self.writer.write(content)
        await self.writer.drain()

    async def answer(self) -> tuple[int, bytes]:
        async with asyncio.timeout(60):
            head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
            return int(head.split()[1]), await self.reader.readexactly(length)

    async def rest(self) -> bytes:
        """What comes until the gateway closes the connection."""
        async with asyncio.timeout(60):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""


async def until(condition) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "REQUEST_WITHIN_S", 0.2)


async def test_a_connection_goes_on_after_every_kind_of_refusal(site: Site) -> None:
    wrong = [
        (b'{"model"', 400),
        (b"\xff", 400),
        (b"[]", 400),
        (b'{"model":"policy@7"}', 404),
        (b'{"model":"policy","echo":true}', 400),
        (b'{"model":"policy","n":' + b"9" * 4000 + b"}", 400),
        (b'{"model":"policy","seed":' + b"9" * 4000 + b"}", 200),  # the engine says best what is wrong with it
        (b'{"model":"policy","x":' + b"[" * 100_000 + b"}", 400),
    ]
    async with Client(site) as client:
        for body, expected in wrong:
            await client.send(CHAT + b"content-length: %d\r\n\r\n%b" % (len(body), body))
            status, said = await client.answer()
            assert status == expected
            assert status == 200 or json.loads(said)["error"]["message"]
        for path, expected in ((b"/v1/nothing", 404), (b"/r//v1/chat/completions", 400), (b"/v1/models/", 404)):
            await client.send(WHOLE.replace(b"/v1/chat/completions", path))
            assert (await client.answer())[0] == expected
        await client.send(b"DELETE /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert (await client.answer())[0] == 404
        await client.send(WHOLE)
        assert (await client.answer())[0] == 200
    assert site.gateway.gate.inside == site.gateway.gate.held_bytes == 0


async def test_requests_sent_at_once_on_one_connection_are_answered_in_turn(site: Site) -> None:
    async with Client(site) as client:
        await client.send(WHOLE * 5)
        assert [(await client.answer())[0] for _ in range(5)] == [200] * 5


async def test_an_endless_head_is_cut_off(site: Site) -> None:
    async with Client(site) as client:
        await client.send(CHAT)
        refused = b""
        for number in range(10_000):
            if client.reader.at_eof() or client.writer.is_closing():
                break
            try:
                await client.send(b"x-%d: %b\r\n" % (number, b"y" * 1000))
                async with asyncio.timeout(0.001):
                    refused += await client.reader.read(1000)
            except TimeoutError:
                continue
            except ConnectionError:
                break
        assert number < 1000
    assert (await site.chat()).status_code == 200


@pytest.mark.parametrize(
    "trailer", [b"x: %b\r\n" % (b"y" * 1000), b"y" * 1000], ids=["many trailers", "one without end"]
)
async def test_endless_trailers_are_cut_off(site: Site, trailer: bytes) -> None:
    """The parser hands them on like headers, after the body: also when the request was refused long ago."""
    async with Client(site) as client:
        body = b"%x\r\n%b\r\n0\r\n" % (len(BODY), BODY)
        await client.send(CHAT.replace(b"/v1/chat", b"/nothing") + b"transfer-encoding: chunked\r\n\r\n" + body)
        assert (await client.answer())[0] == 404
        with contextlib.suppress(ConnectionError):
            for _ in range(20_000):
                await client.send(trailer)
        assert await client.rest() == b""
    assert (await site.chat()).status_code == 200


async def test_chunks_of_a_byte_each_are_a_body(site: Site) -> None:
    body = BODY[:-1] + b',"user":"' + b"u" * 40_000 + b'"}'
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\nx: y\r\n\r\n"
    async with Client(site) as client:
        await client.send(CHAT + b"transfer-encoding: chunked\r\n\r\n")
        for start in range(0, len(chunks), 5000):
            await client.send(chunks[start : start + 5000])
        assert (await client.answer())[0] == 200
        await client.send(WHOLE)
        assert (await client.answer())[0] == 200


async def test_a_next_request_does_not_pay_for_the_body_before_it(site: Site) -> None:
    body = BODY[:-1] + b',"user":"' + b"u" * 100_000 + b'"}'
    async with Client(site) as client:
        await client.send(CHAT + b"content-length: %d\r\n\r\n%b%b" % (len(body), body, WHOLE[:40]))
        assert (await client.answer())[0] == 200
        await client.send(WHOLE[40:])
        assert (await client.answer())[0] == 200


async def test_an_endless_next_head_never_stands_inside_an_answer(site: Site) -> None:
    site.engine.held = True
    async with Client(site) as client:
        await client.send(WHOLE)
        await until(lambda: site.engine.generations)
        said = asyncio.create_task(client.rest())
        await client.send(CHAT[:-2])
        for _ in range(1000):
            if said.done():
                break
            with contextlib.suppress(ConnectionError):
                await client.send(b"y" * 1000)
            await asyncio.sleep(0.001)
        assert await said == b""
    await until(lambda: not site.gateway.gate.inside)


@pytest.mark.parametrize("size", [50, 100_000])
async def test_a_client_that_would_rather_speak_http_2_is_answered_quietly(
    site: Site, caplog: pytest.LogCaptureFixture, size: int
) -> None:
    """As Java's HttpClient does; the parser takes a request with such an offer for one without a body."""
    upgrade = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAARAAAAA\r\n"
    request = CHAT + upgrade + WHOLE.removeprefix(CHAT)
    async with Client(site) as client:
        for _ in range(2):
            for start in range(0, len(request), size):
                await client.send(request[start : start + size])
                await asyncio.sleep(0.005)
            assert (await client.answer())[0] == 200
        await client.send(WHOLE + request * 3 + WHOLE)
        assert [(await client.answer())[0] for _ in range(5)] == [200] * 5
    assert [record for record in caplog.records if record.name.startswith("uvicorn")] == []


async def test_a_long_head_that_is_within_the_bound_is_answered(site: Site) -> None:
    answer = await site.http.post(
        "/v1/chat/completions", json={"model": "policy", "messages": []}, headers={"x-long": "y" * 40_000}
    )
    assert answer.status_code == 200


@pytest.mark.parametrize("begun", [b"", CHAT, CHAT + b"content-length: 1000\r\n\r\n{"])
async def test_a_request_that_does_not_come_whole_is_given_up(site: Site, hurried: None, begun: bytes) -> None:
    async with Client(site) as client:
        await client.send(begun)
        await client.rest()
    await until(lambda: site.gateway.gate.inside == 0)


async def test_a_slow_answer_is_waited_for(site: Site, hurried: None) -> None:
    site.engine.held = True
    while True:
        asked = asyncio.create_task(site.chat())
        await until(lambda asked=asked: site.engine.generations or asked.done())
        if site.engine.generations:
            break
        with pytest.raises(httpx.TransportError):  # this machine took longer than that over the request
            await asked
    await asyncio.sleep(3 * http_server.REQUEST_WITHIN_S)
    site.engine.release.set()
    assert (await asked).status_code == 200


async def test_an_answer_that_is_not_read_holds_nothing_for_ever(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "TAKEN_WITHIN_S", 0.2)
    site.engine.endless = True
    body = b'{"model":"policy","messages":[],"stream":true}'
    async with Client(site) as client:
        client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.reader._transport.pause_reading()
        await client.send(CHAT + b"content-length: %d\r\n\r\n%b" % (len(body), body))
        await until(lambda: site.gateway.policies.current.requests)
        await until(lambda: not site.gateway.policies.current.requests)
        async with asyncio.timeout(60):
            await site.engine.hung_up.wait()


async def test_a_client_that_leaves_in_a_stream_frees_the_engine_and_is_recorded(site: Site) -> None:
    site.engine.endless = True
    request = {"model": "policy", "messages": [], "stream": True}
    async with asyncio.timeout(60):
        async with site.http.stream("POST", "/r/t/v1/chat/completions", json=request) as answer:
            await anext(answer.aiter_raw())
        await site.engine.hung_up.wait()
    await until(lambda: not site.gateway.gate.inside)
    assert (await site.http.post("/r/t/end")).json() == {"trajectory": "t", "calls": 1, "already_ended": False}
    site.gateway.recorder.close()
    written = b"".join(path.read_bytes() for path in (site.directory / "spool").iterdir())
    assert b'"arttrace.interrupted":"closed"' in written


async def test_an_answer_beyond_all_bounds_is_refused_and_the_engine_freed(site: Site) -> None:
    site.engine.answer_bytes = 4 << 20
    site.gateway.gate.max_held_bytes = 1 << 20
    answer = await site.chat(n=100)
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "overloaded")
    assert site.gateway.gate.held_bytes == 0


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("a%2Fb", "a/b"),
        ("a%20b", "a b"),
        ("%25", "%"),
        ("a;b=c", "a;b=c"),
        ("...", "..."),
        ("v1", "v1"),
        ("end", "end"),
    ],
)
async def test_odd_names_stay_what_they_are(site: Site, part: str, name: str) -> None:
    raw = httpx.URL(site.http.base_url)
    for path in (f"/r/{part}/v1/chat/completions", f"/r/{part}/{part}/v1/chat/completions"):
        url = raw.copy_with(raw_path=path.encode())
        assert (await site.http.post(url, json={"model": "policy", "messages": []})).status_code == 200
    ended = await site.http.post(raw.copy_with(raw_path=f"/r/{part}/end".encode()))
    assert ended.json() == {"trajectory": name, "calls": 2, "already_ended": False}


@pytest.mark.parametrize("part", ["%00", "%0d%0a", "%c3%bc", "%ff", "a%20", "x" * 257, "%e2%80%ae"])
async def test_what_is_no_name_is_refused(site: Site, part: str) -> None:
    url = httpx.URL(site.http.base_url).copy_with(raw_path=f"/r/{part}/v1/chat/completions".encode())
    answer = await site.http.post(url, json={"model": "policy", "messages": []})
    assert (answer.status_code, "printable ASCII" in answer.text) == (400, True)
    assert site.gateway.recorder.trajectories.open == 0


def test_names_that_differ_have_ids_that_differ() -> None:
    pairs = [("a/b", None), ("a", "b"), ("a", None), ("a b", None), ("a", "b/c"), ("a/b", "c")]
    owners = [trajectory_owner(*pair) for pair in pairs]
    assert len({(owner.trace_id, owner.parent_span_id) for owner in owners}) == len(pairs)


@pytest.mark.parametrize(
    "request_line",
    [
        b"GET",
        b"GET / HTTP/9.9",
        b"GET http:// HTTP/1.1",
        b"CONNECT a:1 HTTP/1.1",
        b"GET /\xff\xfe HTTP/1.1",
        b"\x16\x03\x01",
    ],
)
async def test_what_is_no_http_harms_nobody(site: Site, request_line: bytes) -> None:
    async with Client(site) as client:
        await client.send(request_line + b"\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        said = await client.rest()
        assert said.startswith((b"HTTP/1.1 400", b"HTTP/1.1 404"))
    assert (await site.chat()).status_code == 200


async def test_lengths_that_contradict_each_other_are_refused(site: Site) -> None:
    for lengths in (
        b"content-length: 5\r\ncontent-length: 6\r\n",
        b"content-length: -1\r\n",
        b"content-length: 5\r\ntransfer-encoding: chunked\r\n",
    ):
        async with Client(site) as client:
            await client.send(CHAT + lengths + b"\r\nhello")
            assert (await client.rest()).startswith(b"HTTP/1.1 400")
    assert site.engine.generations == []


@pytest.mark.parametrize("site", ["secret"], indirect=True)
async def test_the_key_is_asked_for_on_every_path_but_health(site: Site) -> None:
    for method, path in (
        ("POST", "/v1/chat/completions"),
        ("POST", "/r/t/a/v1/completions"),
        ("GET", "/r/t/v1/models"),
        ("HEAD", "/v1/models"),
        ("GET", "/arttrace/status"),
        ("POST", "/admin/sleep"),
        ("POST", "/admin/wake"),
        ("GET", "/nothing"),
        ("POST", "//v1/chat/completions"),
        ("OPTIONS", "/v1/chat/completions"),
    ):
        for key in (None, "Bearer", "Bearer secre", "Bearer secret2", "secret", "bearer secret"):
            headers = {} if key is None else {"authorization": key}
            assert (await site.http.request(method, path, headers=headers)).status_code == 401, (path, key)
    assert (await site.http.get("/health")).status_code == 200
