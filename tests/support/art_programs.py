"""The programs of ART's documentation: as printed, filled in, and run with another import line.

`page.md` has them as printed. The file of a program has what the page leaves out too, in lines that end in FILLED_IN.
"""

from __future__ import annotations

import ast
import inspect
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "e2e" / "programs" / "art"
FILLED_IN = "  # filled in"
IMPORTS = {
    "import art": "import arttrace.loop as art",
    "from art import": "from arttrace.loop import",
    "from art.local import": "from arttrace.loop import",
    "from art.utils.iterate_dataset import": "from arttrace.loop import",
    "from art.utils.sft import": "from arttrace.loop import",
    "from art.rewards import": "from arttrace.rewards import",
    "from openpipe_art import": "from arttrace.loop import",
    "python -m art.server": "python -m arttrace.server",
}
UNAVAILABLE = {
    "Qwen/Qwen2.5-14B-Instruct": "base_model",
    "Qwen/Qwen2.5-3B-Instruct": "base_model",
    "Qwen/Qwen3-30B-A3B-Instruct-2507": "base_model",
    "warmup-then-rl": "policy",
    "data/train.jsonl": "file",
    "range(await model.get_step(), 50)": "steps",
    "from my_project import rollout, scenarios": "rollouts",
    "http://gpu-box:8000": "url",
    "http://localhost:5000": "url",
    "--port 8000": "port",
    "messages=[...]": "messages",
    "iterations=100": "iterations",
    '{"reward": ...}': "val_metrics",
}
"""What is printed and cannot be had on a CPU, in a test: the name of what stands in its place."""
IN_ITS_PLACE = {
    "policy": "agent-001",
    "steps": "range(await model.get_step(), await model.get_step() + 1)",
    "rollouts": "rollout, scenarios = my_project",
    "port": "--port 0",
    "messages": "messages=messages",
    "iterations": "iterations=2",
    "val_metrics": '{"judged": 1.0}',
}


def printed(name: str) -> list[str]:
    """The lines of a program as its page has them, without indentation and empty lines."""
    [block] = re.findall(
        rf"^## {name}\n\n```\w+\n(.*?)^```", (FOLDER / "page.md").read_text(), re.MULTILINE | re.DOTALL
    )
    return _lines(block)


def filled_in(name: str) -> str:
    """A program with what its page leaves out."""
    return (FOLDER / f"{name}.py").read_text()


def differs(name: str, program: str) -> list[tuple[str, str]]:
    """Where a program is not what its page prints: (as printed, as in the program), lines that are filled in aside."""
    own = _lines("\n".join(line for line in program.splitlines() if not line.endswith(FILLED_IN)))
    return [(page, line) for page, line in zip(printed(name), own, strict=True) if page != line]


def as_run(text: str, site: Mapping[str, str]) -> str:
    """The text with our import lines and, in the place of what cannot be had, what `site` has."""
    for line, ours in IMPORTS.items():
        text = re.sub(rf"^( *){re.escape(line)}\b", rf"\1{ours}", text, flags=re.MULTILINE)
    for given, name in UNAVAILABLE.items():
        if given in text:
            text = text.replace(given, {**IN_ITS_PLACE, **site}[name])
    return text


async def run_program(name: str, site: Mapping[str, str]) -> dict[str, Any]:
    """Run a program, and return its names."""
    names: dict[str, Any] = {}
    code = compile(as_run(filled_in(name), site), f"{name}.py", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    running = eval(code, names)
    if inspect.isawaitable(running):
        await running
    return names


def server_command(site: Mapping[str, str]) -> list[str]:
    """The command line that starts the server, as its page prints it, after the name of Python's program."""
    python, *words = shlex.split(as_run(printed("server")[0], site))
    assert python == "python"
    return words


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]
