"""`arttrace tail`, `top`, `ls --follow` and `show --follow` beside an agent that works, in processes of their own."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from simulated_agent import T0, Run, message

from arttrace.records.reward import Reward
from arttrace.records.span import SpanRow
from arttrace.store import Store, open_store
from arttrace.system.paths import DataDir

ARTTRACE = str(Path(sys.executable).with_name("arttrace"))


class Watching:
    """A command whose lines are read as they come."""

    def __init__(self, root: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [ARTTRACE, *arguments, "--dir", str(root)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={name: value for name, value in os.environ.items() if name != "ARTTRACE_ENDPOINT"},
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))

    def until(self, holds: Callable[[str], bool]) -> list[str]:
        """The lines up to the first of which this holds."""
        found: list[str] = []
        while not found or not holds(found[-1]):
            found.append(self._lines.get(timeout=120))
        return found

    def interrupt(self) -> tuple[int, str]:
        self.process.send_signal(signal.SIGINT)
        assert self.process.stderr is not None
        error = self.process.stderr.read()
        return self.process.wait(120), error


@pytest.fixture
def watching() -> Iterator[Callable[..., Watching]]:
    started: list[Watching] = []

    def start(root: Path, *arguments: str) -> Watching:
        started.append(Watching(root, *arguments))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()


def spans(id: str, entry: str, group: str) -> list[SpanRow]:
    """A call, a tool, and the root at last; now."""
    at = int((time.time_ns() - T0) / 1e3)
    run = Run(id, entry=entry, scenario=group)
    asked = [message("user", "where?")]
    run.chat("m", asked, message("assistant", f"answer of {id}"), at=at + 1, USAGE_OUTPUT_TOKENS=7)
    run.tool("t", "find", at=at + 2, until=at + 3, TOOL_CALL_ARGUMENTS='{"id": 7}', TOOL_CALL_RESULT="in Bern")
    [*others, root] = run.end(at=at + 10)
    return [*others, replace(root, start_ns=T0 + at * 1000)]


def test_tail_prints_what_happens_and_lets_others_work(tmp_path: Path, watching: Callable[..., Watching]) -> None:
    """It waits where there is nothing yet, holds the store for others, prints each event once, and ends cleanly."""
    tail = watching(tmp_path, "tail", "--json", "--entry", "shop:wanted", "--since", "1h")
    assert tail.process.stderr is not None
    assert tail.process.stderr.readline() == f"waiting for the first run in {tmp_path}\n"
    [*early, root] = spans("wanted-1", "shop:wanted", "g")
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append([*early, *spans("other", "shop:other", "g")])
    with open_store(DataDir(tmp_path)) as store:  # its owner may be the command by now
        store.append([root, *early])
        store.append([Reward(id="r", trajectory_id="wanted-1", value=0.5, time_ns=time.time_ns())])
    heard: list[dict[str, Any]] = [json.loads(line) for line in tail.until(lambda line: '"reward"' in line)]
    assert {one["run"] for one in heard} == {"wanted-1"}
    assert sorted(one["kind"] for one in heard) == ["call", "reward", "run", "tool"]
    found = {one["kind"]: one for one in heard}
    assert (found["call"]["text"], found["call"]["output_tokens"]) == ("answer of wanted-1", 7)
    assert found["tool"]["text"] == '({"id": 7}) -> in Bern'
    assert found["reward"]["value"] == 0.5
    listed = subprocess.run([ARTTRACE, "ls", "--json", "--dir", str(tmp_path)], capture_output=True, check=True)
    assert len(json.loads(listed.stdout)) == 2
    assert tail.interrupt() == (0, "")


def test_lists_that_follow(tmp_path: Path, watching: Callable[..., Watching]) -> None:
    """`ls --follow` prints a run again when it has changed; `show --follow` ends with its run; `top` shows it until
    then."""
    [*early, root] = spans("run-1", "shop:wanted", "g")
    open_call = replace(early[0], span_id="ab" * 8, end_ns=0, name="chat slow")
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append([*early, open_call])
    top = [ARTTRACE, "top", "--dir", str(tmp_path)]
    [line] = subprocess.run(top, capture_output=True, check=True, text=True).stdout.splitlines()[2:]
    assert line.split()[0] == "run-1"
    assert line.endswith("chat slow  ") or line.rstrip().endswith("chat slow")
    listing = watching(tmp_path, "ls", "--follow")
    assert listing.until(lambda line: line.startswith("run-1"))[-1].endswith("incomplete")
    shown = watching(tmp_path, "show", "--follow", "run-1")
    shown.until(lambda line: "answer of run-1" in line)
    with open_store(DataDir(tmp_path)) as store:
        store.append([replace(open_call, end_ns=early[0].end_ns + 1), root])
    assert listing.until(lambda line: line.endswith("complete") and "incomplete" not in line)
    assert " run " in shown.until(lambda line: " run " in line and "shop:wanted" in line)[-1]
    assert shown.process.wait(120) == 0
    assert listing.interrupt() == (0, "")
    assert subprocess.run(top, capture_output=True, check=True, text=True).stdout == "nothing runs now\n"
    as_json = subprocess.run([*top, "--json"], capture_output=True, check=True, text=True)
    assert json.loads(as_json.stdout) == []


def test_of_more_runs_than_the_limit_every_change_is_listed(tmp_path: Path, watching: Callable[..., Watching]) -> None:
    """The limit counts those that were there before: a program that reads the lines hears of each run's end."""
    runs = [spans(f"run-{number}", "shop:wanted", "g") for number in range(4)]
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append([span for run in runs for span in run[:-1]])
    listing = watching(tmp_path, "ls", "--follow", "--json", "--limit", "2")
    there = [json.loads(listing.until(bool)[0]) for _ in range(2)]
    assert [run["id"] for run in there] == ["run-2", "run-3"]
    with open_store(DataDir(tmp_path)) as store:
        store.append([run[-1] for run in runs])
        store.append(spans("run-4", "shop:wanted", "g"))
    waited_for = {"run-0", "run-1", "run-2", "run-3", "run-4"}
    while waited_for:
        run = json.loads(listing.until(bool)[0])
        if not run["incomplete"]:
            waited_for.discard(run["id"])


def test_a_pipe_that_is_closed_ends_a_command_without_a_word(tmp_path: Path) -> None:
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(spans("run-1", "shop:wanted", "g"))
    for command in ("tail --json --since 1h", "ls --json"):
        begun = subprocess.Popen(
            [ARTTRACE, *command.split(), "--dir", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert begun.stdout is not None
        assert begun.stderr is not None
        begun.stdout.close()
        assert begun.stderr.read() == b""
        assert begun.wait(120) == 1
