"""A request that cannot be read names no trace: it is counted, in the answer, the metrics and `arttrace ls`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from refusing_site import LEAF, ROOT, TRACE, Site, run, span

from arttrace.collector.otlp.responses import PROTOBUF
from arttrace.commands import cli
from arttrace.formats.otlp.request import MalformedRequest
from arttrace.store.server.responses import JSON, RequestRefused


def listed(site: Site, *options: str) -> str:
    done = CliRunner().invoke(cli, ["ls", "--dir", str(site.data.root), *options])
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def metric(site: Site) -> str:
    shown = site.client.get("/metrics").text.splitlines()
    return next(line for line in shown if line.startswith("arttrace_collector_requests_unread_total"))


@pytest.mark.parametrize(
    ("path", "kind", "body", "status", "why"),
    [
        ("/v1/traces", JSON, b'{"resourceSpans": [', 400, "request in JSON"),
        ("/v1/traces", JSON, b"[]", 400, "request in JSON"),
        ("/v1/traces", PROTOBUF, b"\xff\xff", 400, "request in protobuf"),
        ("/v1/traces", "text/plain", b"hello", 415, "text/plain"),
        ("/v1/traces", JSON, b" " * (1 << 20) + b"{}", 413, "over 1048576 bytes"),
        ("/v1/logs", JSON, b"[]", 400, "request in JSON"),
        ("/v1/logs", PROTOBUF, b"\xff\xff", 400, "request in protobuf"),
        ("/", PROTOBUF, b"", 404, "sent to /v1/traces"),
        ("/v1/traces/", JSON, b"{}", 404, "sent to /v1/traces"),
    ],
)
def test_it_is_counted_where_a_person_looks(
    site: Site, path: str, kind: str, body: bytes, status: int, why: str
) -> None:
    site.send(*run())
    assert site.incomplete() == [""]
    assert "refused" not in listed(site)
    for _ in range(2):
        answer = site.client.post(path, content=body, headers={"content-type": kind})
        assert (answer.status_code, why in answer.text) == (status, True)
    assert metric(site) == "arttrace_collector_requests_unread_total 2"
    assert site.incomplete() == [""]  # nobody knows of what it was
    said = listed(site)
    assert "the collector refused 2 requests that it could not read (the last: " in said
    assert why in said
    assert "which runs lack it, cannot be known" in said
    assert listed(site, "--json").startswith("[")
    site.client.post(path, content=body, headers={"content-type": kind})
    site.sink.close()
    assert "the collector refused 3 requests" in listed(site)  # over a restart


@pytest.mark.parametrize("path", ["/v1/metrics", "/api/sql"])
def test_what_has_a_path_of_its_own_is_no_lost_span(site: Site, path: str) -> None:
    site.send(*run())
    site.client.post(path, content=b"{}", headers={"content-type": JSON})
    assert metric(site) == "arttrace_collector_requests_unread_total 0"


def good(span_id: bytes, **change: Any) -> dict[str, Any]:
    times = {"startTimeUnixNano": "1700000000000000000", "endTimeUnixNano": "1700000000000001000"}
    return {"traceId": TRACE.hex(), "spanId": span_id.hex(), "name": "it", **times, **change}


OF_NO_TRACE: list[Callable[[Site], int]] = [
    lambda site: site.send(span(LEAF, "chat", trace_id=b"short").SerializeToString()),
    lambda site: site.send(span(LEAF, "chat", trace_id=bytes(16)).SerializeToString(), *run()),
    lambda site: site.send(span(LEAF, "chat", trace_id=b"").SerializeToString()[:-1]),
    lambda site: site.send_json(good(LEAF, traceId="zz")),
    lambda site: site.send_json(7, good(LEAF)),
    lambda site: site.send_logs(LogRecord(event_name="gen_ai.choice", span_id=LEAF).SerializeToString()),
    lambda site: site.send_json_logs({"eventName": "gen_ai.choice", "spanId": LEAF.hex(), "traceId": None}),
]


def test_a_span_of_no_known_trace_is_counted_there_too(site: Site) -> None:
    site.send(*run())
    assert site.incomplete() == [""]
    assert "refused" not in listed(site)
    for number, send in enumerate(OF_NO_TRACE, 1):
        assert send(site) == 1
        assert site.incomplete() == [""]  # nobody knows of what it was
        things = "span or log record" if number == 1 else "spans or log records"
        said = listed(site)
        assert f"the collector refused {number} {things} whose trace cannot be read (the last: " in said
        assert "which runs lack them cannot be known" in said
    site.send(b"\xff\xff", span(b"\x0d" * 8, "chat", ROOT, start_time_unix_nano=0).SerializeToString())
    assert ["refused" in one for one in site.incomplete()] == [True]
    assert "the collector refused 8 spans or log records whose trace" in listed(site)  # of the other its run says it


def test_grpc_counts_them_too(site: Site) -> None:
    site.send(*run())
    site.incomplete()
    with pytest.raises(MalformedRequest):
        site.app.traces.take_now(b"\xff\xff")
    assert "the collector refused 1 request that" in listed(site)


def test_what_is_to_be_sent_again_is_not_counted(site: Site) -> None:
    site.app.budget.take(site.app.budget.limit)
    answer = site.client.post("/v1/traces", content=b"{}", headers={"content-type": JSON})
    assert answer.status_code == 503
    assert site.app.traces.refused(JSON, RequestRefused(408, "it did not arrive in time")).status == 408
    assert metric(site) == "arttrace_collector_requests_unread_total 0"


def test_nothing_is_said_of_those_that_came_before_the_runs_that_are_listed(site: Site) -> None:
    site.client.post("/v1/traces", content=b"hello", headers={"content-type": JSON})
    later = [one.replace(b"\x97\x17", b"\x97\x77") for one in run()]
    assert site.send(*later) == 0
    assert site.incomplete() == [""]
    assert "refused" not in listed(site)
