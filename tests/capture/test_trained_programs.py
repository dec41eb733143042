"""Random agents that retry, compact their history and start agents beside each other: what a learner is given of them
is every token that the engine sampled for them, once, behind the prompt for which it was sampled."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from sampled_server import SampledServer, serve_sampled

import arttrace
from arttrace.records.trajectory import Trajectory
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.trajectories import sequences
from arttrace.trajectories.conversations import conversations

Messages = list[dict[str, Any]]
_DEEPEST = 2


def said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


@dataclass
class Agent:
    client: openai.OpenAI
    rng: random.Random
    numbers: Iterator[int]

    def ask(self, messages: Messages, **more: Any) -> str:
        busy = f"{next(self.numbers)} busy" if self.rng.random() < 0.2 else openai.omit
        asked: dict[str, Any] = {"model": "m", "messages": list(messages), "user": busy, **more}
        if self.rng.random() < 0.3:
            found: Counter[int] = Counter()
            texts: dict[int, str] = {}
            for chunk in self.client.chat.completions.create(stream=True, **asked):
                for choice in chunk.choices:
                    found[choice.index] += 1
                    texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            return texts[self.rng.choice(sorted(texts))]
        answer = self.client.chat.completions.create(**asked)
        return self.rng.choice(answer.choices).message.content or ""

    def turn(self, messages: Messages) -> None:
        messages.append(said("assistant", self.ask(messages)))
        messages.append(said("user", f"go on {self.rng.randint(0, 2)}"))

    def choose(self, messages: Messages) -> None:
        messages += [said("assistant", self.ask(messages, n=self.rng.randint(2, 3))), said("user", "that one")]

    def again(self, messages: Messages) -> None:
        self.ask(messages)
        self.ask(messages)

    def break_off(self, messages: Messages) -> None:
        stream = self.client.chat.completions.create(model="m", messages=messages, stream=True, user="cut")  # type: ignore[arg-type]
        with contextlib.suppress(openai.APIError, httpx.HTTPError):
            for _ in stream:
                pass
        self.turn(messages)

    def summarise(self, messages: Messages) -> None:
        asked = [*messages, said("user", "sum up")] if self.rng.random() < 0.5 else [said("user", str(messages))]
        messages[1:] = [said("user", f"so far: {self.ask(asked)}")]

    def cut(self, messages: Messages) -> None:
        messages[1:] = messages[-1:]

    def instruct(self, messages: Messages) -> None:
        messages[0] = said("system", f"be {self.rng.randint(0, 9)}")

    def work(self, depth: int, messages: Messages) -> str:
        steps = [self.turn, self.turn, self.choose, self.again, self.break_off, self.summarise, self.cut, self.instruct]
        for _ in range(self.rng.randint(1, 4)):
            if depth < _DEEPEST and self.rng.random() < 0.3:
                self.start(depth + 1, messages)
            else:
                self.rng.choice(steps)(messages)
        return str(messages[-1]["content"])

    def start(self, depth: int, messages: Messages) -> None:
        """Agents beside each other: twins or not, with the messages of this one or with their own."""
        own = messages if self.rng.random() < 0.3 else [said("system", "help"), said("user", "a part")]
        seeds = [self.rng.random()] * 2 if self.rng.random() < 0.5 else [self.rng.random() for _ in range(2)]
        kind = self.rng.choice(["plain", "agent", "trajectory"])

        def run(seed: float) -> str:
            return Agent(self.client, random.Random(seed), self.numbers).work(depth, list(own))

        decorated = {"plain": run, "agent": arttrace.agent(run), "trajectory": arttrace.trajectory(run)}[kind]
        with ThreadPoolExecutor(self.rng.randint(1, 2)) as pool:
            messages.append(said("user", " ".join(pool.map(decorated, seeds))))


@pytest.fixture
def engine() -> Iterator[SampledServer]:
    with serve_sampled() as running:
        yield running


@pytest.mark.parametrize("seed", range(4))
def test_every_sampled_token_is_trained_once_behind_its_prompt(
    seed: int, engine: SampledServer, tmp_path: Path
) -> None:
    arttrace.init(project="test", dir=tmp_path / "data")
    rng = random.Random(seed)
    with openai.OpenAI(base_url=engine.url, api_key="k") as client:
        numbers = count()
        for number in range(4):
            agent = Agent(client, random.Random(rng.random()), numbers)

            @arttrace.trajectory(name="random", trajectory_id=f"run {number}")
            def run(agent: Agent = agent, number: int = number) -> None:
                agent.work(0, [said("system", "help"), said("user", f"task {number}")])
                arttrace.reward(number / 4)

            run()
    arttrace.flush()
    with Store.open(DataDir(tmp_path / "data"), create=True) as store:
        runs = store.trajectories()
    assert [(run.id, run.incomplete, [one.value for one in run.rewards]) for run in runs] == [
        (f"run {number}", "", [number / 4]) for number in range(4)
    ]
    assert trained(runs) == {
        (logprob, id, (*answer.prompt, *answer.ids[:place])): 1
        for answer in engine.answers
        for place, (id, logprob) in enumerate(list(zip(answer.ids, answer.logprobs, strict=True))[: answer.sent])
    }
    wanted = Counter(answer.text for answer in engine.answers if answer.sent is None)
    learned = Counter(
        one.messages[at].text for run in runs for one in conversations(run) if not one.fault for at in one.targets
    )
    assert {text for text in wanted if "once more" not in text} <= learned.keys() <= wanted.keys()


def trained(runs: list[Trajectory]) -> Counter[tuple[float | None, int, tuple[int, ...]]]:
    """What is trained on: log-probability, token and all that stands before it."""
    return Counter(
        (one.logprobs[at], one.token_ids[at], tuple(one.token_ids[:at]))
        for run in runs
        for one in sequences(run, policy="policy")[0]
        for at, is_target in enumerate(one.trained)
        if is_target
    )
