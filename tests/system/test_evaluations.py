"""Evaluations of versions: what was reported last counts, and a damaged file hides nothing of the rest."""

from __future__ import annotations

from pathlib import Path

from arttrace.system.evaluations import add_evaluation, evaluations_file, read_evaluations
from arttrace.system.paths import DataDir


def test_the_last_number_of_a_name_counts(tmp_path: Path) -> None:
    data = DataDir(tmp_path)
    assert read_evaluations(data, "policy") == {}
    add_evaluation(data, "policy", 2, {"val/reward": 0.5, "val/runs": 3.0})
    add_evaluation(data, "policy", 0, {"val/reward": 0.1})
    add_evaluation(data, "policy", 2, {"test/reward": 0.7})
    add_evaluation(data, "policy", 2, {"val/reward": 0.6})
    assert read_evaluations(data, "policy") == {0: {"val/reward": 0.1}, 2: {"val/reward": 0.6, "test/reward": 0.7}}


def test_damaged_lines_are_passed_over_and_no_other_file_is_read(tmp_path: Path) -> None:
    data = DataDir(tmp_path)
    add_evaluation(data, "policy", 1, {"val/reward": 0.5})
    with evaluations_file(data, "policy").open("ab") as file:
        file.write(b'{"step": 2, "val/reward": \n[1]\nnull\n{"step": "x"}\n\xff\n{"val/reward": 1}\n')
        file.write(b'{"step": 3, "val/reward": NaN, "val/words": "many", "val/flag": true, "val/turns": 2}\n')
        file.write(b'{"step": Infinity, "val/reward": 1}\n')
        file.write(b'{"step": 4, "val/turns": 3, "val/reward": ' + b"9" * 400 + b"}\n")
    assert read_evaluations(data, "policy") == {1: {"val/reward": 0.5}, 3: {"val/turns": 2.0}, 4: {"val/turns": 3.0}}
    (tmp_path / "other.jsonl").write_text('{"step": 1, "val/reward": 1}\n')
    assert read_evaluations(data, "../other") == {}
