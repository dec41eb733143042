"""What is looked up about the machine and the base model to fit a config to them; torch is loaded for a card alone."""

from __future__ import annotations

import contextlib
import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.learner.config import Dtype, LearnerConfig
from trainer.learner.machine.fitting import BYTES, bytes_per_token, lora_bytes
from trainer.learner.machine.memory import free_memory


def read_shape(directory: Path) -> dict[str, Any]:
    """The text config of a model directory; {} where there is none: whoever loads the model says what is wrong."""
    try:
        shape = json.loads((directory / "config.json").read_text())
        return {**shape, **shape.get("text_config", {})}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def weight_bytes(directory: Path, dtype: Dtype) -> int:
    """Of the base model's weights in memory: numbers that its files have in another precision are converted."""
    return sum(_loaded_bytes(file, BYTES[dtype]) for file in _weight_files(directory))


def _weight_files(directory: Path) -> list[Path]:
    """Those that are loaded: the same weights in another form may lie beside them."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        named = json.loads((directory / "model.safetensors.index.json").read_text())["weight_map"].values()
        return [directory / name for name in sorted(set(named))]
    one = directory / "model.safetensors"
    return [one] if one.is_file() else sorted(directory.glob("*.safetensors"))


def _loaded_bytes(file: Path, size: int) -> int:
    """Of a file's tensors with `size` bytes for a number; the file's own where its header cannot be read."""
    try:
        with file.open("rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            header = json.loads(opened.read(min(length, _LONGEST_HEADER)))
        tensors = [tensor for name, tensor in header.items() if name != "__metadata__"]
        return sum(
            math.prod(one["shape"]) * size
            if one["dtype"] in _CONVERTED
            else one["data_offsets"][1] - one["data_offsets"][0]
            for one in tensors
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error):
        return file.stat().st_size if file.is_file() else 0


_CONVERTED = frozenset({"F64", "F32", "F16", "BF16"})
_LONGEST_HEADER = 100_000_000  # that of safetensors itself


def free_beside(config: LearnerConfig, directory: Path) -> int | None:
    """Bytes that are free on the learner's device when it holds the base model; None where it is not known."""
    if not read_shape(directory):
        return None
    free = free_memory(config.runs_on)
    return None if free is None else max(free - weight_bytes(directory, config.computes_in), 0)


@dataclass(frozen=True, slots=True)
class LearnerNeeds:
    """Bytes on a card: of the base model's weights; of the LoRA with its optimizer; of each token in training."""

    weights: int
    lora: int
    token: int


def learner_needs(base_model: Path, config: LearnerConfig | None = None) -> LearnerNeeds:
    """What a learner of this model takes on a card, by estimate."""
    config = config or LearnerConfig(device="cuda")
    shape = read_shape(base_model)
    return LearnerNeeds(
        weight_bytes(base_model, config.computes_in),
        lora_bytes(config, shape),
        bytes_per_token(config, shape, checkpointing=True),
    )
