"""The Claude Agent SDK captured, with the Claude Code that it brings: each call as the server had it, in its place."""

from __future__ import annotations

import asyncio
import itertools
import json
import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from claude_agent_sdk import (
    AssistantMessage,
    ClaudeAgentOptions,
    ClaudeSDKClient,
    ResultMessage,
    TextBlock,
    create_sdk_mcp_server,
    query,
    tool,
)
from messages_server import MessagesServer, serve_messages, whole

import arttrace
from arttrace.capture.base import guard
from arttrace.capture.patches.frameworks.claude_agent import transport
from arttrace.capture.patches.frameworks.claude_agent.bodies import WrittenBodies
from arttrace.capture.patches.frameworks.claude_agent.claude_code import ClaudeCode
from arttrace.capture.patches.frameworks.claude_agent.transport import VARIABLE
from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.trajectories import build_trajectories
from arttrace.wire import Exchange, decode

Spans = Callable[[], list[SpanRow]]
Block = dict[str, Any]
NUMBERS = itertools.count()
LOOK = {"type": "tool_use", "id": "toolu_look", "name": "Bash", "input": {"command": "echo found", "description": "x"}}
GREET = {"type": "tool_use", "id": "toolu_greet", "name": "mcp__mine__greet", "input": {"name": "Bob"}}
THOUGHT = {"type": "thinking", "thinking": "I should look.", "signature": "sig"}


def sent_away(number: int, prompt: str) -> Block:
    told = {"description": "look", "prompt": prompt, "subagent_type": "general-purpose"}
    return {"type": "tool_use", "id": f"toolu_agent_{number}", "name": "Agent", "input": told}


def says(*blocks: Block) -> dict[str, Any]:
    stop = "tool_use" if any(block["type"] == "tool_use" for block in blocks) else "end_turn"
    return {"id": f"msg_{next(NUMBERS)}", "content": [*blocks], "stop_reason": stop}


def text(said: str) -> Block:
    return {"type": "text", "text": said}


def last(request: dict[str, Any]) -> str:
    """What the model is asked last, of which its answer depends."""
    return json.dumps(
        request["messages"][-1] if request["messages"][-1]["role"] == "user" else request["messages"][-2:]
    )


def results(request: dict[str, Any]) -> set[str]:
    """The tool calls that have a result in the request."""
    blocks = [b for m in request["messages"] if isinstance(m["content"], list) for b in m["content"]]
    return {block["tool_use_id"] for block in blocks if block.get("type") == "tool_result"}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MessagesServer]:
    """What Claude Code asks in place of Anthropic's server; it finds no settings and calls nobody else."""
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.setattr(ClaudeCode, "writes_none", False)  # as after the test of an older one
    with serve_messages() as running:
        for name, value in {
            "HOME": str(tmp_path / "home"),
            "ANTHROPIC_BASE_URL": running.url,
            "ANTHROPIC_API_KEY": "sk-ant-secret-0123456789",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
        }.items():
            monkeypatch.setenv(name, value)
        yield running


@pytest.fixture
def options(tmp_path: Path) -> ClaudeAgentOptions:
    return ClaudeAgentOptions(setting_sources=[], allowed_tools=["Bash(echo:*)", "Agent"], cwd=tmp_path / "work")


async def asked(prompt: str, options: ClaudeAgentOptions) -> list[Any]:
    """What the program gets: the texts, and whether it went well."""
    got: list[Any] = []
    async for message in query(prompt=prompt, options=options):
        if isinstance(message, AssistantMessage):
            got += [block.text for block in message.content if isinstance(block, TextBlock)]
        if isinstance(message, ResultMessage):
            got.append(message.is_error)
    return got


def left_there(tmp_path: Path) -> list[str]:
    """What Claude Code has written and is not recorded."""
    return [path.name for path in (tmp_path / "data" / "claude-code").rglob("*")]


def calls(found: list[SpanRow]) -> list[SpanRow]:
    return [span for span in found if span.attributes[semconv.OPERATION_NAME] == "chat"]


def agents(found: list[SpanRow]) -> dict[str, str]:
    """The agent of each span of one, by its id."""
    return {
        span.span_id: span.attributes[semconv.AGENT_NAME] for span in found if semconv.AGENT_NAME in span.attributes
    }


CONTENT = (semconv.INPUT_MESSAGES, semconv.OUTPUT_MESSAGES, semconv.TOOL_DEFINITIONS)


def on_the_wire(server: MessagesServer, answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a hook of the HTTP client would have recorded of what the server was sent and answered, in order."""
    decoded = []
    for (path, _, request), answer in zip(server.sent, answers, strict=True):
        body = json.dumps(whole(request["model"]) | answer).encode()
        exchange = Exchange(
            request=json.dumps(request).encode(),
            status=200,
            headers={"content-type": "application/json"},
            body=body,
            path=path.partition("?")[0],
        )
        decoded.append(decode(exchange).attributes)
    return decoded


async def test_each_call_is_recorded_as_the_server_had_it(
    server: MessagesServer, options: ClaudeAgentOptions, spans: Spans, tmp_path: Path
) -> None:
    answers = [says(THOUGHT, text("I look."), LOOK), says(text("Found."))]
    left = iter(answers * 2)
    server.script = lambda request: next(left)
    with arttrace.no_capture():
        bare = await asked("look", options)
    server.sent.clear()
    captured = await arttrace.trajectory(asked, name="run")("look", options)
    assert captured == bare == ["I look.", "Found.", False]

    found = spans()
    recorded = calls(found)
    for span, wire in zip(recorded, on_the_wire(server, answers), strict=True):
        assert {name: span.attributes[name] for name in CONTENT} == {name: wire[name] for name in CONTENT}
        assert span.attributes[semconv.PROVIDER_NAME] == "anthropic"
        assert span.attributes[semconv.SERVER_ADDRESS] == "127.0.0.1"
        assert span.end_ns >= span.start_ns
    assert "I should look." in recorded[0].attributes[semconv.OUTPUT_MESSAGES]
    assert recorded[0].end_ns <= recorded[1].end_ns <= found[-1].end_ns
    [run] = build_trajectories(found)
    assert run.incomplete == ""
    assert "sk-ant-secret" not in "".join(map(str, found))
    assert left_there(tmp_path) == []


async def test_a_sub_agents_calls_are_its_own(
    server: MessagesServer, options: ClaudeAgentOptions, spans: Spans
) -> None:
    """Two at once, of one kind and with calls of tools in between."""

    def script(request: dict[str, Any]) -> dict[str, Any]:
        sent = json.dumps(request["messages"])
        if "QUINCE" not in sent and "MEDLAR" not in sent:
            return says(text("Go."), sent_away(1, "QUINCE, look"), sent_away(2, "MEDLAR, look"))
        if "toolu_agent_1" in sent:
            return says(text("All done."))
        me = "QUINCE" if "QUINCE" in sent else "MEDLAR"
        if f"toolu_{me}" not in sent:
            return says({**LOOK, "id": f"toolu_{me}"})
        return says(text(f"{me} is done."))

    server.script = script
    await arttrace.trajectory(asked, name="run")("go", options)

    found = spans()
    names, recorded = agents(found), calls(found)
    sub_agents = [span for span in found if span.attributes.get(semconv.AGENT_NAME) == "general-purpose"]
    assert len(recorded) == len(server.sent)
    assert len(sub_agents) == 2
    for span in sub_agents:
        own = [call for call in recorded if call.parent_span_id == span.span_id]
        words = [call.attributes[semconv.INPUT_MESSAGES] for call in own]
        assert len(own) == 2
        assert len({("QUINCE, look" in each, "MEDLAR, look" in each) for each in words}) == 1
        assert span.start_ns <= min(call.start_ns for call in own)
        assert max(call.end_ns for call in own) <= span.end_ns
        assert names[span.parent_span_id or ""] == "run"
        answer = json.loads(own[-1].attributes[semconv.OUTPUT_MESSAGES])[0]["parts"][0]["content"]
        assert answer.split()[0] in words[0]
    [run] = build_trajectories(found)
    assert run.incomplete == ""
    assert sorted(agent.name for agent in run.agents) == ["general-purpose", "general-purpose", "run"]


async def test_each_turn_of_a_client_is_of_who_asked(
    server: MessagesServer, options: ClaudeAgentOptions, spans: Spans, tmp_path: Path
) -> None:
    """With a tool that is a function of the program, which calls an agent of its own."""
    there: list[list[str]] = []

    @arttrace.agent
    async def greeter(name: str) -> str:
        async with asyncio.timeout(60):
            while (names := left_there(tmp_path)) and any(name.endswith(".response.json") for name in names):
                await asyncio.sleep(0.05)
        there.append(names)
        return f"hi {name}"

    @tool("greet", "Greets", {"name": str})
    async def greet(arguments: dict[str, Any]) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": await greeter(arguments["name"])}]}

    def script(request: dict[str, Any]) -> dict[str, Any]:
        return says(GREET) if "GREET" in last(request) else says(text("Done."))

    server.script = script
    options.mcp_servers = {"mine": create_sdk_mcp_server("mine", "1.0.0", [greet])}
    options.allowed_tools = ["mcp__mine__greet"]
    async with ClaudeSDKClient(options) as client:

        @arttrace.trajectory
        async def turn(prompt: str) -> list[str]:
            await client.query(prompt)
            return [type(message).__name__ async for message in client.receive_response()]

        await turn("GREET")
        assert [name for name in left_there(tmp_path) if name.endswith(".json")] == []
        await turn("thanks")

    found = spans()
    first, second = build_trajectories(found)
    assert (first.incomplete, second.incomplete) == ("", "")
    assert (len(first.calls), len(second.calls)) == (2, 1)
    [call] = [span for span in found if span.attributes[semconv.OPERATION_NAME] == "execute_tool"]
    assert call.attributes[semconv.TOOL_NAME] == GREET["name"]
    assert call.attributes[semconv.TOOL_CALL_ID] == GREET["id"]
    assert json.loads(call.attributes[semconv.TOOL_CALL_RESULT]) == "hi Bob"
    [inner] = [span for span in found if span.attributes.get(semconv.AGENT_NAME) == "greeter"]
    assert inner.parent_span_id == call.span_id


async def test_a_call_that_is_left_early_is_of_who_asked_for_it(
    server: MessagesServer, options: ClaudeAgentOptions, spans: Spans
) -> None:
    server.script = lambda request: says(text("Done.")) if results(request) else says(text("I look."), LOOK)
    async with ClaudeSDKClient(options) as client:

        async def turn(prompt: str, until: type) -> None:
            await client.query(prompt)
            async for message in client.receive_messages():
                if isinstance(message, until):
                    break

        await arttrace.trajectory(turn, name="first")("QUINCE", AssistantMessage)
        await client.interrupt()
        await arttrace.trajectory(turn, name="second")("MEDLAR", ResultMessage)

    found = spans()
    names = agents(found)
    of = {"first": 0, "second": 0}
    for call in calls(found):
        name = names[call.parent_span_id or ""]
        assert ("MEDLAR" in call.attributes[semconv.INPUT_MESSAGES]) == (name == "second")
        of[name] += 1
    assert min(of.values()) >= 1


async def test_without_room_for_what_it_writes_the_run_is_incomplete(
    server: MessagesServer,
    options: ClaudeAgentOptions,
    spans: Spans,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("ARTTRACE_RAISE")
    server.script = lambda request: says(text("Done."))
    (tmp_path / "data").mkdir(exist_ok=True)
    (tmp_path / "data" / "claude-code").write_text("a file in the place of the directory")
    assert await arttrace.trajectory(asked, name="run")("go", options) == ["Done.", False]
    [run] = build_trajectories(spans())
    assert run.incomplete


async def test_attempts_that_the_server_refuses_are_of_one_call(
    server: MessagesServer, options: ClaudeAgentOptions, spans: Spans
) -> None:
    server.script = lambda request: says(text("Done."))
    server.failures = [529]
    await arttrace.trajectory(asked, name="run")("go", options)
    [call] = calls(spans())
    assert call.attributes[semconv.ATTEMPTS] == 2
    assert [event.attributes[semconv.HTTP_STATUS_CODE] for event in call.events] == [529]


async def test_a_call_that_is_never_answered_is_recorded(
    server: MessagesServer, options: ClaudeAgentOptions, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAUDE_CODE_MAX_RETRIES", "1")
    server.failures = [529] * 20
    with pytest.raises(Exception):  # noqa: B017, PT011  the SDK's own, of what Claude Code said
        await arttrace.trajectory(asked, name="run")("go", options)
    found = spans()
    assert calls(found)
    assert all(call.status_message for call in calls(found))
    assert len(calls(found)) == 1


async def test_a_loop_that_is_left_early_leaves_nothing(
    server: MessagesServer, options: ClaudeAgentOptions, spans: Spans, tmp_path: Path
) -> None:
    server.script = lambda request: says(text("I look."), LOOK) if not results(request) else says(text("Done."))

    @arttrace.trajectory
    async def left() -> None:
        messages = query(prompt="go", options=options)
        async for message in messages:
            if isinstance(message, AssistantMessage):
                break
        await messages.aclose()  # type: ignore[attr-defined]

    await left()
    async with asyncio.timeout(120):  # the SDK leaves the end of Claude Code to the event loop
        while left_there(tmp_path):
            await asyncio.sleep(0.05)
    [run] = build_trajectories(spans())
    assert len(run.calls) >= 1
    assert run.incomplete == ""


def without_the_variable(tmp_path: Path) -> Path:
    """A Claude Code that writes nothing, as those before 2.1 do."""
    import claude_agent_sdk

    real = Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude"
    program = tmp_path / "claude"
    program.write_text(f'#!/bin/sh\nunset {VARIABLE}\nexec {shlex.quote(str(real))} "$@"\n')
    program.chmod(0o755)
    return program


@pytest.mark.parametrize("way", ["older", "the user's own"])
async def test_where_the_calls_are_not_to_be_had_the_run_is_incomplete(
    way: str,
    server: MessagesServer,
    options: ClaudeAgentOptions,
    spans: Spans,
    tmp_path: Path,
) -> None:
    server.script = lambda request: says(text("Done."))
    if way == "older":
        options.cli_path = without_the_variable(tmp_path)
    else:
        options.env = {VARIABLE: f"file:{tmp_path / 'bodies'}"}
    assert await arttrace.trajectory(asked, name="run")("go", options) == ["Done.", False]
    [run] = build_trajectories(spans())
    assert run.incomplete
    assert way == "older" or [*(tmp_path / "bodies").glob("*.response.json")]


async def test_what_the_gateway_records_is_not_recorded_twice(
    server: MessagesServer, options: ClaudeAgentOptions, spans: Spans
) -> None:
    server.script = lambda request: says(text("Done."))
    options.env = {"ANTHROPIC_BASE_URL": f"{server.url}/r/{'0' * 32}"}
    await arttrace.trajectory(asked, name="run")("go", options)
    assert calls(spans()) == []


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (transport, "_begun"),
        (ClaudeCode, "asked"),
        (ClaudeCode, "saw"),
        (ClaudeCode, "_record_in_its_turn"),
        (WrittenBodies, "take"),
        (ClaudeCode, "end"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_whatever_of_ours_fails_the_program_never_notices(
    owner: Any, name: str, server: MessagesServer, options: ClaudeAgentOptions, spans: Spans, monkeypatch: Any
) -> None:
    monkeypatch.delenv("ARTTRACE_RAISE")
    server.script = lambda request: says(text("Done."))
    monkeypatch.setattr(guard, "failures", Counter())

    def fails(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(owner, name, fails)
    assert await arttrace.trajectory(asked, name="run")("go", options) == ["Done.", False]
    assert guard.failures["recording Claude Code"] >= 1
