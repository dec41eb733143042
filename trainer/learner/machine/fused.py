"""Norms, rotary positions and feed-forward parts as fused kernels: compiled by PyTorch, or Liger's.

Each kind of part is compiled once and used by every layer. Attention is left alone: the packed engine's own is compiled
where it is worth it, and a LoRA's adapters stay as PEFT computes them.
"""

from __future__ import annotations

import functools
import importlib
import sys
from types import ModuleType
from typing import Any

import torch

from arttrace.system.errors import TrainingError
from trainer.learner.config import LearnerConfig

_ROTARY = "apply_rotary_pos_emb"


def fuse_layers(causal: Any, config: LearnerConfig) -> None:
    """Replace the parts as the config says. Raises TrainingError where that cannot be done."""
    if config.use_liger_kernel:
        _by_liger(causal)
    elif config.torch_compile:
        _compile(causal)


def _compile(causal: Any) -> None:
    for name, module in causal.named_modules():
        if type(module).__name__.endswith("RMSNorm") or name.endswith(".mlp"):
            module.compile(dynamic=True)
        if hasattr(attending := sys.modules[type(module).__module__], _ROTARY):
            setattr(attending, _ROTARY, _compiled(getattr(attending, _ROTARY)))


@functools.lru_cache
def _compiled(function: Any) -> Any:
    """Models look it up in their module: what is compiled for one is compiled for all of this process."""
    if hasattr(function, "_torchdynamo_orig_callable"):
        return function
    return torch.compile(function, dynamic=True)


def _by_liger(causal: Any) -> None:
    patches = _liger()
    kind = causal.config.model_type
    if kind not in patches.MODEL_TYPE_TO_APPLY_LIGER_FN:
        raise TrainingError(
            f"Liger has no kernels for {type(causal).__name__} ({kind}).", "Use --torch-compile, or neither."
        )
    patches._apply_liger_kernel_to_instance(
        model=causal,
        rope=True,
        rms_norm=True,
        swiglu=True,
        geglu=True,
        cross_entropy=False,
        fused_linear_cross_entropy=False,
    )


def _liger() -> ModuleType:
    try:
        return importlib.import_module("liger_kernel.transformers.monkey_patch")
    except ImportError as error:
        raise TrainingError(
            f"Liger's kernels cannot be used here: {error}.", "pip install liger-kernel; or use --torch-compile."
        ) from error
