"""Each tool stands once in `show`, where it ran: of captured runs, whatever is recorded of their content, also after
export and import, and of imported conversations."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from scripted_server import Asked, Call, Reply, serve_script

from arttrace.commands import cli
from arttrace.store import Store
from arttrace.system.paths import DataDir

AGENT = """
import json, sys
import openai
import arttrace

client = openai.OpenAI(base_url=sys.argv[1], api_key="none")

@arttrace.tool
def weather(city): return f"sunny in {city}"

@arttrace.tool
def file_away(text): return "filed"

@arttrace.trajectory
def answer(question):
    messages = [{"role": "user", "content": question}]
    asked = client.chat.completions.create(model="m", messages=messages).choices[0].message
    [call] = asked.tool_calls
    result = weather(**json.loads(call.function.arguments))
    call.function.arguments = json.dumps(json.loads(call.function.arguments), separators=(",", ":"))
    messages += [asked.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": result}]
    said = client.chat.completions.create(model="m", messages=messages).choices[0].message.content
    file_away(said)
    return said

answer("How is Paris?")
"""


def scripted(asked: Asked) -> Reply:
    return Reply("It is sunny.") if asked.results else Reply(calls=(Call("weather", {"city": "Paris"}),))


def run(*arguments: object) -> str:
    done = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def shown(root: Path) -> str:
    """What `show` says of the only run of a directory."""
    [listed] = json.loads(run("ls", "--json", "--dir", root))
    return run("show", listed["id"], "--dir", root)


def tree(shown: str) -> list[str]:
    """What it says that the run did, a line for each message and tool."""
    lines = shown.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("agent "))
    return [line.lstrip("├─└│ ") for line in lines[at + 1 :]]


SEEN = {
    "full": [
        "user: How is Paris?",
        'assistant [m, no token ids]: calls weather({"city": "Paris"})',
        'tool weather({"city":"Paris"}) -> sunny in Paris',
        "assistant [m, no token ids]: It is sunny.",
        'tool file_away({"text":"It is sunny."}) -> filed',
    ],
    "redacted": [
        "user: [redacted, 13 characters]",
        "assistant [m, no token ids]: calls weather([redacted, 16 characters])",
        'tool weather({"city":"[redacted, 5 characters]"}) -> [redacted, 14 characters]',
        "assistant [m, no token ids]: [redacted, 12 characters]",
        'tool file_away({"text":"[redacted, 12 characters]"}) -> [redacted, 5 characters]',
    ],
    "off": [
        "assistant [m]: content not recorded",
        "tool weather() no result recorded",
        "assistant [m]: content not recorded",
        "tool file_away() no result recorded",
    ],
}


@pytest.mark.parametrize("mode", SEEN)
def test_a_tool_after_the_final_answer_is_last_and_every_tool_is_there_once(mode: str, tmp_path: Path) -> None:
    root, program = tmp_path / "data", tmp_path / "agent.py"
    program.write_text(AGENT)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ARTTRACE_", "OTEL_"))}
    environment = {**kept, "ARTTRACE_DIR": str(root), "ARTTRACE_CAPTURE_CONTENT": mode}
    with serve_script(scripted) as server:
        subprocess.run([sys.executable, str(program), server.url], env=environment, check=True, timeout=60)
    said = shown(root)
    assert tree(said) == SEEN[mode]
    assert "truncated" not in said
    run("export", "--dir", root, "-o", tmp_path / "spans.jsonl")
    run("import", tmp_path / "spans.jsonl", "--dir", tmp_path / "copy")
    assert tree(shown(tmp_path / "copy")) == SEEN[mode]
    if mode == "full":
        run("dataset", "--format", "trl-sft", "--dir", root, "-o", tmp_path / "rows.jsonl")
        [row] = map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())
        assert [message["role"] for message in row["messages"]] == ["user", "assistant", "tool", "assistant"]


def asking(*ids: str | None) -> dict[str, Any]:
    calls = [
        {"type": "function", "function": {"name": f"tool{n}", "arguments": "{}"}, **({"id": id} if id else {})}
        for n, id in enumerate(ids)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def result(content: str, id: str | None = None) -> dict[str, Any]:
    return {"role": "tool", "content": content, **({"tool_call_id": id} if id else {})}


USER, FINAL = {"role": "user", "content": "go"}, {"role": "assistant", "content": "done"}


@pytest.mark.parametrize(
    ("messages", "seen"),
    [
        (
            [USER, asking("a", "b"), result("B", "b"), result("A", "a"), FINAL],
            ["calls tool0({}) calls tool1({})", "inferred tool tool0({}) -> A", "inferred tool tool1({}) -> B", "done"],
        ),
        (
            [USER, asking(None), result("A"), FINAL],
            ["calls tool0({})", "inferred tool tool0({}) -> A", "done"],
        ),
        (
            [USER, FINAL, USER, asking("a", "b"), result("A", "a"), result("B", "b")],
            ["done", "user: go", "calls tool0({}) calls tool1({})", "tool tool0({}) -> A", "tool tool1({}) -> B"],
        ),
        (
            [USER, asking(None, None), result("A")],
            ["calls tool0({}) calls tool1({})", "inferred tool tool1({}) not answered", "tool tool0({}) -> A"],
        ),
        (
            [USER, asking("a"), result("A", "a"), asking("a"), result("B", "a")],
            [
                "calls tool0({})",
                "inferred tool tool0({}) -> A",
                "calls tool0({})",
                "inferred tool tool0({}) not answered",
            ],
        ),
    ],
    ids=["between", "without ids", "last", "last, without ids", "an id twice"],
)
def test_the_tools_of_a_conversation(messages: list[dict[str, Any]], seen: list[str], tmp_path: Path) -> None:
    file, root = tmp_path / "talk.jsonl", tmp_path / "data"
    file.write_text(json.dumps({"messages": messages}) + "\n")
    run("import", file, "--dir", root)
    found = [line.removeprefix("assistant [no token ids]: ").replace("  calls", " calls") for line in tree(shown(root))]
    assert found == ["user: go", *seen]
    with Store.open(DataDir(root)) as store:
        [whole] = store.trajectories()
    assert whole.incomplete == ""


def test_what_stands_behind_the_last_answer_is_counted(tmp_path: Path) -> None:
    file = tmp_path / "talk.jsonl"
    file.write_text(json.dumps({"messages": [USER, FINAL, USER, result("of nothing", "x")]}) + "\n")
    done = CliRunner().invoke(cli, ["import", str(file), "--dir", str(tmp_path / "data")])
    assert "left out: messages behind the last answer (2)" in done.output
