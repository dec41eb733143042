"""The loop with a real store and real checkpoints; learner and gateway stand in, since their own tests hold them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from simulated_agent import research_run

from arttrace.records.record import Record
from arttrace.records.reward import Reward
from arttrace.store import Store
from arttrace.system.errors import ServingError, TrainingError
from arttrace.system.paths import DataDir
from arttrace.trajectories.groups import group_trajectories
from trainer.gateway.status import EngineStatus
from trainer.grpo.trainer import PolicyTrainer
from trainer.learner.config import LearnerConfig
from trainer.learner.interface import Sample, StepMetrics
from trainer.policies.checkpoints import Checkpoints
from trainer.serving import GatewayStatus, PublishReport
from trainer.step.phases import Clock, Phase


@dataclass
class StandInLearner:
    base_weights: str = ""
    steps: int = 0
    config: LearnerConfig = field(default_factory=LearnerConfig)
    versions: list[str | None] = field(default_factory=list)
    refitted: list[int] = field(default_factory=list)

    def step(self, samples: Sequence[Sample], *, current_version: str | None = None) -> StepMetrics:
        self.steps += 1
        self.versions.append(current_version)
        return StepMetrics(loss=1.0, trajectories=len(samples))

    def refit(self) -> None:
        self.refitted.append(self.steps)

    def save_adapter(self, directory: Path) -> None:
        (directory / "adapter_model.safetensors").write_text(str(self.steps))
        (directory / "adapter_config.json").write_text("{}")

    def save_rest(self, directory: Path) -> None:
        (directory / "steps").write_text(str(self.steps))

    def load(self, directory: Path) -> str:
        self.steps = int((directory / "steps").read_text())
        return ""


@dataclass
class StandInGateway:
    step: int = 0
    dead: bool = False
    slept: int = 0
    max_lora_rank: int = 0

    def publish(self, step: int, path: Path) -> PublishReport:
        if self.dead:
            raise ServingError("the gateway does not answer")
        assert (path / "adapter_model.safetensors").exists()
        self.step = step
        return PublishReport(f"policy@{step}", "", max_logprob_change=0.1, seconds=0.0)

    def status(self) -> GatewayStatus:
        return GatewayStatus(
            "policy",
            f"policy@{self.step}",
            self.step,
            "",
            {},
            EngineStatus("ready", None, 0),
            sleeps=True,
            max_lora_rank=self.max_lora_rank,
        )

    def fall_asleep(self) -> Callable[[], None]:
        self.slept += 1
        return lambda: None


def loop_on(store: Store, data: DataDir, gateway: StandInGateway) -> PolicyTrainer:
    return PolicyTrainer("policy", "base", store, StandInLearner(), Checkpoints(data.policies, "policy"), gateway)  # type: ignore[arg-type]


def fill(store: Store, *scenarios: str, rewards: tuple[float, ...] = (0.0, 1.0)) -> None:
    records: list[Record] = []
    for scenario in scenarios:
        for n, value in enumerate(rewards):
            id = f"{scenario}-{n}"
            records += research_run(id, scenario=scenario, policy="policy@0")
            records.append(Reward(id=f"r-{id}", trajectory_id=id, value=value))
    store.append(records)


def fresh(store: Store) -> list:  # type: ignore[type-arg]
    return group_trajectories(store.trajectories(unconsumed_by="policy"))


def test_an_adapter_that_the_engines_cannot_load_is_refused_before_the_step(tmp_path: Path) -> None:
    data, gateway = DataDir(tmp_path), StandInGateway(max_lora_rank=32)
    with Store.open(data, create=True) as store:
        fill(store, "s")
        loop = loop_on(store, data, gateway)
        loop.learner.config = LearnerConfig(lora_rank=64)  # type: ignore[misc]
        with pytest.raises(TrainingError, match="up to rank 32, and this one would have 64") as refused:
            loop.train(fresh(store))
        assert "--vllm-arg=--max-lora-rank=64" in str(refused.value.hint)
        assert (loop.learner.steps, loop.checkpoints.latest(), gateway.slept) == (0, None, 0)
        gateway.max_lora_rank = 64
        assert loop.train(fresh(store)) is not None


def test_that_moments_go_on_from_another_method_is_said(tmp_path: Path) -> None:
    data = DataDir(tmp_path)
    said: list[str] = []
    with Store.open(data, create=True) as store:
        loop = replace(loop_on(store, data, StandInGateway()), say=said.append)
        for number, method in enumerate(("grpo", "distill", "distill", "grpo")):
            fill(store, f"s{number}")
            batch = replace(loop.batch(fresh(store)), method=method)
            assert loop.train_on(batch) is not None
    assert said == [
        "AdamW's moments go on from policy@1, which grpo made: the loss of distill is the same",
        "AdamW's moments go on from policy@3, which distill made: the loss of grpo is the same",
    ]


def test_a_step_is_checkpointed_published_recorded_and_its_trajectories_are_not_trained_again(tmp_path: Path) -> None:
    data, gateway = DataDir(tmp_path), StandInGateway()
    with Store.open(data, create=True) as store:
        fill(store, "s", "t")
        loop = loop_on(store, data, gateway)
        assert loop.resume() == 0
        phases: list[Phase] = []
        done = loop.train(fresh(store), Clock(watch=phases.append))
        assert done is not None
        made = [Phase.BATCH, Phase.STEP, Phase.CHECKPOINT, Phase.PUBLISH, Phase.CHECKPOINT, Phase.RECORD]
        assert phases == made, "the adapter is published before the rest is on disk"
        assert (done.version, gateway.step, loop.learner.versions) == ("policy@1", 1, ["policy@0"])  # type: ignore[attr-defined]
        assert {c.trajectory_id for c in done.consumed} == {"s-0", "s-1", "t-0", "t-1"}
        assert done.metrics["publish_logprob_change"] == 0.1
        assert store.policy_steps("policy") == [done]
        assert fresh(store) == []
        with pytest.raises(TrainingError, match="not been trained on"):
            loop.train(fresh(store))


def test_a_version_that_could_not_be_published_is_recorded_and_served_by_the_next_start(tmp_path: Path) -> None:
    data, gateway = DataDir(tmp_path), StandInGateway(dead=True)
    with Store.open(data, create=True) as store:
        fill(store, "s")
        with pytest.raises(ServingError):
            loop_on(store, data, gateway).train(fresh(store))
        assert [step.version for step in store.policy_steps("policy")] == ["policy@1"], "it is on disk, and counts"
    gateway.dead = False
    with Store.open(data) as store:
        loop = loop_on(store, data, gateway)
        assert loop.resume() == 1
        assert gateway.step == 1
        assert loop.learner.steps == 1  # type: ignore[attr-defined]
        assert [step.version for step in store.policy_steps("policy")] == ["policy@1"]
        assert fresh(store) == []
        fill(store, "later")
        again = loop.train(fresh(store))
        assert again is not None
        assert again.version == "policy@2"


def test_equal_rewards_skip_the_step_put_no_engine_to_sleep_and_consume_nothing(tmp_path: Path) -> None:
    data, gateway = DataDir(tmp_path), StandInGateway()
    with Store.open(data, create=True) as store:
        fill(store, "s", rewards=(0.5, 0.5))
        loop = loop_on(store, data, gateway)
        assert loop.train(fresh(store)) is None
        assert loop.checkpoints.latest() is None
        assert len(fresh(store)) == 1
        assert (loop.learner.steps, gateway.slept) == (0, 0)  # type: ignore[attr-defined]


def test_equal_rewards_are_trained_on_by_a_kl_term(tmp_path: Path) -> None:
    data, gateway = DataDir(tmp_path), StandInGateway()
    with Store.open(data, create=True) as store:
        fill(store, "s", rewards=(0.5, 0.5))
        loop = loop_on(store, data, gateway)
        loop.learner.config = LearnerConfig(kl_weight=0.1)
        done = loop.train(fresh(store))
        assert done is not None
        assert (done.version, gateway.slept) == ("policy@1", 1)
        assert loop.learner.refitted == [0], "while the engines sleep, before the step"  # type: ignore[attr-defined]


def test_a_failed_step_consumes_nothing(tmp_path: Path) -> None:
    class Failing(StandInLearner):
        def step(self, samples: Sequence[Sample], *, current_version: str | None = None) -> StepMetrics:
            raise TrainingError("the loss is not finite")

    data = DataDir(tmp_path)
    with Store.open(data, create=True) as store:
        fill(store, "s")
        loop = PolicyTrainer("policy", "base", store, Failing(), Checkpoints(data.policies, "policy"), None)
        with pytest.raises(TrainingError, match="not finite"):
            loop.train(fresh(store))
        assert loop.checkpoints.latest() is None
        assert len(fresh(store)) == 1
