"""From an agent's own code to its trajectory: the real client, a real server, capture, spool, store, reconstruction.

One planner starts two undecorated sub-agents with one and the same prompt, in each way that Python programs do it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any

import pytest

from arttrace.records.trajectory import Trajectory
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.trajectories import sequences

pytestmark = pytest.mark.e2e

AGENT = """
import asyncio, json, sys
from concurrent.futures import ThreadPoolExecutor
import openai
import arttrace

client, aclient = openai.OpenAI(api_key="x"), openai.AsyncOpenAI(api_key="x")

def ask(history):
    return client.chat.completions.create(model="m", messages=history).choices[0].message

async def aask(history):  # a flow of its own for every call
    return (await asyncio.wait_for(aclient.chat.completions.create(model="m", messages=history), 60)).choices[0].message

def start(system, task):
    return [{"role": "system", "content": system}, {"role": "user", "content": task}]

def answered(call, content):
    return {"role": "tool", "tool_call_id": call.id, "content": content}

def research(q):
    history = start("research", q)
    history.append(ask(history))
    history.append(answered(history[-1].tool_calls[0], "page"))
    return ask(history).content

async def aresearch(q):
    history = start("research", q)
    history.append(await aask(history))
    history.append(answered(history[-1].tool_calls[0], "page"))
    return (await aask(history)).content

def plan(run_all):
    history = start("plan", "task")
    asked = ask(history)
    history.append(asked.model_dump())
    answers = run_all([json.loads(call.function.arguments)["q"] for call in asked.tool_calls])
    history += [answered(call, answer) for call, answer in zip(asked.tool_calls, answers)]
    return ask(history).content

@arttrace.trajectory
def threads():
    with ThreadPoolExecutor(2) as pool:
        return plan(lambda questions: list(pool.map(research, questions)))

@arttrace.trajectory
def one_after_the_other():
    return plan(lambda questions: [research(q) for q in questions])

@arttrace.trajectory
def tools():
    tool = arttrace.tool(name="research")(research)
    return plan(lambda questions: [tool(q) for q in questions])

@arttrace.trajectory
async def tasks():
    history = start("plan", "task")
    asked = await aask(history)
    history.append(asked.model_dump(exclude_none=True))
    answers = await asyncio.gather(*(aresearch(json.loads(c.function.arguments)["q"]) for c in asked.tool_calls))
    history += [answered(call, answer) for call, answer in zip(asked.tool_calls, answers)]
    return (await aask(history)).content

for way in sys.argv[1:]:
    result = globals()[way]()
    print(way, asyncio.run(result) if asyncio.iscoroutine(result) else result)
"""
WAYS = ("threads", "one_after_the_other", "tools", "tasks")

_ids = count()


def _answer(messages: list[dict[str, Any]]) -> dict[str, Any]:
    planner, asked = messages[0]["content"] == "plan", messages[-1]["role"] == "user"
    if asked:
        wanted = [("research", '{"q": "same"}')] * 2 if planner else [("look", "{}")]
        calls = [
            {"id": f"call_{next(_ids)}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for name, arguments in wanted
        ]
        return {"role": "assistant", "content": None, "tool_calls": calls}
    return {"role": "assistant", "content": "merged" if planner else "found it"}


def _tokens(message: dict[str, Any]) -> list[int]:
    """What a template sees of a message; an assistant's come after the generation mark 1."""
    calls = [(call["id"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
    text = json.dumps([message["role"], message.get("content"), calls, message.get("tool_call_id")])
    return [*([1] if message["role"] == "assistant" else []), *text.encode()]


class _Server(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        messages = json.loads(self.rfile.read(int(self.headers["content-length"])))["messages"]
        answer = _answer(messages)
        prompt, sampled = [*(t for m in messages for t in _tokens(m)), 1], _tokens(answer)[1:]
        choice = {
            "index": 0,
            "message": answer,
            "finish_reason": "stop",
            "token_ids": sampled,
            "logprobs": {"content": [{"token": "x", "logprob": -0.5, "top_logprobs": []} for _ in sampled]},
        }
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(sampled), "total_tokens": 0}
        body = json.dumps({"id": "c", "model": "m", "prompt_token_ids": prompt, "choices": [choice], "usage": usage})
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.send_header("x-arttrace-policy-version", "policy@3")
        self.end_headers()
        self.wfile.write(body.encode())


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def trajectories(url: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trajectory]:
    """What is stored of a program that goes each way once, by the name of the way."""
    folder = tmp_path_factory.mktemp("twins")
    program = folder / "agent.py"
    program.write_text(AGENT)
    env = {**os.environ, "OPENAI_BASE_URL": url, "ARTTRACE_DIR": str(folder / "data")}
    done = subprocess.run([sys.executable, program, *WAYS], env=env, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (0, "".join(f"{way} merged\n" for way in WAYS)), done.stderr
    with Store.open(DataDir(folder / "data")) as store:
        found = store.trajectories()
    assert len(found) == len(WAYS)
    return {one.agents[0].name: one for one in found}


@pytest.mark.parametrize("way", WAYS)
def test_twin_sub_agents_are_distinguished(trajectories: dict[str, Trajectory], way: str) -> None:
    trajectory = trajectories[way]
    assert trajectory.incomplete == ""
    root, *subs = trajectory.agents
    assert root.name == way
    assert [(sub.name, sub.parent_id, sub.inferred) for sub in subs] == [("research", root.id, True)] * 2
    asked = [call for call in trajectory.tool_calls if call.agent_id == root.id]
    assert [(call.name, call.result) for call in asked] == [("research", "found it")] * 2
    assert {sub.spawned_by for sub in subs} == {call.id for call in asked}
    for agent in trajectory.agents:
        assert sum(call.agent_id == agent.id for call in trajectory.calls) == 2
    made, report = sequences(trajectory)
    assert (len(made), report.forks, report.quarantined_calls) == (3, 0, 0)
    assert report.trained_tokens == report.captured_tokens > 0
    assert {version for sequence in made for version in sequence.policy_versions} == {"policy@3"}
