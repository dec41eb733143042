"""An evaluation that is logged behind a line that was cut off."""

from __future__ import annotations

from pathlib import Path

from arttrace.system.evaluations import add_evaluation, evaluations_file, read_evaluations
from arttrace.system.paths import DataDir


def test_a_line_that_was_cut_off_takes_no_other_with_it(tmp_path: Path) -> None:
    """A full disk, or a process that was killed as it wrote."""
    data = DataDir(tmp_path)
    add_evaluation(data, "policy", 1, {"val/reward": 0.5})
    with evaluations_file(data, "policy").open("ab") as file:
        file.write(b'{"step": 2, "val/rew')
    add_evaluation(data, "policy", 3, {"val/reward": 0.7})
    add_evaluation(data, "policy", 4, {"val/reward": 0.8})
    assert read_evaluations(data, "policy") == {step: {"val/reward": at} for step, at in ((1, 0.5), (3, 0.7), (4, 0.8))}
    assert b"\n\n" not in evaluations_file(data, "policy").read_bytes()
