"""What the commands of the documentation find when they run: a directory with the programs and runs that the page speaks
of. Each function prepares one; models are stand-ins."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import chat_server
import httpx
import otlp_receiver
import scripted_server
from asks_by_httpx import ASK, CAPTURED
from scripted_server import Asked, Call, Reply

ROOT = Path(__file__).parents[2]
PROGRAMS = [Path(sys.executable).parent]
"""Where the commands' programs are looked for first."""
HOME = "/home/me/agent"


@dataclass
class Site:
    """A directory to work in, its environment, and how the page calls the addresses and paths that are real here."""

    folder: Path
    env: dict[str, str]
    names: dict[str, str] = field(default_factory=dict)
    """Of each address or path on the page, the real one."""

    def real(self, command: str) -> str:
        """The command as the page has it, with the real addresses."""
        return _replaced(command, self.names)

    def shown(self, printed: str) -> str:
        """What was printed, with the addresses of the page, and without the progress of what takes long on a busy
        machine alone."""
        at_once = re.sub(r"^\d+ of \d+ runs read, .*\n", "", printed, flags=re.MULTILINE)
        return _replaced(at_once, {real: name for name, real in self.names.items()})

    def run(self, *command: str, **environment: str) -> str:
        """A command before the page's own, and what it prints."""
        env = {**self.env, **environment}
        return subprocess.run(command, cwd=self.folder, env=env, check=True, capture_output=True, text=True).stdout

    def python(self, name: str, program: str) -> None:
        """A program in the directory."""
        (self.folder / name).write_text(program, encoding="utf-8")


def _replaced(text: str, names: Mapping[str, str]) -> str:
    if not names:
        return text
    longest_first = sorted(names, key=len, reverse=True)
    return re.sub("|".join(map(re.escape, longest_first)), lambda found: names[found[0]], text)


def _site(folder: Path, model: str = "http://127.0.0.1:9/v1", **environment: str) -> Site:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "ARTTRACE_")) and k != "MODEL"}
    env |= {"PATH": os.pathsep.join([*map(str, PROGRAMS), env["PATH"]]), "MODEL": "gpt-4o"}
    env |= {"OPENAI_BASE_URL": model, "OPENAI_API_KEY": "unused", **environment}
    return Site(folder, env, {HOME: str(folder)})


def empty(folder: Path, stack: ExitStack) -> Site:
    """An empty directory."""
    return _site(folder)


HTTPX_AGENT = f"""
import arttrace
{ASK}
@arttrace.trajectory
def answer(question: str) -> str:
    return ask(question)
"""

AGENT = """
import arttrace
from openai import OpenAI

@arttrace.trajectory
def answer(question: str) -> str:
    said = OpenAI().chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": question}])
    return said.choices[0].message.content or ""
"""


def gpt_4o(folder: Path, stack: ExitStack) -> Site:
    """An agent that asks gpt-4o by the openai client, and another model's API by httpx."""
    site = _site(folder, stack.enter_context(chat_server.serve()).url)
    program = """
import os
import httpx
answer("why?")
url = os.environ["OPENAI_BASE_URL"] + "/chat"
httpx.post(url, json={"model": "command-a", "messages": [{"role": "user", "content": "why?"}]})
"""
    site.python("agent.py", AGENT + program)
    return site


def twenty_runs(folder: Path, stack: ExitStack) -> Site:
    """An agent that runs twenty times, and rewards one of its runs."""
    site = _site(folder, stack.enter_context(chat_server.serve()).url, **CAPTURED)
    program = """
for n in range(20):
    with arttrace.trajectory(name="answer", trajectory_id=f"{n:032x}"):
        answer("why?")
        if n == 3:
            arttrace.reward(1.0)
"""
    site.python("agent.py", HTTPX_AGENT + program)
    return site


def undelivered(folder: Path, stack: ExitStack) -> Site:
    """Three spans of a process that could not reach its collector, and a collector that is there again."""
    site = _site(folder, stack.enter_context(chat_server.serve()).url, **CAPTURED)
    program = """
@arttrace.trajectory
def twice():
    return [answer("why?"), answer("how?")]
answer("why?")
"""
    site.python("agent.py", HTTPX_AGENT + program)
    site.run("python", "agent.py", ARTTRACE_ENDPOINT="http://127.0.0.1:9")
    site.names["http://collector:4318"] = stack.enter_context(otlp_receiver.receiving()).url
    return site


def _clerk(asked: Asked) -> Reply:
    """A stand-in for a model in examples/: it asks the right service, and passes on what that says."""
    if "ask_checker" in asked.tools:
        if asked.results:
            return Reply(" and ".join(asked.results))
        items = asked.users[0].split(" and ")
        return Reply(calls=tuple(Call("ask_checker", {"item": item}, f"call_{n}") for n, item in enumerate(items)))
    item = asked.users[0]
    if not asked.results:
        service = "live_price" if item.startswith(("fresh", "local", "imported")) else "list_price"
        return Reply(calls=(Call(service, {"item": item}),))
    price = next(word for word in asked.results[0].split() if word.isdigit())
    return Reply(f"{item} {price}")


def examples(folder: Path, stack: ExitStack) -> Site:
    """The examples, and a model that can play their parts."""
    site = _site(folder, stack.enter_context(scripted_server.serve_script(_clerk)).url)
    (folder / "examples").symlink_to(ROOT / "examples")
    return site


def examples_ran(folder: Path, stack: ExitStack) -> Site:
    """The same after a run of the market, and four of the quickstart."""
    site = examples(folder, stack)
    site.run("python", "examples/quickstart/agent.py", "frozen bean", "4")
    site.run("arttrace", "run", "--", "python", "examples/market/agent.py", "fresh apple and canned bean")
    newest = json.loads(site.run("arttrace", "ls", "--limit", "1", "--json"))[0]["id"]
    site.names["5011ed4e"] = newest[:8]
    return site


def verl_dumps(folder: Path, stack: ExitStack) -> Site:
    """What verl dumped of two steps, the second in the form of earlier versions, and of a validation."""
    for name, place in (("rollouts", "rollouts/3"), ("older", "rollouts/7"), ("validation", "validation/3")):
        to = folder / f"{place}.jsonl"
        to.parent.mkdir(exist_ok=True)
        to.write_bytes((ROOT / "tests" / "formats" / "data" / f"verl_{name}.jsonl").read_bytes())
    return _site(folder)


def tickets(folder: Path, stack: ExitStack) -> Site:
    """Three runs, whose metadata name two tickets."""
    model = stack.enter_context(scripted_server.serve_script(lambda _asked: Reply("because")))
    site = _site(folder, model.url, **CAPTURED)
    ticket = "    arttrace.update(metadata={'ticket': question.split()[0]})\n"
    agent = HTTPX_AGENT.replace("    return ask(question)", f"{ticket}    return ask(question)")
    site.python("agent.py", agent + "for question in ('A7 why?', 'A7 why not?', 'B2 how?'):\n    answer(question)\n")
    site.run("python", "agent.py")
    return site


def four_answers(folder: Path, stack: ExitStack) -> Site:
    """Four runs of the quickstart's question, and the rewards.py of the page, which tells them apart."""
    answers = iter(["bean 6", "I do not know", "bean 6", "nobody knows"])
    script: Callable[[Asked], Reply] = lambda _asked: Reply(next(answers))  # noqa: E731
    site = _site(folder, stack.enter_context(scripted_server.serve_script(script)).url, **CAPTURED)
    site.python("agent.py", HTTPX_AGENT + "for _ in range(4):\n    answer('frozen bean')\n")
    site.run("python", "agent.py")
    page = (ROOT / "docs" / "train" / "rewards.md").read_text(encoding="utf-8")
    [code] = re.findall(r"```python\n(# rewards\.py\n.*?)```", page, re.DOTALL)
    site.python("rewards.py", code)
    return site


def conversations(folder: Path, stack: ExitStack) -> Site:
    """A file of recorded conversations with rewards: two tasks, two attempts at each."""
    site = _site(folder)
    lines = [
        {
            "task_id": task,
            "reward": reward,
            "messages": [{"role": "user", "content": f"task {task}"}, {"role": "assistant", "content": said}],
        }
        for task, reward, said in ((1, 1.0, "done"), (1, 0.0, "no"), (2, 1.0, "done"), (2, 1.0, "well done"))
    ]
    site.python("runs.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    return site


def imported(folder: Path, stack: ExitStack) -> Site:
    """The file of `conversations`, imported."""
    site = conversations(folder, stack)
    site.run("arttrace", "import", "runs.jsonl")
    return site


def collector(folder: Path, stack: ExitStack) -> Site:
    """A collector that runs, with three runs in its store."""
    site = tickets(folder, stack)
    site.run("arttrace", "ls")
    del site.env["OPENAI_BASE_URL"]
    command = (sys.executable, "-m", "arttrace", "collect", "--port", "0")
    running = stack.enter_context(
        subprocess.Popen(command, cwd=folder, env=site.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    )
    stack.callback(running.terminate)
    assert running.stdout is not None
    line = running.stdout.readline()
    found = re.search(r"http://127\.0\.0\.1:\d+", line)
    assert found is not None, line
    site.names["http://127.0.0.1:4318"] = found[0]
    until = time.monotonic() + 120
    while httpx.get(f"{found[0]}/ready", timeout=60).status_code != httpx.codes.OK:
        assert time.monotonic() < until
        time.sleep(0.05)
    return site
