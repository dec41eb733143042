"""The LoRA's rank and scale: a policy keeps those with which its first version was made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from arttrace.records.values.nesting import UNREADABLE
from trainer.learner import LearnerConfig
from trainer.policies.checkpoints import Checkpoints


def in_shape_of(config: LearnerConfig, checkpoints: Checkpoints) -> LearnerConfig:
    """The config with the `lora_rank` and `lora_alpha` of the policy's newest version, where it leaves them open; with
    the usual ones where there is no version, or that has none that can be read."""
    latest = checkpoints.latest()
    has: dict[str, Any] = {}
    if latest is not None:
        try:
            has = msgspec.json.decode((checkpoints.path(latest) / "adapter_config.json").read_bytes(), type=dict)
        except (OSError, *UNREADABLE):
            pass  # loading the version says what is wrong with it
    rank, alpha = (value if isinstance(value := has.get(name), int) else None for name in ("r", "lora_alpha"))
    own = replace(config, lora_rank=config.lora_rank or rank, lora_alpha=config.lora_alpha or alpha)
    return replace(own, lora_rank=own.rank, lora_alpha=own.alpha)
