"""`arttrace.uninstrument()`: every module as it was before arttrace was imported, and `init` puts it back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from chat_server import ChatServer
from otlp_receiver import receiving
from spool import finished_spans

from arttrace.trajectories import build_trajectories

# Every attribute of every module, class and function that is there, by where it lies.
LIBRARY = """
import importlib, json, os, sys, time, types
NAMES = ("openai", "httpx", "httpx2", "requests", "aiohttp", "mcp.client.session", "langchain_core.tools.base",
         "langgraph.pregel.main", "agents", "agents.realtime.session", "smolagents", "pydantic_ai.agent",
         "opentelemetry.sdk.trace", "subprocess", "threading", "_thread",
         "multiprocessing.process", "multiprocessing.pool", "concurrent.futures.process", "concurrent.futures.thread")

def load(names):
    for name in names:
        importlib.import_module(name)

def picture(modules):
    found = {}
    for name in modules:
        for attribute, value in list(vars(sys.modules[name]).items()):
            found[name, attribute] = value
            if isinstance(value, type):
                found |= {(name, attribute, inner): thing for inner, thing in vars(value).items()}
    return found

def is_ours(value):
    code = value.__code__ if type(value) is types.FunctionType else None
    return code is not None and f"{os.sep}arttrace{os.sep}capture{os.sep}" in code.co_filename

def threads():
    return len(os.listdir("/proc/self/task"))

def ask(text):
    with openai.OpenAI(base_url=sys.argv[1], api_key="sk-test-0123456789") as client:
        answer = client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])
        return answer.choices[0].message.content
"""
PROGRAM = """
load(NAMES)
import openai
said = [ask("zero")]  # what libraries make on first use is there
modules = [name for name, module in sys.modules.items() if module is not None and "main__" not in name]
before, running = picture(modules), threads()
import arttrace
run = arttrace.trajectory(name="run")(ask)
hooked = picture(modules)
changed = [key for key, value in hooked.items() if is_ours(value)]
assert ("subprocess", "Popen", "__init__") in changed, changed
assert ("openai", "OpenAI", "request") not in changed, changed
assert ("openai._base_client", "SyncAPIClient", "request") in changed, changed
said.append(run("one"))
delivered = arttrace.uninstrument()
after = picture(modules)
assert [key for key in changed if after.get(key) is not before.get(key)] == []
assert [key for key, value in after.items() if is_ours(value)] == []
said += [run("two"), ask("three")]
arttrace.uninstrument()
deadline = time.monotonic() + 60
while threads() > running and time.monotonic() < deadline:
    time.sleep(0.01)
assert threads() == running
arttrace.init(project="again")
assert [key for key, value in picture(modules).items() if is_ours(value)] == changed
said.append(run("four"))
print(json.dumps([said, delivered]))
"""


def run(directory: Path, program: str, url: str, **environment: str) -> list[object]:
    (directory / "program.py").write_text(LIBRARY + program)
    env = {**os.environ, "ARTTRACE_DIR": str(directory / "data"), "ARTTRACE_RAISE": "1", **environment}
    done = subprocess.run(
        [sys.executable, str(directory / "program.py"), url], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "arttrace" not in done.stderr
    found: list[object] = json.loads(done.stdout)
    return found


def test_everything_is_as_before_the_first_import(server: ChatServer, tmp_path: Path) -> None:
    said, delivered = run(tmp_path, PROGRAM, server.url)
    assert delivered is True
    assert said == [f"answer 0 to {number}" for number in ("zero", "one", "two", "three", "four")]
    spans = finished_spans(tmp_path / "data")
    assert [run.incomplete for run in build_trajectories(spans)] == ["", ""]
    assert len([span for span in spans if span.name == "chat m"]) == 2


IN_THE_MIDDLE = """
import openai, arttrace
client = openai.OpenAI(base_url=sys.argv[1], api_key="sk-test-0123456789")
with arttrace.trajectory(name="run"):
    stream = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "one"}], stream=True)
    first = next(stream)
    wrapped = openai.OpenAI.request
    openai.OpenAI.request = lambda self, *args, **kwargs: wrapped(self, *args, **kwargs)  # somebody else's
    delivered = arttrace.uninstrument()
    text = "".join(chunk.choices[0].delta.content or "" for chunk in [first, *stream] if chunk.choices)
    said = [text, ask("two"), arttrace.trajectory(name="inner")(ask)("three")]
    print(json.dumps([said, delivered]))
"""


def test_what_is_open_ends_and_what_others_hold_passes_calls_on(server: ChatServer, tmp_path: Path) -> None:
    with receiving() as site:
        said, delivered = run(tmp_path, IN_THE_MIDDLE, server.url, ARTTRACE_ENDPOINT=site.url)
    assert delivered is True
    assert said == ["answer 0 to one ", "answer 0 to two", "answer 0 to three"]
    assert [span.name for span in site.spans if span.end_ns] == ["chat m"]  # the run is open, and has not ended well


def test_nothing_is_recorded_afterwards_in_a_run_that_is_open(server: ChatServer, tmp_path: Path) -> None:
    """Somebody else's wrapper keeps our hook in its place."""
    run(tmp_path, IN_THE_MIDDLE, server.url)
    assert [span.name for span in finished_spans(tmp_path / "data")] == ["chat m"]
