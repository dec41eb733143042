"""Random programs through the real capture and the real openai client: every run holds the calls that it made, each
once, and one that lost any of its spans is nowhere complete."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import openai
import pytest
from chat_server import ChatServer
from openai.types.chat import ChatCompletionUserMessageParam

import arttrace
from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.records.trajectory import Trajectory
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.trajectories import build_trajectories

Spans = Callable[[], list[SpanRow]]
_DEEPEST = 3


@dataclass
class Program:
    """One run in the making: what it does is drawn as it goes, and what it asked is kept."""

    label: str
    url: str
    rng: random.Random
    asked: list[str] = field(default_factory=list)

    def work(self, depth: int = 0) -> None:
        steps: list[Callable[[int], None]] = [self.call, self.read, self.leave]
        if depth < _DEEPEST:
            steps += [self.tool, self.agent, self.inner, self.half, self.thread, self.pool, self.tasks]
        for _ in range(self.rng.randint(1, 3)):
            self.rng.choice(steps)(depth + 1)

    def question(self) -> ChatCompletionUserMessageParam:
        self.asked.append(f"{self.label} {len(self.asked)}")
        return {"role": "user", "content": self.asked[-1]}

    def call(self, depth: int) -> None:
        with openai.OpenAI(base_url=self.url, api_key="k") as client:
            client.chat.completions.create(model="m", messages=[self.question()])

    def read(self, depth: int, most: int | None = None) -> None:
        with openai.OpenAI(base_url=self.url, api_key="k") as client:
            stream = client.chat.completions.create(model="m", messages=[self.question()], stream=True)
            assert list(itertools.islice(stream, most))
            stream.close()

    def leave(self, depth: int) -> None:
        self.read(depth, 2)

    def tool(self, depth: int) -> None:
        arttrace.tool(self.work)(depth)

    def agent(self, depth: int) -> None:
        with arttrace.agent(name="helper"):
            self.work(depth)

    def inner(self, depth: int) -> None:
        arttrace.trajectory(name="inner", trajectory_id="of nobody")(self.work)(depth)

    def half(self, depth: int) -> None:
        @arttrace.tool
        def steps() -> Generator[int, None, None]:
            for number in range(3):
                self.work(depth)
                yield number

        running = steps()
        next(running)
        running.close()

    def thread(self, depth: int) -> None:
        started = threading.Thread(target=self.work, args=(depth,))
        started.start()
        started.join()

    def pool(self, depth: int) -> None:
        with ThreadPoolExecutor(1) as pool:  # one: what is drawn stays the seed's
            list(pool.map(self.work, [depth, depth]))

    def tasks(self, depth: int) -> None:
        async def ask(client: openai.AsyncOpenAI) -> None:
            await client.chat.completions.create(model="m", messages=[self.question()])

        async def main() -> None:
            async with openai.AsyncOpenAI(base_url=self.url, api_key="k") as client, asyncio.TaskGroup() as group:
                group.create_task(ask(client))
                group.create_task(ask(client)).cancel()  # before it began
                group.create_task(asyncio.to_thread(self.work, _DEEPEST))

        asyncio.run(main())


def said(run: Trajectory) -> tuple[list[str], list[str], list[str]]:
    """What a run holds: questions, tools and agents, each once."""
    calls = sorted(placed.call.messages[-1].text for placed in run.calls)
    tools = sorted(tool.id for tool in run.tool_calls if not tool.inferred)
    return calls, tools, sorted(agent.id for agent in run.agents if not agent.inferred)


@pytest.mark.parametrize("seed", range(3))
def test_a_run_that_lost_any_span_is_nowhere_complete(
    seed: int, server: ChatServer, spans: Spans, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    programs = [Program(f"run {number}", server.url, random.Random(rng.random())) for number in range(3)]
    runs = [arttrace.trajectory(name=one.label, trajectory_id=one.label)(one.work) for one in programs]
    threads = [threading.Thread(target=run) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorded = spans()
    whole = {run.id: run for run in build_trajectories(recorded)}
    assert {id: (run.incomplete, said(run)[0]) for id, run in whole.items()} == {
        one.label: ("", sorted(one.asked)) for one in programs
    }
    for gone in rng.sample(recorded, min(40, len(recorded))):
        rest = [span for span in recorded if span is not gone]
        built = {run.id: run for run in build_trajectories(rest)}
        lacking = gone.attributes[semconv.TRAJECTORY_ID]
        assert lacking not in built or built[lacking].incomplete
        assert {id: (run.incomplete, said(run)) for id, run in built.items() if id != lacking} == {
            id: ("", said(run)) for id, run in whole.items() if id != lacking
        }
    arrived = rng.sample(rest, len(rest)) + rng.sample(rest, len(rest) // 3)
    with Store.open(DataDir(tmp_path / "store"), create=True) as store:
        for start in range(0, len(arrived), 7):
            store.append(arrived[start : start + 7])
            complete = {one.id for one in store.summaries(complete_only=True)}
            so_far = {(span.trace_id, span.span_id): span for span in arrived[: start + 7]}
            assert complete == {run.id for run in build_trajectories(so_far.values()) if not run.incomplete}
        assert complete == whole.keys() - {lacking}
