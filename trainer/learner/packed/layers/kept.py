"""Layers that keep what their backward pass needs, where the memory is there, in place of being computed again.

A layer that is computed again costs a third more than one that is not, whatever the memory that stays free meanwhile.
How many fit depends on the micro-batch and on what else is on the card, so it is decided for each micro-batch.
"""

from __future__ import annotations

from typing import Any

from trainer.learner.config import LearnerConfig
from trainer.learner.machine.fitting import layers_kept
from trainer.learner.machine.memory import free_memory


class KeptLayers:
    """Of a causal LM whose layers are all computed again (`checkpoint_layers`), those that are not for a while. With
    `may_keep` False always none."""

    def __init__(self, causal: Any, config: LearnerConfig, *, may_keep: bool) -> None:
        from transformers.modeling_layers import GradientCheckpointingLayer

        self._config, self._shape = config, causal.config.get_text_config().to_dict()
        self._layers = [
            one
            for one in causal.get_decoder().modules()
            if isinstance(one, GradientCheckpointingLayer) and one.gradient_checkpointing and may_keep
        ]
        self.kept = 0
        """In the micro-batch before."""

    def choose(self, tokens: int) -> None:
        """For a micro-batch of so many tokens, before its forward pass: as many as fit. The last ones, whose memory is
        free again before the first of the others is computed again."""
        if not self._layers:
            return
        self.kept = min(
            len(self._layers), layers_kept(self._config, self._shape, free_memory(self._config.runs_on), tokens)
        )
        first = len(self._layers) - self.kept
        for number, layer in enumerate(self._layers):
            layer.gradient_checkpointing = number < first

    def give_up(self) -> bool:
        """Keep none from now on, as memory ran out. Whether that is less than was kept."""
        less, self.kept = self.kept > 0, 0
        for layer in self._layers:
            layer.gradient_checkpointing = True
        if less:
            self._layers = []
        return less
