"""`arttrace mcp`, asked by the protocol's own client over stdio."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, get_args

import duckdb
import mcp
import msgspec
import pytest
from simulated_agent import research_run

from arttrace.commands.inspect.mcp import StoreAnswers
from arttrace.commands.inspect.mcp_tools import MAX_CHARACTERS
from arttrace.formats.imported_files import read_file
from arttrace.records.reward import Reward
from arttrace.store import Store
from arttrace.store.server.owner import answering
from arttrace.system.paths import DataDir
from arttrace.views.statistics import By, statistics

ARTTRACE = str(Path(sys.executable).with_name("arttrace"))


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    found = DataDir(tmp_path / "data")
    with Store.open(found, create=True) as store:
        store.append(research_run("one", "s"))
    return found


@contextlib.asynccontextmanager
async def client(data: DataDir) -> AsyncIterator[Any]:
    started = mcp.StdioServerParameters(command=ARTTRACE, args=["mcp", "--dir", str(data.root)])
    async with mcp.stdio_client(started) as (read, write), mcp.ClientSession(read, write) as session:
        await session.initialize()
        yield session


async def test_a_client_reads_the_store_and_changes_nothing(tmp_path: Path) -> None:
    data = DataDir(tmp_path / "data")
    with Store.open(data, create=True) as store:
        store.append([*research_run("one", "s"), *research_run("two", "t")])
        store.append([Reward(id="r", trajectory_id="two", value=0.5)])
    async with client(data) as session:

        async def ask(tool: str, **arguments: Any) -> Any:
            answer = await session.call_tool(tool, arguments)
            text = answer.content[0].text
            return text if answer.is_error or tool == "show_run" else json.loads(text)

        tools = {tool.name: tool for tool in (await session.list_tools()).tools}
        assert tools.keys() == {"list_runs", "search_runs", "show_run", "diff", "stats", "sql"}
        assert "http_requests" in (tools["sql"].description or "")
        assert {run["id"] for run in await ask("list_runs")} == {"one", "two"}
        assert [run["reward"] for run in await ask("list_runs", reward=">0.1")] == [0.5]
        assert "is not a comparison" in await ask("list_runs", reward="many")
        assert "'error' is none of failed, incomplete" in await ask("list_runs", status="error")
        assert "neither a policy nor a version" in await ask("list_runs", policy="policy@latest")
        newest, left_out = await ask("list_runs", limit=1)
        assert (newest["incomplete"], newest["unread"]) == ("", {})
        assert left_out == {"left_out": "older runs that match; raise limit"}
        assert len(await ask("search_runs", text="researcher", limit=1)) <= 2
        assert "agent planner" in await ask("show_run", id="on")
        parted = await ask("diff", first="on", second="tw")
        assert [run["id"] for run in parted["runs"]] == ["one", "two"]
        assert "no trajectory" in await ask("show_run", id="nothing")
        with Store.open(data) as store:
            shown = {kind: msgspec.to_builtins(statistics(store, kind)) for kind in get_args(By)}
        assert await ask("stats") == shown
        assert [row["runs"] for row in shown["entry"]] == [2]
        assert (await ask("stats", since="2999-01-01"))["entry"] == []
        assert await ask("sql", query="SELECT count(*) AS n FROM trajectories") == [{"n": 2}]
        assert isinstance(await ask("sql", query="DROP VIEW trajectories"), str)
        assert await ask("sql", query="SELECT count(*) AS n FROM trajectories") == [{"n": 2}]
        many = await ask("sql", query="SELECT range AS n FROM range(1500)")
        assert many[-1] == {"left_out": 500}
        with Store.open(data) as store:
            store.append(read_file(b'{"messages": [{"role": "user", "content": "?"}]}', "undated").records)
        [undated] = await ask("list_runs", entry="undated")
        assert undated["started_ns"] is None


def test_a_directory_without_a_store_is_refused_at_the_start(tmp_path: Path) -> None:
    """A client shows what a server that does not start says; one whose tools all fail it has to ask first."""
    command = [ARTTRACE, "mcp", "--dir", str(tmp_path / "mistyped")]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith(f"error: no store in {tmp_path / 'mistyped'}\n")
    assert "--dir" in ended.stderr


ENDLESS = {"query": "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b"}


async def test_calls_at_the_same_time_are_answered_and_one_that_is_cancelled_is_stopped(data: DataDir) -> None:
    async with client(data) as session:
        slow = asyncio.create_task(session.call_tool("sql", ENDLESS))
        while await asyncio.to_thread(is_free, data):
            assert not slow.done(), slow.result()
            await asyncio.sleep(0.05)  # in which the server can have it
        runs = await asyncio.gather(*(session.call_tool("list_runs", {}) for _ in range(3)))
        assert [[run["id"] for run in json.loads(one.content[0].text)] for one in runs] == [["one"]] * 3
        assert not is_free(data)
        slow.cancel()
        while not await asyncio.to_thread(is_free, data):
            assert not slow.done() or slow.cancelled()
            await asyncio.sleep(0.05)


async def test_a_call_that_is_cancelled_is_stopped_in_the_process_that_owns_the_store(data: DataDir) -> None:
    with Store.open(data) as own, answering(own):
        async with client(data) as session:
            slow = asyncio.create_task(session.call_tool("sql", ENDLESS))
            while own._file.readers == 0:
                assert not slow.done(), slow.result()
                await asyncio.sleep(0.05)
            slow.cancel()
            async with asyncio.timeout(60):
                while own._file.readers:
                    await asyncio.sleep(0.05)
            assert not (await session.call_tool("list_runs", {})).is_error


@pytest.mark.parametrize("wait_s", [0.0, 1.0])
async def test_a_query_that_takes_too_long_elsewhere_is_said_to(
    wait_s: float, data: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arttrace.commands.inspect.mcp.QUERY_S", wait_s)
    with Store.open(data) as own, answering(own):
        said, failed = await StoreAnswers(data).answer("sql", ENDLESS)
    assert failed
    assert said.startswith(f"the query took longer than {wait_s:g} seconds")
    assert said.endswith("Ask for less at a time.")


def is_free(data: DataDir) -> bool:
    """Whether nobody has the store open. This process must not: it would end its own lock by looking."""
    try:
        duckdb.connect(str(data.store)).close()
    except duckdb.IOException:
        return False
    return True


def test_a_server_whose_client_is_gone_ends_whatever_it_reads(data: DataDir) -> None:
    asked = [
        {
            "id": 1,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "test", "version": "1"},
            },
        },
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": "sql", "arguments": ENDLESS}},
    ]
    lines = "".join(json.dumps({"jsonrpc": "2.0", **one}) + "\n" for one in asked)
    command = [ARTTRACE, "mcp", "--dir", str(data.root)]
    ended = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0


def test_a_server_that_nobody_reads_ends_though_its_stdin_stays_open(data: DataDir) -> None:
    command = [ARTTRACE, "mcp", "--dir", str(data.root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.close()
        try:
            assert server.wait(60) == 0
        finally:
            server.kill()


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("list_runs", {"project": "other"}, "unknown field `project`"),
        ("list_runs", {"limit": 0}, "Expected `int` >= 1"),
        ("list_runs", {"limit": 10**30}, "Expected `int` <= 1000"),
        ("show_run", {}, "missing required field `id`"),
        ("remove_runs", {}, "there is no tool 'remove_runs'; there are list_runs, "),
    ],
)
async def test_an_argument_that_is_none_is_refused(
    data: DataDir, tool: str, arguments: dict[str, Any], said: str
) -> None:
    text, failed = await StoreAnswers(data).answer(tool, arguments)
    assert (said in text, failed) == (True, True)


async def test_what_looks_like_json_is_text(data: DataDir) -> None:
    assert await StoreAnswers(data).answer("list_runs", {"entry": "null"}) == ("[]", False)


async def test_an_answer_is_bounded_and_still_json(data: DataDir) -> None:
    async def rows(query: str) -> Any:
        text, failed = await StoreAnswers(data).answer("sql", {"query": query})
        assert (len(text) < MAX_CHARACTERS + 100, failed) == (True, False)
        return json.loads(text)

    *whole, last = await rows("SELECT range AS n, repeat('x', 900) AS text FROM range(1200)")
    assert {len(row["text"]) for row in whole} == {900}
    assert last == {"left_out": 1200 - len(whole)}
    [cut, last] = await rows("SELECT repeat('x', 1000000) AS text, 1 AS one FROM range(3)")
    assert (cut["one"], last) == (1, {"left_out": 2})
    assert cut["text"].endswith(" of 1000000 characters]")
    assert await rows("SELECT range(100000) AS numbers") == [{"left_out": "588903 characters"}]
