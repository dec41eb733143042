"""What is looked up about the machine and the base model to fit a config to them; torch is loaded for a card alone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.learner.config import LearnerConfig
from trainer.learner.machine.fitting import bytes_per_token, lora_bytes
from trainer.learner.machine.memory import free_memory


def read_shape(directory: Path) -> dict[str, Any]:
    """The text config of a model directory; {} where there is none: whoever loads the model says what is wrong."""
    try:
        shape = json.loads((directory / "config.json").read_text())
        return {**shape, **shape.get("text_config", {})}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def weight_bytes(directory: Path) -> int:
    """Of the base model's files."""
    return sum(file.stat().st_size for file in directory.glob("*.safetensors"))


def free_beside(config: LearnerConfig, directory: Path) -> int | None:
    """Bytes that are free on the learner's device when it holds the base model; None where it is not known."""
    if not read_shape(directory):
        return None
    free = free_memory(config.device)
    return None if free is None else max(free - weight_bytes(directory), 0)


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
        weight_bytes(base_model), lora_bytes(config, shape), bytes_per_token(config, shape, checkpointing=True)
    )
