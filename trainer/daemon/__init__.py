"""The loop from scored groups to the next policy: one step of it, and the daemon that takes step after step."""

from trainer.daemon.loop import (
    Clock,
    Loop,
    NothingToTrain,
    Phase,
    complete_step,
    finish_open_step,
    require_trainable,
)

__all__ = ["Clock", "Loop", "NothingToTrain", "Phase", "complete_step", "finish_open_step", "require_trainable"]
