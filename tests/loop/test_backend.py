"""The backend against commands that keep the protocol of `arttrace serve` and `arttrace train` without a model."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from backend_commands import COMMANDS, alive, rewarded, running
from lost_span import WHY, lose_a_call

import arttrace
from arttrace.loop import LocalBackend, TrainableModel, Trajectory, TrajectoryGroup, gather_trajectories
from arttrace.loop.processes.child import Child
from arttrace.rewards import trajectory_reward
from arttrace.store import Store
from arttrace.system.errors import JudgeError, ServingError, TrainingError

PROGRAM = """
import asyncio, json, os, signal, sys
import arttrace.loop as art

program, data, end = sys.argv[1:]

async def main():
    backend = art.LocalBackend(data)
    backend._program = program
    await backend.register(art.TrainableModel("quiet", "base"))
    print(json.loads(backend.data.serving.read_bytes())["pid"], flush=True)
    if end == "is killed beside a worker":
        if (worker := os.fork()) == 0:
            os.closerange(1, 3)
            signal.pause()
        print(worker, flush=True)
    if end.startswith("is killed"):
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@arttrace.trajectory
async def rollout(answer: str) -> str:
    return answer


def test_the_loop_as_a_program_writes_it(
    backend: LocalBackend, model: TrainableModel, judge_server: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    async def loop() -> None:
        async with backend:
            await backend.register(model)
            assert model.inference_base_url
            assert str(model.openai_client().base_url).rstrip("/") == model.inference_base_url
            assert model.inference_name == "policy:latest"
            group = await gather_trajectories([rollout("6"), rollout("9")])
            alone = await gather_trajectories([rollout("6")])
            [judgement] = await backend.judge([group, alone], "openai/stand-in", {"api_base": judge_server.url})
            assert sorted(judgement.scores.values()) == [0.0, 1.0]
            steps = await backend.train(model, steps=2)
            assert [(step.version, step.metrics["runs"]) for step in steps] == [("policy@1", 2), ("policy@2", 2)]
            said = capfd.readouterr()
            # litellm warns of the loops from which earlier tests of this process asked it.
            lines = [line for line in said.err.splitlines() if "LiteLLM:WARNING" not in line]
            assert lines == ["arttrace: 3 of 9 tokens of the step, 1.0 per second, 6 s left"]
            assert said.out == ""
            [again] = await backend.train(model, [group], learning_rate=1e-3)
            assert again.metrics["pid"] == steps[0].metrics["pid"], "one trainer for all steps"
            with pytest.raises(TrainingError, match="signal SIGKILL"):
                await backend.train(model, loss="death")
            [other] = await backend.train(model)
            assert other.metrics["pid"] != again.metrics["pid"], "another one after its death"
            pid = int(other.metrics["pid"])
            assert backend.data.serving.exists()
        assert not backend.data.serving.exists(), "the gateway that the backend started is stopped"
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    asyncio.run(loop())


def test_runs_that_are_not_whole_are_left_out_and_said(
    backend: LocalBackend, model: TrainableModel, caplog: pytest.LogCaptureFixture
) -> None:
    @arttrace.trajectory
    async def loses_a_call() -> None:
        lose_a_call()

    async def loop() -> None:
        async with backend:
            group = await gather_trajectories([rewarded(), rewarded(), loses_a_call()])
            lost = await gather_trajectories([loses_a_call()])
            caplog.clear()
            [step] = await backend.train(model, [group])
            assert step.left_out == {f"incomplete: {WHY}": 1}
            said = [record.getMessage() for record in caplog.records if record.name == "arttrace.loop"]
            assert said == [f"1 of 3 runs not trained on: 1 incomplete: {WHY}"]
            with pytest.raises(TrainingError, match="no run is complete: 1 of 1 run not"):
                await backend.train(model, [lost])

    asyncio.run(loop())


def test_a_gateway_that_runs_is_used_and_left_running(backend: LocalBackend, model: TrainableModel) -> None:
    async def loop() -> None:
        async with backend:
            await backend.register(model)
            other = LocalBackend()
            assert other.data == backend.data
            other._program = "raise SystemExit(9)"
            again = TrainableModel("policy", model.base_model)
            async with other:
                await other.register(again)
            assert again.inference_base_url == model.inference_base_url
            assert backend.data.serving.exists()
            for one in (backend, other):
                with pytest.raises(ServingError, match=r"serves policy on .*, not another on ") as shown:
                    await one.register(TrainableModel("another", model.base_model))
                assert 'LocalBackend("another")' in str(shown.value.hint)

    asyncio.run(loop())


def test_a_tracker_gets_the_step_that_is_served(backend: LocalBackend, model: TrainableModel) -> None:
    async def loop() -> None:
        async with backend:
            await backend.register(model)
            await model.log([Trajectory(reward=0.5)], report_to="wandb")

    asyncio.run(loop())
    numbers = {"val/reward": 0.5, "val/runs": 1.0}
    logged = json.loads((backend.data.root / "logged").read_bytes())
    assert logged == [{"step": 3, "numbers": numbers}, {"report_to": ["wandb"]}]


@pytest.mark.parametrize("end", ["forgets", "is killed", "is killed beside a worker"])
def test_the_gateway_ends_with_the_program_that_started_it(end: str, tmp_path: Path) -> None:
    """One that never closes its backend, as ART's programs, and one that cannot; a worker that it forked goes on, and
    holds all that was open."""
    script = tmp_path / "commands.py"
    script.write_text(COMMANDS.replace("\\\\", "\\"))
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, program, running(script), tmp_path / "data", end], capture_output=True, text=True
    )
    assert done.returncode == (0 if end == "forgets" else -signal.SIGKILL), done.stderr
    server, *workers = map(int, done.stdout.split())
    deadline = time.monotonic() + 60
    try:
        while alive(server):
            assert time.monotonic() < deadline, "it is left behind"
            time.sleep(0.02)
    finally:
        for worker in workers:
            os.kill(worker, signal.SIGKILL)


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_backend_goes_on_in_another_event_loop(backend: LocalBackend, model: TrainableModel) -> None:
    """As in a script of several `asyncio.run`: its trainer does too, whose model takes long to load. The server writes
    more to its stderr than a pipe holds."""
    served = set()

    async def step() -> float:
        for _ in range(5):
            await backend.register(model)
            served.add(json.loads(backend.data.serving.read_bytes())["pid"])
        await gather_trajectories([rewarded(), rewarded()])
        [made] = await backend.train(model)
        return made.metrics["pid"]

    first, second = int(asyncio.run(step())), int(asyncio.run(step()))
    assert first == second
    assert alive(second)
    asyncio.run(backend.close())
    assert not alive(second)
    [pid] = served
    assert not alive(pid)
    gc.collect()  # what a loop that is over leaves says nothing


def test_a_process_that_is_over_is_not_signalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number may be another's by then."""

    async def over() -> Child:
        child = Child.start(sys.executable, "-c", "pass")
        await child.wait()
        return child

    child = asyncio.run(over())
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *signal: sent.append(signal))
    asyncio.run(child.stop())
    assert sent == []


def test_a_stale_serving_file_is_passed_over(backend: LocalBackend, model: TrainableModel) -> None:
    backend.data.root.mkdir(parents=True)
    backend.data.serving.write_text(
        json.dumps(
            {"url": "http://127.0.0.1:9", "policy": "policy", "base_model": str(model.base_model), "pid": os.getpid()}
        )
    )

    async def loop() -> None:
        async with backend:
            await backend.register(model)
            assert model.inference_base_url != "http://127.0.0.1:9/v1"

    asyncio.run(loop())


def test_what_a_failed_command_said_is_reported(backend: LocalBackend, model: TrainableModel) -> None:
    async def loop() -> None:
        async with backend:
            with pytest.raises(ServingError, match=r"(?s)exit code 1.*no g\+\+ here"):
                await backend.register(TrainableModel("broken", model.base_model))
            await gather_trajectories([rollout("6"), rollout("9")])
            with pytest.raises(TrainingError, match=r"(?s)no group has rewards.*Score them"):
                await backend.train(model)

    asyncio.run(loop())


def test_what_was_judged_before_the_judge_gave_out_is_kept(backend: LocalBackend, judge_server: Any) -> None:
    judge_server.script = [judge_server.good, *2 * [judge_server.fails(401, "no more")]]

    async def loop() -> None:
        groups = [await gather_trajectories([rollout("6"), rollout(str(n))]) for n in range(3)]
        with pytest.raises(JudgeError):
            await backend.judge(groups, "openai/stand-in", {"api_base": judge_server.url})

    asyncio.run(loop())
    with Store.open(backend.data) as store:
        assert len([one for one in store.trajectories() if one.rewards]) == 2


async def test_what_was_judged_is_known_to_the_groups(
    backend: LocalBackend, model: TrainableModel, judge_server: Any
) -> None:
    group = await gather_trajectories([rollout("6"), rollout("9")])
    said = [[{"role": "user", "content": "6?"}, {"role": "assistant", "content": text}] for text in ("6", "7")]
    made = TrajectoryGroup(Trajectory(messages) for messages in said)
    judged = await backend.judge([group, made], "openai/stand-in", {"api_base": judge_server.url})
    assert [trajectory_reward(run) for run in group.captured] == [judged[0].scores[run.id] for run in group.captured]
    assert sorted(one.reward or 0.0 for one in made) == sorted(judged[1].scores.values())
    with Store.open(backend.data) as store:
        assert store.sql("SELECT count(*) FROM rewards")[1] == [(2,)], "none of a run that is not there"


def test_a_model_that_is_not_served_cannot_be_called(model: TrainableModel) -> None:
    with pytest.raises(ServingError, match="not registered"):
        model.openai_client()


def test_closing_waits_for_the_running_step_and_drops_it_when_it_is_cancelled(
    backend: LocalBackend, model: TrainableModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arttrace.loop.processes.child._STOP_S", 0.2)

    async def train() -> None:
        await backend.register(model)
        training = asyncio.create_task(backend.train(model, loss="slow"))
        while not (backend.data.root / "began").exists() and not training.done():
            await asyncio.sleep(0.01)
        assert training.cancel()
        await asyncio.wait((training,))

    async def loop() -> None:
        await train()
        closing = asyncio.create_task(backend.close())
        done, _ = await asyncio.wait((closing,), timeout=1.0)
        assert not done, "longer than a trainer without a step is waited for"
        (backend.data.root / "go-on").touch()
        await closing
        assert (backend.data.root / "made").exists()
        for name in ("began", "go-on", "made"):
            (backend.data.root / name).unlink()
        await train()
        child, server = backend._own_trainers[model.name]._child, backend._server
        assert child is not None
        assert server is not None
        closing = asyncio.create_task(backend.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait((closing,))
        assert child._process.returncode is not None
        assert not (backend.data.root / "made").exists()
        assert server._process.returncode is not None, "the gateway is stopped too"

    asyncio.run(loop())
