"""The precision of the base model, one setting for both sides: the one that the engine was started in."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from trainer.gateway.status import ServingFile
from trainer.learner import LearnerConfig
from trainer.learner.config import Dtype


def in_precision_of(config: LearnerConfig, serving: ServingFile | None) -> LearnerConfig:
    """The config with the precision that the running engine was told to compute in, where it leaves its own open.

    No learner computes in float16, whose range is too short for gradients: beside such an engine it stays in its own,
    and what 16 bits round is allowed for, as where both are in bfloat16.
    """
    told = "" if serving is None else serving.dtype
    if told == "float16" and config.dtype is None:
        rounded = replace(config, dtype="bfloat16")
        return replace(config, max_logprob_difference=rounded.logprob_bound, importance=rounded.correction)
    known: dict[str, Dtype] = {name: name for name in get_args(Dtype)}
    return replace(config, dtype=config.dtype or known.get(told))
