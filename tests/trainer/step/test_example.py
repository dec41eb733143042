"""A step's example is a run that it was trained on, and none where that is stored no more."""

from __future__ import annotations

from pathlib import Path

from recorded_runs import recorded_group

from arttrace.records.policy import Consumed, PolicyStep
from arttrace.store import Store
from arttrace.system.paths import DataDir
from trainer.policies.checkpoints import Checkpoints
from trainer.step.example import example_of
from trainer.step.reporters import open_reporters


def test_a_run_that_was_pruned_is_no_example_and_costs_no_number(tmp_path: Path) -> None:
    said: list[str] = []
    done = PolicyStep("policy", 1, "", (Consumed("g-0", "r"), Consumed("g-1", "r")), metrics={"loss": 0.5})
    reporters = open_reporters(["tensorboard"], tmp_path / "out", "policy", {}, said.append)
    with Store.open(DataDir(tmp_path), create=True) as empty:
        assert reporters.catch_up([done], {}, Checkpoints(tmp_path, "policy"), empty) == {"tensorboard": 1}
    reporters.close()
    assert said == ["policy@1 is reported without an example: the run g-1 is not stored any more"]


def test_a_run_that_was_set_aside_is_no_example(tmp_path: Path) -> None:
    taken = Consumed("good-0", "r"), Consumed("equal-0", "r", set_aside=True), Consumed("equal-1", "r", set_aside=True)
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append([*recorded_group("good", [0.0, 1.0]), *recorded_group("equal", [1.0, 1.0])])
        shown = [example_of(store, PolicyStep("policy", step, "", taken)) for step in range(1, 4)]
        assert [one.rows[0][0] for one in shown if one] == ["good-0"] * 3
        assert example_of(store, PolicyStep("policy", 4, "", taken[1:])) is None


def test_the_recorded_run_of_another_model_is_no_example_of_what_the_policy_does(tmp_path: Path) -> None:
    """It is in the group to be compared with, as `arttrace rollout` puts it there."""
    taken = Consumed("teacher-0", "r"), Consumed("own-0", "r")
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append([*recorded_group("teacher", [1.0], policy="gpt@1"), *recorded_group("own", [0.0])])
        shown = [example_of(store, PolicyStep("policy", step, "", taken, method="grpo")) for step in (1, 2)]
        assert [one.rows[0][0] for one in shown if one] == ["own-0"] * 2
        imitated = example_of(store, PolicyStep("policy", 2, "", taken, method="sft"))
    assert imitated is not None
    assert imitated.rows[0][0] == "teacher-0"
