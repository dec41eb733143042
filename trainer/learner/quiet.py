"""Import TRL without what else it would do: load vLLM, reach for the network, print and warn over our output."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import warnings
from collections.abc import Iterator
from types import ModuleType

_NOISY = ("transformers", "trl", "peft", "accelerate", "datasets", "torchao")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Warnings and progress bars off, and the libraries' loggers at errors only, inside the block."""
    from transformers.utils import logging as transformers_logging

    levels = {name: logging.getLogger(name).level for name in _NOISY}
    bars = transformers_logging.is_progress_bar_enabled()
    try:
        transformers_logging.disable_progress_bar()
        for name in _NOISY:
            logging.getLogger(name).setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if bars:
            transformers_logging.enable_progress_bar()
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def import_trl() -> ModuleType:
    """The module `trl.trainer.grpo_trainer`, imported once.

    TRL imports vLLM wherever it is installed, though given trajectories need no generation: four seconds, and an
    engine that only its own process should load. TRL is told that there is none while it is imported.
    """
    for name in ("HF_HUB_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
        os.environ.setdefault(name, "1")
    with quiet():
        availability = importlib.import_module("trl.import_utils")
        original = availability.is_vllm_available
        availability.is_vllm_available = lambda *_args, **_kwargs: False  # type: ignore[attr-defined]
        try:
            return importlib.import_module("trl.trainer.grpo_trainer")
        finally:
            availability.is_vllm_available = original  # type: ignore[attr-defined]
