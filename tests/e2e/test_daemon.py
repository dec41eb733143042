"""The daemon beside a real vLLM: killed (SIGKILL) in every state over five steps, while agents keep calling.

The runs were sampled by the base model through the gateway before, so that the undisturbed daemon, which nobody serves,
and the killed one see the same. Each version is published for real.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from simulated_agent import Run, message
from stopped_training import Start, killed_at, run
from tiny_model import make_base_model, reference_logprobs

from arttrace.records.record import Record
from arttrace.records.reward import Reward
from arttrace.records.values.tokens import encode_logprobs, encode_token_ids
from arttrace.store import Store
from arttrace.system.paths import DataDir
from trainer.policies.checkpoints import Checkpoints
from trainer.serving import Serving, start_serving

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]

KILLS = ["starting:1", "wait:1", "batch:2", "step:2", "half:3", "checkpoint:3", "publish:4", "handed:4"]
KILLS += ["record:5"]
STEPS, RUNS = 5, 4


def chat(url: str, text: str, **more: Any) -> httpx.Response:
    body = {"model": "policy:latest", "messages": [{"role": "user", "content": text}], "max_tokens": 12, **more}
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=300)


def sampled_run(url: str, group: int, number: int) -> list[Record]:
    """One run of one call with the engine's own tokens, at group * 2000 microseconds, and its reward."""
    id, text = f"g{group}-{number}", f"scenario {group}"
    response = chat(url, text, seed=100 * group + number)
    answer = response.json()
    choice = answer["choices"][0]
    logprobs = [entry["logprob"] for entry in choice["logprobs"]["content"]]
    recorded = Run(id, scenario=f"g{group}")
    recorded.chat(
        "m",
        [message("user", text)],
        message("assistant", choice["message"]["content"] or ""),
        at=group * 2000,
        policy=response.headers["x-arttrace-policy-version"],
        PROMPT_TOKEN_IDS=encode_token_ids(answer["prompt_token_ids"]),
        TOKEN_IDS=encode_token_ids(choice["token_ids"]),
        LOGPROBS=encode_logprobs(logprobs),
    )
    even = sum(token % 2 == 0 for token in choice["token_ids"]) / len(choice["token_ids"])
    reward = Reward(id=f"r-{id}", trajectory_id=id, value=even + number / 100)
    return [*recorded.end(at=group * 2000 + 1000), reward]


@contextmanager
def calling(serving: Serving) -> Iterator[list[tuple[str, Any]]]:
    """A client that never stops; yields what it was answered, by version."""
    answers: list[tuple[str, Any]] = []
    stop = threading.Event()

    def call() -> None:
        while not stop.is_set():
            answer = chat(serving.url, "anything new?")
            assert answer.status_code == 200, answer.text
            answers.append((answer.headers["x-arttrace-policy-version"], answer.json()))
            stop.wait(0.1)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(call)
        try:
            yield answers
        finally:
            stop.set()
            running.result(60)


def test_a_daemon_killed_in_every_state_serves_the_curve_of_an_undisturbed_one(tmp_path: Path) -> None:
    base_model = make_base_model(tmp_path / "base")
    killed, undisturbed = DataDir(tmp_path / "killed"), DataDir(tmp_path / "undisturbed")
    with start_serving(killed, base_model) as serving:
        with ThreadPoolExecutor(4) as pool:
            pairs = [(group, number) for group in range(STEPS) for number in range(RUNS)]
            runs = list(pool.map(lambda pair: sampled_run(serving.url, *pair), pairs))
        for data in (killed, undisturbed):
            with Store.open(data, create=True) as store:
                store.append([record for each in runs for record in each])
        options = ["--base-model", base_model, "--max-steps", STEPS, "--poll", "0.05", "--group-size", RUNS]
        options += ["--min-groups", "1"]
        options += ["--lora-rank", "8", "--learning-rate", "0.01", "--json", "--daemon", "--dir"]
        in_peace, disturbed = (tuple(map(str, (*options, data.root))) for data in (undisturbed, killed))
        with calling(serving) as answers:
            run([Start(in_peace), *(killed_at(stop, disturbed) for stop in KILLS), Start(disturbed)], timeout=2400)
        status = serving.client().status()
        last = chat(serving.url, "and now?").json()

    ours, theirs = (Checkpoints(data.policies, "policy") for data in (killed, undisturbed))
    assert ours.steps() == theirs.steps() == list(range(1, STEPS + 1))
    for step in ours.steps():
        adapters = [one.path(step) / "adapter_model.safetensors" for one in (ours, theirs)]
        assert adapters[0].read_bytes() == adapters[1].read_bytes(), f"version {step}"
        curves = [one.manifest(step).metrics for one in (ours, theirs)]
        assert curves[0]["loss"] == curves[1]["loss"]
        assert curves[0]["logprob_difference_max"] < 0.01 or step > 1, "the engine and the learner agree on the base"
    consumed = [one.trajectory_id for step in ours.steps() for one in ours.manifest(step).consumed]
    assert sorted(consumed) == sorted(f"g{group}-{number}" for group, number in pairs)
    with Store.open(killed) as store:
        assert [step.step for step in store.policy_steps("policy")] == ours.steps()

    assert (status.step, last["model"]) == (STEPS, f"policy@{STEPS}")
    versions = [version for version, _ in answers]
    assert versions == sorted(versions), "no version came back"
    for version, answer in [*dict(answers).items(), (last["model"], last)]:
        choice, step = answer["choices"][0], int(version.removeprefix("policy@"))
        expected = reference_logprobs(
            base_model, ours.path(step) if step else None, answer["prompt_token_ids"], choice["token_ids"]
        )
        got = [entry["logprob"] for entry in choice["logprobs"]["content"]]
        assert got == pytest.approx(expected, abs=1e-3), version
    state = json.loads((ours.directory / "daemon.json").read_text())
    assert (state["state"], state["step"]) == ("stopped", STEPS)
