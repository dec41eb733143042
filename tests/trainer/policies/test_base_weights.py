"""Which files of a model's directory are its weights: those that are loaded, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.policies.base_weights import weights_digest
from trainer.serving.base_models import is_base


@pytest.mark.parametrize("weights", ["model.safetensors", "pytorch_model.bin", "pytorch_model-00001-of-00002.bin"])
def test_what_lies_beside_the_weights_is_none_of_them(weights: str, tmp_path: Path) -> None:
    (tmp_path / weights).write_bytes(b"weights")
    before = weights_digest(tmp_path)
    (tmp_path / "training_args.bin").write_bytes(b"arguments")
    assert weights_digest(tmp_path) == before
    (tmp_path / weights).write_bytes(b"others")
    assert weights_digest(tmp_path) != before


def test_the_same_weights_in_another_form_are_none_of_them(tmp_path: Path) -> None:
    (tmp_path / "model-00001-of-00001.safetensors").write_bytes(b"weights")
    alone = weights_digest(tmp_path)
    (tmp_path / "consolidated.safetensors").write_bytes(b"weights, too")
    assert weights_digest(tmp_path) == alone
    as_in_0_1 = weights_digest(tmp_path, ["*.safetensors"])
    assert as_in_0_1 != alone
    for recorded in (alone, as_in_0_1):
        assert is_base("/gone/mistral", str(tmp_path), recorded)
    assert not is_base("/gone/mistral", str(tmp_path), "0" * 32)


def test_without_weights_there_is_no_digest(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert weights_digest(tmp_path) == ""
