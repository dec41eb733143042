"""Answers of every framing, whole, cut and damaged, as the client of engines reads them and as httpx does."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpcore
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trainer.gateway.engines.http_connection import BrokenOff, HttpConnection

PEER = "http://engine:8000"


class Pipe(asyncio.Transport):
    """The transport of a connection whose answer a test feeds to it."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False
        self.paused = False

    def writelines(self, list_of_data: Any) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


@dataclass(frozen=True)
class Read:
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    kept: bool = field(default=False, compare=False)
    """Whether the connection can have another request."""


async def _ours(parts: Sequence[bytes], method: str, stays: bool) -> Read:
    """What the client makes of an answer in parts, behind which the server hangs up unless it `stays`."""
    connection, pipe = HttpConnection(PEER), Pipe()
    connection.connection_made(pipe)

    async def feed() -> None:
        for part in parts:
            await asyncio.sleep(0)
            if pipe.aborted:
                break
            connection.data_received(part)
        if pipe.aborted or not stays:
            connection.connection_lost(None)

    feeding = asyncio.create_task(feed())
    try:
        async with asyncio.timeout(20):
            await connection.ask(b"", b"", answer_has_body=method != "HEAD")
            body = b""
            while part := await connection.part():
                body += part
        await feeding
        return Read(connection.status, connection.headers, body, connection.can_be_kept)
    finally:
        feeding.cancel()


def ours(parts: Sequence[bytes], method: str = "GET", *, stays: bool = False) -> Read:
    return asyncio.run(_ours(parts, method, stays))


def httpxs(parts: Sequence[bytes], method: str = "GET") -> Read:
    """The same of the parser below httpx. Raises httpcore.RemoteProtocolError."""
    backend = httpcore.MockBackend(list(parts))
    with httpcore.ConnectionPool(network_backend=backend) as pool, pool.stream(method, "http://engine") as answer:
        body = b"".join(answer.iter_stream())
        return Read(answer.status, [(name.lower(), value) for name, value in answer.headers], body)


@dataclass(frozen=True)
class Answer:
    """A legal answer: its bytes, the method that it is to, and whether its end is the connection's."""

    content: bytes
    method: str
    to_the_end: bool


TOKEN = st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_", min_size=1, max_size=8)
VALUE = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E) | st.sampled_from(" \t"), max_size=20)
SPACE = st.sampled_from(["", " ", "  ", "\t", " \t "])
FRAMING = ("content-length", "transfer-encoding", "connection", "upgrade")
HEADER = st.tuples(TOKEN.filter(lambda name: name.lower() not in FRAMING), VALUE.map(str.strip), SPACE, SPACE)
ODD = st.sampled_from(
    [("Set-Cookie", "a=1", " ", ""), ("set-cookie", "b=2", " ", ""), ("Connection", "close", " ", "")]
)


def _head(status: int, headers: list[tuple[str, str, str, str]], version: str = "1.1") -> bytes:
    lines = [
        f"HTTP/{version} {status} Some reason",
        *(f"{name}:{a}{value}{b}" for name, value, a, b in headers),
        "",
        "",
    ]
    return "\r\n".join(lines).encode("latin-1")


@st.composite
def answers(draw: st.DrawFn) -> Answer:
    """Any legal answer, behind any number of those that only say that more will come."""
    headers = draw(st.lists(HEADER | ODD, max_size=5))
    interim = b"".join(
        _head(status, draw(st.lists(HEADER, max_size=5)))
        for status in draw(st.lists(st.sampled_from([100, 102, 103]), max_size=2))
    )
    status = draw(st.sampled_from([200, 201, 204, 206, 304, 400, 404, 413, 429, 500, 503, 599]))
    method = draw(st.sampled_from(["GET", "GET", "POST", "HEAD"]))
    body = draw(st.binary(max_size=60) | st.just(gzip.compress(b"what was compressed", mtime=0)))
    framing = draw(st.sampled_from(["length", "chunks", "end"]))
    has_none = method == "HEAD" or status in (204, 304)
    name = draw(st.sampled_from(["Content-Length", "content-length"]))
    if framing == "length" and status != 204:
        headers.insert(
            draw(st.integers(0, len(headers))), (name, str(len(body)), draw(SPACE), draw(st.sampled_from(["", " "])))
        )
        content = b"" if has_none else body
    elif framing == "chunks" and status not in (204, 304):
        said = (draw(st.sampled_from(["Transfer-Encoding", "transfer-encoding"])), "chunked")
        headers.insert(draw(st.integers(0, len(headers))), (*said, draw(SPACE), draw(st.sampled_from(["", " "]))))
        content = b"" if has_none else draw(_chunked(body))
    else:
        content, framing = (b"" if has_none else body), "end"
    version = "1.0" if framing == "end" and not has_none and draw(st.booleans()) else "1.1"
    head = _head(status, headers, version)
    return Answer(interim + head + content, method, framing == "end" and not has_none)


@st.composite
def _chunked(draw: st.DrawFn, body: bytes) -> bytes:
    chunks, at = [], 0
    while at < len(body):
        size = draw(st.integers(1, len(body) - at))
        digits = draw(st.sampled_from(["%x", "%X", "00%x"])) % size
        extension = draw(st.sampled_from(["", ";a", ";a=b", ';a="b;c"']))
        chunks.append(f"{digits}{extension}\r\n".encode() + body[at : at + size] + b"\r\n")
        at += size
    trailers = "".join(
        f"{name}: {value}\r\n"
        for name, value in draw(
            st.lists(
                st.tuples(TOKEN.filter(lambda name: name.lower() not in FRAMING), VALUE.map(str.strip)), max_size=2
            )
        )
    )
    return b"".join(chunks) + f"0\r\n{trailers}\r\n".encode()


def cut_up(content: bytes, at: Sequence[int]) -> list[bytes]:
    places = [0, *sorted({place % (len(content) + 1) for place in at}), len(content)]
    return [content[start:end] for start, end in pairwise(places) if start < end]


PLACES = st.lists(st.integers(0, 1 << 16), max_size=6)


@given(answers(), PLACES)
def test_a_legal_answer_is_what_it_is_to_httpx(answer: Answer, at: list[int]) -> None:
    parts = cut_up(answer.content, at)
    assert ours(parts, answer.method) == httpxs(parts, answer.method)


@given(answers())
@settings(max_examples=30)
def test_a_legal_answer_may_come_byte_by_byte(answer: Answer) -> None:
    parts = [bytes([byte]) for byte in answer.content]
    assert ours(parts, answer.method) == httpxs(parts, answer.method)


@given(answers(), st.integers(0, 1 << 16), PLACES)
@example(Answer(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked \r\n\r\n5\r\nhello\r\n0\r\n\r\n", "GET", False), 58, [])
def test_of_an_answer_that_is_cut_nothing_is_taken_for_whole(answer: Answer, end: int, at: list[int]) -> None:
    """But where its end is the connection's and the cut is behind its head: plain TCP has no other word for it."""
    whole = ours([answer.content], answer.method)
    content = answer.content[: end % len(answer.content)]
    if answer.to_the_end and content.startswith(answer.content[: len(answer.content) - len(whole.body)]):
        return
    with pytest.raises(BrokenOff, match=f"^{PEER}: "):
        ours(cut_up(content, at), answer.method)


@given(answers(), st.binary(min_size=1, max_size=20), PLACES)
@example(
    Answer(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", "GET", False),
    b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno",
    [],
)
def test_a_connection_with_more_behind_its_answer_is_not_used_again(answer: Answer, more: bytes, at: list[int]) -> None:
    """Line ends alone are nothing: what comes next is read as if they were not there."""
    if answer.to_the_end or not more.strip(b"\r\n"):
        return
    read = ours(cut_up(answer.content + more, at), answer.method, stays=True)
    assert read == ours([answer.content], answer.method)
    assert not read.kept


@given(answers(), st.integers(0, 1 << 16), st.binary(max_size=4), st.integers(0, 4), PLACES)
@settings(max_examples=300)
def test_a_damaged_answer_is_an_error_or_what_it_is_to_httpx(
    answer: Answer, place: int, put: bytes, instead: int, at: list[int]
) -> None:
    place %= len(answer.content)
    content = answer.content[:place] + put + answer.content[place + instead :]
    parts = cut_up(content, at)
    try:
        theirs = httpxs(parts, answer.method)
    except (httpcore.RemoteProtocolError, httpcore.LocalProtocolError):
        theirs = None
    try:
        read = ours(parts, answer.method)
    except BrokenOff:
        return
    assert theirs is None or read == theirs


@given(st.binary(max_size=200), PLACES)
def test_what_is_no_http_is_an_error(content: bytes, at: list[int]) -> None:
    with pytest.raises(BrokenOff, match=f"^{PEER}: "):
        ours(cut_up(content, at))


@pytest.mark.parametrize("coding", ["gzip", "gzip, chunked", "chunked,", "x-chunked", "chunked\t", "chunked, gzip", ""])
def test_a_transfer_coding_that_was_not_asked_for_is_an_error(coding: str) -> None:
    """Taken for no coding, or for chunks, it would be a body that is none."""
    for headers in (f"transfer-encoding: {coding}", f"transfer-encoding: chunked\r\ntransfer-encoding: {coding}"):
        head = f"HTTP/1.1 200 OK\r\n{headers}\r\n\r\n"
        with pytest.raises(BrokenOff, match=r"transfer coding is not understood|no answer"):
            ours([head.encode() + b"5\r\nhello\r\n0\r\n\r\n"])


@pytest.mark.parametrize("endless", ["trailer", "trailers", "extension", "interim"])
def test_what_goes_on_without_end_and_is_no_body_is_an_error(endless: str) -> None:
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n"
    first, again = {
        "trailer": (chunked + b"0\r\nx: ", b"y" * 1000),
        "trailers": (chunked + b"0\r\n", b"x: y\r\n" * 1000),
        "extension": (chunked + b"5;a=", b"b" * 1000),
        "interim": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
    }[endless]
    with pytest.raises(BrokenOff, match="none of the answer's body"):
        ours([first, *[again] * 1000])


def test_chunks_of_one_byte_each_are_no_such_thing() -> None:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    read = ours([head, *[b"1\r\nx\r\n" * 1000] * 100, b"0\r\n\r\n"])
    assert read.body == b"x" * 100_000


def test_an_answer_that_offers_another_protocol_is_an_answer() -> None:
    """As Apache's with HTTP/2 does."""
    head = b"HTTP/1.1 200 OK\r\nupgrade: h2,h2c\r\nconnection: Upgrade, Keep-Alive\r\ncontent-length: 5\r\n\r\n"
    read = ours([head + b"hello"], stays=True)
    assert (read.body, read.kept) == (b"hello", True)
