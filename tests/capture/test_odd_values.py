"""What users hand to capture that is no plain data: their call is unchanged, and the rest of the run is recorded."""

from __future__ import annotations

import copy
import json
import threading
import warnings
from collections.abc import Callable
from typing import Any
from uuid import UUID

import openai
import pytest
from opentelemetry.trace import NoOpTracerProvider
from pydantic import BaseModel
from scripted_server import Reply, serve_script

import arttrace
from arttrace.capture.base import guard
from arttrace.records import semconv
from arttrace.records.record import Record
from arttrace.records.reward import Reward
from arttrace.records.span import SpanRow
from arttrace.trajectories import build_trajectories

Spans = Callable[[], list[SpanRow]]


class Panic(BaseException):
    """As a library in another language raises it when it breaks: no Exception."""


class Panics:
    def __repr__(self) -> str:
        raise Panic


class Shy:
    """Cannot be shown nor compared."""

    def __repr__(self) -> str:
        raise RuntimeError("not shown")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not compared")

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("value", [Panics(), [Panics()], {"a": Panics()}])
def test_a_value_whose_repr_breaks_in_any_way_is_passed_on(value: object, spans: Spans) -> None:
    @arttrace.tool
    def look(value: object) -> object:
        return value

    @arttrace.trajectory
    def agent(value: object) -> object:
        return look(value)

    assert agent(value) is value
    tool, root = spans()
    for attribute in (tool.attributes[semconv.TOOL_CALL_ARGUMENTS], root.attributes[semconv.ENTRY_RESULT]):
        assert "Panics>" in json.dumps(json.loads(attribute))


def test_an_interrupt_while_a_value_is_shown_is_the_users(spans: Spans) -> None:
    class Interrupted:
        def __repr__(self) -> str:
            raise KeyboardInterrupt

    @arttrace.trajectory
    def agent(value: object) -> None:
        raise AssertionError("it does not come to this")

    with pytest.raises(KeyboardInterrupt):
        agent(Interrupted())


def test_an_exception_whose_text_breaks_is_raised_as_it_is(spans: Spans) -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise Panic

    error = Broken()

    @arttrace.trajectory
    def agent() -> None:
        raise error

    with pytest.raises(Broken) as caught:
        agent()
    assert caught.value is error
    (root,) = spans()
    assert root.attributes[semconv.ERROR_TYPE].endswith("Broken")


def test_tags_and_metadata_that_cannot_be_shown_cost_neither_the_run_nor_the_others(spans: Spans) -> None:
    @arttrace.trajectory(tags=[Shy(), "first"], metadata={"shy": Shy(), "k": 1})  # type: ignore[list-item]
    def agent() -> None:
        arttrace.update(tags=[Shy(), 7], metadata={"panics": Panics(), 8: [Shy()]})  # type: ignore[dict-item, list-item]
        arttrace.update(tags=["last"], metadata={"l": 2})

    agent()
    (root,) = spans()
    assert {"first", "7", "last"} < {*root.attributes[semconv.TAGS]}
    metadata = json.loads(root.attributes[semconv.METADATA])
    assert (metadata["k"], metadata["l"]) == (1, 2)
    assert {"shy", "panics", "8"} < metadata.keys()


def test_one_word_is_one_tag(spans: Spans) -> None:
    @arttrace.trajectory(tags="vip")
    def agent() -> None:
        arttrace.update(tags="night")

    agent()
    (root,) = spans()
    assert list(root.attributes[semconv.TAGS]) == ["vip", "night"]


def test_metadata_is_taken_as_it_is_when_given_in_the_thread_that_gave_it(spans: Spans) -> None:
    shown_in = set()

    class Row:
        def __repr__(self) -> str:
            shown_in.add(threading.current_thread())
            return "row"

    steps = [1]
    with arttrace.trajectory(name="long", metadata={"row": Row()}) as run:
        run.update(metadata={"steps": steps})
        steps.append(2)
        assert shown_in == {threading.current_thread()}
    (root,) = spans()
    assert json.loads(root.attributes[semconv.METADATA]) == {"row": "row", "steps": [1]}
    assert shown_in == {threading.current_thread()}


def test_metadata_that_was_cut_is_marked(spans: Spans) -> None:
    with arttrace.trajectory(name="large") as run:
        run.update(metadata={"text": "x" * (9 << 20), "k": 1})
    (root,) = spans()
    assert root.attributes[semconv.TRUNCATED] == [semconv.METADATA]
    assert len(root.attributes[semconv.METADATA]) < 9 << 20


class Text(str):
    """A text of a type of its own, as a column of numpy's or a table's gives."""


class Number(float):
    """A number of such a type."""


def test_names_and_ids_that_are_no_plain_text_are_recorded_as_what_they_say(
    records: Callable[[], list[Record]], caplog: pytest.LogCaptureFixture
) -> None:
    run_id: Any = UUID(int=7)
    given: Any = {"scenario": 42, "group": ("a", 1), "tags": [Text("t")], "metadata": {Text("k"): Text("v")}}
    name: Any = Text("look")
    with arttrace.trajectory(trajectory_id=run_id, name=Text("agent"), **given) as run:
        assert run.id == str(run_id)
        with arttrace.tool(name=name):
            pass
        run.reward(Number(0.5), name=Text("r"))
        arttrace.reward(1, name=3)  # type: ignore[arg-type]
    arttrace.reward(2, trajectory_id=run_id)
    assert caplog.text == ""
    found = records()
    assert [(each.trajectory_id, each.name, each.value) for each in found if isinstance(each, Reward)] == [
        (str(run_id), "r", 0.5),
        (str(run_id), "3", 1.0),
        (str(run_id), "reward", 2.0),
    ]
    (trajectory,) = build_trajectories([each for each in found if isinstance(each, SpanRow)])
    assert (trajectory.id, trajectory.scenario, trajectory.group) == (str(run_id), "42", "('a', 1)")
    assert (trajectory.tags, trajectory.metadata, trajectory.incomplete) == (("t",), {"k": "v"}, "")
    assert [tool.name for tool in trajectory.tool_calls] == ["look"]


def test_a_group_of_none_is_no_group(spans: Spans) -> None:
    @arttrace.trajectory(group=lambda: None)  # type: ignore[arg-type]
    def run() -> None: ...

    run()
    (root,) = spans()
    assert semconv.GROUP not in root.attributes


def test_a_library_that_says_numbers_of_its_own_types_of_a_call_loses_none(spans: Spans) -> None:
    with (
        arttrace.trajectory(name="run"),
        NoOpTracerProvider().get_tracer("library").start_as_current_span("chat m") as span,
    ):
        span.set_attribute(semconv.OPERATION_NAME, "chat")
        span.set_attribute(semconv.REQUEST_MODEL, Text("m"))
        span.set_attribute(semconv.REQUEST_TEMPERATURE, Number(0.5))
        span.set_attribute(semconv.REQUEST_MAX_TOKENS, object())  # type: ignore[arg-type]
    call, _ = spans()
    assert call.attributes[semconv.REQUEST_MODEL] == "m"
    assert call.attributes[semconv.REQUEST_TEMPERATURE] == 0.5


@pytest.mark.parametrize("given", [{"tags": 5}, {"metadata": [1]}, {"tags": None, "metadata": None}])
def test_tags_and_metadata_that_are_none_stop_no_program(
    given: Any, spans: Spans, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ARTTRACE_RAISE", "0")
    guard.failures.clear()
    with arttrace.trajectory(name="run", **given) as run:
        run.update(**given)
    (root,) = spans()
    assert semconv.TAGS not in root.attributes
    assert bool(caplog.records) == (None not in given.values())


def test_what_holds_the_handle_of_a_run_is_copied(spans: Spans) -> None:
    with arttrace.trajectory(name="run") as run:
        assert copy.deepcopy({"run": run}) == {"run": copy.copy(run)} == {"run": run}


def test_the_class_of_a_result_is_not_asked_for_what_it_does_not_define(spans: Spans) -> None:
    """A metaclass may answer to any name, and act on it."""
    asked: list[str] = []

    class Answers(type):
        def __getattr__(cls, name: str) -> Any:
            asked.append(name)
            return lambda *_: 7

    class Result(metaclass=Answers):
        def __repr__(self) -> str:
            return "the result"

    @arttrace.trajectory
    def agent() -> Result:
        return Result()

    agent()
    [root] = spans()
    assert "the result" in root.attributes[semconv.ENTRY_RESULT]
    assert "__arttrace_account__" not in asked


class Step(BaseModel):
    text: str


class DumpsItself(BaseModel):
    def model_dump(self, *, mode: str = "python") -> dict[str, Any]:  # type: ignore[override]
        return {"dumped": mode}


@pytest.mark.parametrize("api", ["chat", "chat, streamed", "responses", "responses, streamed"])
def test_what_the_client_has_parsed_is_recorded_without_pydantics_warnings(api: str, spans: Spans) -> None:
    messages: Any = [{"role": "user", "content": "hi"}]

    @arttrace.trajectory
    def agent(client: openai.OpenAI) -> Any:
        if api == "chat":
            return client.chat.completions.parse(model="m", messages=messages, response_format=Step)
        if api == "responses":
            return client.responses.parse(model="m", input="hi", text_format=Step)
        if api == "responses, streamed":
            with client.responses.stream(model="m", input="hi", text_format=Step) as answer:
                return list(answer)
        with client.chat.completions.stream(model="m", messages=messages, response_format=Step) as stream:
            return list(stream)

    with serve_script(lambda _: Reply(text='{"text":"one"}')) as server, warnings.catch_warnings():
        warnings.simplefilter("error")
        agent(openai.OpenAI(base_url=server.url, api_key="k"))
    root = spans()[-1]
    assert '"parsed":{"text":"one"}' in root.attributes[semconv.ENTRY_RESULT]


def test_a_model_that_dumps_itself_is_recorded_as_it_says(spans: Spans) -> None:
    @arttrace.trajectory
    def agent() -> DumpsItself:
        return DumpsItself()

    agent()
    assert spans()[-1].attributes[semconv.ENTRY_RESULT] == '{"dumped":"json"}'
