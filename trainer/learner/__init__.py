"""Token sequences in, adapter out: batches, loss, and one optimisation step at a time."""

import faulthandler
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

# Read when torch is first loaded. Threads that spin while they wait make a step ten times slower on a machine whose
# cores are shared with a serving engine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from arttrace.system.processes import signals_after_imports
from trainer.learner.config import LearnerConfig

if TYPE_CHECKING:
    from trainer.learner.base import BaseLearner

__all__ = ["LearnerConfig", "make_learner"]


def make_learner(base_model: Path, config: LearnerConfig) -> "BaseLearner":
    """The learner of `config.engine`. Imports torch: some seconds.

    Args:
        base_model: The directory of a model in Hugging Face form.
        config: Engine, loss, optimizer and LoRA.

    Raises:
        TrainingError: The model cannot be loaded or trained by that engine, or the config makes no sense.
    """
    if not faulthandler.is_enabled() and sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__)  # a compiled package that crashes takes the process with it: say where
    if config.loader == "unsloth":
        from trainer.output.quiet import import_unsloth

        import_unsloth()
    if config.engine == "trl":
        with signals_after_imports():
            from trainer.learner.trl.engine import TrlLearner

        return TrlLearner(base_model, config)
    with signals_after_imports():
        from trainer.learner.packed.engine import PackedLearner

    return PackedLearner(base_model, config)
