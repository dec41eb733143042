"""GenAI events in OTLP log records join the spans that they are about, whichever come first: as Google ADK 2.13 sends
them by OpenTelemetry's exporter (recorded with a scripted model), and as the conventions have had them."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from google.protobuf.json_format import MessageToDict, ParseDict
from langfuse_server import langfuse_server
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from simulated_agent import Run, message

from arttrace.capture.base.langfuse_project import Connection
from arttrace.commands import cli
from arttrace.formats.imported_files import Unreadable, read_file
from arttrace.records.message import Message, TextPart, ToolCallPart, ToolResultPart
from arttrace.records.semconv import CONVERSATION_ID
from arttrace.records.span import SpanRow
from arttrace.records.trajectory import Trajectory
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.trajectories.identity.stand_ins import is_stand_in
from arttrace.views.langfuse.client import LangfuseClient
from arttrace.views.langfuse.push import push
from arttrace.views.langfuse.state import SentRuns
from arttrace.views.run_filter import runs_with

RECORDED: dict[str, dict[str, str]] = json.loads(
    Path(__file__).with_name("data").joinpath("google_adk_otlp.json").read_text()
)
SYSTEM = 'You double.\n\nYou are an agent. Your internal name is "helper". The description about you is "Doubles.".'


def recorded(schema: str, kind: str) -> bytes:
    return gzip.decompress(base64.b64decode(RECORDED[schema][kind]))


def as_json(logs: bytes) -> bytes:
    """The same request in OTLP's JSON, whose ids are hex."""
    document = MessageToDict(ExportLogsServiceRequest.FromString(logs))
    for of_resource in document["resourceLogs"]:
        for of_scope in of_resource["scopeLogs"]:
            for record in of_scope["logRecords"]:
                for name in ("traceId", "spanId"):
                    record[name] = base64.b64decode(record[name]).hex()
    return json.dumps(document).encode()


def as_protobuf(logs: bytes) -> bytes:
    """The same request in protobuf."""
    document = json.loads(logs)
    for of_resource in document["resourceLogs"]:
        for of_scope in of_resource["scopeLogs"]:
            for record in of_scope["logRecords"]:
                for name in ("traceId", "spanId"):
                    record[name] = base64.b64encode(bytes.fromhex(record[name])).decode()
    return ParseDict(document, ExportLogsServiceRequest()).SerializeToString()


def check(run: Trajectory) -> None:
    assert (run.unread, run.incomplete) == ({}, "")
    names = {agent.id: agent.name for agent in run.agents}
    assert sorted(names[placed.agent_id] for placed in run.calls) == ["boss", "boss", "helper", "helper"]
    call = next(
        one.call for one in reversed(run.calls) if names[one.agent_id] == "helper" and len(one.call.messages) == 4
    )
    assert call.messages[:3] == (
        Message("system", (TextPart(SYSTEM),)),
        Message("user", (TextPart("Double 21"),)),
        Message("assistant", (ToolCallPart("double", '{"number":21}', "fc1"),)),
    )
    assert call.messages[3].parts == (ToolResultPart({"result": "42"}, "fc1"),)
    (choice,) = call.choices
    assert (choice.message, choice.finish_reason) == (Message("assistant", (TextPart("It is 42."),)), "stop")
    assert (call.input_tokens, call.output_tokens) == (10, 3)


def check_sql(store: Store, run: Trajectory) -> None:
    """`sql` and a search have what the trajectory has."""
    _, rows = store.sql("SELECT span_id, role, message FROM messages ORDER BY span_id, position")
    calls = sorted((placed.call for placed in run.calls), key=lambda call: call.span_id)
    given = [(call.span_id, one.role, json.loads(msgspec.json.encode(one))) for call in calls for one in call.messages]
    assert [(id, role, json.loads(message)) for id, role, message in rows] == given
    assert len(given) > 4
    _, rows = store.sql("SELECT output_messages FROM calls WHERE span_id = (SELECT max(span_id) FROM calls)")
    assert json.loads(rows[0][0]) == [json.loads(msgspec.json.encode(one.message)) for one in calls[-1].choices]
    assert runs_with(store, "It is 42.") == {run.id}


@pytest.mark.parametrize(("first", "form"), [("traces", bytes), ("logs", as_json)], ids=["protobuf", "JSON"])
@pytest.mark.parametrize("schema", RECORDED)
def test_messages_of_google_adk_are_read(schema: str, first: str, form: Any, tmp_path: Path) -> None:
    requests = {"traces": recorded(schema, "traces"), "logs": form(recorded(schema, "logs"))}
    order = ["traces", "logs"] if first == "traces" else ["logs", "traces"]
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(read_file(requests[order[0]], "x").records)
        before = store.trajectories()
        if first == "traces":
            (run,) = before
            assert (len(run.calls), sum(run.unread.values())) == (4, 4)
            (summary,) = store.summaries()
            assert sum(summary.unread.values()) == 4
        else:
            assert before == []
        for _ in range(2):  # what arrives twice is there once
            store.append(read_file(requests[order[1]], "x").records)
        (run,) = store.trajectories()
        check(run)
        check_sql(store, run)
        (summary,) = store.summaries()
        assert summary.revision == run.revision != (before[0].revision if before else "")
        assert summary.unread == {}
        store.append(read_file(requests["logs"], "x").records)
        assert store.trajectories()[0].revision == run.revision


def test_import_takes_files_of_logs(tmp_path: Path) -> None:
    for kind in ("traces", "logs"):
        (tmp_path / f"{kind}.pb").write_bytes(recorded("schema 2", kind))
    arguments = ["import", "--dir", str(tmp_path / "d"), str(tmp_path / "logs.pb"), str(tmp_path / "traces.pb")]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    assert "logs.pb: 1 otlp: 1 trace, 4 spans" in done.output
    with Store.open(DataDir(tmp_path / "d")) as store:
        check(store.trajectories()[0])


@pytest.mark.parametrize("form", [bytes, as_json], ids=["protobuf", "JSON"])
def test_a_damaged_record_of_a_file_is_refused_alone(form: Any) -> None:
    given = recorded("schema 2", "logs")
    whole = read_file(form(given), "x")
    request = ExportLogsServiceRequest.FromString(given)
    first = request.resource_logs[0].scope_logs[0].log_records[0]
    if form is bytes:
        first.severity_text = "damaged"
        damaged = request.SerializeToString().replace(b"damaged", b"\xffamaged")
    else:
        document = json.loads(as_json(given))
        document["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0]["timeUnixNano"] = "soon"
        damaged = json.dumps(document).encode()
    found = read_file(damaged, "x")
    assert (whole.refused, found.refused, found.spans) == (0, 1, len(whole.records) - 1)
    assert [is_stand_in(one) for one in found.records if isinstance(one, SpanRow)].count(True) == 1
    assert "log record" in found.reasons[0]


def record(name: str, body: Any = None, **more: Any) -> dict[str, Any]:
    given = {"body": fields(**body)} if body else {}
    about = {"timeUnixNano": "1000", "traceId": "1" * 32, "spanId": "a" * 16, "eventName": name}
    return {**about, **given, **more}


def fields(**values: Any) -> dict[str, Any]:
    return {"kvlistValue": {"values": [{"key": key, "value": value} for key, value in values.items()]}}


def logs(*records: dict[str, Any]) -> bytes:
    return json.dumps({"resourceLogs": [{"scopeLogs": [{"scope": {"name": "s"}, "logRecords": records}]}]}).encode()


def text(value: str) -> dict[str, str]:
    return {"stringValue": value}


CALL = json.dumps(
    {
        "resourceSpans": [
            {
                "scopeSpans": [
                    {
                        "spans": [
                            {
                                "traceId": "1" * 32,
                                "spanId": "a" * 16,
                                "name": "chat m",
                                "startTimeUnixNano": "500",
                                "endTimeUnixNano": "2000",
                                "attributes": [{"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}}],
                            }
                        ]
                    }
                ]
            }
        ]
    }
).encode()


def read(directory: Path, *records: dict[str, Any]) -> Trajectory:
    with Store.open(DataDir(directory), create=True) as store:
        store.append(read_file(CALL, "x").records)
        store.append(read_file(logs(*records), "x").records)
        (run,) = store.trajectories()
    return run


def test_the_conventions_older_events_are_read_in_order_of_time(tmp_path: Path) -> None:
    attribute = [{"key": "event.name", "value": {"stringValue": "gen_ai.user.message"}}]
    message = fields(content=text("Rain."), role=text("assistant"))
    answer = {"index": {"intValue": "0"}, "finish_reason": text("stop"), "message": message}
    run = read(
        tmp_path,
        record("gen_ai.choice", answer),
        record("", {"content": text("Weather?")}, attributes=attribute, timeUnixNano="0", observedTimeUnixNano="900"),
        record("gen_ai.system.message", {"content": text("Be kind.")}, timeUnixNano="900"),
        record("http.request", {"content": text("not ours")}),
    )
    (placed,) = run.calls
    assert placed.call.messages == (
        Message("system", (TextPart("Be kind."),)),
        Message("user", (TextPart("Weather?"),)),
    )
    (choice,) = placed.call.choices
    assert (choice.message, choice.finish_reason) == (Message("assistant", (TextPart("Rain."),)), "stop")
    assert run.unread == {}


def test_a_streamed_answer_in_several_events_is_one(tmp_path: Path) -> None:
    def chunk(said: str, number: int, **more: Any) -> dict[str, Any]:
        body = {"content": text(said), "index": {"intValue": "0"}, **more}
        return record("gen_ai.choice", body, timeUnixNano=str(1000 + number))

    run = read(tmp_path, chunk("It ", 1), chunk("is ", 2), chunk("42.", 3, finish_reason=text("stop")))
    (choice,) = run.calls[0].call.choices
    assert (choice.message.text, choice.finish_reason) == ("It is 42.", "stop")


@pytest.mark.parametrize("form", [bytes, as_protobuf])
def test_messages_that_a_coarse_clock_gives_one_time_stay_in_order_and_are_not_one(form: Any, tmp_path: Path) -> None:
    said = [("user", "go on"), ("assistant", "one"), ("user", "go on"), ("assistant", "two"), ("user", "go on")]
    records = [record(f"gen_ai.{role}.message", {"content": text(words)}) for role, words in said]
    answer = record("gen_ai.choice", {"index": {"intValue": "0"}, "message": fields(content=text("three"))})
    sent = form(logs(answer, *records, record("gen_ai.system.message", {"content": text("Count.")})))
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(read_file(CALL, "x").records)
        for _ in range(2):  # sent twice it is there once
            store.append(read_file(sent, "x").records)
        (run,) = store.trajectories()
    (placed,) = run.calls
    assert [(m.role, m.text) for m in placed.call.messages] == [("system", "Count."), *said]
    assert [choice.message.text for choice in placed.call.choices] == ["three"]
    assert run.incomplete == ""


def test_an_object_of_spans_and_logs_is_read_whole(tmp_path: Path) -> None:
    both = {**json.loads(CALL), **json.loads(logs(record("gen_ai.user.message", {"content": text("Hi")})))}
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(read_file(json.dumps(both).encode(), "x").records)
        (run,) = store.trajectories()
    assert [message.text for message in run.calls[0].call.messages] == ["Hi"]


def test_an_event_whose_span_did_not_arrive_makes_its_run_incomplete(tmp_path: Path) -> None:
    run = read(tmp_path, record("gen_ai.choice", {"content": text("x")}, spanId="b" * 16))
    assert "missing" in run.incomplete or "did not arrive" in run.incomplete


def test_an_event_whose_span_did_not_arrive_is_missed_in_every_run_of_its_trace_that_may_lack_it(
    tmp_path: Path,
) -> None:
    """Each of two conversations may; a run that names itself counts its spans, and the event is about another SDK's."""
    named = Run("named")
    named.chat("c", [message("user", "u")], message("assistant", "a"), at=1)
    ours = [msgspec.structs.replace(one, trace_id="1" * 32) for one in named.end()]
    for lost, why in ((False, ""), (True, "may lack spans whose parent did not arrive: 1")):
        call = read_file(CALL, "x").records[0]
        assert isinstance(call, SpanRow)
        calls = [
            msgspec.structs.replace(call, span_id=letter * 16, attributes={**call.attributes, CONVERSATION_ID: letter})
            for letter in "abc"
        ]
        events = read_file(logs(record("gen_ai.user.message", {"content": text("hi")})), "x").records
        with Store.open(DataDir(tmp_path / str(lost)), create=True) as store:
            for given in (events, calls[lost:], ours):
                store.append(given)
            found = {one.id.partition(":")[2] or one.id: one.incomplete for one in store.summaries()}
            assert found == {"named": "", "b": why, "c": why} | ({} if lost else {"a": ""})


@pytest.mark.parametrize("form", [bytes, as_protobuf], ids=["JSON", "protobuf"])
def test_a_run_of_which_an_import_refused_an_event_is_not_complete(form: Any, tmp_path: Path) -> None:
    """Whoever looks at it learns why; the same file again changes nothing."""
    (tmp_path / "spans.json").write_bytes(CALL)
    event = record("gen_ai.user.message", {"content": text("hello")})
    bad = {**event, "spanId": ""}
    (tmp_path / "logs").write_bytes(form(logs(bad, event)))
    for _ in range(2):
        for name, refused in (("spans.json", 0), ("logs", 1)):
            arguments = ["import", "--dir", str(tmp_path / "d"), str(tmp_path / name), "--json"]
            [done] = json.loads(CliRunner().invoke(cli, arguments).stdout_bytes.splitlines()[0])
            assert (done["refused"], done["spans"]) == (refused, 1)
        with Store.open(DataDir(tmp_path / "d")) as store:
            (run,) = store.trajectories()
            (summary,) = store.summaries()
        assert run.incomplete == summary.incomplete
        assert run.incomplete.startswith("a log record was refused: ")
        assert run.incomplete.endswith("it names no span")
    for command in (["show", run.id], ["ls", "--json"]):
        shown = CliRunner().invoke(cli, [*command, "--dir", str(tmp_path / "d")]).output
        assert "a log record was refused: " in " ".join(shown.split())


def test_events_without_a_span_are_refused_and_other_logs_are_not_kept() -> None:
    found = read_file(logs(record("gen_ai.choice", {"content": text("x")}, spanId="")), "x")
    assert (found.spans, found.refused) == (0, 1)
    found = read_file(logs(record("gen_ai.choice", {"content": text("x")}, spanId="", traceId="")), "x")
    assert (found.records, found.refused) == ([], 1)
    assert read_file(logs(record("http.request")), "x").records == []
    with pytest.raises(Unreadable):
        read_file(b'{"resourceLogs": 7}', "x")


def test_a_push_to_langfuse_has_the_messages_of_log_records(tmp_path: Path) -> None:
    with Store.open(DataDir(tmp_path), create=True) as store, langfuse_server() as server:
        store.append(read_file(recorded("schema 2", "logs"), "x").records)
        store.append(read_file(recorded("schema 2", "traces"), "x").records)
        connection = Connection.resolve(server.environ())
        with LangfuseClient(connection, sleep=lambda _: None) as client:
            push(store, client, connection, SentRuns(DataDir(tmp_path), connection))
        calls = [one for one in server.observations.values() if one["type"] == "GENERATION"]
        assert len(calls) == 4
        assert any("Double 21" in json.dumps(one["input"]) for one in calls)
        assert all(one["input"] and one["output"] for one in calls)
        assert not [one for one in server.observations.values() if one["name"].startswith("log ")]
