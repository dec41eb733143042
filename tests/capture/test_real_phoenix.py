"""A real Phoenix server takes what is shipped to it, shows it as what it is, and what it exports is the same run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from own_environment import kept_environment
from reserved_port import reserved_port

from arttrace.commands import cli
from arttrace.store import Store
from arttrace.system.paths import DataDir

SUPPORT = Path(__file__).parents[1] / "support"
PROGRAM = """
import arttrace, openai
from chat_server import serve

@arttrace.tool
def look(q):
    return f"found {q}"

@arttrace.agent
def helper(client, task):
    return client.chat.completions.create(model="m", messages=[{"role": "user", "content": task}], temperature=0.5)

@arttrace.trajectory
def answer(client, task):
    look(task)
    helper(client, task)
    arttrace.reward(0.75)

with serve() as server:
    answer(openai.OpenAI(base_url=f"{server.url}/v1", api_key="k"), "hello")
    arttrace.flush()
"""


@pytest.fixture
def phoenix(tmp_path: Path) -> Iterator[str]:
    """The address of a server of its own."""
    environment = kept_environment("phoenix", "arize-phoenix", tmp_path)
    with reserved_port() as port:
        variables = {
            **os.environ,
            "PHOENIX_PORT": str(port),
            "PHOENIX_GRPC_PORT": "0",
            "PHOENIX_WORKING_DIR": str(tmp_path / "phoenix"),
        }
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        server = subprocess.Popen([environment / "bin" / "phoenix", "serve"], env=variables, **quiet)
        try:
            url = f"http://127.0.0.1:{port}"
            limit = time.monotonic() + 300
            while not _is_up(url) and time.monotonic() < limit:
                assert server.poll() is None
                time.sleep(0.5)
            yield url
        finally:
            server.terminate()
            server.wait(60)


def _is_up(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz").is_success
    except httpx.TransportError:
        return False


def exported(phoenix: str, count: int) -> dict[str, Any]:
    """What it answers of its spans, once it has so many: it takes them in a moment after it acknowledged them."""
    limit = time.monotonic() + 60
    while True:
        answer = httpx.get(f"{phoenix}/v1/projects/default/spans", params={"limit": 100})
        if (answer.is_success and len(answer.json()["data"]) >= count) or time.monotonic() > limit:
            found: dict[str, Any] = answer.raise_for_status().json()
            return found
        time.sleep(0.2)


@pytest.mark.full
def test_phoenix_shows_what_is_shipped_and_gives_the_same_run_back(phoenix: str, tmp_path: Path) -> None:
    here, back = DataDir(tmp_path / "here"), DataDir(tmp_path / "back")
    paths = os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={
            **os.environ,
            "PYTHONPATH": paths,
            "ARTTRACE_DIR": str(here.root),
            "ARTTRACE_ENDPOINT": f"local,{phoenix}",
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    found = exported(phoenix, 5)
    kinds = {one["name"]: one["span_kind"] for one in found["data"]}
    assert kinds == {
        "invoke_agent answer": "AGENT",
        "invoke_agent helper": "AGENT",
        "chat m": "LLM",
        "execute_tool look": "TOOL",
        "evaluate reward": "UNKNOWN",
    }
    [call] = [one["attributes"] for one in found["data"] if one["span_kind"] == "LLM"]
    assert call["llm.input_messages.0.message.content"] == "hello"
    assert call["llm.output_messages.0.message.content"] == "answer 0 to hello"
    assert (call["llm.token_count.prompt"], call["llm.token_count.completion"]) == (7, 5)
    (tmp_path / "export.json").write_text(json.dumps(found))
    taken = CliRunner().invoke(cli, ["import", str(tmp_path / "export.json"), "--dir", str(back.root)])
    assert taken.exit_code == 0, taken.output
    with Store.open(here) as stored, Store.open(back) as again:
        [run], [copy] = stored.trajectories(), again.trajectories()
    assert copy.incomplete == run.incomplete == ""
    assert copy.id == run.id
    assert [agent.name for agent in copy.agents] == [agent.name for agent in run.agents] == ["answer", "helper"]
    assert [one.call.messages for one in copy.calls] == [one.call.messages for one in run.calls]
    assert [one.call.choices for one in copy.calls] == [one.call.choices for one in run.calls]
    assert [(one.name, one.value) for one in copy.rewards] == [("reward", 0.75)]
