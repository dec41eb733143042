"""A step's example where its run is stored no more."""

from __future__ import annotations

from pathlib import Path

from arttrace.records.policy import Consumed, PolicyStep
from arttrace.store import Store
from arttrace.system.paths import DataDir
from trainer.policies.checkpoints import Checkpoints
from trainer.step.reporters import open_reporters


def test_a_run_that_was_pruned_is_no_example_and_costs_no_number(tmp_path: Path) -> None:
    said: list[str] = []
    done = PolicyStep("policy", 1, "", (Consumed("g-0", "r"), Consumed("g-1", "r")), metrics={"loss": 0.5})
    reporters = open_reporters(["tensorboard"], tmp_path / "out", "policy", {}, said.append)
    with Store.open(DataDir(tmp_path), create=True) as empty:
        assert reporters.catch_up([done], {}, Checkpoints(tmp_path, "policy"), empty) == {"tensorboard": 1}
    reporters.close()
    assert said == ["policy@1 is reported without an example: the run g-1 is not stored any more"]
