"""`arttrace mcp`, asked by the protocol's own client over stdio."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from simulated_agent import research_run

from arttrace.formats.imported_files import read_file
from arttrace.records.reward import Reward
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.views.statistics import By, statistics

mcp = pytest.importorskip("mcp")


async def test_a_client_reads_the_store_and_changes_nothing(tmp_path: Path) -> None:
    data = DataDir(tmp_path / "data")
    with Store.open(data, create=True) as store:
        store.append([*research_run("one", "s"), *research_run("two", "t")])
        store.append([Reward(id="r", trajectory_id="two", value=0.5)])
    command = str(Path(sys.executable).with_name("arttrace"))
    started = mcp.StdioServerParameters(command=command, args=["mcp", "--dir", str(data.root)])
    async with mcp.stdio_client(started) as (read, write), mcp.ClientSession(read, write) as session:
        await session.initialize()

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
    command = [str(Path(sys.executable).with_name("arttrace")), "mcp", "--dir", str(tmp_path / "mistyped")]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith(f"error: no store in {tmp_path / 'mistyped'}\n")
    assert "--dir" in ended.stderr
