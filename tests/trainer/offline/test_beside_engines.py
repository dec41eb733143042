"""Offline training beside engines: what they cannot load is refused, and they sleep where they share its card."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from one_thread import one_thread as one_thread
from tiny_model import make_base_model

from arttrace.records.policy import Consumed
from arttrace.store import Store
from arttrace.system.errors import TrainingError
from arttrace.system.paths import DataDir
from trainer.gateway.status import EngineStatus
from trainer.learner.config import LearnerConfig
from trainer.offline.plan import OfflinePlan
from trainer.offline.render import TrainingExample
from trainer.offline.step import train_offline
from trainer.policies.checkpoints import Checkpoints
from trainer.serving import GatewayStatus, PublishReport

pytestmark = pytest.mark.usefixtures("one_thread")

PLAN = OfflinePlan("sft", sft=(TrainingExample((3, 4, 5), (False, True, True)),), consumed=(Consumed("run", "r"),))


class SleepyGateway:
    """Stands in for a gateway's client; `seen` is what it was asked for and the steps that training did, in order."""

    def __init__(self, max_lora_rank: int) -> None:
        self.max_lora_rank = max_lora_rank
        self.step = 0
        self.seen: list[str] = []

    def publish(self, step: int, path: Path) -> PublishReport:
        self.seen.append("publish")
        self.step = step
        return PublishReport(f"policy@{step}", "", max_logprob_change=0.1, seconds=0.0)

    def status(self) -> GatewayStatus:
        engine = EngineStatus("ready", None, 0)
        name = f"policy@{self.step}"
        return GatewayStatus("policy", name, self.step, "", {}, engine, sleeps=True, max_lora_rank=self.max_lora_rank)

    def fall_asleep(self) -> Callable[[], None]:
        self.seen.append("sleep")
        return lambda: self.seen.append("wake")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return make_base_model(tmp_path / "base")


def train(data: DataDir, base: Path, gateway: SleepyGateway, rank: int) -> Checkpoints:
    checkpoints = Checkpoints(data.policies, "policy")

    def progress(_steps: int) -> Callable[[int, str], None]:
        return lambda _done, _note: gateway.seen.append("train")

    config = LearnerConfig(lora_rank=rank)
    with Store.open(data, create=True) as store:
        train_offline(store, checkpoints, gateway, base, PLAN, config, progress=progress)  # type: ignore[arg-type]
    return checkpoints


def test_an_adapter_that_the_engines_cannot_load_is_refused_before_anything_is_trained(
    tmp_path: Path, base: Path
) -> None:
    gateway = SleepyGateway(max_lora_rank=8)
    with pytest.raises(TrainingError, match="up to rank 8, and this one would have 16") as refused:
        train(DataDir(tmp_path), base, gateway, rank=16)
    assert "--vllm-arg=--max-lora-rank=16" in str(refused.value.hint)
    assert gateway.seen == []


def test_engines_that_share_the_card_sleep_while_it_trains(tmp_path: Path, base: Path) -> None:
    gateway = SleepyGateway(max_lora_rank=8)
    assert train(DataDir(tmp_path), base, gateway, rank=8).latest() == 1
    assert gateway.seen == ["sleep", "train", "wake", "publish"]
