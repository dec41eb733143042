"""MCP-RL with real MCP servers, on stdio and over HTTP, those that end too, and calls that none can be sent; the models
behind the agent and the scenarios are stand-ins."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from mcp import Client, StdioServerParameters
from mcp.server import MCPServer, Server
from mcp.types import CallToolResult, ListToolsResult, TextContent, Tool
from program_over_http import answering
from scripted_server import Asked, Call, Reply, serve_script

import arttrace
import arttrace.loop as art
from arttrace.loop.scenarios import Scenario, alike, split
from arttrace.mcp import connect, generate_scenarios, read_offer, rollout
from arttrace.store import Store
from arttrace.system.errors import ArttraceError, RolloutError
from arttrace.system.paths import DataDir

EXAMPLE = Path(__file__).parents[2] / "examples" / "mcp" / "server.py"
ON_STDIO = [sys.executable, str(EXAMPLE)]


@pytest.fixture(scope="module")
def over_http() -> Iterator[str]:
    with answering(EXAMPLE, "--http") as url:
        yield url


CALLS = (
    Call("fare", {"origin": "Arden", "destination": "Corfe"}, "call_1"),
    Call("read_resource", {"uri": "timetable://lines"}, "call_2"),
    Call("fare", {"origin": "Arden", "destination": "Hythe"}, "call_3"),
    Call("fly", {}, "call_4"),
)


def traveller(asked: Asked) -> Reply:
    """Makes all calls at once, then says what came back."""
    if not asked.results:
        return Reply("", CALLS)
    return Reply(f"It costs {asked.results[0]}.")


@pytest.fixture
def model(tmp_path: Path) -> Iterator[art.Model]:
    arttrace.init(dir=tmp_path)
    with serve_script(traveller) as server:
        yield art.Model("m", inference_base_url=server.url, inference_api_key="k")
    arttrace.shutdown()


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_rollout_calls_the_servers_tools_and_reads_its_resources(
    transport: str, model: art.Model, request: pytest.FixtureRequest
) -> None:
    server = ON_STDIO if transport == "stdio" else request.getfixturevalue("over_http")
    group = await art.gather_trajectories(rollout(model, "What is the fare?", server) for _ in range(2))
    assert group.results == ["It costs 5.92."] * 2
    assert len(group.trajectories) == 2
    for run in group.trajectories:
        assert (run.incomplete, run.error, run.result) == ("", None, "It costs 5.92.")
        assert [len(call.call.choices) for call in run.calls] == [1, 1]
        shown = [(one.name, str(one.result)) for one in run.tool_calls]
        assert sorted(name for name, _ in shown) == ["fare", "fare", "fly", "read_resource"]
        assert ("fare", "5.92") in shown
        assert any("without a change" in result for name, result in shown if name == "fare")
        assert any("Valley: Arden, Farley, Corfe, Gorran" in result for name, result in shown)
        assert any("Unknown tool" in result for name, result in shown if name == "fly")


async def test_a_model_that_never_ends_is_asked_so_often_and_no_more(tmp_path: Path) -> None:
    def endless(asked: Asked) -> Reply:
        return Reply("I look.", (Call("look", {"what": "boat"}),))

    arttrace.init(dir=tmp_path)
    with serve_script(endless) as server:
        model = art.Model("m", inference_base_url=server.url, inference_api_key="k")
        group = await art.gather_trajectories([rollout(model, "Where to?", MCP, max_turns=3, temperature=0.5)])
        assert [sent.json["temperature"] for sent in server.sent] == [0.5] * 3
    assert group.results == ["I look."]
    assert group.trajectories[0].tags == ("max_turns",)
    arttrace.shutdown()


async def test_what_a_server_offers_in_words_and_as_tools() -> None:
    async with connect(" ".join(ON_STDIO)) as client:
        offer = await read_offer(client)
    assert [one["function"]["name"] for one in offer.tools] == ["stations", "departures", "fare"]
    assert offer.tools[2]["function"]["parameters"]["required"] == ["origin", "destination"]
    [resource] = offer.resources
    assert resource.excerpt.startswith("Coast: Arden, Brill")
    for word in ("small railway", "HH:MM", "timetable://lines", "Hill: Farley"):
        assert word in offer.described()


@pytest.mark.parametrize(
    ("server", "said"),
    [
        (["/no/such/program"], "/no/such/program cannot be reached: FileNotFoundError"),
        ([sys.executable, "-c", ""], "cannot be reached"),
        ("http://127.0.0.1:9/mcp?key=secret", "http://127.0.0.1:9/mcp cannot be reached"),
        ("http://user:secret@127.0.0.1:9/mcp", "http://127.0.0.1:9/mcp cannot be reached"),
        ("/no/such/program --api-key secret", "/no/such/program cannot be reached"),
        ("", "with an empty command line cannot be reached"),
        ("  ", "with an empty command line cannot be reached"),
        (StdioServerParameters(command="/no/such/program"), "/no/such/program"),
        (MCPServer("empty"), "offers no tool"),
    ],
)
async def test_a_server_that_cannot_be_used_is_named_with_its_cause(server: Any, said: str) -> None:
    with pytest.raises(RolloutError) as caught:
        await generate_scenarios(server, 2)
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize("password", ["hunter2/x", "hunter2?x", "hunter2#x", "hunter2@x", "8/hunter2", "[hunter2"])
async def test_no_part_of_a_servers_login_is_shown_however_it_is_written(password: str) -> None:
    with pytest.raises(RolloutError, match=r"127\.0\.0\.1:9/mcp cannot be reached") as caught:
        await generate_scenarios(f"http://user:{password}@127.0.0.1:9/mcp?key=hunter2", 2)
    assert "hunter2" not in str(caught.value)


class Writer:
    """A stand-in for the model that writes tasks; it repeats itself, and answers what is no answer."""

    def __init__(self, *batches: Any) -> None:
        self.batches = list(batches)
        self.lock = threading.Lock()
        self.asked: list[Asked] = []

    def __call__(self, asked: Asked) -> Reply:
        with self.lock:
            self.asked.append(asked)
            batch = self.batches.pop(0) if len(self.batches) > 1 else self.batches[0]
        if isinstance(batch, str):
            return Reply(batch)
        return Reply(json.dumps({"scenarios": [{"task": task, "difficulty": level} for task, level in batch]}))


async def written(writer: Writer, count: int, **options: Any) -> list[Scenario]:
    with serve_script(writer) as server:
        return await generate_scenarios(MCP, count, "openai/writer", {"api_base": server.url}, **options)


MCP = MCPServer("one")
MCP.tool(name="look")(lambda what: f"a {what}")


async def test_scenarios_are_checked_each_kept_once_and_asked_for_until_there_are_enough() -> None:
    writer = Writer(
        "I would rather chat.",
        [("Find the red door.", 2), ("find the RED door", 4), ("  ", 1), ("x" * 5000, 1)],
        [("Count all windows of the house.", 9), ("Find the red door!", 1), ("Name the roof's colour.", 5)],
    )
    kept: list[int] = []
    found = await written(writer, 3, on_batch=lambda so_far: kept.append(len(so_far)))
    assert found == [
        Scenario("Find the red door.", 2),
        Scenario("Count all windows of the house.", 3),
        Scenario("Name the roof's colour.", 5),
    ]
    assert kept == [1, 3]
    assert "look" in writer.asked[0].users[0]
    assert "cannot be used" in writer.asked[1].users[-1]
    assert "- Find the red door." in writer.asked[2].users[0]
    assert "Write 2 tasks" in writer.asked[2].users[0]
    again = await written(Writer([("Open it.", 1)]), 4, known=found)
    assert again == [*found, Scenario("Open it.", 1)]


async def test_a_model_that_repeats_itself_ends_with_a_reason() -> None:
    with pytest.raises(ArttraceError, match="wrote 1 different scenarios of 5"):
        await written(Writer([("Find the red door.", 2)]), 5)


async def test_what_a_rollout_raises_comes_as_it_is(tmp_path: Path) -> None:
    """Not in the group that the client's tasks would put it into."""
    arttrace.init(dir=tmp_path)
    nobody = art.Model("m", inference_base_url="http://127.0.0.1:9/v1", inference_api_key="k")
    for server in (ON_STDIO, MCP):
        with pytest.raises(openai.APIConnectionError):
            await rollout(nobody, "What is the fare?", server)
    arttrace.shutdown()


def test_none_moves_into_the_held_out_part_when_there_are_more_scenarios() -> None:
    some = [Scenario(f"task number {n}") for n in range(20)]
    train, held_out = split(some, 5)
    assert (len(train), len(held_out)) == (15, 5)
    assert {*train, *held_out} == {*some}
    more_train, more_held_out = split([*some, *(Scenario(f"other {n}") for n in range(20))], 10)
    assert len(more_held_out) == 10
    assert not {*more_train} & {*more_held_out}
    assert {one for one in more_held_out if one in some} <= {*held_out}
    assert alike("Find the red door", "find the RED door!")
    assert not alike("Find the red door", "Find the blue window")


async def test_a_result_that_breaks_the_tools_own_schema_goes_back_to_the_model(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"price": {"type": "number"}}, "required": ["price"]}
    fare = Tool(name="fare", input_schema={"type": "object"}, output_schema=schema)

    async def tools(*_: Any) -> ListToolsResult:
        return ListToolsResult(tools=[fare])

    async def call(*_: Any) -> CallToolResult:
        return CallToolResult(content=[TextContent(text="5.92")], structured_content={"cost": 5.92})

    def traveller(asked: Asked) -> Reply:
        return Reply(f"I was heard: {asked.results[0]}") if asked.results else Reply("", (Call("fare", {}),))

    server = Server("odd", on_list_tools=tools, on_call_tool=call)
    arttrace.init(dir=tmp_path)
    with serve_script(traveller) as policy:
        model = art.Model("m", inference_base_url=policy.url, inference_api_key="k")
        group = await art.gather_trajectories([rollout(model, "What is the fare?", lambda: Client(server))])
    arttrace.shutdown()
    assert group.exceptions == []
    assert group.results[0].startswith("I was heard: error: Invalid structured content returned by tool fare")


ODD_ARGUMENTS = {
    "[" * 100_000: "nested too deep",
    f'{{"origin": {"[" * 400}{"]" * 400}}}': "nested too deep",
    '{"origin": "\\ud83d", "destination": "Corfe"}': "\ufffd",
    "null": "cannot be read: they are no JSON object",
    "{": "cannot be read",
}


@pytest.mark.parametrize("transport", ["stdio", "memory"])
async def test_whatever_a_model_samples_as_a_call_the_run_goes_on(transport: str, tmp_path: Path) -> None:
    async def call(_: Any, params: Any) -> CallToolResult:
        return CallToolResult(content=[TextContent(text=f"no line from {(params.arguments or {}).get('origin')}")])

    async def tools(*_: Any) -> ListToolsResult:
        return ListToolsResult(tools=[Tool(name="fare", input_schema={"type": "object"})])

    def traveller(asked: Asked) -> Reply:
        if asked.results:
            return Reply("\n".join(asked.results))
        return Reply("\ud83d", tuple(Call("fare", text, f"call_{at}") for at, text in enumerate(ODD_ARGUMENTS)))

    arttrace.init(dir=tmp_path)
    with serve_script(traveller) as policy:
        model = art.Model("m", inference_base_url=policy.url, inference_api_key="k")
        server = (
            ON_STDIO if transport == "stdio" else lambda: Client(Server("s", on_list_tools=tools, on_call_tool=call))
        )
        group = await art.gather_trajectories([rollout(model, "What is the fare?", server)])
    arttrace.shutdown()
    assert group.exceptions == []
    for line, said in zip(group.results[0].split("\n"), ODD_ARGUMENTS.values(), strict=True):
        assert said in line


async def test_a_rollout_reads_no_resource_that_its_model_does_not_ask_for(tmp_path: Path) -> None:
    arttrace.init(dir=tmp_path)
    read: list[str] = []
    server = MCPServer("library")
    server.tool("look")(lambda: "")

    @server.resource("book://one")
    def book() -> str:
        read.append("one")
        return "Once upon a time."

    with serve_script(lambda asked: Reply("Done.")) as policy:
        quiet = art.Model("m", inference_base_url=policy.url, inference_api_key="k")
        group = await art.gather_trajectories([rollout(quiet, "Nothing to do.", server)])
        assert [one["function"]["name"] for one in policy.sent[0].json["tools"]] == ["look", "read_resource"]
    assert (group.results, read) == (["Done."], [])
    arttrace.shutdown()
    async with connect(server) as client:
        [resource] = (await read_offer(client)).resources
    assert (resource.excerpt, read) == ("Once upon a time.", ["one"])


DIES = """
import os, sys
from mcp.server import MCPServer

server = MCPServer("frail")

@server.tool()
def die() -> str:
    os._exit(3)

server.run("stdio") if len(sys.argv) < 2 else server.run("streamable-http", port=int(sys.argv[1]))
"""


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_server_that_ends_ends_the_run_and_is_no_fault_of_the_agents(transport: str, tmp_path: Path) -> None:
    (script := tmp_path / "frail.py").write_text(DIES)
    arttrace.init(dir=tmp_path / "data")

    def asks(asked: Asked) -> Reply:
        return Reply("I did what I could.") if asked.results else Reply("", (Call("die", {}),))

    with contextlib.ExitStack() as stack:
        policy = stack.enter_context(serve_script(asks))
        server: Any = [sys.executable, str(script)]
        if transport == "http":
            server = stack.enter_context(answering(script))
        model = art.Model("m", inference_base_url=policy.url, inference_api_key="k")
        with pytest.raises(RolloutError, match=r"the MCP server .*(ended|broke off)") as caught:
            await rollout(model, "Do it.", server)
        assert "try" in str(caught.value.hint)
    arttrace.shutdown()
    with Store.open(DataDir(tmp_path / "data")) as store:
        [run] = store.summaries()
        assert "RolloutError: the MCP server" in (run.error or "")


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_block_that_is_given_up_is_no_failure_of_the_server(
    transport: str, request: pytest.FixtureRequest
) -> None:

    async def given_up(server: Any) -> None:
        async with asyncio.timeout(30) as bound, connect(server) as client:
            await client.list_tools()
            bound.reschedule(0)
            await asyncio.sleep(60)

    server = ON_STDIO if transport == "stdio" else request.getfixturevalue("over_http")
    with pytest.raises(TimeoutError):
        await given_up(server)


async def test_an_address_may_begin_in_capitals_and_shows_no_key() -> None:
    with pytest.raises(RolloutError) as caught:
        await generate_scenarios("HTTP://127.0.0.1:9/mcp?key=secret", 2)
    assert "HTTP://127.0.0.1:9/mcp cannot be reached: ConnectError" in str(caught.value)
    assert "secret" not in str(caught.value)
