"""MCP servers that end, calls that none can be sent, and what a rollout asks a server for."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.server import MCPServer, Server
from mcp.types import CallToolResult, ListToolsResult, TextContent, Tool
from program_over_http import answering
from scripted_server import Asked, Call, Reply, serve_script

import arttrace
import arttrace.loop as art
from arttrace.mcp import connect, generate_scenarios, read_offer, rollout
from arttrace.store import Store
from arttrace.system.errors import RolloutError
from arttrace.system.paths import DataDir

EXAMPLE = Path(__file__).parents[2] / "examples" / "mcp" / "server.py"
ON_STDIO = [sys.executable, str(EXAMPLE)]


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
async def test_a_block_that_is_given_up_is_no_failure_of_the_server(transport: str) -> None:

    async def given_up(server: Any) -> None:
        async with asyncio.timeout(30) as bound, connect(server) as client:
            await client.list_tools()
            bound.reschedule(0)
            await asyncio.sleep(60)

    started = answering(EXAMPLE, "--http") if transport == "http" else contextlib.nullcontext(ON_STDIO)
    with started as server, pytest.raises(TimeoutError):
        await given_up(server)


async def test_an_address_may_begin_in_capitals_and_shows_no_key() -> None:
    with pytest.raises(RolloutError) as caught:
        await generate_scenarios("HTTP://127.0.0.1:9/mcp?key=secret", 2)
    assert "HTTP://127.0.0.1:9/mcp cannot be reached: ConnectError" in str(caught.value)
    assert "secret" not in str(caught.value)
