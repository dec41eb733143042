"""The body of a trace request: its encodings and content types, and how large it may be, packed and unpacked."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable

import pytest
import zstandard
from starlette.testclient import TestClient
from trace_requests import HEADERS, request, spooled

from arttrace.collector.app import CollectorApp
from arttrace.collector.forward import Forward
from arttrace.collector.otlp.responses import PROTOBUF
from arttrace.collector.spool import Spool
from arttrace.store.server.auth import Authorizer
from arttrace.store.server.responses import JSON
from arttrace.system.paths import DataDir


@pytest.mark.parametrize(
    ("content", "kind"),
    [(b"\xff\xfe garbage", PROTOBUF), (b"{", JSON), (b"[]", JSON), (b'{"resourceSpans": 5}', JSON), (b"\xff", JSON)],
)
def test_garbage_is_400(client: TestClient, content: bytes, kind: str) -> None:
    answer = client.post("/v1/traces", content=content, headers={"content-type": kind})
    assert (answer.status_code, answer.headers["content-type"]) == (400, kind)
    assert b"OTLP trace request" in answer.content


def test_encodings_and_content_types(client: TestClient, sink: Spool) -> None:
    body = request(b"\x02" * 8).SerializeToString()
    headers = {"content-type": PROTOBUF, "content-encoding": "gzip"}
    assert client.post("/v1/traces", content=gzip.compress(body), headers=headers).status_code == 200
    assert client.post("/v1/traces", content=gzip.compress(body)[:-4], headers=headers).status_code == 400
    assert client.post("/v1/traces", content=b"no gzip", headers=headers).status_code == 400
    assert client.post("/v1/traces", content=body, headers={**headers, "content-encoding": "br"}).status_code == 415
    zstd = {**headers, "content-encoding": "zstd"}
    for packed in (zstandard.compress(body), zstd_without_size(body)):
        assert client.post("/v1/traces", content=packed, headers=zstd).status_code == 200
        assert client.post("/v1/traces", content=packed[:-4], headers=zstd).status_code == 400
    assert client.post("/v1/traces", content=b"no zstd", headers=zstd).status_code == 400
    assert client.post("/v1/traces", content=body, headers={"content-type": "text/plain"}).status_code == 415
    assert client.get("/v1/traces").status_code == 405
    assert sink.acknowledged == 3


def zstd_without_size(body: bytes) -> bytes:
    streamed = zstandard.ZstdCompressor().compressobj()
    packed: bytes = streamed.compress(body) + streamed.flush()
    return packed


PACKED = {"gzip": gzip.compress, "zstd": zstandard.compress, "zstd without its size": zstd_without_size}


@pytest.mark.parametrize("pack", PACKED.values(), ids=PACKED)
def test_a_body_of_several_members_is_read_to_its_end(
    client: TestClient, sink: Spool, data: DataDir, pack: Callable[[bytes], bytes]
) -> None:
    """Senders that compress batch by batch put several gzip members, or zstd frames, behind each other."""
    headers = {"content-type": PROTOBUF, "content-encoding": "gzip" if pack is gzip.compress else "zstd"}
    ids = [bytes([number]) * 8 for number in range(1, 4)]
    members = [pack(request(id).SerializeToString()) for id in ids]
    assert client.post("/v1/traces", content=b"".join(members), headers=headers).status_code == 200
    assert [span.span_id for span in spooled(data)] == [id.hex() for id in ids]
    assert sink.acknowledged == 3
    for bad in (b"".join(members)[:-4], members[0] + b"no member", b"".join(members)[:-4] + members[0]):
        assert client.post("/v1/traces", content=bad, headers=headers).status_code == 400
    assert sink.acknowledged == 3
    bomb = b"".join(members) + pack(b"\0" * 50_000_000)
    assert client.post("/v1/traces", content=bomb, headers=headers).status_code == 413
    flood = pack(b"") * 70_000
    app = CollectorApp(sink, Forward(data), Authorizer("token"))
    answer = TestClient(app, base_url="http://localhost").post("/v1/traces", content=flood, headers=headers)
    assert (answer.status_code, b"more than 65536 members" in answer.content) == (400, True)


@pytest.mark.parametrize("encoding", ["deflate", "zlib"])
def test_the_other_encodings_of_opentelemetrys_exporters(client: TestClient, sink: Spool, encoding: str) -> None:
    """Python's SDK sends by OTEL_EXPORTER_OTLP_COMPRESSION=deflate, the OpenTelemetry Collector by either: it dropped
    what was refused."""
    packed = zlib.compress(request(b"\x02" * 8).SerializeToString())
    headers = {"content-type": PROTOBUF, "content-encoding": encoding}
    assert client.post("/v1/traces", content=packed, headers=headers).status_code == 200
    assert client.post("/v1/traces", content=packed[:-4], headers=headers).status_code == 400
    assert client.post("/v1/traces", content=b"no zlib", headers=headers).status_code == 400
    assert sink.acknowledged == 1


@pytest.mark.parametrize("encoding", ["gzip", "zstd", "deflate"])
def test_the_bound_counts_decompressed_bytes(client: TestClient, app: CollectorApp, encoding: str) -> None:
    pack = {"gzip": gzip.compress, "zstd": zstandard.compress, "deflate": zlib.compress}[encoding]
    bomb = pack(b"\x00" * 50_000_000)
    assert len(bomb) < 100_000
    headers = {"content-type": PROTOBUF, "content-encoding": encoding}
    assert client.post("/v1/traces", content=bomb, headers=headers).status_code == 413
    assert client.post("/v1/traces", content=b"\x00" * 100_001, headers={"content-type": PROTOBUF}).status_code == 413
    assert app.budget.used == 0


def test_a_body_that_unpacks_to_hundreds_of_times_its_size_is_a_bomb(sink: Spool, data: DataDir) -> None:
    client = TestClient(CollectorApp(sink, Forward(data), Authorizer("token")), base_url="http://localhost")
    headers = {"content-type": PROTOBUF, "content-encoding": "zstd"}
    answer = client.post("/v1/traces", content=zstandard.compress(b"\x00" * 50_000_000), headers=headers)
    assert answer.status_code == 413
    assert b"500 times" in answer.content


def test_over_the_budget_of_bytes_in_flight_is_asked_to_wait(client: TestClient, app: CollectorApp) -> None:
    app.budget.take(249_990)
    body = request(b"\x02" * 8).SerializeToString()
    answer = client.post("/v1/traces", content=body, headers=HEADERS)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    app.budget.give_back(249_990)
    assert client.post("/v1/traces", content=body, headers=HEADERS).status_code == 200
    assert app.budget.used == 0
