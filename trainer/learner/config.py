"""LearnerConfig: every number that decides what one optimisation step does."""

from __future__ import annotations

from typing import Literal

import msgspec

from arttrace.errors import TrainingError

Loss = Literal["dapo", "grpo"]
Dtype = Literal["float32", "bfloat16", "float64"]

# The ranks that a serving engine can be told to accept without wasting memory on a larger one.
RANKS = (8, 16, 32)


class LearnerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How to train.

    - `loss`: "dapo" is the mean over all sampled tokens of the batch (Yu et al. 2025, arXiv:2503.14476); "grpo" the
      mean over trajectories of the mean over each trajectory's tokens (Shao et al. 2024, arXiv:2402.03300).
    - `epsilon_low`, `epsilon_high`: the importance ratio is clipped to [1 - low, 1 + high].
    - `kl_weight`: weight of the k3 estimate of KL(policy || base), exp(d) - d - 1 with d = log base - log policy.
    - `decay`: (first, last) steps between which the learning rate falls linearly to a tenth; None keeps it constant.
    - `epochs`: optimizer steps taken on one batch, each over all of it.
    - `micro_batch_tokens`: at most this many tokens, padding included, go through the model at once; one longer row
      goes alone.
    - `lora_targets`: names of linear modules, or "all-linear" for all but the output head.
    - `max_logprob_difference`: refuse the step when a token sampled by the current version differs by more (nats);
      None means 0.01 in float32 and 1.0 in bfloat16, where engines differ by up to 0.3.
    """

    learning_rate: float = 5e-5
    decay: tuple[int, int] | None = None
    lora_rank: int = 16
    lora_alpha: int = 32
    lora_targets: str | tuple[str, ...] = "all-linear"
    loss: Loss = "dapo"
    epsilon_low: float = 0.2
    epsilon_high: float = 0.28
    kl_weight: float = 0.0
    epochs: int = 1
    max_grad_norm: float = 1.0
    adam_betas: tuple[float, float] = (0.9, 0.999)
    adam_epsilon: float = 1e-8
    weight_decay: float = 0.0
    micro_batch_tokens: int = 2048
    max_logprob_difference: float | None = None
    seed: int = 0
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Dtype = "float32"

    def learning_rate_at(self, step: int) -> float:
        """The learning rate of the step that follows `step` earlier ones."""
        if self.decay is None:
            return self.learning_rate
        first, last = self.decay
        done = min(max((step - first) / (last - first), 0.0), 1.0)
        return self.learning_rate * (1 - 0.9 * done)

    def checked(self) -> LearnerConfig:
        """The same config. Raises TrainingError when a value makes no sense."""
        if self.lora_rank not in RANKS:
            raise TrainingError(f"LoRA rank {self.lora_rank} is not supported.", f"Use one of {RANKS}.")
        for name in ("learning_rate", "lora_alpha", "epochs", "max_grad_norm", "micro_batch_tokens"):
            if not getattr(self, name) > 0:
                raise TrainingError(f"{name} must be above 0, not {getattr(self, name)}.")
        if self.decay is not None and not 0 <= self.decay[0] < self.decay[1]:
            raise TrainingError(f"decay must name a first and a later last step, not {self.decay}.")
        for name in ("epsilon_low", "epsilon_high", "kl_weight", "weight_decay"):
            if not getattr(self, name) >= 0:
                raise TrainingError(f"{name} must not be negative, not {getattr(self, name)}.")
        return self

    @property
    def logprob_bound(self) -> float:
        """The bound in force on the difference of log-probabilities, in nats."""
        if self.max_logprob_difference is not None:
            return self.max_logprob_difference
        return 1.0 if self.dtype == "bfloat16" else 0.01
