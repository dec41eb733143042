"""Steps that repeat themselves bit for bit, where that is asked for: by PyTorch's deterministic kernels."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from arttrace.system.errors import TrainingError
from trainer.learner.config import LearnerConfig

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


def prepare_determinism(config: LearnerConfig) -> None:
    """Before anything is multiplied on a card: cuBLAS repeats itself with a workspace of a fixed size alone, which it
    reads once."""
    if config.full_determinism and config.runs_on == "cuda":
        os.environ.setdefault(_WORKSPACE, ":4096:8")


@contextmanager
def deterministic(config: LearnerConfig) -> Iterator[None]:
    """Inside the block PyTorch takes no kernel whose result depends on the order in which its threads end. Raises
    TrainingError where it has no other."""
    if not config.full_determinism:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    except RuntimeError as error:
        if "use_deterministic_algorithms" not in str(error):
            raise
        raise TrainingError(
            f"The step cannot repeat itself exactly: {str(error).partition(', but you set')[0]}.",
            "Train without --full-determinism.",
        ) from error
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
