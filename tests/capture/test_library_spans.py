"""GenAI spans that a library makes by OpenTelemetry, as frameworks make them: read into the run, nothing doubled."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NoOpTracerProvider, SpanKind, Status, StatusCode, Tracer
from scripted_server import Asked, Reply, ScriptedServer, serve_script

import arttrace
from arttrace.capture.api import run_entry
from arttrace.capture.base import guard
from arttrace.capture.context.recorded_tools import RecordedTools
from arttrace.records import semconv
from arttrace.records.rollout import RecordedTool, ToolRecord
from arttrace.records.span import SpanRow
from arttrace.trajectories import build_trajectories

Spans = Callable[[], list[SpanRow]]


def answer(asked: Asked) -> Reply:
    return Reply("seen " + asked.users[-1])


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with serve_script(answer) as serving:
        yield serving


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture(params=["no provider", "a provider"])
def tracer(request: pytest.FixtureRequest, exporter: InMemorySpanExporter) -> Tracer:
    """As a framework has it: of the provider that the user set, or of none."""
    if request.param == "no provider":
        return NoOpTracerProvider().get_tracer("framework")
    provider = TracerProvider(sampler=ALWAYS_OFF) if request.param == "nothing sampled" else TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider.get_tracer("framework")


class Client:
    """A model's client of the stand-in server."""

    def __init__(self, url: str) -> None:
        self._client = openai.OpenAI(base_url=url, api_key="sk-test-0123456789", max_retries=0)

    def ask(self, text: str) -> str:
        message: Any = {"role": "user", "content": text}
        return str(self._client.chat.completions.create(model="m", messages=[message]).choices[0].message.content)


@pytest.fixture
def client(server: ScriptedServer) -> Client:
    return Client(server.url)


def tree(spans: list[SpanRow]) -> list[str]:
    """Each span's path of names, in order."""
    by_id = {span.span_id: span for span in spans}

    def path(span: SpanRow) -> str:
        parent = by_id.get(span.parent_span_id or "")
        return (path(parent) + " > " if parent else "") + span.name

    return sorted(path(span) for span in spans)


@pytest.mark.parametrize("tracer", ["no provider", "a provider", "nothing sampled"], indirect=True)
def test_agents_tools_and_calls_are_one_tree(tracer: Tracer, client: Client, spans: Spans) -> None:
    @arttrace.trajectory
    def main() -> None:
        with tracer.start_as_current_span("invoke_agent boss", attributes={"gen_ai.conversation.id": "s1"}) as boss:
            boss.set_attribute("gen_ai.agent.name", "boss")
            with tracer.start_as_current_span("event loop"), tracer.start_as_current_span("chat m"):
                client.ask("one")
            said = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "research"}
            with tracer.start_as_current_span("execute_tool research", attributes=said) as tool:
                tool.set_attribute("gen_ai.tool.call.arguments", json.dumps({"about": "tea"}))
                with tracer.start_as_current_span("invoke_agent researcher"):
                    client.ask("two")
                tool.set_attributes({"gen_ai.tool.call.id": "call_1", "gen_ai.tool.call.result": '"hot"'})
        client.ask("three")

    main()
    found = spans()
    assert tree(found) == [
        "invoke_agent main",
        "invoke_agent main > chat m",
        "invoke_agent main > invoke_agent boss",
        "invoke_agent main > invoke_agent boss > chat m",
        "invoke_agent main > invoke_agent boss > execute_tool research",
        "invoke_agent main > invoke_agent boss > execute_tool research > invoke_agent researcher",
        "invoke_agent main > invoke_agent boss > execute_tool research > invoke_agent researcher > chat m",
    ]
    (tool,) = (span for span in found if span.name == "execute_tool research")
    assert tool.attributes[semconv.TOOL_CALL_ID] == "call_1"
    assert json.loads(tool.attributes[semconv.TOOL_CALL_ARGUMENTS]) == {"about": "tea"}
    assert json.loads(tool.attributes[semconv.TOOL_CALL_RESULT]) == "hot"
    (boss,) = (span for span in found if span.name == "invoke_agent boss")
    assert boss.attributes[semconv.CONVERSATION_ID] == "s1"
    (trajectory,) = build_trajectories(found)
    assert [agent.name for agent in trajectory.agents] == ["main", "boss", "researcher"]
    assert not trajectory.incomplete


def test_the_users_provider_gets_what_it_got_before(
    exporter: InMemorySpanExporter, client: Client, spans: Spans
) -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("framework")

    def work() -> None:
        with tracer.start_as_current_span("invoke_agent boss") as span:
            assert trace.get_current_span() is span
            client.ask("one")
            with tracer.start_as_current_span("mine"):
                client.ask("two")

    def seen() -> list[tuple[str, dict[str, Any], str | None]]:
        names = {span.context.span_id: span.name for span in exporter.get_finished_spans() if span.context}
        found = [
            (span.name, dict(span.attributes or {}), names[span.parent.span_id] if span.parent else None)
            for span in exporter.get_finished_spans()
        ]
        exporter.clear()
        return found

    work()
    bare = seen()
    arttrace.trajectory(work)()
    assert seen() == bare == [("mine", {}, "invoke_agent boss"), ("invoke_agent boss", {}, None)]
    assert tree(spans()).count("invoke_agent work > invoke_agent boss > chat m") == 2


def test_nothing_changes_for_who_has_no_provider(client: Client, spans: Spans) -> None:
    tracer = NoOpTracerProvider().get_tracer("framework")

    @arttrace.trajectory
    def main() -> None:
        with tracer.start_as_current_span("invoke_agent boss") as span:
            assert not span.get_span_context().is_valid
            with tracer.start_as_current_span("mine") as mine:
                assert not mine.is_recording()
            client.ask("one")
        assert not span.is_recording()

    main()
    assert tree(spans())[-1] == "invoke_agent main > invoke_agent boss > chat m", "mine ended nothing"


def test_a_route_finds_the_agent_of_a_span(
    tracer: Tracer, client: Client, server: ScriptedServer, spans: Spans
) -> None:
    with serve_script(answer) as policy, arttrace.route("m", to="p", base_url=policy.url, agent="boss"):

        @arttrace.trajectory
        def main() -> None:
            client.ask("main")
            with tracer.start_as_current_span("invoke_agent boss"):
                client.ask("boss")
                with tracer.start_as_current_span("execute_tool look"):
                    client.ask("tool")
                with tracer.start_as_current_span("invoke_agent other"):
                    client.ask("other")

        main()
        assert [sent.json["messages"][0]["content"] for sent in policy.sent] == ["boss", "tool"]
    assert [sent.json["messages"][0]["content"] for sent in server.sent] == ["main", "other"]


def test_threads_and_tasks_are_in_the_agent_that_started_them(tracer: Tracer, client: Client, spans: Spans) -> None:
    async def agent(name: str, pool: ThreadPoolExecutor) -> None:
        with tracer.start_as_current_span(f"invoke_agent {name}"):
            await asyncio.sleep(0)
            await asyncio.get_running_loop().run_in_executor(pool, client.ask, name)

    @arttrace.trajectory
    async def main() -> None:
        with ThreadPoolExecutor(2) as pool:
            await asyncio.gather(*(agent(name, pool) for name in ("a", "b")))
            await asyncio.get_running_loop().run_in_executor(pool, client.ask, "main")

    asyncio.run(main())
    found = spans()
    names = {span.span_id: span.name for span in found}
    calls = {
        json.loads(s.attributes[semconv.INPUT_MESSAGES])[0]["parts"][0]["content"]: s for s in found if "chat" in s.name
    }
    assert {text: names[call.parent_span_id or ""] for text, call in calls.items()} == {
        "a": "invoke_agent a",
        "b": "invoke_agent b",
        "main": "invoke_agent main",
    }


def test_a_span_passed_by_value_and_a_context_that_leaks(tracer: Tracer, client: Client, spans: Spans) -> None:
    @arttrace.trajectory
    def main() -> None:
        span = tracer.start_span("invoke_agent boss")
        within = trace.set_span_in_context(span)
        tool = tracer.start_span("execute_tool look", context=within)
        with trace.use_span(tool):
            tracer.start_span("execute_tool beside", context=within).end()
        tool.end()
        tool.end()
        client.ask("outside")
        otel_context.attach(within)  # and never detached
        client.ask("inside")
        span.end()
        client.ask("after")
        tracer.start_span("invoke_agent lost", context=within)  # never ended

    with_context = otel_context.get_current()
    main()
    otel_context.attach(with_context)
    found = spans()
    assert tree(found) == [
        "invoke_agent main",
        "invoke_agent main > chat m",
        "invoke_agent main > chat m",
        "invoke_agent main > invoke_agent boss",
        "invoke_agent main > invoke_agent boss > chat m",
        "invoke_agent main > invoke_agent boss > execute_tool beside",
        "invoke_agent main > invoke_agent boss > execute_tool look",
        "invoke_agent main > invoke_agent lost",
    ]
    assert len({span.attributes[semconv.EXECUTION_ID] for span in found}) == 1, "one thread is one execution"
    (lost,) = (span for span in found if span.name == "invoke_agent lost")
    assert lost.attributes[semconv.INTERRUPTED] == "closed"


def test_what_a_decorator_or_hook_records_too_is_one(tracer: Tracer, client: Client, spans: Spans) -> None:
    @arttrace.tool
    def look(word: str) -> str:
        return word

    @arttrace.trajectory
    def main() -> None:
        with tracer.start_as_current_span("invoke_agent main") as span:
            span.set_attribute("gen_ai.agent.id", "7")
            with tracer.start_as_current_span("execute_tool look", attributes={"gen_ai.tool.call.id": "c1"}):
                look("tea")
            with arttrace.agent(name="helper"), tracer.start_as_current_span("invoke_agent helper"):
                client.ask("one")

    main()
    found = spans()
    assert tree(found) == [
        "invoke_agent main",
        "invoke_agent main > execute_tool look",
        "invoke_agent main > invoke_agent helper",
        "invoke_agent main > invoke_agent helper > chat m",
    ]
    by_name = {span.name: span.attributes for span in found}
    assert by_name["invoke_agent main"][semconv.AGENT_ID] == "7"
    assert by_name["execute_tool look"][semconv.TOOL_CALL_ID] == "c1"


def test_errors_are_recorded_and_raised(tracer: Tracer, spans: Spans) -> None:
    @arttrace.trajectory
    def main() -> None:
        with pytest.raises(ZeroDivisionError), tracer.start_as_current_span("execute_tool divide"):
            raise ZeroDivisionError("by nothing")
        with tracer.start_as_current_span("execute_tool ask") as span:
            span.set_attribute("error.type", "timeout")
            span.set_status(Status(StatusCode.ERROR, "too late"))

    main()
    failed = {span.name: (span.attributes[semconv.ERROR_TYPE], span.status_message) for span in spans()[:2]}
    assert failed["execute_tool ask"] == ("timeout", "too late")
    assert failed["execute_tool divide"][0] == "ZeroDivisionError"
    assert "by nothing" in failed["execute_tool divide"][1]


MESSAGES = [{"role": "user", "parts": [{"type": "text", "content": "secret question"}]}]
ANSWERS = [{"role": "assistant", "parts": [{"type": "text", "content": "an answer"}], "finish_reason": "stop"}]


def other_client(tracer: Tracer) -> None:
    """A call by a client that no hook of ours knows, with one span of the framework and one of the client's."""
    with tracer.start_as_current_span("chat claude") as outer:
        outer.set_attributes({"gen_ai.operation.name": "chat", "gen_ai.request.model": "claude"})
        with tracer.start_as_current_span("chat claude", attributes={"gen_ai.operation.name": "chat"}) as span:
            span.set_attributes(
                {
                    "gen_ai.provider.name": "anthropic",
                    "gen_ai.request.model": "claude",
                    "gen_ai.usage.input_tokens": 5,
                    "gen_ai.input.messages": json.dumps(MESSAGES),
                    "gen_ai.output.messages": json.dumps(ANSWERS),
                    "http.request.header.authorization": "Bearer sk-0123456789",
                }
            )


def test_a_call_that_no_hook_sees_is_recorded_from_its_span(tracer: Tracer, spans: Spans) -> None:
    @arttrace.trajectory
    def main() -> None:
        with tracer.start_as_current_span("invoke_agent boss"):
            other_client(tracer)
            with arttrace.no_capture():
                other_client(tracer)

    main()
    found = spans()
    assert tree(found) == [
        "invoke_agent main",
        "invoke_agent main > invoke_agent boss",
        "invoke_agent main > invoke_agent boss > chat claude",
    ]
    (call,) = (span for span in found if span.name == "chat claude")
    assert json.loads(call.attributes[semconv.INPUT_MESSAGES]) == MESSAGES
    assert call.attributes[semconv.PROVIDER_NAME] == "anthropic"
    assert "http.request.header.authorization" not in call.attributes
    (trajectory,) = build_trajectories(found)
    assert not trajectory.incomplete
    assert [entry.call.request_model for entry in trajectory.calls] == ["claude"]


def test_a_span_that_says_it_records_can_be_read(tracer: Tracer, spans: Spans) -> None:
    """As OpenTelemetry's instrumentation of botocore reads the name and the model that it has set itself."""

    @arttrace.trajectory(name="run")
    def run() -> None:
        span: Any = tracer.start_span("chat m", kind=SpanKind.CLIENT, attributes={"gen_ai.request.model": "m"})
        assert span.is_recording()
        span.set_attribute("gen_ai.operation.name", "chat")
        span.add_event("told", {"a": 1})
        span.update_name("chat n")
        span.set_status(Status(StatusCode.ERROR, "no"))
        assert dict(span.attributes) == {"gen_ai.request.model": "m", "gen_ai.operation.name": "chat"}
        assert (span.name, span.kind, span.parent, span.end_time) == ("chat n", SpanKind.CLIENT, None, None)
        assert [(event.name, dict(event.attributes)) for event in span.events] == [("told", {"a": 1})]
        assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "no")
        assert span.start_time > 0
        assert (span.context, list(span.links)) == (span.get_span_context(), [])
        assert span.resource.attributes is not None
        assert span.instrumentation_scope is None or span.instrumentation_scope.name == "framework"
        span.end()

    run()
    assert [span.name for span in spans()] == ["chat m", "invoke_agent run"]


def test_calls_side_by_side_that_no_hook_sees_are_all_recorded(tracer: Tracer, spans: Spans) -> None:
    asked = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "claude"}

    async def ask(all_begun: asyncio.Barrier) -> None:
        with (
            tracer.start_as_current_span("chat claude", attributes=asked),
            tracer.start_as_current_span("a try"),
            tracer.start_as_current_span("chat claude", attributes=asked),
        ):
            await all_begun.wait()

    @arttrace.trajectory
    async def main() -> None:
        all_begun = asyncio.Barrier(3)
        await asyncio.gather(*(ask(all_begun) for _ in range(3)))

    asyncio.run(main())
    assert tree(spans()) == ["invoke_agent main", *["invoke_agent main > chat claude"] * 3]


def test_a_call_whose_outer_span_ends_before_its_inner_one_is_one(tracer: Tracer, spans: Spans) -> None:
    asked = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "claude"}

    @arttrace.trajectory
    def main() -> None:
        outer = tracer.start_span("chat claude", attributes=asked)
        with trace.use_span(outer, end_on_exit=False):
            inner = tracer.start_span("chat claude", attributes=asked)
        outer.end()
        inner.end()

    main()
    assert tree(spans()) == ["invoke_agent main", "invoke_agent main > chat claude"]


def test_content_off_holds_for_what_spans_say(tracer: Tracer, spans: Spans) -> None:
    @arttrace.trajectory(capture_content="off")
    def main() -> None:
        other_client(tracer)
        with tracer.start_as_current_span("execute_tool look") as span:
            span.set_attribute("gen_ai.tool.call.arguments", '{"word": "secret word"}')
            span.set_status(Status(StatusCode.ERROR, "secret reason"))

    main()
    assert len(found := spans()) == 3
    assert "secret" not in repr(found)


def test_outside_a_trajectory_spans_are_left_alone(tracer: Tracer, client: Client, spans: Spans) -> None:
    with tracer.start_as_current_span("invoke_agent boss"):
        client.ask("one")
    assert tree(spans()) == ["chat m"]


@pytest.mark.parametrize("failing", ["FollowedScope.open", "FollowedScope.end", "FollowedCall.end", "operation_of"])
def test_no_failure_of_ours_reaches_a_library(
    failing: str, tracer: Tracer, client: Client, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("ours")

    monkeypatch.setenv("ARTTRACE_RAISE", "0")
    where = {
        "FollowedScope": "calls.genai_span",
        "FollowedCall": "calls.followed_call",
        "operation_of": "patches.otel_tracers",
    }
    monkeypatch.setattr(
        f"arttrace.capture.{where[failing.partition('.')[0]]}.{failing}",
        fail,
    )

    @arttrace.trajectory
    def main() -> str:
        with tracer.start_as_current_span("invoke_agent boss"), tracer.start_as_current_span("chat m"):
            return client.ask("one")

    guard.failures.clear()
    assert main() == "seen one"
    assert guard.failures.keys() <= {"following a library's span", "ending a library's span"}
    assert guard.failures


def test_a_flow_that_cannot_be_named_is_no_failure_of_a_thread(spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("ours")

    monkeypatch.setenv("ARTTRACE_RAISE", "0")
    monkeypatch.setattr("arttrace.capture.context.flow._innermost", fail)
    guard.failures.clear()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(abs, -1).result() == 1
    assert guard.failures["carrying the flow into a thread"]


def test_in_a_rollout_with_recorded_tools_a_span_does_not_keep_a_hook_from_answering(
    tracer: Tracer, spans: Spans
) -> None:
    runs = []

    @arttrace.tool
    def look(word: str) -> str:
        runs.append(word)
        return "now"

    def main() -> str:
        with tracer.start_as_current_span("execute_tool look", attributes={"gen_ai.tool.call.id": "c1"}):
            return look("tea")

    then = RecordedTool(name="look", arguments={"word": "tea"}, result="then")
    assert run_entry(main, {}, tools=RecordedTools(ToolRecord(tools=[then]))) == "then"
    assert not runs
    found = spans()
    assert tree(found) == ["invoke_agent main", "invoke_agent main > execute_tool look"]
    assert not [span for span in found if semconv.INTERRUPTED in span.attributes]


def test_a_rollout_whose_tool_ran_though_it_was_to_be_answered_says_so(tracer: Tracer, spans: Spans) -> None:
    def main() -> None:
        with tracer.start_as_current_span("execute_tool pay"):
            pass

    run_entry(main, {}, tools=RecordedTools(ToolRecord()))
    (root,) = spans()
    assert root.attributes[semconv.INTERRUPTED] == "a tool ran that no record can answer for: pay"


def test_content_of_a_library_s_call_that_is_cut_is_marked(
    tracer: Tracer, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arttrace.capture.calls.followed_call.MAX_CONTENT_BYTES", 400)
    said = [{"role": "user", "parts": [{"type": "text", "content": "x" * 900}]}]

    @arttrace.trajectory
    def main() -> None:
        attributes = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
        with tracer.start_as_current_span("chat m", attributes=attributes) as call:
            call.set_attribute(semconv.INPUT_MESSAGES, json.dumps(said))

    main()
    [call] = [span for span in spans() if span.name == "chat m"]
    assert call.attributes[semconv.TRUNCATED] == [semconv.INPUT_MESSAGES]
    assert len(str(call.attributes[semconv.INPUT_MESSAGES])) < 900


def test_a_span_of_a_call_that_a_forked_child_ends_too_is_recorded_once(tracer: Tracer, spans: Spans) -> None:
    @arttrace.trajectory
    def main() -> None:
        attributes = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
        with tracer.start_as_current_span("chat m", attributes=attributes) as call:
            if (child := os.fork()) == 0:
                with contextlib.suppress(BaseException):
                    call.end()
                    arttrace.flush(30)
                os._exit(0)
            os.waitpid(child, 0)

    main()
    assert [span.name for span in spans() if span.name == "chat m"] == ["chat m"]
