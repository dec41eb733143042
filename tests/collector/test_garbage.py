"""Whatever is sent: the collector answers with the right status, keeps what is good, and goes on."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from otlp_requests import PROTOBUF, chat_request
from starlette.testclient import TestClient

from arttrace.collector.app import CollectorApp
from arttrace.collector.forward import Forward
from arttrace.collector.spool import Spool
from arttrace.formats.journal_entry import decode_payload, encode_otlp
from arttrace.formats.otlp.check_protobuf import check_protobuf
from arttrace.formats.otlp.decode_protobuf import protobuf_spans
from arttrace.formats.otlp.request import MalformedRequest, TooManySpans
from arttrace.records.span import SpanRow
from arttrace.store import Store
from arttrace.store.server.auth import Authorizer
from arttrace.system.journal import JournalWriter, list_segments, read_segment
from arttrace.system.paths import DataDir
from arttrace.trajectories.identity.stand_ins import is_stand_in

IDS = [(bytes([n]) * 16, bytes([n]) * 8) for n in range(1, 6)]
GOOD = chat_request(IDS, padding=20)

BOUNDED = settings(
    max_examples=400,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """The good request with bytes changed, cut out, doubled or put in."""
    body = bytearray(GOOD)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(body) - 1, 0)))
        match draw(st.sampled_from(["change", "cut", "double", "insert", "end"])):
            case "change" if body:
                body[at] = draw(st.integers(0, 255))
            case "cut":
                del body[at : at + draw(st.integers(1, 40))]
            case "double":
                body[at:at] = body[at : at + draw(st.integers(1, 200))]
            case "insert":
                body[at:at] = draw(st.binary(min_size=1, max_size=12))
            case "end":
                del body[at:]
    return bytes(body)


def survives(body: bytes) -> None:
    """What is acked of it can be read again, span for span, and no ack is given for what cannot."""
    try:
        checked = check_protobuf(body)
    except (MalformedRequest, TooManySpans):
        return
    if not checked.spans:
        return
    spans = decode_payload(encode_otlp(checked.body))
    assert checked.spans == len([span for span in spans if isinstance(span, SpanRow) and not is_stand_in(span)])
    assert len(spans) <= checked.spans + checked.refused
    for span in protobuf_spans(checked.body):
        assert len(span.trace_id) == 32
        assert len(span.span_id) == 16
        assert 0 < span.start_ns < 1 << 63


@given(damaged())
@BOUNDED
def test_damaged_requests(body: bytes) -> None:
    survives(body)


@given(st.binary(max_size=200))
@BOUNDED
def test_random_bytes(body: bytes) -> None:
    survives(body)


@pytest.mark.full
@given(damaged())
@settings(max_examples=30_000, deadline=None)
def test_many_damaged_requests(body: bytes) -> None:
    survives(body)


def test_an_entry_of_the_journal_that_is_none_stops_nothing(tmp_path: Path) -> None:
    data = DataDir(tmp_path)
    writer = JournalWriter(data.spool)
    for payload in (b"\x01\xff garbage", b"\x02", b"", encode_otlp(GOOD)):
        writer.append(payload)
    writer.close()
    with Store.open(data) as store:
        assert store.sql("SELECT count(*) FROM spans")[1] == [(5,)]
    assert len(list(data.spool.glob("*.damaged"))) == 1


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    data = DataDir(tmp_path)
    app = CollectorApp(Spool(data), Forward(data), Authorizer("token"), max_body_bytes=1 << 20)
    return TestClient(app, base_url="http://localhost", raise_server_exceptions=False)


@given(body=st.one_of(damaged(), st.binary(max_size=60)), encoding=st.sampled_from(["", "gzip", "zstd", "br"]))
@settings(BOUNDED, max_examples=80)
@pytest.mark.parametrize("pack", [True, False])
def test_over_http(client: TestClient, pack: bool, body: bytes, encoding: str) -> None:
    if pack:
        body = {"gzip": gzip.compress, "zstd": zstandard.compress}.get(encoding, bytes)(body)
    headers = {"content-type": PROTOBUF, "content-encoding": encoding}
    answer = client.post("/v1/traces", content=body, headers=headers)
    assert answer.status_code in ({415} if encoding == "br" else {200, 400}), answer.content
    assert client.get("/health").status_code == 200


def test_a_flood_of_empty_things_is_refused_before_it_takes_memory(client: TestClient) -> None:
    spans = b"\x12\x00" * 400_000  # each would take 100 times its 2 bytes
    scope = b"\x12" + _length(spans) + spans
    body = b"\x0a" + _length(scope) + scope
    answer = client.post("/v1/traces", content=body, headers={"content-type": PROTOBUF})
    assert answer.status_code == 413


def _length(of: bytes) -> bytes:
    number, out = len(of), bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


@pytest.mark.parametrize("tail", [b"\0" * 5000, b"\xa7\x0ff\xd5\xff\xff\xff\x7f", b"garbage" * 100])
def test_a_torn_tail_of_the_journal_loses_nothing_acked(tmp_path: Path, tail: bytes) -> None:
    data = DataDir(tmp_path)
    sink = Spool(data)
    sink.take(encode_otlp(GOOD), len(IDS)).result(30)
    [segment] = list_segments(data.spool)
    sink.close()
    [sealed] = list_segments(data.spool)
    assert sealed.name == segment.name
    torn = sealed.path.with_suffix(".open")  # as its writer left it when it was killed in a write
    sealed.path.rename(torn)
    with torn.open("ab") as file:
        file.write(tail)
    assert [len(decode_payload(payload)) for _, payload in read_segment(torn)] == [5]
    again = Spool(data)
    again.take(encode_otlp(chat_request([(b"\x09" * 16, b"\x09" * 8)])), 1).result(30)
    again.close()
    with Store.open(data) as store:
        assert store.sql("SELECT count(*), count(DISTINCT span_id) FROM spans")[1] == [(6, 6)]
