"""Which versions of a policy were made in its directory."""

from __future__ import annotations

from pathlib import Path

from arttrace.records.policy import PolicyStep
from trainer.policies.checkpoints import Checkpoints
from trainer.policies.made_here import made_here


def write(checkpoints: Checkpoints, step: int, forked_from: str = "") -> None:
    manifest = PolicyStep(policy=checkpoints.policy, step=step, adapter="", forked_from=forked_from)
    checkpoints.write(step, lambda folder: None, manifest)


def numbers(checkpoints: Checkpoints) -> list[int]:
    made = made_here(checkpoints)
    return [number for number in range(12) if f"policy@{number}" in made]


def test_where_there_is_no_version_the_base_model_is_all_there_is(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "policy")
    assert numbers(checkpoints) == [0]
    assert "policy@main" not in made_here(checkpoints), "no version is called so"
    assert "other@9" in made_here(checkpoints), "it is none of this policy"


def test_those_that_were_pruned_or_are_no_version_yet_were_made_here(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "policy")
    for step in range(1, 6):
        write(checkpoints, step)
    assert checkpoints.prune([1, 2, 3]) == [1, 2, 3]
    checkpoints.hand_over(lambda folder: (folder / "adapter_model.safetensors").write_text("x"))
    assert checkpoints.all_steps() == [1, 2, 3, 4, 5]
    assert numbers(checkpoints) == [0, 1, 2, 3, 4, 5, 6]


def test_a_number_that_was_handed_over_and_given_up_was_given_out_here(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "policy")
    write(checkpoints, 2)
    write(checkpoints, 4)
    assert numbers(checkpoints) == [0, 1, 2, 3, 4]


def test_a_fork_begins_with_the_number_that_it_was_forked_from(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "policy")
    write(checkpoints, 4, forked_from="other@4")
    write(checkpoints, 5)
    assert numbers(checkpoints) == [0, 4, 5]
