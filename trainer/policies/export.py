"""Exports of a version: as a PEFT adapter, as a whole model, or as the start of another policy."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from arttrace.records.policy import Consumed, PolicyStep
from arttrace.system.errors import ArttraceError, TrainingError
from arttrace.system.files import disk_is_full, not_written
from arttrace.system.processes import signals_after_imports
from trainer.policies.checkpoints import Checkpoints

_ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
_ANOTHER = "Name another directory"
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".ckpt", ".index.json")
_CONFIG = "config.json"
_OTHER_WEIGHTS = f"its settings are of other weights than {_ADAPTER[1]} holds"
_ABOUT_THE_BASE = ("readme.md",)
_TEMPLATES = "additional_chat_templates"
"""The folder of a tokenizer's chat templates beside the first, as one for tools."""


def export_adapter(source: Path, directory: Path) -> None:
    """Copy what PEFT loads. Raises ArttraceError when `directory` is not new, or the disk refuses."""
    with _New(directory) as target:
        for name in _ADAPTER:
            shutil.copy2(source / name, target / name)


def export_merged(source: Path, base_model: Path, directory: Path) -> None:
    """Write base model and adapter as one model in the base's precision, with all that the base has beside its weights:
    tokenizer, chat template, processors, generation config; imports torch.

    Raises ArttraceError when the base model is gone or damaged, `directory` is not new, or the disk refuses.
    """
    if not (base_model / _CONFIG).is_file():
        raise TrainingError(f"The base model {base_model} no longer exists.", "Put it back, and export again.")
    with _New(directory) as target:
        with signals_after_imports():
            from safetensors import SafetensorError

            from trainer.output.quiet import quiet

        with quiet(bars=True):  # minutes for a large model
            try:
                merged = _merged(source, base_model)
            except (OSError, ValueError, ImportError, RuntimeError, SafetensorError) as error:
                raise TrainingError(
                    f"The adapter in {source} cannot be merged into {base_model}: {error}",
                    "Put back what is missing or damaged, and export again.",
                ) from error
            if merged.can_generate():
                merged.generation_config = type(merged.generation_config)()  # one that says nothing is always valid
            merged.save_pretrained(str(target))
        (target / "generation_config.json").unlink(missing_ok=True)
        for path in base_model.iterdir():
            if _beside_weights(path):
                shutil.copy2(path, target / path.name)
        if (base_model / _TEMPLATES).is_dir():
            shutil.copytree(base_model / _TEMPLATES, target / _TEMPLATES, dirs_exist_ok=True)


def _beside_weights(path: Path) -> bool:
    """Whether a file of a model is neither of its weights nor of what a merged one has itself."""
    name = path.name.lower()
    return path.is_file() and name[0] != "." and name not in (_CONFIG, *_ABOUT_THE_BASE) and not name.endswith(_WEIGHTS)


def _of_lora(names: Iterable[str]) -> set[str]:
    return {name for name in names if "lora_" in name}


def _merged(source: Path, base_model: Path) -> Any:
    with signals_after_imports():
        import torch
        from peft import PeftModel, get_peft_model_state_dict
        from peft.tuners.tuners_utils import BaseTunerLayer
        from safetensors import safe_open
        from transformers import AutoModelForCausalLM

    base: Any = AutoModelForCausalLM.from_pretrained(str(base_model), dtype="auto", local_files_only=True)
    try:
        adapted = PeftModel.from_pretrained(base, str(source))
    except KeyError as error:
        raise ValueError(_OTHER_WEIGHTS) from error
    with safe_open(str(source / _ADAPTER[1]), framework="pt") as file:
        given = _of_lora(file.keys())
    if given != _of_lora(get_peft_model_state_dict(adapted, save_embedding_layers=False)):
        raise ValueError(_OTHER_WEIGHTS)  # PEFT merges what fits and passes over the rest; an engine loads all of it
    if isinstance(head := base.get_output_embeddings(), BaseTunerLayer):
        # Where its weights are those of the embeddings too, what is merged into them must not change these.
        own = head.get_base_layer()
        own.weight = torch.nn.Parameter(own.weight.detach().clone(), requires_grad=False)
        base.config.tie_word_embeddings = base.config.get_text_config().tie_word_embeddings = False
    return adapted.merge_and_unload(safe_merge=True)


def fork(source: Checkpoints, step: int, target: Checkpoints) -> PolicyStep:
    """Begin the policy of `target` as version `step` of `source`, which keeps its number: schedules go on. All that
    `source` consumed up to it counts as consumed; its metrics stay there. Raises TrainingError when `target` has
    versions already."""
    if target.all_steps():
        raise TrainingError(
            f"{target.policy!r} has versions already, up to {target.policy}@{target.all_steps()[-1]}.",
            "Give the fork a name of its own.",
        )
    found = source.manifest(step)
    ancestors = [source.manifest(n) for n in source.all_steps() if n <= step]
    consumed: dict[tuple[str, str], Consumed] = {}
    for done in ancestors:
        for one in done.consumed:
            method = one.method or done.made_by
            consumed[one.trajectory_id, method] = msgspec.structs.replace(one, method=method)
    manifest = msgspec.structs.replace(
        found,
        policy=target.policy,
        consumed=tuple(consumed.values()),
        metrics={},
        time_ns=time.time_ns(),
        method="fork",
        forked_from=found.version,
    )

    def copy(directory: Path) -> None:
        shutil.copytree(source.path(step), directory, dirs_exist_ok=True)

    target.write(step, copy, manifest)
    return manifest


class _New:
    """A directory that is there when all of it is: filled under another name, renamed at the end."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._temporary = directory.parent / f".{directory.name}.partial"

    def __enter__(self) -> Path:
        try:
            if self._directory.exists():
                raise TrainingError(f"{self._directory} exists already.", "Name a directory that does not exist yet.")
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary.mkdir(parents=True)
        except OSError as error:
            raise not_written(self._directory, error, other=_ANOTHER) from error
        return self._temporary

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: object) -> None:
        if kind is None:
            self._temporary.rename(self._directory)
            return
        is_told = not isinstance(value, Exception) or isinstance(value, OSError | ArttraceError)
        if not is_told and disk_is_full(self._temporary):
            value = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        shutil.rmtree(self._temporary, ignore_errors=True)
        if isinstance(value, OSError):
            raise not_written(self._directory, value, other=_ANOTHER) from value
