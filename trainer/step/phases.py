"""The phases of one training step, and a clock that measures the seconds of each."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import Protocol


class Phase(StrEnum):
    """Where the loop is; the order is that of one step."""

    WAIT = "wait"
    ROLLOUT = "rollout"
    SCORE = "score"
    BATCH = "batch"
    STEP = "step"
    CHECKPOINT = "checkpoint"
    PUBLISH = "publish"
    RECORD = "record"


class Watch(Protocol):
    """Called when a phase begins."""

    def __call__(self, phase: Phase) -> None: ...


class Clock:
    """Seconds per phase: call it with a phase to end the running one and begin the next."""

    def __init__(self, watch: Watch | None = None) -> None:
        self.seconds: dict[Phase, float] = {}
        self._watch = watch
        self._running: tuple[Phase, float] | None = None

    def __call__(self, phase: Phase) -> None:
        self.stop()
        self._running = (phase, time.perf_counter())
        if self._watch:
            self._watch(phase)

    def stop(self) -> None:
        """End the running phase, if any."""
        if self._running:
            phase, began = self._running
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - began
            self._running = None
