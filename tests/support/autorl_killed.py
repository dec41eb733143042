"""A program: `arttrace autorl` on a policy that is scripted and whose training is only noted, started again and again.
Each start kills itself with SIGKILL at the event that it is told: a kind of event and its number in this start; the
last one goes on to its end. What happened is appended to a file, which the next start goes on with.

    python autorl_killed.py EVENTS_FILE DIE_AT,DIE_AT... OPTION...

It ends with 0 where each of them died where it was told to and the last one ended with 0.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forked_starts import ended_in_a_fork
from scripted_server import Asked, Reply, ScriptedServer, serve_script

import arttrace.loop as art
from arttrace.commands import cli
from arttrace.commands.autorl import stages
from arttrace.commands.autorl.state import StateFile
from arttrace.loop.backend import LocalBackend
from arttrace.loop.model import TrainableModel
from arttrace.records import semconv
from arttrace.rewards.judge_calls import load_litellm
from arttrace.system.processes import collect_garbage_seldom

POLICY = "things"


class Events:
    """The file of events, one a line: its kind, then what belongs to it."""

    def __init__(self, path: Path, die_at: str) -> None:
        self._path, self._die_at = path, die_at
        self._now: Counter[str] = Counter()
        path.touch()

    def of(self, kind: str) -> list[str]:
        lines = self._path.read_text().splitlines()
        return [line.partition(" ")[2] for line in lines if line.partition(" ")[0] == kind]

    def add(self, kind: str, more: str = "") -> None:
        """Note it; the process ends here where this is the event that it is to die at."""
        with self._path.open("a") as file:
            file.write(f"{kind} {more}\n")
        self._now[kind] += 1
        if self._die_at == f"{kind} {self._now[kind]}":
            os.kill(os.getpid(), signal.SIGKILL)


def said(asked: Asked) -> Reply:
    return Reply("a word" * (1 + len(asked.users[-1]) % 3))


def main(events: Events, options: Sequence[str], policy: ScriptedServer) -> None:
    judge, save, script = LocalBackend.judge, StateFile.save, policy.script

    def serve() -> None:
        policy.headers[semconv.POLICY_VERSION_HEADER] = f"{POLICY}@{len(events.of('trained'))}"

    def answered(asked: Asked) -> Reply:
        events.add("asked")
        return script(asked)

    async def register(backend: LocalBackend, model: TrainableModel) -> None:
        model.inference_base_url, model.backend = policy.url, backend

    async def judged(backend: LocalBackend, *args: Any, **kwargs: Any) -> Any:
        events.add("judging")
        found = await judge(backend, *args, **kwargs)
        events.add("judged")
        return found

    async def train(
        _backend: LocalBackend, _model: TrainableModel, groups: Sequence[art.TrajectoryGroup], **_: Any
    ) -> list[art.TrainedStep]:
        events.add("training")
        events.add("trained", ",".join(run.id for group in groups for run in group.group.trajectories))
        serve()
        return [art.TrainedStep(f"{POLICY}@{len(events.of('trained'))}", "x")]

    def saved(file: StateFile, state: Any) -> None:
        save(file, state)
        events.add("saved")

    gathered = stages.AutoRL._gathered

    async def gathers(of: stages.AutoRL, *args: Any, **kwargs: Any) -> Any:
        found = await gathered(of, *args, **kwargs)
        events.add("gathered")
        return found

    policy.script = answered
    serve()
    LocalBackend.register = register  # type: ignore[method-assign]
    LocalBackend.judge = judged  # type: ignore[method-assign]
    LocalBackend.train = train  # type: ignore[method-assign, assignment]
    TrainableModel.get_step = lambda _model: len(events.of("trained"))  # type: ignore[method-assign, assignment]
    StateFile.save = saved  # type: ignore[method-assign]
    stages.AutoRL._gathered = gathers  # type: ignore[method-assign]
    cli(["autorl", *options])


def begin(die_at: str, file: Path, options: Sequence[str]) -> None:
    def start() -> None:
        with serve_script(said) as server:
            main(Events(file, die_at), options, server)

    ended = ended_in_a_fork(start)
    assert ended == (-signal.SIGKILL if die_at else 0), f"{die_at or 'the last'}: ended with {ended}"


def warm() -> None:
    """What a first call imports and builds, litellm's by OpenAI's client, for all starts."""
    with serve_script(said) as server:
        asked = [{"role": "user", "content": "why?"}]
        asyncio.run(
            load_litellm().acompletion(model="openai/any", api_base=server.url, api_key="unused", messages=asked)
        )


if __name__ == "__main__":
    collect_garbage_seldom()  # as the command does
    warm()
    for each in (*sys.argv[2].split(","), ""):
        begin(each, Path(sys.argv[1]), sys.argv[3:])
