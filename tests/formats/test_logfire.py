"""Calls that Logfire recorded in two spans, one of the request and, when its stream has ended, a log of what came
(data/make_logfire.py), are one: by import, in SQL, in whatever order the spans come, and where some never come. Before
version 5 it writes, where nothing else is asked of it, the request's body and the answer in a form of its own."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from system_files import lines

from arttrace.formats.imported_files import read_file
from arttrace.formats.sdks import conventions
from arttrace.records.message import ReasoningPart
from arttrace.records.record import encode_record
from arttrace.records.span import SpanRow
from arttrace.records.trajectory import AgentCall, Trajectory
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.views.costs.prices import Prices
from arttrace.views.costs.usage import Cost, cost_of_run

FILE = Path(__file__).parent / "data" / "logfire_streams.json"
OF_VERSION_4 = FILE.with_name("logfire_4.json")
STREAMS = ("stream", "generator", "async_stream", "responses")
TYPE = "logfire.span_type"


def recorded(program: str, file: Path = FILE) -> list[SpanRow]:
    """The spans of one program: the root, and those below it in the order in which they began."""
    spans = [span for span in read_file(file.read_bytes(), file.name).records if isinstance(span, SpanRow)]
    [root] = [span for span in spans if span.name == program]
    below = [span for span in spans if span.parent_span_id == root.span_id]
    return [root, *sorted(below, key=lambda span: span.start_ns)]


class Seen(NamedTuple):
    """What the store says of a run: built, and in SQL its calls (times and tokens) and what they cost."""

    run: Trajectory
    in_sql: list[tuple[Any, ...]]
    of_run: tuple[Any, ...]
    cost: Cost


def seen(spans: list[SpanRow], directory: Path) -> Seen:
    with Store.open(DataDir(directory), create=True) as store:
        for span in spans:
            store.append([span])
        [run] = store.trajectories()
        calls = store.sql("SELECT start_ns, end_ns, input_tokens, output_tokens FROM spans WHERE operation = 'chat'")[1]
        [of_run] = store.sql("SELECT calls, (SELECT count(*) FROM calls), output_tokens FROM trajectories")[1]
        cost = cost_of_run(store, run.id, Prices({}, {}))
    return Seen(run, calls, of_run, cost)


def said(placed: AgentCall) -> tuple[str, str]:
    """What a call was asked and answered."""
    [choice] = placed.call.choices
    return placed.call.messages[-1].text, choice.message.text


@pytest.mark.parametrize("program", STREAMS)
def test_a_stream_is_one_call(program: str, tmp_path: Path) -> None:
    root, request, report = recorded(program)
    found = seen([root, request, report], tmp_path)
    [placed] = found.run.calls
    call = placed.call
    assert (found.run.incomplete, found.run.unread, call.error) == ("", {}, None)
    assert (said(placed)[0], said(placed)[1].strip()) == ("one", "seen one")
    assert call.choices[0].end == "stop"
    assert (call.start_ns, call.end_ns) == (request.start_ns, report.end_ns)
    assert (call.input_tokens, call.output_tokens) == (3, 2)
    assert found.in_sql == [(request.start_ns, report.end_ns, 3, 2)]
    assert found.of_run == (1, 1, 2)
    assert found.cost == Cost(2.75e-05, stated_usd=2.75e-05)


def test_a_stream_of_anthropics_is_one_call(tmp_path: Path) -> None:
    root, request, report = recorded("anthropic_stream")
    found = seen([root, request, report], tmp_path)
    [placed] = found.run.calls
    assert [(part.name, part.arguments) for part in placed.call.choices[0].message.tool_calls] == [
        ("weather", '{"town":"Rome"}')
    ]
    assert (placed.call.input_tokens, placed.call.output_tokens) == (10, 4)
    assert (placed.call.start_ns, placed.call.end_ns) == (request.start_ns, report.end_ns)
    assert found.of_run == (1, 1, 4)


def test_a_stream_that_is_broken_off_is_one_call_with_what_had_come(tmp_path: Path) -> None:
    found = seen(recorded("broken_off"), tmp_path)
    [placed] = found.run.calls
    assert said(placed) == ("one two three", "seen ")
    assert (placed.call.choices[0].end, placed.call.output_tokens) == (None, None)
    assert (found.run.unread, found.of_run) == ({}, (1, 1, None))


def test_two_streams_at_once_with_one_prompt_are_two_calls(tmp_path: Path) -> None:
    found = seen(recorded("parallel"), tmp_path)
    assert [said(placed) for placed in found.run.calls] == [("one", "seen one ")] * 2
    asked = [span.start_ns for span in recorded("parallel")[1:] if span.attributes[TYPE] == "span"]
    assert sorted(placed.call.start_ns for placed in found.run.calls) == asked
    assert (found.run.unread, found.of_run) == ({}, (2, 2, 4))


def test_what_failed_and_what_is_asked_again_are_calls_of_their_own(tmp_path: Path) -> None:
    _, failed, first, first_report, second, second_report = recorded("retry")
    found = seen(recorded("retry"), tmp_path)
    assert [placed.call.error and placed.call.error[:19] for placed in found.run.calls] == [
        "InternalServerError",
        None,
        None,
    ]
    times = [(placed.call.start_ns, placed.call.end_ns) for placed in found.run.calls]
    ended = [(first.start_ns, first_report.end_ns), (second.start_ns, second_report.end_ns)]
    assert times == [(failed.start_ns, failed.end_ns), *ended]
    assert found.of_run == (3, 3, 4)


def test_a_stream_that_nobody_read_stays_a_call_without_an_answer(tmp_path: Path) -> None:
    _, unread, request, report = recorded("never_read")
    found = seen(recorded("never_read"), tmp_path)
    assert [(placed.call.start_ns, bool(placed.call.choices)) for placed in found.run.calls] == [
        (unread.start_ns, False),
        (request.start_ns, True),
    ]
    assert sum(found.run.unread.values()) == 1
    assert found.of_run == (2, 2, 2)
    assert sorted(found.in_sql)[1][:2] == (request.start_ns, report.end_ns)


def test_a_call_that_is_no_stream_is_one(tmp_path: Path) -> None:
    found = seen(recorded("plain"), tmp_path)
    assert [said(placed) for placed in found.run.calls] == [("one", "seen one")]
    assert found.of_run == (1, 1, 2)


@pytest.mark.parametrize("program", ["stream", "parallel", "never_read"])
def test_the_order_of_the_spans_makes_no_difference(program: str, tmp_path: Path) -> None:
    revisions = set()
    for at, order in enumerate(itertools.permutations(recorded(program))):
        if at % 7 == 0:
            with Store.open(DataDir(tmp_path / str(at)), create=True) as store:
                for span in order:
                    store.append([span])
                [run] = store.trajectories()
                revisions.add(run.revision)
    assert len(revisions) == 1


@pytest.mark.parametrize("lost", ["the request", "the log"])
def test_of_a_call_half_of_which_is_lost_the_other_is_there(lost: str, tmp_path: Path) -> None:
    root, request, report = recorded("stream")
    found = seen([root, report if lost == "the request" else request], tmp_path)
    [placed] = found.run.calls
    assert bool(placed.call.choices) == (lost == "the request")
    assert bool(found.run.unread) == (lost == "the log")
    assert found.of_run[:2] == (1, 1)


@pytest.mark.parametrize("program", STREAMS)
def test_a_stream_of_version_4_is_one_call_with_what_was_asked_and_came(program: str, tmp_path: Path) -> None:
    root, request, report = recorded(program, OF_VERSION_4)
    found = seen([root, request, report], tmp_path)
    [placed] = found.run.calls
    assert (found.run.incomplete, found.run.unread, placed.call.error) == ("", {}, None)
    assert [(one.role, one.text) for one in placed.call.messages] == [("system", "Be kind."), ("user", "one")]
    assert said(placed)[1].strip() == "seen one"
    assert (placed.call.start_ns, placed.call.end_ns) == (request.start_ns, report.end_ns)
    assert found.in_sql == [(request.start_ns, report.end_ns, 3, 2)]
    assert found.of_run == (1, 1, 2)
    assert found.cost == Cost(2.75e-05, stated_usd=2.75e-05)


@pytest.mark.parametrize(("program", "end"), [("plain", "stop"), ("responses_plain", None)])
def test_a_call_of_version_4_that_is_no_stream_is_one(program: str, end: str | None, tmp_path: Path) -> None:
    found = seen(recorded(program, OF_VERSION_4), tmp_path)
    [placed] = found.run.calls
    assert (said(placed), placed.call.choices[0].end) == (("one", "seen one"), end)
    assert (found.run.unread, found.of_run) == ({}, (1, 1, 2))


def test_a_call_of_anthropics_of_version_4_has_its_tools(tmp_path: Path) -> None:
    found = seen(recorded("anthropic_plain", OF_VERSION_4), tmp_path)
    [placed] = found.run.calls
    called = [[(part.id, part.name, part.arguments) for part in one.tool_calls] for one in placed.call.messages]
    assert [one.role for one in placed.call.messages] == ["system", "user", "assistant", "tool"]
    assert called == [[], [], [("t0", "weather", '{"town":"Oslo"}')], []]
    [choice] = placed.call.choices
    assert (choice.message.text, choice.end) == ("Let me look.", "tool_calls")
    assert [(part.id, part.name, part.arguments) for part in choice.message.tool_calls] == [
        ("toolu_1", "weather", '{"town":"Rome"}')
    ]
    assert [tool["function"]["name"] for tool in placed.call.tools] == ["weather"]
    assert (placed.call.temperature, placed.call.truncated, found.run.unread) == (0.5, False, {})


def test_of_a_stream_of_anthropics_version_4_keeps_the_text_alone(tmp_path: Path) -> None:
    """An answer that may have called tools is cut, so that nothing is trained on it."""
    root, request, report = recorded("anthropic_stream", OF_VERSION_4)
    found = seen([root, request, report], tmp_path / "none")
    assert said(found.run.calls[0]) == ("one", "Let me look.")
    assert (found.run.calls[0].call.truncated, found.of_run) == (False, (1, 1, 4))
    offered = {"request_data": json.dumps({**json.loads(report.attributes["request_data"]), "tools": [{"name": "f"}]})}
    both = [msgspec.structs.replace(one, attributes={**one.attributes, **offered}) for one in (request, report)]
    cut = seen([root, *both], tmp_path / "offered")
    assert [placed.call.truncated for placed in cut.run.calls] == [True]


def test_streams_of_version_4_at_once_are_told_from_one_another_by_their_words(tmp_path: Path) -> None:
    """Of two requests, the one that was made last has another prompt than the log that comes first."""
    root, request, report = recorded("stream", OF_VERSION_4)
    asked = json.loads(request.attributes["request_data"])
    other = {"request_data": json.dumps({**asked, "messages": [{"role": "user", "content": "two"}]})}
    later = msgspec.structs.replace(
        request, span_id="1" * 16, start_ns=request.start_ns + 1, attributes={**request.attributes, **other}
    )
    found = seen([root, request, later, report], tmp_path)
    assert sorted((placed.call.messages[-1].text, bool(placed.call.choices)) for placed in found.run.calls) == [
        ("one", True),
        ("two", False),
    ]
    assert found.of_run == (2, 2, 2)


def changed(span: SpanRow, **said: Any) -> SpanRow:
    """The span with other things in the objects that these attributes are."""
    found = dict(span.attributes)
    for name, more in said.items():
        found[name] = json.dumps({**json.loads(found[name]), **more})
    return msgspec.structs.replace(span, attributes=found)


def left_out(*spans: SpanRow) -> dict[str, int]:
    """What is counted when these are imported."""
    return read_file(lines(*(msgspec.json.decode(encode_record(span)) for span in spans)), "file").left_out


CHOICES = "choices beyond the first, which Logfire did not keep before version 5"
THOUGHTS = "answers of Anthropic's without their thoughts, which Logfire did not keep before version 5"


def test_choices_that_version_4_does_not_keep_are_counted() -> None:
    root, call = recorded("plain", OF_VERSION_4)
    assert left_out(root, call) == {}
    asked = changed(call, request_data={"n": 3})
    assert left_out(root, asked) == {CHOICES: 2}
    reasons = {"gen_ai.response.finish_reasons": ["stop", "stop"]}
    several = msgspec.structs.replace(call, attributes={**call.attributes, **reasons})
    assert left_out(root, several) == {CHOICES: 1}
    root, request, report = recorded("stream", OF_VERSION_4)
    both = [changed(one, request_data={"n": 2}) for one in (request, report)]
    assert left_out(root, *both) == {CHOICES: 1}
    kept = msgspec.structs.replace(asked, attributes={**asked.attributes, "gen_ai.output.messages": "[]"})
    assert left_out(root, kept) == {}, "a program that has both forms written has all choices in the other"


@pytest.mark.parametrize("thinking", [{"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive"}])
def test_thoughts_that_version_4_may_not_have_kept_are_counted(thinking: dict[str, Any]) -> None:
    root, call = recorded("anthropic_plain", OF_VERSION_4)
    assert left_out(root, call) == left_out(root, changed(call, request_data={"thinking": {"type": "disabled"}})) == {}
    assert left_out(root, changed(call, request_data={"thinking": thinking})) == {THOUGHTS: 1}
    root, request, report = recorded("anthropic_stream", OF_VERSION_4)
    both = [changed(one, request_data={"thinking": thinking}) for one in (request, report)]
    assert left_out(root, *both) == {THOUGHTS: 1}


def test_an_answer_of_anthropics_with_tools_of_the_server_is_cut(tmp_path: Path) -> None:
    """Of several texts version 4 keeps the last alone: before it stands what the model said before the server acted."""
    root, call = recorded("anthropic_plain", OF_VERSION_4)
    for kind, cut in (("web_search_20250305", True), ("bash_20250124", False)):
        offered = {"tools": [{"type": kind, "name": kind}]}
        found = seen([root, changed(call, request_data=offered)], tmp_path / kind)
        assert [placed.call.truncated for placed in found.run.calls] == [cut]


def test_all_thoughts_of_the_responses_api_are_read(tmp_path: Path) -> None:
    """Of several the first alone was, and none that an open model has as its content."""
    root, call = recorded("responses_plain", OF_VERSION_4)
    *asked, answer = json.loads(call.attributes["events"])

    def thought(**item: Any) -> dict[str, Any]:
        return {"event.name": "gen_ai.unknown", "role": "assistant", "content": "reasoning", "data": item}

    events = [
        *asked,
        thought(type="reasoning", summary=[{"type": "summary_text", "text": "First."}]),
        thought(type="reasoning", summary=[], content=[{"type": "reasoning_text", "text": "Second."}]),
        answer,
    ]
    call = msgspec.structs.replace(call, attributes={**call.attributes, "events": json.dumps(events)})
    [placed] = seen([root, call], tmp_path).run.calls
    [choice] = placed.call.choices
    assert [part for part in choice.message.parts if isinstance(part, ReasoningPart)] == [
        ReasoningPart("First.\n\nSecond.")
    ]
    assert choice.message.text == "seen one"


@pytest.mark.parametrize("odd", ["[]", "{", "7", '{"messages": 7}', '{"messages": [7], "tools": 7}', '{"prompt": []}'])
@pytest.mark.parametrize("name", ["request_data", "response_data", "events", "gen_ai.usage.raw"])
def test_odd_values_of_version_4_say_nothing(odd: str, name: str) -> None:
    for program in ("plain", "responses_plain"):
        _, call = recorded(program, OF_VERSION_4)
        conventions.normalise(msgspec.structs.replace(call, attributes={**call.attributes, name: odd}))


ODD = (1e300, -1e300, 1e12, -5.0, float("inf"), float("nan"), "inf", "nan", "1e300", "15.0", True, 10**30, [], None)


@pytest.mark.parametrize("took", [15.0, 15, *ODD], ids=repr)
def test_of_an_odd_duration_a_log_has_none(took: Any, tmp_path: Path) -> None:
    """Two streams of the same words: the log is of the one that was asked last before the stream was read."""
    root, request, report = recorded("stream")
    began = request.start_ns
    first, last = (
        msgspec.structs.replace(request, span_id=id * 16, start_ns=began + after, end_ns=began + after + 1)
        for id, after in (("1", 0), ("2", 10 * 10**9))
    )
    at = began + 20 * 10**9
    log = msgspec.structs.replace(report, start_ns=at, end_ns=at, attributes={**report.attributes, "duration": took})
    found = seen([root, first, last, log], tmp_path)
    asked = first if type(took) in (int, float) and took == 15 else last
    [answered] = [placed.call for placed in found.run.calls if placed.call.choices]
    assert answered.start_ns == asked.start_ns
    assert found.of_run == (2, 2, 2)
    assert [start for start, end, *_ in found.in_sql if end == at] == [asked.start_ns]


def test_a_log_of_the_users_own_is_a_call_as_it_says(tmp_path: Path) -> None:
    """Who writes down a call by `logfire.info` has one span of it."""
    root, request, report = recorded("stream")
    own = msgspec.structs.replace(report, name="my model", scope_name="logfire")
    found = seen([root, request, own], tmp_path)
    assert len(found.run.calls) == found.of_run[0] == 2


def test_a_span_that_was_sent_when_it_began_is_the_one_that_ended(tmp_path: Path) -> None:
    """To its own server Logfire sends a placeholder of what lasts, below the span that it stands for."""
    root, call = recorded("plain")
    begun = {
        name: value
        for name, value in call.attributes.items()
        if name not in ("gen_ai.output.messages", "gen_ai.response.id") and not name.startswith("gen_ai.usage.")
    }
    pending = msgspec.structs.replace(
        call,
        span_id="f" * 16,
        parent_span_id=call.span_id,
        end_ns=call.start_ns,
        attributes={**begun, TYPE: "pending_span", "logfire.pending_parent_id": root.span_id},
    )
    found = seen([root, call, pending], tmp_path)
    assert [said(placed) for placed in found.run.calls] == [("one", "seen one")]
    assert (found.run.unread, found.of_run) == ({}, (1, 1, 2))
