"""A step whose engine died under it, or is not up yet: the version counts, and is served once the engine is there."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from daemon_site import until
from recorded_runs import recorded_group
from stand_in_engine import engine_in_a_thread, write_adapter

from arttrace.records.policy import Consumed, PolicyStep
from arttrace.store import Store
from arttrace.system.errors import ServingError
from arttrace.system.paths import DataDir
from trainer.commands.train.cli import command as train
from trainer.learner.config import LearnerConfig
from trainer.learner.interface import Sample, StepMetrics
from trainer.policies.checkpoints import Checkpoints
from trainer.serving import GatewayClient, start_serving
from trainer.step.phases import Clock
from trainer.step.version import complete_step, finish_open_step


class Weights:
    """Of a learner that has made its step, which does nothing."""

    base_weights = ""
    progress: Any = None

    def __init__(self, weights: bytes, folder: Path, during: Callable[[], object] = lambda: None) -> None:
        self.made = write_adapter(folder / weights.decode(), weights)
        self.config = LearnerConfig()
        self._during = during

    def step(self, samples: Sequence[Sample], *, current_version: str | None = None) -> StepMetrics:
        self._during()
        return StepMetrics(trajectories=len(samples))

    def save_adapter(self, directory: Path) -> None:
        for file in self.made.iterdir():
            (directory / file.name).write_bytes(file.read_bytes())

    def save_rest(self, directory: Path) -> None:
        (directory / "trainer_state.pt").write_text("state")


def step(data: DataDir, gateway: GatewayClient | None, base_model: Path, weights: Weights) -> PolicyStep:
    """One step on all runs that were not trained on."""
    checkpoints = Checkpoints(data.policies, "policy")
    with Store.open(data, create=True) as store:
        finish_open_step(store, checkpoints, gateway)
        consumed = tuple(Consumed(one.id, one.revision) for one in store.trajectories(unconsumed_by="policy"))
        base = str(base_model)
        return complete_step(store, checkpoints, gateway, base, weights, consumed, {}, Clock(), method="grpo")


def test_a_version_that_was_made_while_the_engine_was_away_is_served_when_it_is_back(
    tmp_path: Path, base_model: Path
) -> None:
    data = DataDir(tmp_path / "data")
    checkpoints = Checkpoints(data.policies, "policy")
    with Store.open(data, create=True) as store:
        store.append(recorded_group("g", [0.0, 1.0]))
    with contextlib.ExitStack() as stack:
        with engine_in_a_thread() as engine:
            port = int(engine.url.rpartition(":")[2])
            served = stack.enter_context(start_serving(data, base_model, options=["--vllm-url", engine.url]))
        gateway = GatewayClient(served.url)
        with pytest.raises(ServingError, match="policy@1 was made and is not served yet: the serving engine") as raised:
            step(data, gateway, base_model, Weights(b"w1", tmp_path))
        assert "as soon as the engine is back" in str(raised.value.hint)
        assert gateway.status().step == 0
        assert checkpoints.steps() == [1]
        with Store.open(data) as store:
            assert [done.step for done in store.policy_steps("policy")] == [1], "disk and ledger agree"
            assert store.trajectories(unconsumed_by="policy") == []
            store.append(recorded_group("h", [0.0, 1.0], at=5000))
        with engine_in_a_thread(port=port):
            deadline = time.monotonic() + 60
            while gateway.status().step != 1:
                assert time.monotonic() < deadline, gateway.status()
                time.sleep(0.05)
            done = step(data, gateway, base_model, Weights(b"w2", tmp_path))
            assert (done.version, gateway.status().step) == ("policy@2", 2)
            assert [one.trajectory_id for one in done.consumed] == ["h-0", "h-1"]


def test_a_version_that_was_made_while_the_server_started_is_served_when_it_is_up(
    tmp_path: Path, base_model: Path
) -> None:
    """Who trains meanwhile finds no server to hand it to."""
    data = DataDir(tmp_path / "data")
    with Store.open(data, create=True) as store:
        store.append(recorded_group("g", [0.0, 1.0]))
    log = data.root / "logs" / "serve.log"
    with engine_in_a_thread() as engine, ThreadPoolExecutor(1) as pool:
        engine.grow_cold()
        starting = pool.submit(start_serving, data, base_model, options=["--vllm-url", engine.url])
        try:
            until(lambda: log.exists() and "warming up" in log.read_text())
            assert step(data, None, base_model, Weights(b"w1", tmp_path)).version == "policy@1"
        finally:
            engine.grow_warm()
        with starting.result(), contextlib.closing(GatewayClient(starting.result().url)) as gateway:
            until(lambda: gateway.status().step == 1)


@pytest.mark.parametrize("served", ["base", "another"])
def test_a_version_is_published_where_the_server_came_up_while_it_was_made(
    tmp_path: Path, base_model: Path, served: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = DataDir(tmp_path / "data")
    with Store.open(data, create=True) as store:
        store.append(recorded_group("g", [0.0, 1.0]))
    shutil.copytree(base_model, tmp_path / "another")
    with engine_in_a_thread(served) as engine, contextlib.ExitStack() as stack:

        def serve() -> None:
            stack.enter_context(start_serving(data, tmp_path / served, options=["--vllm-url", engine.url]))

        learner = Weights(b"w1", tmp_path, during=serve)
        monkeypatch.setattr("trainer.commands.train.training.make_learner", lambda *_: learner)
        ran = CliRunner().invoke(train, ["--dir", str(data.root), "--base-model", str(base_model)])
        loaded = [name.partition("+")[0] for what, name in engine.log if what == "load"]
        if served == "base":
            assert ran.exception is None, ran.output
            assert "served: policy@1 answers from the next call on" in ran.stdout
            assert loaded == ["policy@1"]
        else:
            why = "policy@1 was made and is not served yet: `arttrace serve` runs on this directory with the base model"
            assert f"{why} {tmp_path / 'another'}, not {base_model}" in str(ran.exception), ran.output
            assert loaded == []
