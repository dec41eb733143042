"""Tools run by libraries are recorded once each, as `@tool` records them, and run as they do without capture."""

from __future__ import annotations

import asyncio
import contextlib
import json
import operator
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypedDict

import number_server
import numpy
import pytest
from agents import (
    Agent,
    MaxTurnsExceeded,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
)
from agents import set_tracing_disabled as disable_agents_tracing
from agents.mcp import MCPServerStdio
from langchain_core.messages import ToolMessage
from langchain_core.tools import InjectedToolArg, InjectedToolCallId, ToolException
from langchain_core.tools import tool as langchain_tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from mcp import Client
from mcp.server.mcpserver import MCPServer
from openai import AsyncOpenAI
from scripted_server import Asked, Call, Reply, serve_script

import arttrace
from arttrace.capture.base import guard
from arttrace.capture.patches.frameworks import mcp, openai_agents, runs
from arttrace.capture.patches.frameworks.langchain import langgraph
from arttrace.capture.patches.frameworks.langchain import tools as langchain
from arttrace.records import semconv
from arttrace.records.span import SpanRow

Spans = Callable[[], list[SpanRow]]

mcp_server = MCPServer("numbers")


@mcp_server.tool()
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@mcp_server.tool()
def refuse(why: str) -> str:
    """Refuses."""
    raise ValueError(why)


@pytest.fixture(autouse=True)
def _no_tracing_of_the_sdks() -> Iterator[None]:
    disable_agents_tracing(True)
    yield
    disable_agents_tracing(False)


def tools(spans: Spans) -> list[SpanRow]:
    """Tool spans in order of starting."""
    found = [s for s in spans() if s.attributes[semconv.OPERATION_NAME] == semconv.OPERATION_EXECUTE_TOOL]
    return sorted(found, key=lambda span: span.start_ns)


def seen(span: SpanRow) -> tuple[Any, ...]:
    """Name, arguments and result of a tool span."""
    arguments = span.attributes.get(semconv.TOOL_CALL_ARGUMENTS)
    result = span.attributes.get(semconv.TOOL_CALL_RESULT)
    return (
        span.attributes[semconv.TOOL_NAME],
        None if arguments is None else json.loads(arguments),
        None if result is None else json.loads(result),
    )


async def test_mcp_calls(spans: Spans) -> None:
    async def calls() -> list[str]:
        async with Client(mcp_server) as client:
            sums = (
                await client.call_tool("add", {"a": 1, "b": 2}),
                await client.session.call_tool(name="add", arguments={"a": 3, "b": 4}),
            )
            refused = await client.call_tool("refuse", {"why": "no"})
            return [part.text for result in (*sums, refused) for part in result.content]

    bare = await calls()
    with arttrace.trajectory(name="root"):
        assert await calls() == bare
    first, second, refused = tools(spans)
    assert seen(first) == ("add", {"a": 1, "b": 2}, "3")
    assert seen(second) == ("add", {"a": 3, "b": 4}, "7")
    assert refused.attributes[semconv.ERROR_TYPE] == "tool_error"
    assert seen(refused)[2] == bare[-1]


@langchain_tool
def look_up(word: str, secret: Annotated[str, InjectedToolArg] = "hidden") -> str:
    """Looks a word up."""
    return f"{word} is a word"


@langchain_tool
async def look_up_later(word: str) -> str:
    """Looks a word up, later."""
    await asyncio.sleep(0)
    return f"{word} was a word"


@langchain_tool
def broken(word: str) -> str:
    """Breaks."""
    raise ToolException(word)


def call_of(name: str, **arguments: Any) -> Any:
    return {"type": "tool_call", "id": f"call_{name}", "name": name, "args": arguments}


async def test_langchain_tools(spans: Spans) -> None:
    bare = look_up.invoke(call_of("look_up", word="tea"))
    with arttrace.trajectory(name="root"):
        assert look_up.invoke(call_of("look_up", word="tea")) == bare
        assert await look_up.ainvoke({"word": "pot", "secret": "x"}) == "pot is a word"
        assert await look_up_later.ainvoke({"word": "cup"}) == "cup was a word"
        with pytest.raises(ToolException, match="lid"):
            broken.invoke({"word": "lid"})
    first, second, third, failed = tools(spans)
    assert seen(first) == ("look_up", {"word": "tea"}, "tea is a word")
    assert first.attributes[semconv.TOOL_CALL_ID] == "call_look_up"
    assert seen(second) == ("look_up", {"word": "pot"}, "pot is a word"), "an executor's thread, and nothing injected"
    assert seen(third) == ("look_up_later", {"word": "cup"}, "cup was a word")
    assert failed.attributes[semconv.ERROR_TYPE].endswith("ToolException")


def test_one_execution_is_one_span_and_another_tool_inside_is_a_child(spans: Spans) -> None:
    @arttrace.tool
    def search(word: str) -> str:
        return look_up.invoke({"word": word}) if word != "again" else search("tea")

    wrapped = langchain_tool(search, description="Searches.")
    with arttrace.trajectory(name="root"):
        assert wrapped.invoke(call_of("search", word="again")).content == "tea is a word"
    outer, inner = tools(spans)
    assert seen(outer) == ("search", {"word": "again"}, "tea is a word")
    assert outer.attributes[semconv.TOOL_CALL_ID] == "call_search"
    assert (seen(inner)[0], inner.parent_span_id) == ("look_up", outer.span_id)


def test_a_decorated_tool_that_calls_itself_is_recorded_each_time(spans: Spans) -> None:
    @arttrace.tool
    def down(n: int) -> int:
        return down(n - 1) if n else 0

    with arttrace.trajectory(name="root"):
        assert down(2) == 0
    assert [seen(span)[1] for span in tools(spans)] == [{"n": 2}, {"n": 1}, {"n": 0}]


def test_texts_and_numbers_of_types_of_their_own_are_recorded_as_what_they_are(spans: Spans) -> None:
    class Text(str):
        def __repr__(self) -> str:
            return "<text>"

    class Count(int): ...

    @arttrace.tool
    def mean(values: list[Any], label: str) -> Any:
        return numpy.mean(values)

    with arttrace.trajectory(name="root"):
        mean([Count(1), numpy.float64(2.5)], Text("a"))
    (span,) = tools(spans)
    assert seen(span) == ("mean", {"values": [1, 2.5], "label": "a"}, 1.75)


def script(asked: Asked) -> Reply:
    if asked.system == "You help.":
        return Reply("helped")
    if not asked.results:
        calls = [
            Call("add", {"a": 1, "b": 2}, "call_add"),
            Call("explode", {}, "call_explode"),
            Call("help", {"input": "x"}, "call_help"),
        ]
        return Reply(calls=tuple(calls))
    return Reply(" ".join(asked.results))


async def test_agents_sdk_tools_and_agents(spans: Spans) -> None:
    @function_tool(failure_error_function=None)
    @arttrace.tool
    async def add(a: int, b: int) -> str:
        """Adds, by a server."""
        async with Client(mcp_server) as client:
            return (await client.call_tool("add", {"a": a, "b": b})).content[0].text

    @function_tool
    def explode() -> str:
        """Explodes."""
        raise ValueError("bang")

    with serve_script(script) as server:
        model = OpenAIResponsesModel("m", AsyncOpenAI(base_url=server.url, api_key="k"))
        helper = Agent(name="Helper", instructions="You help.", model=model)
        agent: Agent[Any] = Agent(name="Adder", model=model, tools=[add, explode, helper.as_tool("help", "Helps.")])
        bare = await Runner.run(agent, "go")
        with arttrace.trajectory(name="root"):
            result = await Runner.run(agent, "go")
    assert result.final_output == bare.final_output
    by_name = {span.attributes[semconv.TOOL_NAME]: span for span in tools(spans)}
    assert len(by_name) == len(tools(spans)) == 3, "through the SDK, @tool and MCP: one execution, one span"
    assert seen(by_name["add"]) == ("add", {"a": 1, "b": 2}, "3")
    assert by_name["add"].attributes[semconv.TOOL_CALL_ID] == "call_add"
    assert by_name["explode"].attributes[semconv.TOOL_CALL_ID] == "call_explode"
    assert seen(by_name["explode"])[2] in result.final_output
    agents = {s.attributes[semconv.AGENT_NAME]: s for s in spans() if semconv.AGENT_NAME in s.attributes}
    assert agents["Adder"].parent_span_id == agents["root"].span_id
    assert agents["Helper"].parent_span_id == by_name["help"].span_id


async def test_nothing_is_recorded_outside_a_trajectory_or_where_capture_is_off(spans: Spans) -> None:
    look_up.invoke({"word": "tea"})
    with arttrace.trajectory(name="root"), arttrace.no_capture():
        look_up.invoke({"word": "tea"})
        async with Client(mcp_server) as client:
            await client.call_tool("add", {"a": 1, "b": 2})
    assert tools(spans) == []


async def test_agents_of_runs_that_end_early_are_ended(spans: Spans) -> None:
    @function_tool
    async def wait() -> str:
        """Waits."""
        await asyncio.sleep(60)
        return "never"

    with serve_script(lambda asked: Reply(calls=(Call("wait", {}, "call_wait"),))) as server:
        model = OpenAIChatCompletionsModel("m", AsyncOpenAI(base_url=server.url, api_key="k"))
        agent: Agent[Any] = Agent(name="Waiter", model=model, tools=[wait])
        with arttrace.trajectory(name="cancelled"):
            run = asyncio.create_task(Runner.run(agent, "go"))
            while not server.sent or not openai_agents._running:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
        with arttrace.trajectory(name="left early"):
            result = Runner.run_streamed(agent, "go")
            async for event in result.stream_events():
                if event.type == "run_item_stream_event":
                    break
            result.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await result.run_loop_task
        with arttrace.trajectory(name="too long"), pytest.raises(MaxTurnsExceeded):
            await Runner.run(Agent(name="Waiter", model=model, tools=[wait]), "go", max_turns=0)
    while openai_agents._running:
        await asyncio.sleep(0.01)
    waiters = [span for span in spans() if span.attributes.get(semconv.AGENT_NAME) == "Waiter"]
    assert len(waiters) >= 2


class State(TypedDict):
    said: Annotated[list[str], operator.add]


@langchain_tool
def task(word: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Any:
    """Hands a task to a sub-agent, as deepagents does: the state comes back, and what the model sees in it."""
    others = [ToolMessage("somebody else's", tool_call_id="call_other")]
    answers = {
        "one": Command(
            update={"files": {"a": 1}, "messages": [*others, ToolMessage("done", tool_call_id=tool_call_id)]}
        ),
        "pairs": Command(update=[("files", {"a": 1}), ("messages", [ToolMessage("done", tool_call_id=tool_call_id)])]),
        "list": [Command(goto="last"), ToolMessage("done", tool_call_id=tool_call_id)],
        "failed": Command(update={"messages": [ToolMessage("no", tool_call_id=tool_call_id, status="error")]}),
        "nobody": Command(update={"messages": others}),
    }
    return answers[word]


@pytest.mark.parametrize(
    ("word", "result", "error"),
    [("one", "done", None), ("pairs", "done", None), ("list", "done", None), ("failed", "no", "tool_error")],
)
async def test_a_command_is_recorded_as_what_the_model_saw(
    word: str, result: str, error: str | None, spans: Spans
) -> None:
    call: Any = {"type": "tool_call", "id": "call_1", "name": "task", "args": {"word": word}}
    with arttrace.trajectory(name="root"):
        given = task.invoke(call)
        again = await task.ainvoke(call)
    assert type(given) is type(again)
    recorded = tools(spans)
    assert len(recorded) == 2
    for span in recorded:
        assert json.loads(span.attributes[semconv.TOOL_CALL_RESULT]) == result
        assert span.attributes.get(semconv.ERROR_TYPE) == error


def test_a_command_that_answers_nobody_is_recorded_as_it_is(spans: Spans) -> None:
    with arttrace.trajectory(name="root"):
        task.invoke({"type": "tool_call", "id": "call_1", "name": "task", "args": {"word": "nobody"}})
    [span] = tools(spans)
    assert "somebody else's" in span.attributes[semconv.TOOL_CALL_RESULT]
    assert semconv.TOOL_CALL_ID in span.attributes


async def test_langgraph_commands_and_interrupts_are_no_errors(spans: Spans) -> None:
    def hand_over(state: State) -> Any:
        return Command(goto="last", graph=Command.PARENT, update={"said": ["handed over"]})

    @langchain_tool
    def person(question: str) -> str:
        """Asks a person."""
        return str(interrupt(question))

    def ask(state: State) -> Any:
        return {"said": [person.invoke({"question": "who?"})]}

    inner = StateGraph(State).add_node("hand over", hand_over).add_edge(START, "hand over").compile(name="inner")
    outer = StateGraph(State).add_node("inner", inner).add_node("last", ask).add_edge(START, "inner")
    graph = outer.compile(name="outer", checkpointer=InMemorySaver())
    with arttrace.trajectory(name="root"), arttrace.agent(name="outer"):
        config: Any = {"configurable": {"thread_id": "1"}}
        first = await graph.ainvoke({"said": []}, config)
        second = graph.invoke(Command(resume="me"), config)
    assert first["__interrupt__"][0].value == "who?"
    assert second["said"] == ["handed over", "me"]
    agents = [span for span in spans() if semconv.AGENT_NAME in span.attributes]
    assert [span.attributes[semconv.AGENT_NAME] for span in agents] == ["inner", "outer", "root"], (
        "a graph inside an agent of its name is that agent"
    )
    assert not [span for span in spans() if semconv.ERROR_TYPE in span.attributes]
    waiting, answered = tools(spans)
    assert waiting.attributes[semconv.INTERRUPTED] == "closed"
    assert seen(answered) == ("person", {"question": "who?"}, "me")


@pytest.mark.parametrize(
    "broken",
    [
        [(runs, "open_scope"), (openai_agents, "open_agent")],
        [(runs, "ScopeStep")],
        [(runs, "close")],
        [(mcp, "_called"), (langchain, "_called"), (openai_agents, "_called"), (langgraph, "_name")],
        [(mcp, "_shown"), (langchain, "_shown"), (openai_agents, "_shown")],
    ],
    ids=["opening", "entering", "closing", "reading a call", "reading a result"],
)
async def test_a_failure_of_ours_changes_nothing(
    broken: list[tuple[Any, str]], monkeypatch: pytest.MonkeyPatch, spans: Spans
) -> None:
    monkeypatch.setenv("ARTTRACE_RAISE", "0")
    for module, name in broken:
        monkeypatch.setattr(module, name, lambda *args, **kwargs: 1 / 0)
    with arttrace.trajectory(name="root"), serve_script(script) as server:
        assert look_up.invoke({"word": "tea"}) == "tea is a word"
        assert await look_up_later.ainvoke({"word": "cup"}) == "cup was a word"
        async with Client(mcp_server) as client:
            assert not (await client.call_tool("add", {"a": 1, "b": 2})).is_error
        model = OpenAIResponsesModel("m", AsyncOpenAI(base_url=server.url, api_key="k"))
        result = await Runner.run(Agent(name="Helper", instructions="You help.", model=model), "go")
        assert result.final_output == "helped"
        graph = StateGraph(State).add_node("say", lambda state: {"said": ["a"]}).add_edge(START, "say").compile()
        assert graph.invoke({"said": []}) == await graph.ainvoke({"said": []}) == {"said": ["a"]}
    assert guard.failures
    openai_agents._running.clear()


async def test_a_servers_tool_in_the_agents_sdk_is_one_span(spans: Spans) -> None:
    def call_add(asked: Asked) -> Reply:
        if asked.results:
            return Reply(asked.results[0])
        (add,) = asked.tools
        return Reply(calls=(Call(add, {"a": 1, "b": 2}, "call_add"),))

    command: Any = {"command": sys.executable, "args": [number_server.__file__]}
    with serve_script(call_add) as server:
        model = OpenAIChatCompletionsModel("m", AsyncOpenAI(base_url=server.url, api_key="k"))
        async with MCPServerStdio(command, name="numbers", client_session_timeout_seconds=60) as numbers:
            for config in ({}, {"include_server_in_tool_names": True}):
                agent: Agent[Any] = Agent(name="Adder", model=model, mcp_servers=[numbers], mcp_config=config)
                with arttrace.trajectory(name="root"):
                    result = await Runner.run(agent, "go")
                assert "3" in result.final_output
    plain, prefixed = tools(spans)
    assert plain.attributes[semconv.TOOL_NAME] == "add"
    assert prefixed.attributes[semconv.TOOL_NAME].endswith("_add")
    assert {span.attributes[semconv.TOOL_CALL_ID] for span in (plain, prefixed)} == {"call_add"}
