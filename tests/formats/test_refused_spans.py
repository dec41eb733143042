"""A run of which an import refused a span is not complete, until that span is imported as it should be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from arttrace.commands import cli
from arttrace.formats.imported_files import read_file
from arttrace.formats.otlp.encode_protobuf import encode_protobuf
from arttrace.records import semconv
from arttrace.records.record import encode_record
from arttrace.records.span import SpanRow
from arttrace.store import Store
from arttrace.system.paths import DataDir

TRACE, ROOT, LEAF = "ab" * 16, "0a" * 8, "0c" * 8
START = 1_700_000_000_000_000_000
TIMES = {"startTime": "2026-03-01T10:00:00.000Z", "endTime": "2026-03-01T10:00:01.000Z"}
SNAKE = {"start_time": "2026-03-01T10:00:00.000Z", "end_time": "2026-03-01T10:00:01.000Z"}


def otlp(*spans: dict[str, Any]) -> dict[str, Any]:
    return {"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}


def otlp_span(id: str, operation: str, parent: str = ROOT, **more: Any) -> dict[str, Any]:
    return {
        "traceId": TRACE,
        "spanId": id,
        "parentSpanId": parent,
        "name": operation,
        "startTimeUnixNano": str(START),
        "endTimeUnixNano": str(START + 1000),
        "attributes": [{"key": "gen_ai.operation.name", "value": {"stringValue": operation}}],
        **more,
    }


def record(id: str, operation: str, parent: str | None = ROOT) -> dict[str, Any]:
    attributes = {semconv.OPERATION_NAME: operation}
    row = SpanRow(TRACE, id, operation, START, START + 1000, parent_span_id=parent, attributes=attributes)
    return json.loads(encode_record(row))


def observation(id: str, kind: str, parent: str | None = ROOT) -> dict[str, Any]:
    return {"traceId": TRACE, "id": id, "parentObservationId": parent, "type": kind, "output": "yes", **TIMES}


def langsmith(id: str, kind: str, parent: str | None = ROOT) -> dict[str, Any]:
    given = {"inputs": {"prompt": "a"}, "outputs": {"output": "b"}}
    return {"trace_id": TRACE, "id": id, "parent_run_id": parent, "run_type": kind, "name": kind, **given, **SNAKE}


def braintrust(id: str, kind: str, parent: str | None = ROOT) -> dict[str, Any]:
    metrics = {"start": 1_700_000_000.0, "end": 1_700_000_001.0}
    ids = {"root_span_id": TRACE, "span_id": id, "span_parents": [parent] if parent else None}
    return {**ids, "span_attributes": {"type": kind}, "metrics": metrics, "input": "a", "output": "b"}


def weave(id: str, kind: str, parent: str | None = ROOT) -> dict[str, Any]:
    ids = {"trace_id": TRACE, "id": id, "parent_id": parent, "op_name": kind, "attributes": {"weave": {"kind": kind}}}
    times = {"started_at": SNAKE["start_time"], "ended_at": SNAKE["end_time"]}
    return {**ids, "inputs": {"messages": [{"role": "user", "content": "a"}]}, "output": "b", **times}


def phoenix(id: str, kind: str, parent: str | None = ROOT) -> dict[str, Any]:
    return {"context": {"trace_id": TRACE, "span_id": id}, "parent_id": parent, "span_kind": kind, **SNAKE}


FORMS: dict[str, tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any]]] = {
    "otlp": (
        [otlp(otlp_span(ROOT, "invoke_agent", ""))],
        otlp(otlp_span(LEAF, "chat", startTimeUnixNano="soon")),
        otlp(otlp_span(LEAF, "chat")),
    ),
    "records": (
        [record(ROOT, "invoke_agent", None)],
        {**record(LEAF, "chat"), "start_ns": -1},
        record(LEAF, "chat"),
    ),
    "langfuse": (
        [observation(ROOT, "AGENT", None)],
        {**observation(LEAF, "GENERATION"), "startTime": "soon"},
        observation(LEAF, "GENERATION"),
    ),
    "langsmith": (
        [langsmith(ROOT, "chain", None)],
        {**langsmith(LEAF, "llm"), "start_time": "soon"},
        langsmith(LEAF, "llm"),
    ),
    "braintrust": (
        [braintrust(ROOT, "task", None)],
        {**braintrust(LEAF, "llm"), "metrics": {}},
        braintrust(LEAF, "llm"),
    ),
    "weave": (
        [weave(ROOT, "agent", None)],
        {**weave(LEAF, "llm"), "started_at": "soon"},
        weave(LEAF, "llm"),
    ),
    "phoenix": (
        [phoenix(ROOT, "AGENT", None)],
        {**phoenix(LEAF, "LLM"), "start_time": "soon"},
        phoenix(LEAF, "LLM"),
    ),
}


class Site:
    """A store that files are imported into by the command."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data = folder, DataDir(folder / "data")

    def take(self, content: bytes) -> dict[str, Any]:
        file = self.folder / "spans.jsonl"
        file.write_bytes(content)
        result = CliRunner().invoke(cli, ["import", str(file), "--dir", str(self.data.root), "--json"])
        return json.loads(result.stdout_bytes.splitlines()[0])[0]

    def incomplete(self) -> list[str]:
        with Store.open(self.data) as store:
            return [one.incomplete for one in store.summaries()]


def lines(*items: Any) -> bytes:
    return b"\n".join(map(msgspec.json.encode, items))


@pytest.mark.parametrize(("form", "nested"), [("otlp", True), *((form, False) for form in FORMS)])
def test_a_run_of_which_a_line_was_refused_is_not_complete(tmp_path: Path, form: str, nested: bool) -> None:
    site = Site(tmp_path)
    good, bad, mended = FORMS[form]
    taken = site.take(lines(*good, json.dumps(bad) if nested else bad))
    assert (taken["refused"], taken["spans"], taken["traces"]) == (1, 1, 1)
    [said] = site.incomplete()
    assert said.startswith("a span was refused: ")
    assert len(said) < 400
    assert site.take(lines(*good, mended))["refused"] == 0
    assert site.incomplete() == [""]


def test_an_observation_without_an_id_is_missed(tmp_path: Path) -> None:
    site = Site(tmp_path)
    whole = {"id": TRACE, "observations": [observation(ROOT, "AGENT", None), {"type": "GENERATION", **TIMES}]}
    site.take(lines(whole))
    assert site.incomplete() == ["a span was refused: an observation without an id"]


def test_the_same_holds_for_protobuf(tmp_path: Path) -> None:
    site = Site(tmp_path)
    rows = [
        msgspec.convert(record(id, what, parent), SpanRow)
        for id, what, parent in ((ROOT, "invoke_agent", None), (LEAF, "chat", ROOT))
    ]
    whole = encode_protobuf(rows[:1]) + encode_protobuf(rows[1:])
    assert site.take(whole.replace(b"\x2a\x04chat", b"\x2a\x04ch\xfft"))["refused"] == 1
    assert site.incomplete()[0].startswith("a span was refused: ")
    site.take(whole)
    assert site.incomplete() == [""]


def test_a_run_stays_incomplete_when_it_is_exported_and_imported(tmp_path: Path) -> None:
    site, again = Site(tmp_path), Site(tmp_path / "again")
    again.folder.mkdir()
    good, bad, _ = FORMS["otlp"]
    site.take(lines(*good, bad))
    for form in ("otlp-json", "otlp-protobuf"):
        for ids in ([], [TRACE]):
            arguments = ["export", *ids, "--format", form, "--dir", str(site.data.root)]
            exported = CliRunner().invoke(cli, arguments).stdout_bytes
            assert again.take(exported)["refused"] == 0
            assert again.incomplete() == site.incomplete() != [""]


def test_refused_spans_are_not_counted_as_spans() -> None:
    found = read_file(lines(*FORMS["otlp"][0], FORMS["otlp"][1]), "x")
    assert (found.spans, found.traces, found.refused, found.unread) == (1, 1, 1, {})


@pytest.mark.parametrize("form", list(FORMS))
def test_what_stands_in_for_them_counts_neither_as_new_nor_as_stored(tmp_path: Path, form: str) -> None:
    site = Site(tmp_path)
    good, bad, mended = FORMS[form]
    for new, stored in ((1, 0), (0, 1)):
        taken = site.take(lines(*good, bad))
        assert (taken["new"], taken["already_stored"], taken["refused"]) == (new, stored, 1)
    taken = site.take(lines(*good, mended))
    assert (taken["new"], taken["already_stored"], taken["refused"]) == (1, 1, 0)


def test_an_object_that_says_nothing_is_called_so() -> None:
    found = read_file(lines(FORMS["otlp"][0][0], {}), "x")
    assert (found.refused, found.reasons) == (1, ["line 2: an object without any keys"])
