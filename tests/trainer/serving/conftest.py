"""A directory that passes for a base model where only its configuration is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.fixture
def base_model(tmp_path: Path) -> Path:
    (tmp_path / "base").mkdir()
    config = {"vocab_size": 100, "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}
    (tmp_path / "base" / "config.json").write_text(json.dumps(config))
    return tmp_path / "base"
