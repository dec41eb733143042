"""What an export refuses, and what it says of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_model import make_base_model

from arttrace.system.errors import TrainingError
from trainer.policies.export import export_adapter, export_merged


def test_a_base_model_or_an_adapter_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    base = make_base_model(tmp_path / "base")
    with pytest.raises(TrainingError, match=rf"policy@1 cannot be merged into {base}: .*adapter_config.json"):
        export_merged(tmp_path / "policy@1", base, tmp_path / "out")
    (base / "model.safetensors").unlink()
    with pytest.raises(TrainingError, match=rf"cannot be merged into {base}: .*no file named model.safetensors"):
        export_merged(tmp_path / "policy@1", base, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base"]


def test_the_current_directory_is_not_a_new_one(tmp_path: Path) -> None:
    for there in (Path(), Path("/"), tmp_path):
        with pytest.raises(TrainingError, match="exists already"):
            export_adapter(tmp_path / "policy@1", there)
