"""Numbers of a step that JSON has none for: with one, a manifest could not be read again, nor a version follow it."""

from __future__ import annotations

from pathlib import Path

import pytest

from arttrace.store import Store
from arttrace.system.paths import DataDir
from trainer.policies.checkpoints import Checkpoints
from trainer.step.phases import Clock
from trainer.step.version import complete_step


class WrittenWeights:
    """Stands in for a learner."""

    base_weights = ""

    def save_adapter(self, directory: Path) -> None:
        (directory / "adapter_model.safetensors").write_text("weights")
        (directory / "adapter_config.json").write_text("{}")

    def save_rest(self, directory: Path) -> None: ...


def test_they_are_left_out_and_cost_the_version_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = DataDir(tmp_path)
    checkpoints, metrics = Checkpoints(data.policies, "policy"), {"loss": 0.5, "ratio_mean": float("inf")}
    with Store.open(data, create=True) as store:
        for odd in ({}, {"entropy": float("nan")}):
            done = complete_step(
                store, checkpoints, None, "/base", WrittenWeights(), (), {**metrics, **odd}, Clock(), method="grpo"
            )
            assert checkpoints.manifest(done.step).metrics == {"loss": 0.5}
            assert done.metrics["loss"] == 0.5
            assert done.metrics.keys().isdisjoint({"ratio_mean", "entropy"})
        assert [one.version for one in store.policy_steps("policy")] == ["policy@1", "policy@2"]
    assert "policy@1: ratio_mean is no finite number, and is not stored" in caplog.text
    assert "policy@2: entropy and ratio_mean are no finite numbers, and are not stored" in caplog.text
