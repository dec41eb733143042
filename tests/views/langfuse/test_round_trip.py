"""What is pushed to Langfuse and pulled into an empty directory is what was stored: spans, runs and rewards."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langfuse import LangfuseOtelSpanAttributes
from langfuse.api import CreateScoreRequest, GetScoresV3Response, ObservationsV2Response
from langfuse.api.core.pydantic_utilities import parse_obj_as
from langfuse_server import LangfuseServer, langfuse_server
from recorded_runs import recorded_group
from simulated_agent import Run, message, research_run, result

from arttrace.capture.base.langfuse_project import Connection
from arttrace.formats.sdks.conventions import normalise
from arttrace.formats.sdks.langfuse import names
from arttrace.formats.sdks.langfuse.api import observation as read_observation
from arttrace.formats.sdks.langfuse.writing import ShownRun, observation
from arttrace.formats.sdks.openai_messages import answers, inputs
from arttrace.records import semconv
from arttrace.records.record import Record
from arttrace.records.reward import Reward
from arttrace.records.span import SpanRow
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.views.langfuse.client import LangfuseClient
from arttrace.views.langfuse.pull import TraceQuery, pull
from arttrace.views.langfuse.push import Pushed, push
from arttrace.views.langfuse.state import PullCursor, SentRuns
from arttrace.wire.messages import openai_message, parse_message


def _stored(path: Path, records: list[Record]) -> DataDir:
    data = DataDir(path)
    with Store.open(data, create=True) as store:
        store.append(records)
    return data


def _push(data: DataDir, server: LangfuseServer, **given: bool) -> Pushed:
    connection = Connection.resolve(server.environ())
    with Store.open(data) as store, LangfuseClient(connection, sleep=lambda _: None) as client:
        return push(store, client, connection, SentRuns(data, connection), **given)


def _pull(path: Path, server: LangfuseServer, query: TraceQuery | None = None) -> DataDir:
    data, connection, asked = DataDir(path), Connection.resolve(server.environ()), query or TraceQuery()
    with Store.open(data, create=True) as store, LangfuseClient(connection, sleep=lambda _: None) as client:
        pull(store, client, asked, PullCursor(data, connection, asked.id))
    return data


def _everything(data: DataDir) -> tuple[list[bytes], list[bytes]]:
    with Store.open(data) as store:
        runs = sorted(store.trajectories(), key=lambda run: run.id)
        spans = sorted(msgspec.json.encode(span) for run in runs for span in store.spans(run.id))
        return spans, [msgspec.json.encode(run, enc_hook=list) for run in runs]


RECORDS: list[Record] = [
    *research_run("one", scenario="s"),
    *research_run("two", scenario="s"),
    Reward(id="r1", trajectory_id="one", value=0.25, explanation="why", source="judge", name="ruler", time_ns=5),
    Reward(id="r2", trajectory_id="two", value=1.0, time_ns=7),
    Reward(id="r3", trajectory_id="two", value=2.0, time_ns=8, agent_id=Run("two").root_id, name="agents"),
    *recorded_group("g", [0.0, 1.0, None]),
]


def test_what_was_pushed_and_pulled_is_what_was_stored(tmp_path: Path) -> None:
    first = _stored(tmp_path / "one", RECORDS)
    with langfuse_server() as server:
        pushed = _push(first, server)
        second = _pull(tmp_path / "two", server)
    assert (pushed.runs, pushed.refused_spans, pushed.refused_scores) == (5, 0, 0)
    assert pushed.spans == len([one for one in RECORDS if isinstance(one, SpanRow)])
    assert _everything(second) == _everything(first)


def test_langfuses_own_types_read_what_is_written_and_answered(tmp_path: Path) -> None:
    data = _stored(tmp_path / "one", RECORDS)
    with langfuse_server() as server:
        _push(data, server)
        for body in server.scores.values():
            assert not parse_obj_as(CreateScoreRequest, body).model_extra, "fields that Langfuse does not know"
        _pull(tmp_path / "two", server)
        for page in server.pages:
            if page["data"] and "traceId" in page["data"][0]:
                observations = parse_obj_as(ObservationsV2Response, page).data
                assert observations
                assert not [one.model_extra for one in observations if one.model_extra]
            else:
                parse_obj_as(GetScoresV3Response, page)
    ours = {value for name, value in vars(names).items() if name.isupper() and name != "SPAN_KEY"}
    theirs = {value for name, value in vars(LangfuseOtelSpanAttributes).items() if name.isupper()}
    assert ours <= theirs


def test_a_second_push_sends_nothing_and_changes_nothing(tmp_path: Path) -> None:
    data = _stored(tmp_path / "one", RECORDS)
    with langfuse_server() as server:
        _push(data, server)
        before, requests = (dict(server.observations), dict(server.scores)), len(server.requests)
        again = _push(data, server)
        assert (again.runs, again.spans, again.scores, again.known) == (0, 0, 0, 5)
        assert len(server.requests) == requests
        for file in (data.root / "langfuse").iterdir():
            file.unlink()
        whole = _push(data, server)
        assert whole.runs == 5
        assert (server.observations, server.scores) == before


def test_a_new_reward_sends_scores_alone(tmp_path: Path) -> None:
    data = _stored(tmp_path / "one", RECORDS)
    with langfuse_server() as server:
        _push(data, server)
        with Store.open(data) as store:
            store.append([Reward(id="r9", trajectory_id="one", value=0.5, name="late", time_ns=9)])
        pushed = _push(data, server)
        assert (pushed.runs, pushed.spans) == (0, 0)
        assert [one["value"] for one in server.scores.values() if one["name"] == "late"] == [0.5]


def test_what_a_person_sees_there(tmp_path: Path) -> None:
    run = Run("seen", entry="shop:answer")
    asked = [message("system", "Help."), message("user", "Where is it?")]
    call = message("assistant", calls=(("c1", "find", '{"id": 7}'),))
    call["parts"].insert(0, {"type": "reasoning", "content": "look it up"})
    run.chat(
        "m1",
        asked,
        call,
        at=10,
        TOOL_DEFINITIONS=json.dumps([{"type": "function", "function": {"name": "find", "parameters": {}}}]),
        REQUEST_TEMPERATURE=0.5,
        RESPONSE_FINISH_REASONS=["tool_calls"],
        RESPONSE_TIME_TO_FIRST_CHUNK=0.25,
        USAGE_INPUT_TOKENS=100,
        USAGE_CACHE_READ_INPUT_TOKENS=60,
        USAGE_OUTPUT_TOKENS=20,
        USAGE_REASONING_OUTPUT_TOKENS=5,
    )
    run.tool("t1", "find", at=20, until=21, TOOL_CALL_ARGUMENTS='{"id": 7}', TOOL_CALL_RESULT='"in Bern"')
    run.chat("m2", [*asked, call, result("c1", "in Bern")], message("assistant", "In Bern."), at=30)
    run.end(
        ENTRY_ARGUMENTS='{"question": "Where is it?"}',
        ENTRY_RESULT='"In Bern."',
        TAGS=["beta"],
        METADATA='{"user_id": "u1", "session_id": "s1", "shop": "bern"}',
    )
    data = _stored(tmp_path, list(run.spans))
    with langfuse_server() as server:
        _push(data, server)
        seen = {one["id"]: one for one in server.observations.values()}
    chat, tool, root = (seen[run.span_id(name)] for name in ("m1", "t1", "root"))
    assert [one["type"] for one in (chat, tool, root)] == ["GENERATION", "TOOL", "AGENT"]
    assert json.loads(chat["input"]) == {
        "messages": [{"role": "system", "content": "Help."}, {"role": "user", "content": "Where is it?"}],
        "tools": [{"type": "function", "function": {"name": "find", "parameters": {}}}],
    }
    assert json.loads(chat["output"]) == {
        "role": "assistant",
        "content": None,
        "thinking": [{"type": "thinking", "content": "look it up"}],
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"id": 7}'}}],
    }
    assert chat["usageDetails"] == {
        "input": 40, "input_cached_tokens": 60, "output": 15, "output_reasoning_tokens": 5, "total": 120,
    }  # fmt: skip
    assert chat["modelParameters"] == {"temperature": 0.5}
    assert chat["completionStartTime"].endswith("+00:00")
    assert (tool["input"], tool["output"]) == ('{"id": 7}', '"in Bern"')
    assert (root["input"], root["output"]) == ('{"question": "Where is it?"}', '"In Bern."')
    for one in seen.values():
        assert (one["userId"], one["sessionId"], one["tags"], one["traceName"]) == ("u1", "s1", ["beta"], "answer")
    assert root["metadata"]["shop"] == "bern"


def test_a_person_sees_there_what_is_no_error_and_not_as_it_should_be(tmp_path: Path) -> None:
    run = Run("odd")
    asked = [message("user", "Where?")]
    run.chat("cut", asked, message("assistant", "In B"), at=10, RESPONSE_FINISH_REASONS=["max_tokens"])
    run.chat("closed", asked, message("assistant", "In B"), at=20, INTERRUPTED="closed")
    run.chat("whole", asked, message("assistant", "In Bern."), at=30, RESPONSE_FINISH_REASONS=["stop"])
    run.chat("failed", asked, at=40, INTERRUPTED="error", OUTPUT_MESSAGES=None)
    run.spans[-1] = msgspec.structs.replace(run.spans[-1], status_code=2, status_message="ReadError")
    data = _stored(tmp_path / "one", list(run.end(at=50)))
    with langfuse_server() as server:
        _push(data, server)
        seen = {one["id"]: one for one in server.observations.values()}
        back = _pull(tmp_path / "two", server)
    said = {name: (seen[run.span_id(name)]["level"], seen[run.span_id(name)]["statusMessage"]) for name in _ODD}
    assert said == _ODD
    assert _everything(back) == _everything(data)


_ODD = {
    "cut": ("WARNING", "ended by length"),
    "closed": ("WARNING", "interrupted: closed"),
    "whole": ("DEFAULT", None),
    "failed": ("ERROR", "ReadError"),
}


def test_runs_of_a_group_are_experiments_with_the_group_as_item(tmp_path: Path) -> None:
    data = _stored(tmp_path, recorded_group("g", [0.0, 1.0]))
    with langfuse_server() as server:
        _push(data, server)
        said = {
            (
                one["metadata"]["attributes.langfuse.experiment.name"],
                one["metadata"]["attributes.langfuse.experiment.item.id"],
            )
            for one in server.observations.values()
        }
        assert said == {("agent:run #1", "g"), ("agent:run #2", "g")}
        assert sorted(one["value"] for one in server.scores.values() if one["name"] == "advantage") == [-0.5, 0.5]


@pytest.mark.parametrize("model", ["model", "providedModelName"])
def test_an_observation_of_another_tracer_becomes_a_span_that_can_be_trained_on(model: str) -> None:
    """Of newer servers, and of those up to 4.16."""
    item = {
        "id": "0123456789abcdef",
        "traceId": "0123456789abcdef0123456789abcdef",
        "parentObservationId": None,
        "isRootObservation": True,
        "type": "GENERATION",
        "name": "ask",
        "startTime": "2026-11-20T10:00:00.000Z",
        "endTime": "2026-11-20T10:00:01.500Z",
        "level": "DEFAULT",
        model: "gpt-4o",
        "modelParameters": {"temperature": 0.2},
        "usageDetails": {"input": 5, "input_cached_tokens": 2, "output": 3, "total": 10},
        "input": '[{"role": "user", "content": "hi"}]',
        "output": '{"role": "assistant", "content": "hello"}',
        "tags": ["t"],
        "sessionId": "s",
        "metadata": {"ticket": "42", "attributes.gen_ai.response.id": "resp-1"},
    }
    span = read_observation(item)
    got = normalise(span).attributes
    assert got[semconv.OPERATION_NAME] == semconv.OPERATION_CHAT
    assert json.loads(got[semconv.INPUT_MESSAGES])[0]["role"] == "user"
    assert (got[semconv.REQUEST_MODEL], got[semconv.REQUEST_TEMPERATURE]) == ("gpt-4o", 0.2)
    assert (got[semconv.USAGE_INPUT_TOKENS], got[semconv.USAGE_OUTPUT_TOKENS]) == (7, 3)
    assert (got[semconv.TAGS], json.loads(got[semconv.METADATA])) == (["t"], {"ticket": "42", "session_id": "s"})
    assert span.end_ns - span.start_ns == 1_500_000_000


@pytest.mark.parametrize("change", ["input", "output"])
def test_an_observation_that_was_edited_there_is_read_as_it_is_now(change: str) -> None:
    run = Run("edited")
    asked, said = inputs([{"role": "user", "content": "a"}]), answers([{"role": "assistant", "content": "b"}])
    run.chat("m1", [], message("assistant", "b"), at=10, INPUT_MESSAGES=asked, OUTPUT_MESSAGES=said)
    span = run.end()[0]
    shown = observation(span, ShownRun(name="x", root=(run.trace_id, run.root_id)))
    item = {
        "id": span.span_id, "traceId": span.trace_id, "type": "GENERATION", "name": span.name,
        "startTime": "2026-01-01T00:00:00.000Z", "endTime": "2026-01-01T00:00:01.000Z",
        "input": shown.attributes[names.INPUT], "output": shown.attributes[names.OUTPUT],
        "metadata": {names.SPAN_KEY: shown.attributes[f"{names.METADATA}.{names.SPAN_KEY}"]},
    }  # fmt: skip
    assert '"a"' not in item["metadata"][names.SPAN_KEY]
    assert read_observation(item) == span
    del item[change]
    assert read_observation(item) != span


_text = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
_content = st.none() | _text | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": _text}), max_size=3)
_call = st.fixed_dictionaries(
    {"id": _text, "type": st.just("function"), "function": st.fixed_dictionaries({"name": _text, "arguments": _text})}
)
_openai = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": _content},
    optional={
        "tool_calls": st.lists(_call, max_size=2),
        "reasoning_content": _text,
        "name": _text,
        "tool_call_id": _text,
    },
)


@given(_openai)
def test_a_message_in_openais_form_and_back_is_the_same_message(chat: dict[str, object]) -> None:
    read = parse_message(chat)
    assert parse_message(openai_message(read)) == read
