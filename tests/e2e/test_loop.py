"""Training loops written with arttrace.loop, ART's among them, on a real vLLM: each step is served when it returns.

ART's programs are run as its documentation prints them, with another import line (programs/art). One server for all,
started as its users start it. The tests go from the backend on its machine, which leaves its policy to the server at
its end, to clients elsewhere.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from art_programs import run_program, server_command
from safetensors.torch import load_file
from tiny_model import make_base_model

import arttrace
import arttrace.loop as art
from arttrace.loop import (
    AsyncClient,
    LocalBackend,
    TrainableModel,
    Trajectory,
    TrajectoryGroup,
    gather_trajectory_groups,
)
from arttrace.records.policy import PolicyStep
from arttrace.store import open_store
from arttrace.system.evaluations import read_evaluations
from arttrace.system.paths import DataDir

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]
PROGRAM = Path(__file__).parent / "programs" / "remote_client.py"


@dataclass
class Server:
    """`python -m arttrace.server` in its directory."""

    process: subprocess.Popen[str]
    folder: Path
    url: str
    base_model: Path
    log: Path

    @property
    def data(self) -> DataDir:
        return DataDir(self.folder / "checkpoints")

    @property
    def site(self) -> dict[str, str]:
        return {"base_model": str(self.base_model), "url": self.url}

    def last_step(self) -> PolicyStep:
        with open_store(self.data) as store:
            return store.policy_steps("agent-001")[-1]

    def step(self) -> int:
        return int(httpx.get(f"{self.url}/arttrace/status").json()["step"])


@contextmanager
def serving(folder: Path, base_model: Path) -> Iterator[Server]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "ARTTRACE_"))}
    log = folder / "server.err"
    with log.open("w") as err:
        process = subprocess.Popen(
            [sys.executable, *server_command({"base_model": str(base_model)})],
            cwd=folder,
            env={**env, "POLICY": "agent-001"},
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
        )
    try:
        assert process.stdout is not None
        ready = next((line for line in process.stdout if line.startswith("Ready: ")), "")
        assert ready, log.read_text()
        url = ready.split()[-1].removesuffix("/v1")
        yield Server(process, folder, url, base_model, log)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait(300)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    base_model = make_base_model(folder / "base")
    answers_are_short(base_model)
    with serving(folder, base_model) as served:
        yield served


def answers_are_short(base_model: Path) -> None:
    """The model's own bound: the documentation's programs ask without one."""
    file = base_model / "generation_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "max_new_tokens": 8}))


@pytest.fixture
def capturing(tmp_path: Path) -> Iterator[Path]:
    arttrace.init(dir=tmp_path / "captured")
    yield tmp_path / "captured"
    arttrace.shutdown()


async def test_backend_client_and_steps_as_the_documentation_prints_them(
    server: Server, judge_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the same trainer trains on decorated runs and on blocks, each step on what the one before samples, and once
    more by the newest recipe."""
    prefers_odd_runs(judge_server, monkeypatch)
    monkeypatch.setenv("ARTTRACE_DIR", str(server.data.root))
    arttrace.init()
    before = server.step()
    ran = await run_program("backend_client_step", server.site)
    assert ran["steps"] == [before + 1, before + 2]
    assert 0 < ran["traj"].reward < 1
    last = server.last_step()
    assert (last.step, last.metrics["trajectories"]) == (before + 2, 8)
    assert last.metrics["tokens_trained"] > 0
    await _steps_on_decorated_runs_and_on_blocks(ran["backend"], ran["model"], before + 2)
    await _a_step_by_the_newest_recipe(server, before + 4)
    await ran["backend"].close()


async def _a_step_by_the_newest_recipe(server: Server, before: int) -> None:
    ran = await run_program("backend_train", server.site)
    result, groups = ran["train_result"], [*ran["train_groups"], *ran["val_groups"]]
    assert (result.step, server.step()) == (before + 1, before + 1)
    assert result.metrics == server.last_step().metrics
    assert (result.metrics["trajectories"], result.metrics["reward_spread"]) == (8, 1.0)
    runs = {run.metadata["scenario_id"] for group in groups for run in group.captured}
    assert runs == {"a", "b", "c"}
    sampled = {call.call.policy_version for run in groups[-1].captured for call in run.calls}
    assert sampled == {f"agent-001@{before + 1}"}  # the validation is by the version that was just made
    evaluated = read_evaluations(server.data, "agent-001")[before + 1]
    assert evaluated == {"val/reward": 0.5, "val/judged": 1.0}
    lines = (server.data.root / "logs" / "agent-001.jsonl").read_text().splitlines()
    trained = json.loads(lines[-2])
    assert {name for name in trained if name.startswith("train/")} >= {"train/reward", "train/tokens_trained"}
    kept = [path.parent.name for path in server.data.policies.rglob("adapter_model.safetensors")]
    assert f"agent-001@{before + 1}" in kept
    assert len(kept) < before + 1  # model.delete_checkpoints()


async def _steps_on_decorated_runs_and_on_blocks(backend: LocalBackend, model: TrainableModel, before: int) -> None:
    client = model.openai_client()

    async def ask(question: str, number: int) -> str:
        answered = await client.chat.completions.create(
            model=model.inference_name,
            messages=[{"role": "user", "content": question}],
            max_tokens=8,
            seed=number,
            temperature=1.0,
        )
        return str(answered.choices[0].message.content)

    @arttrace.trajectory
    async def decorated(question: str, number: int) -> str:
        arttrace.reward(float(number % 2))
        return await ask(question, number)

    async def block(question: str, number: int) -> Trajectory:
        with Trajectory() as one:
            await ask(question, number)
        one.reward = float(number % 2)
        return one

    async def trained(groups: list[TrajectoryGroup], step: int) -> None:
        runs = [run for group in groups for run in group.group.trajectories]
        assert [len(group.trajectories) for group in groups] == [4, 4]
        policies = {call.call.policy_version for run in runs for call in run.calls}
        assert policies == {f"agent-001@{step}"}  # what was trained last is what was sampled from
        [done] = await backend.train(model, groups, learning_rate=1e-4)
        assert done.version == f"agent-001@{step + 1}"
        assert done.metrics["tokens_trained"] > 0
        assert Path(done.adapter).is_dir()

    rollouts = [TrajectoryGroup(decorated(f"question {one}", number) for number in range(4)) for one in range(2)]
    await trained(await gather_trajectory_groups(rollouts), before)
    blocks = [await asyncio.gather(*(block(f"question {one}", number) for number in range(4))) for one in range(2)]
    await trained([TrajectoryGroup(ready) for ready in blocks], before + 1)
    assert f"agent-001@{before + 2}" in {one.id async for one in client.models.list()}


async def test_sft_as_a_warm_up_of_rl_as_the_documentation_prints_it(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step of RL begins with the weights that SFT made, and its rollouts are sampled by them."""
    monkeypatch.setenv("ARTTRACE_DIR", str(server.data.root))
    arttrace.init()
    before = server.step()
    lines = [[("user", f"Mail {n}?"), ("assistant", f"It is from Ann, {n} days ago.")] for n in range(8)]
    file = tmp_path / "train.jsonl"
    file.write_text("".join(json.dumps({"messages": [_message(*one) for one in line]}) + "\n" for line in lines))
    ran = await run_program("sft_then_rl", {**server.site, "file": str(file)})
    with open_store(server.data) as store:
        *_, earlier, warmed, reinforced = store.policy_steps("agent-001")
    assert [warmed.step, reinforced.step] == [before + 1, before + 2] == [before + 1, ran["result"].step]
    assert (warmed.method, reinforced.method, len(warmed.consumed)) == ("sft", "grpo", len(lines))
    assert warmed.metrics["optimizer_steps"] == 3 * len(lines) / 2
    assert warmed.metrics["last_loss"] < warmed.metrics["first_loss"]
    assert warmed.metrics["publish_logprob_change"] > 0
    sampled = {call.call.policy_version for group in ran["groups"] for run in group.captured for call in run.calls}
    assert sampled == {f"agent-001@{before + 1}"}
    assert _moved(earlier, warmed) > 5 * _moved(warmed, reinforced) > 0


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _moved(one: PolicyStep, other: PolicyStep) -> float:
    """By how much the weights of the two differ most."""
    weights = [load_file(str(Path(step.adapter) / "adapter_model.safetensors")) for step in (one, other)]
    return max(float((weights[1][name] - weights[0][name]).abs().max()) for name in weights[0])


async def test_train_with_ruler_as_the_documentation_prints_it(
    server: Server, capturing: Path, judge_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The judge that `openai/o3` reaches is a stand-in."""
    prefers_odd_runs(judge_server, monkeypatch)
    before = server.step()
    ran = await run_program("train_with_ruler", server.site)
    model, groups = ran["model"], ran["groups"]
    last = server.last_step()
    assert (last.step, model.get_step()) == (before + 1, before + 1)
    assert (last.metrics["trajectories"], [len(group) for group in groups]) == (16, [8, 8])
    assert last.metrics["reward_spread"] == 1.0
    assert last.metrics["tokens_trained"] > 0
    judged = "".join(json.dumps(request["messages"]) for request in judge_server.requests)
    assert "You are an email assistant." in judged
    means = await model.log(groups, report_to="tensorboard")
    await ran["backend"].close()
    assert means["val/reward"] == 0.5
    assert list((server.data.policies / "agent-001" / "tensorboard").rglob("events.out.tfevents.*"))


def prefers_odd_runs(judge_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in judge scores every second run of a group 1, the others 0."""
    monkeypatch.setenv("OPENAI_API_BASE", judge_server.url)
    monkeypatch.setenv("OPENAI_API_KEY", "stand-in")

    def favourite(request: dict[str, Any]) -> tuple[int, Any]:
        scores = judge_server.scores(request)
        return judge_server.says(json.dumps({"scores": [{**one, "score": i % 2} for i, one in enumerate(scores)]}))({})

    judge_server.good = favourite


async def test_the_seeds_protocol(server: Server, capturing: Path) -> None:
    before = server.step()
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any") as client:
        raw = client.chat.completions.with_raw_response.create(
            model="lora:latest",
            messages=[{"role": "user", "content": "c"}],
            extra_body={"art": {"trajectory_id": "run-c-8"}},
        )
        assert raw.headers["x-arttrace-trajectory-id"] == "run-c-8"
    ran = await run_program("submit", server.site)
    last = server.last_step()
    assert (last.step, server.step()) == (before + 1, before + 1)
    assert (last.metrics["trajectories"], last.metrics["tokens_trained"] > 0) == (8, True)
    assert Path(last.adapter).is_relative_to(server.data.root)
    with open_store(server.data) as store:
        runs = {run.id: run for run in store.trajectories(ids=[one.id for one in ran["trajectory_group"]])}
    assert len(runs) == 8
    assert {(run.incomplete, len(run.calls)) for run in runs.values()} == {("", 1)}
    assert runs["run-c-3"].metadata == {"number": 3}
    assert {call.call.policy_version for run in runs.values() for call in run.calls} == {f"agent-001@{before}"}


async def test_a_client_elsewhere_has_chunks_imitated(server: Server, capturing: Path) -> None:
    """By the loop that the documentation has for what a larger model answered; each call makes a version."""
    before = server.step()
    taught = [Trajectory([_message("user", f"Mail {n}?"), _message("assistant", "From Bob.")]) for n in range(8)]
    async with art.ServerBackend(server.url) as backend:
        student = TrainableModel("agent-001", server.base_model)
        await student.register(backend)
        for chunk in art.create_sft_dataset_iterator(taught, chunk_size=2, peak_lr=1e-3, warmup_ratio=0.0):
            [step] = await student.train_sft(chunk.trajectories, chunk.config)
            assert step.metrics["optimizer_steps"] == 2
        assert await student.get_step() == before + 2
        answered = await student.openai_client().chat.completions.create(
            model=student.name, messages=taught[0].messages()[:1]
        )
    assert answered.model == f"agent-001@{before + 2}"
    with open_store(server.data) as store:
        first, second = store.policy_steps("agent-001")[-2:]
    assert second.metrics["last_loss"] < first.metrics["first_loss"]


async def test_a_client_whose_answers_carry_their_trajectory(server: Server, capturing: Path) -> None:
    before = server.step()
    ran = await run_program("answers", server.site)
    client, rollout = ran["client"], ran["rollout"]

    async def streamed(question: str) -> art.Trajectory:
        messages = [{"role": "user", "content": question}]
        stream = await client.chat.completions.create(
            model="lora:latest", messages=messages, max_tokens=8, seed=4, stream=True
        )
        parts = [chunk.choices[0].delta.content or "" async for chunk in stream]
        trajectory: art.Trajectory = stream.trajectory
        assert trajectory.messages()[-1]["content"] == "".join(parts)
        trajectory.reward = 0.5
        return trajectory

    outside = [*[await rollout("e", number) for number in range(4)], await streamed("e")]
    [gathered] = await gather_trajectory_groups([TrajectoryGroup(rollout("f", number) for number in range(4))])
    assert [len(one.trajectories) for one in (gathered,)] == [4]  # captured here, so not recorded there
    [done] = await client.submit_trajectories([gathered, TrajectoryGroup(outside)], learning_rate=1e-4)
    assert (done.version, done.metrics["trajectories"]) == (f"agent-001@{before + 1}", 9)
    await client.close()
    with open_store(server.data) as store:
        ids = [one.id for one in (*outside, *gathered.trajectories)]
        runs = store.trajectories(ids=ids)
    assert [(run.incomplete, len(run.calls)) for run in runs] == [("", 1)] * 9


async def test_run_judge_train(server: Server, judge_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    prefers_odd_runs(judge_server, monkeypatch)
    before = server.step()
    ran = await run_program("run_agent", server.site)
    assert ran["judged_group"] is not None
    assert ran["trajectory"].reward == 0.0
    assert server.step() == server.last_step().step == before + 2
    assert server.last_step().metrics["trajectories"] == 8


def test_a_machine_without_torch_trains_and_ctrl_c_keeps_the_latest_version(server: Server, tmp_path: Path) -> None:
    before = server.step()
    done = subprocess.run(
        [sys.executable, PROGRAM, server.url, server.base_model],
        env={**os.environ, "ARTTRACE_DIR": str(tmp_path / "data")},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    again, *_, version = done.stdout.splitlines()  # with its hint between them
    assert again.startswith("8 of 8 runs were trained on by grpo already.")
    assert version == f"agent-001@{before + 1} True"
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(300) == 0
    assert f"the latest checkpoint is agent-001@{before + 1}" in server.log.read_text()
    assert (server.data.policies / "agent-001" / f"agent-001@{before + 1}" / "adapter_model.safetensors").is_file()


@pytest.mark.full
async def test_a_server_that_was_killed_goes_on_where_it_was(server: Server, tmp_path: Path) -> None:
    """Killed and started again in its folder: versions and open runs are there, and the runs of both are one step."""

    async def ask(url: str, number: int) -> art.Trajectory:
        async with AsyncClient(base_url=f"{url}/v1") as client:
            messages = [{"role": "user", "content": "g"}]
            answer = await client.chat.completions.create(
                model="lora:latest", messages=messages, max_tokens=8, seed=number
            )
        answer.trajectory.reward = float(number % 2)
        trajectory: art.Trajectory = answer.trajectory
        return trajectory

    if server.process.poll() is None:
        server.process.send_signal(signal.SIGINT)
        server.process.wait(300)
    steps: list[int] = []
    runs: list[art.Trajectory] = []
    for number in (signal.SIGKILL, signal.SIGINT):
        with serving(server.folder, server.base_model) as started:
            steps.append(started.step())
            runs += [await ask(started.url, at) for at in range(2)]
            if number == signal.SIGKILL:
                assert httpx.post(f"{started.url}/arttrace/records").status_code == 200  # what came before is on disk
            else:
                async with AsyncClient(base_url=f"{started.url}/v1") as client:
                    [done] = await client.submit_trajectories([runs], learning_rate=1e-4)
                assert (done.version, done.left_out) == (f"agent-001@{steps[0] + 1}", {})
                assert done.metrics["trajectories"] == 4
            started.process.send_signal(number)
            started.process.wait(300)
    assert steps[0] == steps[1]
    assert f"the latest checkpoint is agent-001@{steps[0] + 1}" in (server.folder / "server.err").read_text()
