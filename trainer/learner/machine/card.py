"""Whether the machine has a CUDA card, and where a learner runs for which nobody said it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from trainer.learner.config import LearnerConfig


def has_driver() -> bool:
    """Whether NVIDIA's driver is there. Loads nothing."""
    return Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi") is not None


def has_card() -> bool:
    """Whether torch finds a card; it is loaded where there is a driver alone."""
    if not has_driver():
        return False
    import torch

    return bool(torch.cuda.is_available())


def placed(config: LearnerConfig) -> LearnerConfig:
    """The config with its device: the one chosen, else a card where there is one, as the serving engine does.

    Raises TrainingError when it asks for what the device has not."""
    chosen = config.device or ("cuda" if has_card() else "cpu")
    return replace(config, device=chosen).checked()
