"""LoadedTeacher: a teacher in a directory, loaded where the policy is trained, for as long as it rates."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from arttrace.records.sequence import TokenSequence
from arttrace.system.errors import ServingError, TrainingError
from trainer.gateway.engines.vllm.model import read_model
from trainer.learner import LearnerConfig, make_learner
from trainer.learner.interface import Learner
from trainer.policies.base_tokenizer import read_tokenizer


class LoadedTeacher:
    """A model of the Hugging Face layout, rated with by the same engine, device and precision as the policy is trained.

    `name` is the model's, `longest` how many tokens it has positions for.
    """

    any_temperature = True
    on_device = True

    def __init__(self, directory: Path, learner: LearnerConfig) -> None:
        """Raises TrainingError when the directory holds no model."""
        try:
            shape = read_model(directory)
        except ServingError as error:
            raise TrainingError(
                f"The teacher cannot be loaded: {error.message}.",
                "--teacher takes the URL of a server, a directory with config.json, weights and tokenizer, or a name "
                "on the Hugging Face hub.",
            ) from error
        self.name = shape.name
        self.longest: int = shape.max_positions
        self._directory = directory
        # Its LoRA is never trained nor used: the smallest there is, without a KL term beside it.
        self._config = replace(
            learner, lora_rank=8, lora_targets=None, kl_weight=0.0, kl_reference=None, max_kl=None, importance=None
        )

    @cached_property
    def _learner(self) -> Learner:
        return make_learner(self._directory, self._config)

    @cached_property
    def _tokenizer(self) -> Any:
        return read_tokenizer(self._directory)

    def text(self, ids: Sequence[int]) -> str | None:
        """The text that its tokenizer makes of token ids."""
        return str(self._tokenizer.decode(list(ids)))

    def rate(
        self, sequences: Sequence[TokenSequence], computed: Callable[[int], None]
    ) -> list[tuple[float | None, ...]]:
        """Its log-probabilities (nats) of what was sampled, at the temperature of the sampling; see
        `TeacherModel.rate`. What sequences have in common is computed once. It stays loaded until it is closed.

        Raises TrainingError where it cannot be loaded, or memory does not suffice.
        """
        rated = self._learner.rate([self._cut(one) for one in sequences], computed)
        return [
            (*values, *[None] * (len(one.token_ids) - len(values)))
            for values, one in zip(rated, sequences, strict=True)
        ]

    def close(self) -> None:
        """Nothing is left of it, and its memory is free."""
        self.__dict__.pop("_learner", None)
        _free()

    def _cut(self, one: TokenSequence) -> TokenSequence:
        """As much of it as the model has positions for."""
        if len(one.token_ids) <= self.longest:
            return one
        names = ("token_ids", "trained", "logprobs", "versions", "temperatures")
        return msgspec.structs.replace(one, **{name: tuple(getattr(one, name)[: self.longest]) for name in names})


def _free() -> None:
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
