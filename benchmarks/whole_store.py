"""Seconds and peak memory of the commands that look through every run of a store.

    python benchmarks/whole_store.py [--runs 20000]

The runs are made, two calls and three messages each, in groups of four, and each is summed up once before the commands
are measured: what is printed is a second look. Each command runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from formats import run_command

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

GROUP, GROUPS_AT_ONCE = 4, 250
_REWARD = "def some(run):\n    return None\n"
_MCP = "list_runs"


def make(folder: Path, runs: int) -> None:
    """A store of so many runs, all summed up."""
    from recorded_runs import recorded_group

    from arttrace.store import Store
    from arttrace.store.access.summary_pages import summary_pages
    from arttrace.system.paths import DataDir

    (folder / "rewarding.py").write_text(_REWARD)
    with Store.open(DataDir(folder / "data"), create=True) as store:
        for first in range(0, runs // GROUP, GROUPS_AT_ONCE):
            store.append(
                [
                    record
                    for number in range(first, min(first + GROUPS_AT_ONCE, runs // GROUP))
                    for record in recorded_group(f"task {number}", [0.0, 0.5, None, 1.0], at=number * 2000)
                ]
            )
        assert sum(map(len, summary_pages(store))) == runs // GROUP * GROUP


def step(folder: Path, *arguments: str) -> None:
    """Runs a command, or asks the MCP server; prints seconds and peak memory."""
    began = time.monotonic()
    if arguments[0] == _MCP:
        _ask_mcp(folder)
    else:
        run_command(folder, *arguments)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print("\n" + json.dumps({"seconds": time.monotonic() - began, "MiB": peak}))


def _ask_mcp(folder: Path) -> None:
    import asyncio

    from arttrace.commands.inspect.mcp import StoreAnswers
    from arttrace.system.paths import DataDir

    asyncio.run(StoreAnswers(DataDir(folder / "data")).answer(_MCP, {"reward": ">0.9", "limit": 20}))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=20_000)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        subprocess.run([sys.executable, __file__, "--make", temporary, str(given.runs)], check=True)
        reward = f"{folder / 'rewarding.py'}:some"
        for arguments in (
            ("ls",),
            ("ls", "--reward", ">0.9"),
            ("ls", "--status", "failed"),
            ("ls", "--search", "answer 1 of task 7-2"),
            ("ls", "--group", "task 7"),
            (_MCP,),
            ("score", "--reward", reward, "--dry-run"),
            ("score", "--reward", reward, "--dry-run", "--group", "task 7"),
            ("score", "--judge", "openai/none", "--dry-run"),
            ("score", "--judge", "openai/none", "--dry-run", "--group", "task 7"),
            ("group", "--by", "input", "--dry-run"),
            ("group", "--by", "entry", "--dry-run", "--status", "complete"),
            ("top", "--once"),
        ):
            command = [sys.executable, __file__, "--step", temporary, *arguments]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found = json.loads(done.stdout.splitlines()[-1])
            shown = " ".join(arguments).replace(f"{folder}/", "")
            print(f"{shown:62} {found['seconds']:6.1f} s {found['MiB']:5} MiB", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--make"]:
        make(Path(sys.argv[2]), int(sys.argv[3]))
    elif sys.argv[1:2] == ["--step"]:
        step(Path(sys.argv[2]), *sys.argv[3:])
    else:
        main()
