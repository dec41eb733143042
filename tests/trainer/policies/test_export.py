"""What an export refuses, and what it says of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from peft import LoraConfig, get_peft_model
from small_disk import only_root, small_disk
from tiny_model import make_adapter, make_base_model
from transformers import AutoModelForCausalLM
from transformers.utils.hub import CHAT_TEMPLATE_DIR

from arttrace.commands import cli
from arttrace.system.errors import ArttraceError, TrainingError
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


@pytest.mark.parametrize(
    "setting", [{"target_modules": ["q_proj"]}, {"use_dora": True}, {"modules_to_save": ["lm_head"]}]
)
def test_an_adapter_of_which_only_a_part_would_be_merged_is_refused(setting: dict[str, Any], tmp_path: Path) -> None:
    base = make_base_model(tmp_path / "base")
    settings = make_adapter(base, tmp_path / "policy@1", seed=1) / "adapter_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | setting))
    with pytest.raises(TrainingError, match=r"policy@1 cannot be merged into .*: its settings are of other weights"):
        export_merged(tmp_path / "policy@1", base, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_merged_model_has_what_its_base_has_beside_the_weights(tmp_path: Path) -> None:
    """Processors and some tokenizers were left out, without which neither vLLM nor transformers loads it; a generation
    config that transformers reads, and does not write, ended with a traceback."""
    base = make_base_model(tmp_path / "base")
    (base / "generation_config.json").write_text('{"temperature": 0.6, "eos_token_id": [2, 0]}')
    for name in ("preprocessor_config.json", "processor_config.json", "tekken.json", "spiece.model", "LICENSE"):
        (base / name).write_text("{}")
    for name in ("README.md", ".lock", "model.gguf", "pytorch_model.bin.index.json"):
        (base / name).write_text("of the base alone")
    (base / "tokenizer_files").mkdir()
    (base / CHAT_TEMPLATE_DIR).mkdir()
    (base / CHAT_TEMPLATE_DIR / "tool_use.jinja").write_text("{{ tools }}")
    make_adapter(base, tmp_path / "policy@1", seed=1)
    export_merged(tmp_path / "policy@1", base, tmp_path / "merged")
    own = {"config.json", "model.safetensors"}
    without = {"README.md", ".lock", "model.gguf", "pytorch_model.bin.index.json", "tokenizer_files"}
    there = {path.name for path in (tmp_path / "merged").iterdir()}
    assert there == {path.name for path in base.iterdir()} - without
    assert (tmp_path / "merged" / CHAT_TEMPLATE_DIR / "tool_use.jinja").read_text() == "{{ tools }}"
    for name in there - own - {CHAT_TEMPLATE_DIR}:
        assert (tmp_path / "merged" / name).read_bytes() == (base / name).read_bytes(), name


def test_the_current_directory_is_not_a_new_one(tmp_path: Path) -> None:
    for there in (Path(), Path("/"), tmp_path):
        with pytest.raises(TrainingError, match="exists already"):
            export_adapter(tmp_path / "policy@1", there)


@only_root
@pytest.mark.parametrize(
    ("options", "cause", "remedy"),
    [
        ("ro", "Read-only file system", "Name another directory"),
        ("size=64k", "No space left on device", "Free disk space"),
    ],
)
def test_where_an_export_cannot_be_written_it_says_why_and_what_to_do(
    options: str, cause: str, remedy: str, tmp_path: Path
) -> None:
    version = tmp_path / "policy@1"
    version.mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (version / name).write_bytes(bytes(100_000))
    (tmp_path / "disk").mkdir()
    with small_disk(tmp_path / "disk", options):
        with pytest.raises(ArttraceError, match=cause) as refused:
            export_adapter(version, tmp_path / "disk" / "out")
        assert not list((tmp_path / "disk").iterdir())
    assert remedy in str(refused.value.hint)
    with pytest.raises(ArttraceError, match="cannot be written: Not a directory") as refused:
        export_adapter(version, version / "adapter_config.json" / "out")
    assert "Name another directory" in str(refused.value.hint)
    with pytest.raises(ArttraceError, match="cannot be written: File name too long"):
        export_adapter(version, tmp_path / ("n" * 300))


@only_root
def test_a_merged_model_for_which_the_disk_has_no_room_says_so(tmp_path: Path) -> None:
    base_model = make_base_model(tmp_path / "base")
    policy = get_peft_model(AutoModelForCausalLM.from_pretrained(base_model), LoraConfig(target_modules=["q_proj"]))
    policy.save_pretrained(tmp_path / "policy@1")
    (tmp_path / "disk").mkdir()
    with small_disk(tmp_path / "disk", "size=64k"):
        with pytest.raises(ArttraceError, match="out cannot be written: No space left on device") as refused:
            export_merged(tmp_path / "policy@1", base_model, tmp_path / "disk" / "out")
        assert not list((tmp_path / "disk").iterdir())
    assert "Free disk space" in str(refused.value.hint)


@pytest.mark.skipif(sys.platform != "linux", reason="no /proc, in which nothing can be made")
def test_the_folder_that_is_to_be_made_first_is_one_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ArttraceError, match="cannot be written: No such file or directory") as refused:
        export_adapter(tmp_path, Path("/proc/x"))
    assert "mkdir" not in str(refused.value.hint)


def test_a_version_does_not_go_to_standard_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It made a directory of the name "-"."""
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli, ["policies", "export", "policy@1", "-", "--dir", str(tmp_path / "data")])
    assert done.exit_code == 2
    assert "is several files, which cannot go to standard output" in done.output
    assert list(tmp_path.iterdir()) == []
