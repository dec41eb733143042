"""Samples: trajectories with their advantages, turned into the rows and micro-batches of one step. Pure.

One trajectory is one sample, however many rows its sequences become. Every row carries the weight of its tokens, so
that a loss is always `sum over tokens of weight * token loss / normaliser`, whatever the rows, their order and the
micro-batches they fall into.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import torch

from arttrace.records.values.learned_tokens import sequence_key
from arttrace.records.values.tokens import is_logprob
from arttrace.records.values.units import quantity
from arttrace.system.errors import TrainingError
from trainer.learner.config import LearnerConfig
from trainer.learner.interface import Sample

if TYPE_CHECKING:
    from arttrace.records.sequence import TokenSequence


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One sequence, cut after its last target. `token_ids`, `targets`, `logprobs`, `versions` have shape (T,).

    `targets[t]` says that token t was sampled and is trained; `logprobs[t]` is 0 where it is not, `versions[t]` the
    name of the policy version that sampled it, None where not trained. `weight` is that of each target, `trajectory`
    the number of the sample that the row is of. `temperatures` (T,) are those at which targets were sampled, empty
    where all are 1: the policy that is trained is then the model's at that temperature. `key` names the sequence.
    `token_advantages` (T,) are what tokens have in addition to `advantage`, empty where that is nothing.
    """

    token_ids: tuple[int, ...]
    targets: tuple[bool, ...]
    logprobs: tuple[float, ...]
    versions: tuple[str | None, ...]
    advantage: float
    weight: float
    trajectory: int = 0
    temperatures: tuple[float, ...] = ()
    key: str = ""
    token_advantages: tuple[float, ...] = ()

    @property
    def advantages(self) -> tuple[float, ...]:
        """The advantage of each token, (T,), or (1,) where it is the same for all."""
        return tuple(self.advantage + own for own in self.token_advantages) or (self.advantage,)

    @property
    def teaches(self) -> bool:
        """Whether any target has an advantage."""
        if not self.token_advantages:
            return self.advantage != 0.0
        return any(advantage and target for advantage, target in zip(self.advantages, self.targets, strict=True))


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """What one step computes: the rows that need a forward pass, and the divisor of the weighted sum over tokens.

    `trajectories` counts those with targets, `samples` all that were given.
    """

    rows: tuple[TokenRow, ...]
    normaliser: float
    trained_tokens: int
    trajectories: int
    samples: int


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows padded on the right to a common length L, on one device.

    `token_ids` int64 (B, L). TokenRow t of the others belongs to the prediction of token t+1, shape (B, L-1): `weights`
    (0 where that token is no target), `logprobs` as sampled, `current` (sampled by the current version), and
    `temperatures`. `advantages` too, or (B, 1) where each row has one.
    """

    token_ids: torch.Tensor
    weights: torch.Tensor
    logprobs: torch.Tensor
    current: torch.Tensor
    advantages: torch.Tensor
    temperatures: torch.Tensor


def plan_step(samples: Sequence[Sample], config: LearnerConfig) -> PlannedStep:
    """Rows, weights and normaliser of one optimizer step.

    With N targets in S trajectories that have any, n in the target's own: every target weighs 1 by the normaliser N
    for "dapo" and "cispo"; N / (S n) by N for "grpo" and "gspo"; 1 by S times the configured length for "dr_grpo". A
    row of advantage 0 needs no forward pass unless a KL term gives it a gradient, or it is part of a trajectory whose
    ratio or weight is taken as a whole, but counts in N and S.

    Raises TrainingError when nothing can be trained or a sequence is unsound (log-probability missing or none, first
    token a target, lengths that differ).
    """
    counts = [sum(sequence.trained_tokens for sequence in sample.sequences) for sample in samples]
    total = sum(counts)
    if not total:
        raise TrainingError(
            f"There is nothing to train on: no sampled token of {quantity(len(samples), 'trajectory')} can be trained.",
            "Serve the model through `arttrace serve`, so that token ids and log-probabilities are captured; "
            "`arttrace show ID` says what a trajectory lacks.",
        )
    trajectories = sum(1 for count in counts if count)
    rows: list[TokenRow] = []
    for number, (sample, count) in enumerate(zip(samples, counts, strict=True)):
        advantages = [sample.advantage_of(sequence) for sequence in sample.sequences] or [sample.advantage]
        if not all(map(math.isfinite, chain(advantages, *sample.token_advantages))):
            raise TrainingError(f"An advantage is not a finite number: {advantages}.")
        by_trajectory = config.loss in ("grpo", "gspo") and count
        weight = total / (trajectories * count) if by_trajectory else 1.0
        of_trajectory = config.ratio_of_trajectory or config.weight_of_trajectory
        whole = config.kl_weight > 0 or (of_trajectory and any(chain(advantages, *sample.token_advantages)))
        of_tokens = sample.token_advantages or [()] * len(sample.sequences)
        for sequence, advantage, own in zip(sample.sequences, advantages, of_tokens, strict=False):
            row = target_row(sequence, advantage, weight, number, own)
            if row is not None and (whole or row.teaches):
                rows.append(row)
    normaliser = trajectories * config.dr_grpo_length if config.loss == "dr_grpo" else total
    return PlannedStep(tuple(rows), float(normaliser), total, trajectories, len(samples))


def split_minibatches(samples: Sequence[Sample], minibatches: int) -> list[list[Sample]]:
    """The samples in at most so many parts of nearly equal number, whatever the order given; none is empty."""
    if minibatches == 1:
        return [list(samples)]
    trained = [sample for sample in samples if any(sequence.trained_tokens for sequence in sample.sequences)]
    ordered = sorted(trained, key=_content)
    parts = [ordered[first::minibatches] for first in range(minibatches)]
    return [part for part in parts if part] or [list(samples)]


def _content(sample: Sample) -> tuple[object, ...]:
    """What distinguishes samples, whatever their numbers: twins may differ in their log-probabilities only."""
    sequences = sample.sequences
    logprobs = [[p for p in sequence.logprobs if p is not None] for sequence in sequences]
    return [q.token_ids for q in sequences], [q.trained for q in sequences], sample.advantage, logprobs


def target_row(
    sequence: TokenSequence,
    advantage: float,
    weight: float,
    trajectory: int,
    token_advantages: tuple[float, ...] = (),
) -> TokenRow | None:
    """The row of a sequence, None when it has no target. Raises TrainingError when the sequence is unsound."""
    for name, values in (
        ("token ids", sequence.token_ids),
        ("log-probabilities", sequence.logprobs),
        ("versions", sequence.versions),
        ("temperatures", sequence.temperatures or sequence.trained),
        ("advantages", token_advantages or sequence.trained),
    ):
        if len(values) != len(sequence.trained):
            raise TrainingError(
                f"A sequence of trajectory {sequence.trajectory_id} has {len(values)} {name} for "
                f"{quantity(len(sequence.trained), 'token')}.",
                "Build sequences with arttrace.trajectories.sequences; this one was put together or changed by hand.",
            )
    if not any(sequence.trained):
        return None
    length = len(sequence.trained) - sequence.trained[::-1].index(1)
    if sequence.trained[0]:
        raise TrainingError(
            f"The first token of a sequence of trajectory {sequence.trajectory_id} is marked as sampled.",
            "A sampled token needs a prompt before it: the capture lost the prompt's token ids.",
        )
    targets = tuple(bool(trained) for trained in sequence.trained[:length])
    logprobs: list[float] = []
    for trained, logprob in zip(targets, sequence.logprobs[:length], strict=True):
        if trained and not is_logprob(logprob):
            raise TrainingError(
                f"A sampled token of trajectory {sequence.trajectory_id} has no usable log-probability ({logprob}).",
                "Sample with logprobs=true; a trajectory without them can be trained by SFT, not by GRPO.",
            )
        logprobs.append(float(logprob) if trained and logprob is not None else 0.0)
    versions = tuple(
        sequence.policy_versions[version] if trained and version >= 0 else None
        for trained, version in zip(targets, sequence.versions[:length], strict=True)
    )
    temperatures = sequence.temperatures[:length]
    if not all(temperature > 0 for temperature in temperatures):
        raise TrainingError(f"A token of trajectory {sequence.trajectory_id} was sampled at no temperature above 0.")
    return TokenRow(
        sequence.token_ids[:length],
        targets,
        tuple(logprobs),
        versions,
        advantage,
        weight,
        trajectory,
        temperatures,
        sequence_key(sequence),
        token_advantages[:length],
    )


def shared_length(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens two rows have in common from the start."""
    limit = min(len(left), len(right))
    low, high = 0, limit
    while low < high:  # slices compare in C
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def split_rows(rows: Iterable[TokenRow], max_tokens: int) -> list[list[TokenRow]]:
    """The rows in micro-batches of at most `max_tokens` tokens, padding included; a longer row goes alone.

    Rows are put into one canonical order, longest first, so that the result does not depend on the order given and
    little is padded.
    """
    ordered = sorted(
        rows, key=lambda row: (-len(row.token_ids), row.token_ids, row.logprobs, row.advantages, row.temperatures)
    )
    batches: list[list[TokenRow]] = []
    for row in ordered:
        if batches and (len(batches[-1]) + 1) * len(batches[-1][0].token_ids) <= max_tokens:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def _spread(advantages: Sequence[tuple[float, ...]], length: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """(B, L-1), or (B, 1) where each row has one for all its tokens."""
    if all(len(own) == 1 for own in advantages):
        return torch.tensor(advantages, dtype=dtype, device=device)
    spread = [[*own[1:], *[own[-1]] * (length - max(len(own), 1))] for own in advantages]
    return torch.tensor(spread, dtype=dtype, device=device)


def pad_rows(rows: Sequence[TokenRow], *, current_version: str | None, device: str, dtype: torch.dtype) -> MicroBatch:
    """The rows as tensors; numbers in `dtype`. The pad id is 0: what stands behind a row's end is never looked at."""
    length = max(len(row.token_ids) for row in rows)

    def padded(values: Iterable[Sequence[float]], kind: torch.dtype) -> torch.Tensor:
        return torch.tensor([[*line, *[0] * (length - len(line))] for line in values], dtype=kind, device=device)

    targets = padded((row.targets for row in rows), dtype)[:, 1:]
    weights = targets * torch.tensor([[row.weight] for row in rows], dtype=dtype, device=device)
    return MicroBatch(
        token_ids=padded((row.token_ids for row in rows), torch.int64),
        weights=weights,
        logprobs=padded((row.logprobs for row in rows), dtype)[:, 1:],
        current=padded(
            ([version is not None and version == current_version for version in row.versions] for row in rows),
            torch.bool,
        )[:, 1:],
        advantages=_spread([row.advantages for row in rows], length, dtype, device),
        temperatures=padded(([t - 1.0 for t in row.temperatures] for row in rows), dtype)[:, 1:] + 1.0
        if any(row.temperatures for row in rows)
        else torch.ones_like(weights),
    )
