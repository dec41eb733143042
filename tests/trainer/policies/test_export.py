"""What an export refuses, and what it says of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tiny_model import make_base_model
from transformers import AutoModelForCausalLM

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


def test_an_adapter_of_an_output_head_that_is_the_embeddings_too_leaves_these_as_they_are(tmp_path: Path) -> None:
    base_model = make_base_model(tmp_path / "base")
    base = AutoModelForCausalLM.from_pretrained(base_model)
    policy = get_peft_model(base, LoraConfig(target_modules=["lm_head", "q_proj"]))
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if "lora_B" in name:
                weight.normal_(0.0, 0.3)
    policy.save_pretrained(tmp_path / "policy@1")
    export_merged(tmp_path / "policy@1", base_model, tmp_path / "merged")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        torch.testing.assert_close(merged(ids).logits, policy(ids).logits, rtol=1e-4, atol=1e-4)


def test_the_current_directory_is_not_a_new_one(tmp_path: Path) -> None:
    for there in (Path(), Path("/"), tmp_path):
        with pytest.raises(TrainingError, match="exists already"):
            export_adapter(tmp_path / "policy@1", there)
