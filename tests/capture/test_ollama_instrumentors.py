"""What is published around ollama's client in one process with arttrace: the instrumentations of it in any order, and
LangChain's model on top. Each call and each tool is recorded once.

They are installed into a folder of their own, as they need packages that the rest does without.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ollama_server import CALL, message_of, serve_ollama
from spool import finished_spans

from arttrace.trajectories import build_trajectories

PACKAGES = [
    "langchain-ollama==1.1.0",
    "openinference-instrumentation==0.1.72",
    "openinference-instrumentation-ollama==0.1.13",
    "openinference-semantic-conventions==0.1.42",
    "opentelemetry-instrumentation-ollama==0.62.4",
]
PROGRAM = """
import asyncio, json, sys
url, *order = sys.argv[1:]
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

made = []
class Kept(SpanProcessor):
    def on_end(self, span):
        made.append(span.instrumentation_scope.name)
provider = TracerProvider()
provider.add_span_processor(Kept())

def openinference():
    from openinference.instrumentation.ollama import OllamaInstrumentor
    OllamaInstrumentor().instrument(tracer_provider=provider)

def openllmetry():
    from opentelemetry.instrumentation.ollama import OllamaInstrumentor
    OllamaInstrumentor().instrument(tracer_provider=provider)

def arttrace():
    import arttrace
    arttrace.init(project="test")

for name in order:
    globals()[name]()
import arttrace
import ollama
from langchain_core.tools import tool
from langchain_ollama import ChatOllama
from langgraph.prebuilt import create_react_agent

@tool
def weather(town: str) -> str:
    "Of a town"
    return f"sun in {town}"

async def asynchronous():
    client, asked = ollama.AsyncClient(host=url), {"model": "m", "messages": [{"role": "user", "content": "three"}]}
    answer = await client.chat(**asked)
    parts = [part.message.content async for part in await client.chat(**asked, stream=True)]
    return [answer.message.content, "".join(parts)]

with arttrace.trajectory(name="root"):
    client, asked = ollama.Client(host=url), {"model": "m", "messages": [{"role": "user", "content": "one"}]}
    answers = [client.chat(**asked).message.content]
    answers.append("".join(part.message.content for part in client.chat(**asked, stream=True)))
    answers += asyncio.run(asynchronous())
    agent = create_react_agent(ChatOllama(model="m", base_url=url), [weather])
    answers.append(agent.invoke({"messages": [("user", "five")]})["messages"][-1].content)
print(json.dumps([answers, sorted(set(made))]))
"""
ORDERS = [
    ("arttrace",),
    *[order for one in ("openinference", "openllmetry") for order in (("arttrace", one), (one, "arttrace"))],
    ("openinference", "arttrace", "openllmetry"),
    ("openllmetry", "arttrace", "openinference"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("packages")
    for number, package in enumerate(PACKAGES):  # folders that two of them share are not put together
        install = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--target",
            f"{made}/{number}",
            package,
        ]
        subprocess.run(install, check=True, timeout=300)
    return made


@pytest.mark.full
@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_every_call_is_recorded_once(order: tuple[str, ...], folder: Path, tmp_path: Path) -> None:
    program, data = tmp_path / "program.py", tmp_path / "data"
    program.write_text(PROGRAM)
    path = [*map(str, folder.iterdir()), *filter(None, [os.environ.get("PYTHONPATH")])]
    with serve_ollama() as server:
        server.answers += [message_of(f"answer {number}") for number in range(4)]
        server.answers += [message_of("", {"id": "call_1", **CALL}), message_of("answer 4")]
        done = subprocess.run(
            [sys.executable, str(program), server.url, *order],
            env={**os.environ, "ARTTRACE_DIR": str(data), "PYTHONPATH": os.pathsep.join(path)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    answers, scopes = json.loads(done.stdout)
    assert answers == [f"answer {number}" for number in range(5)]
    assert len(scopes) == len(order) - 1
    (run,) = build_trajectories(finished_spans(data))
    assert (len(run.calls), run.incomplete) == (6, "")
    assert [(tool.name, tool.result, tool.inferred) for tool in run.tool_calls] == [("weather", "sun in Rome", False)]
