"""Any OTLP request, as protobuf or JSON, goes through collector, store and export, and comes out as it came."""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from any_request import requests, spans_of
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from arttrace.collector.otlp.receiver import TraceReceiver
from arttrace.collector.otlp.request_bodies import Budget
from arttrace.collector.otlp.responses import PROTOBUF
from arttrace.collector.spool import Spool
from arttrace.commands import cli
from arttrace.formats.otlp.decode_json import parse_json
from arttrace.formats.otlp.decode_protobuf import protobuf_spans
from arttrace.formats.otlp.encode_json import encode_json
from arttrace.formats.otlp.encode_protobuf import encode_protobuf
from arttrace.formats.otlp.validate import MAX_DEPTH
from arttrace.records.record import decode_record, encode_record
from arttrace.records.reward import Reward
from arttrace.records.span import SpanEvent, SpanRow
from arttrace.store import Store
from arttrace.store.access import queries as queries_module
from arttrace.store.server.responses import JSON
from arttrace.system.paths import DataDir

_quiet = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@_quiet
@given(requests())
def test_rows_give_back_the_request(request: ExportTraceServiceRequest) -> None:
    spans = protobuf_spans(request.SerializeToString())
    assert [decode_record(encode_record(span)) for span in spans] == spans, "a row survives its own JSON"
    assert spans_of(ExportTraceServiceRequest.FromString(encode_protobuf(spans))) == spans_of(request)
    exported = parse_json(encode_json(spans))
    assert exported.refused == 0, exported.reason
    assert sorted(map(repr, exported.spans)) == sorted(map(repr, spans))


def through_everything(request: ExportTraceServiceRequest, kind: str) -> None:
    """Collector, journal, store, `arttrace export` as JSON and protobuf, `arttrace import` of both, export again."""
    body = request.SerializeToString()
    if kind == JSON:
        body = encode_json(protobuf_spans(body))
    with tempfile.TemporaryDirectory() as folder:
        first = DataDir(Path(folder) / "first")
        sink = Spool(first)
        answer = asyncio.run(TraceReceiver(sink, Budget(1 << 30), 1 << 30).take(body, kind, ""))
        sink.close()
        assert answer.status == 200
        json, protobuf = (export(first, form) for form in ("otlp-json", "otlp-protobuf"))
        assert spans_of(ExportTraceServiceRequest.FromString(protobuf)) == spans_of(request)
        for content in (json, protobuf):
            (Path(folder) / "exported").write_bytes(content)
            again = DataDir(Path(folder) / str(len(content)))
            done = CliRunner().invoke(cli, ["import", str(Path(folder) / "exported"), "--dir", str(again.root)])
            assert done.exit_code == 0, done.output
            assert not re.search(r"\d refused", done.output)  # and not a name that holds the word
            assert spans_of(ExportTraceServiceRequest.FromString(export(again, "otlp-protobuf"))) == spans_of(request)


def export(data: DataDir, form: str) -> bytes:
    done = CliRunner().invoke(cli, ["export", "--format", form, "--dir", str(data.root)])
    assert done.exit_code == 0, done.output
    return done.stdout_bytes


@pytest.mark.parametrize("kind", [PROTOBUF, JSON])
@settings(_quiet, max_examples=2)
@given(requests().filter(lambda request: request.resource_spans))
def test_any_request_comes_out_of_the_store_as_it_came(kind: str, request: ExportTraceServiceRequest) -> None:
    through_everything(request, kind)


@pytest.mark.full
@pytest.mark.parametrize("kind", [PROTOBUF, JSON])
@settings(_quiet, max_examples=150)
@given(requests().filter(lambda request: request.resource_spans))
def test_a_hundred_and_fifty_requests_come_out_as_they_came(kind: str, request: ExportTraceServiceRequest) -> None:
    through_everything(request, kind)


def _members(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


@pytest.mark.parametrize("inner", [{"end": 1}, [1], "end"])
@pytest.mark.parametrize("wrap", [lambda value: {"in": value}, lambda value: [value]])
def test_what_is_nested_deeper_than_protobuf_reads_goes_out_as_json_text(
    wrap: Callable[[object], object], inner: object
) -> None:
    for depth in range(25, MAX_DEPTH):
        value: Any = inner
        for _ in range(depth):
            value = wrap(value)
        event = SpanEvent("e", 1, {"deep": value})
        spans = [SpanRow("1" * 32, "2" * 16, "a", 1, 2, attributes={"deep": value}, events=[event])]
        [back] = protobuf_spans(encode_protobuf(spans))
        for found in (back.attributes["deep"], back.events[0].attributes["deep"]):
            while found != inner:
                found = json.loads(found) if isinstance(found, str) else next(iter(_members(found)))


def test_everything_is_exported_in_a_few_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one look through the whole store per trace."""
    spans = [
        SpanRow(f"{number:032x}", f"{number:016x}", "s", number, number + 1, attributes={"n": number})
        for number in range(1, 501)
    ]
    data = DataDir(tmp_path / "data")
    reads: list[int] = []
    read_spans = queries_module.read_spans

    def counted(*given: Any, **more: Any) -> list[SpanRow]:
        reads.append(1)
        return read_spans(*given, **more)

    monkeypatch.setattr(queries_module, "read_spans", counted)
    monkeypatch.setattr("arttrace.commands.data.export.spans_at_once", lambda stored: 100)
    with Store.open(data, create=True) as store:
        store.append(reversed(spans))
    output = tmp_path / "spans.json"
    result = CliRunner().invoke(cli, ["export", "-o", str(output), "--dir", str(data.root)])
    assert result.output == f"500 spans in {output}\n"
    assert len(reads) == 5
    assert [span for line in output.read_bytes().splitlines() for span in parse_json(line).spans] == spans


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"boolValue": "false"}, False),
        ({"boolValue": "true"}, True),
        ({"boolValue": False}, False),
        ({"boolValue": "no"}, None),
        ({"boolValue": 1}, None),
        ({"intValue": "-7"}, -7),
        ({"intValue": 7.0}, 7),
        ({"intValue": 7.9}, None),
        ({"intValue": True}, None),
        ({"intValue": "1_000"}, None),
        ({"intValue": []}, None),
        ({"doubleValue": "0.5"}, 0.5),
        ({"doubleValue": "NaN"}, "NaN"),
        ({"doubleValue": True}, None),
        ({"doubleValue": "half"}, None),
        ({"stringValue": True}, None),
        ({"stringValue": {"a": 1}}, None),
    ],
)
def test_a_json_value_is_what_it_says_or_refused(value: dict[str, Any], expected: object) -> None:
    """Never another value in silence."""
    span = {
        "traceId": "1" * 32,
        "spanId": "2" * 16,
        "name": "s",
        "startTimeUnixNano": "1",
        "endTimeUnixNano": "2",
        "attributes": [{"key": "a", "value": value}],
    }
    export = parse_json(msgspec.json.encode({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}))
    if expected is None:
        assert (export.spans, export.refused) == ([], 1)
        assert "Value" in export.reason
    else:
        [row] = export.spans
        assert row.attributes["a"] == expected
        assert type(row.attributes["a"]) is type(expected)


def test_text_that_utf_8_cannot_hold_costs_a_character_and_not_the_record() -> None:
    reward = Reward(id="1", trajectory_id="t", value=1.0, explanation="half \ud83d a pair")
    span = SpanRow("1" * 32, "2" * 16, "x", 1, 2, attributes={"half \ud83d": ["half \ud83d"]})
    [back, of_span] = [decode_record(encode_record(record)) for record in (reward, span)]
    assert isinstance(back, Reward)
    assert back.explanation == "half \ufffd a pair"
    assert isinstance(of_span, SpanRow)
    assert of_span.attributes == {"half \ufffd": ["half \ufffd"]}
