"""Learner: what every engine offers, and the numbers that one step returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from arttrace.system.errors import TrainingError
from trainer.learner.config import LearnerConfig

if TYPE_CHECKING:
    from arttrace.records.sequence import TokenSequence


class NotComputed(TrainingError):
    """A step could not be computed of these samples, as it may be of others: the weights were left as they were."""


class NotFinite(NotComputed):
    """A loss or a gradient was not a finite number, or every token was too far away to have one."""


class OtherWeights(TrainingError):
    """Other weights than those of the version that it names sampled what the step was to be trained on.

    `bound` is the one on the difference of log-probabilities that it was beyond (nats), None where another version was
    found to be nearer.
    """

    def __init__(self, message: str, hint: str | None = None, bound: float | None = None) -> None:
        super().__init__(message, hint)
        self.bound = bound


class NoRoom(NotComputed):
    """The smallest micro-batch needed more memory than there was."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One trajectory: all its sequences, sub-agents' too, and the advantage they share.

    `agent_advantages` holds, by agent id, that of an agent which was rewarded by itself. `token_advantages` has, for
    each sequence, what each of its tokens has in addition, shape (T,); empty where tokens have nothing of their own.
    """

    sequences: tuple[TokenSequence, ...]
    advantage: float
    agent_advantages: Mapping[str, float] = field(default_factory=dict)
    token_advantages: tuple[tuple[float, ...], ...] = ()

    def advantage_of(self, sequence: TokenSequence) -> float:
        """The advantage of the tokens of one of its sequences."""
        return self.agent_advantages.get(sequence.agent_id, self.advantage)


def teaches(samples: Sequence[Sample], config: LearnerConfig) -> bool:
    """Whether a step on the samples has a gradient: of a KL term, or of tokens whose advantage is not 0."""
    return config.kl_weight > 0 or any(
        sample.advantage_of(sequence) != 0.0 or any(sample.token_advantages and sample.token_advantages[number])
        for sample in samples
        for number, sequence in enumerate(sample.sequences)
        if sequence.trained_tokens
    )


@dataclass(frozen=True, kw_only=True)
class StepMetrics:
    """What one step did.

    `loss` and `grad_norm` (before clipping) are means over the step's epochs. `trained_tokens` counts the sampled
    tokens in the normaliser, `forwarded_tokens` the tokens that went through the model per epoch, at most
    `micro_batch_tokens` at once (where the config leaves it open, as the memory allowed in this step). `ratio_mean`,
    `clip_fraction`, `entropy` (nats) and `kl` (nats, k3) are means over the targets that went through the model.
    `logprob_difference_*` compare captured with recomputed log-probabilities before the step (nats, absolute), over
    the first minibatch where there are several. `clip_fraction` counts what the importance mask leaves out, too.
    `masked_tokens` counts targets of the current version that were left out as their captured log-probability is beyond
    the bound, `far_tokens` those that a pass left out as their ratio is above e^20. `checked_tokens` counts those at
    which it was looked whether another version than the current one sampled them: 0 where they were too few, or there
    was no other. `skipped` says that the samples do not teach: nothing was changed. `step_s` is wall-clock seconds.
    """

    loss: float = 0.0
    grad_norm: float = 0.0
    trajectories: int = 0
    trained_tokens: int = 0
    forwarded_tokens: int = 0
    micro_batch_tokens: int = 0
    ratio_mean: float = 1.0
    clip_fraction: float = 0.0
    entropy: float = 0.0
    kl: float = 0.0
    logprob_difference_mean: float = 0.0
    logprob_difference_max: float = 0.0
    masked_tokens: int = 0
    far_tokens: int = 0
    checked_tokens: int = 0
    skipped: bool = False
    step_s: float = 0.0

    def numbers(self) -> dict[str, float]:
        """What a PolicyStep stores of it, as plain numbers by name: all but `trained_tokens`, which is the batch's."""
        return {name: float(value) for name, value in asdict(self).items() if name != "trained_tokens"}


Progress = Callable[[int], Callable[[int], None]]
"""Asked at a step's beginning, with the number of tokens that it will compute; then called with how many are done."""


class Learner(Protocol):
    """A policy being trained: persistent weights and optimizer, one step at a time."""

    config: LearnerConfig
    base_weights: str
    """The digest of the base model's weights, as they were when they were loaded."""
    progress: Progress | None

    def step(self, samples: Sequence[Sample], *, current_version: str | None = None) -> StepMetrics:
        """Train once on the samples of one batch.

        `current_version` names the policy version whose weights are loaded now; tokens it sampled must have the
        log-probabilities that the learner computes, within the configured bound. Raises TrainingError, with weights
        and optimizer as they were, when there is nothing to train on or the numbers are not sound.
        """
        ...

    def refit(self) -> None:
        """Let micro-batches grow into the memory that is free now, where the config leaves their size open."""
        ...

    def rate(
        self, sequences: Sequence[TokenSequence], computed: Callable[[int], None] = lambda tokens: None
    ) -> list[tuple[float | None, ...]]:
        """The log-probabilities (nats) of the sampled tokens of each sequence under the base model, without the
        adapter, at the temperatures at which they were sampled.

        Shape (T,) for each, None where a token is no target. `computed` is called with how many are rated so far,
        first with 0.
        Raises TrainingError for a token that the model does not have, and where memory does not suffice.
        """
        ...

    def save_adapter(self, directory: Path) -> None:
        """Write the adapter, which an engine can serve, into an existing directory."""
        ...

    def save_rest(self, directory: Path) -> None:
        """Write beside it everything else that is needed to go on exactly."""
        ...

    def load(self, directory: Path) -> str:
        """Go on from what both wrote. Returns a line to say where AdamW's moments begin anew, since those are of
        another loss; "" elsewhere."""
        ...
