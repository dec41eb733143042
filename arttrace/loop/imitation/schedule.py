"""Learning rates over all optimizer steps of a training, and its trajectories in chunks, each with its part of them."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, get_args

from tqdm.auto import tqdm

from arttrace.loop.processes.art_names import TrainSFTConfig
from arttrace.loop.trajectory import Trajectory

Schedule = Literal["cosine", "linear", "constant"]


class SFTChunk(NamedTuple):
    """What one call of `train_sft` takes of a longer training."""

    trajectories: list[Trajectory]
    """In the order of their optimizer steps."""
    config: TrainSFTConfig
    """The learning rates of these steps, and how many trajectories each takes."""
    step: int
    """The number of the first optimizer step over all epochs, from 0."""
    epoch: int
    """The number of the epoch, from 0."""
    epoch_step: int
    """The number of the first optimizer step within the epoch, from 0."""


def create_lr_schedule(
    total_steps: int,
    peak_lr: float,
    method: Schedule = "linear",
    warmup_steps: int = 0,
    min_lr: float = 0.0,
) -> list[float]:
    """The learning rate of each optimizer step, as ART computes it.

    Args:
        total_steps: The number of steps.
        peak_lr: The highest rate.
        method: How it falls after the warm-up, to `min_lr` in the last step: along a cosine, linearly, or not at all.
        warmup_steps: Over so many steps it rises linearly to the highest.
        min_lr: The lowest rate.

    Returns:
        The rates, none for less than one step.

    Raises:
        ValueError: There is no such method.
    """
    if method not in get_args(Schedule):
        raise ValueError(f"there is no schedule {method!r}: pass one of {', '.join(get_args(Schedule))}")
    return [
        _share(step, total_steps, warmup_steps, method) * (peak_lr - min_lr) + min_lr for step in range(total_steps)
    ]


def _share(step: int, steps: int, warmup: int, method: Schedule) -> float:
    """Where between the lowest and the highest rate, 0 to 1, a step stands."""
    if step < warmup:
        return (step + 1) / warmup
    last = steps - warmup - 1
    fallen = (step - warmup) / last if last > 0 else 0.0
    if method == "cosine":
        return (1 + math.cos(math.pi * fallen)) / 2
    return 1.0 if method == "constant" else 1 - fallen


def create_sft_dataset_iterator(
    trajectories: Sequence[Trajectory],
    chunk_size: int = 10,
    epochs: int = 1,
    batch_size: int = 2,
    peak_lr: float = 2e-4,
    schedule_type: Schedule = "linear",
    warmup_ratio: float = 0.1,
    shuffle: bool = True,
    seed: int = 42,
    initial_step: int = 0,
    show_progress: bool = True,
) -> Iterator[SFTChunk]:
    """A training in several calls of `train_sft`, each of which makes a version with numbers of its own; the learning
    rates are those of the whole. The order of the trajectories is ART's.

    Args:
        trajectories: What is to be imitated.
        chunk_size: The number of optimizer steps in a call; the last of an epoch may have fewer.
        epochs: How often they are gone through.
        batch_size: The number of trajectories in an optimizer step.
        peak_lr: The highest learning rate.
        schedule_type: How it falls; see `create_lr_schedule`.
        warmup_ratio: The share of all steps over which it rises.
        shuffle: Take each epoch in another order: the same one whenever it is asked for.
        seed: That of the first epoch's order; each further one has the next.
        initial_step: The optimizer steps that are done already: chunks of these alone are left out.
        show_progress: Show a progress bar.

    Yields:
        The chunks, in the order of their steps.

    Raises:
        ValueError: `chunk_size` or `batch_size` is below 1, or there is no such schedule.

    Example:
        ```python
        for chunk in create_sft_dataset_iterator(trajectories, epochs=3, peak_lr=2e-4):
            await model.train_sft(chunk.trajectories, chunk.config)
        ```
    """
    for name, number in {"chunk_size": chunk_size, "batch_size": batch_size}.items():
        if number < 1:
            raise ValueError(f"{name} must be at least 1, not {number}")
    steps = math.ceil(len(trajectories) / batch_size)
    rates = create_lr_schedule(steps * epochs, peak_lr, schedule_type, int(steps * epochs * warmup_ratio))
    chunks = _chunks(trajectories, chunk_size, epochs, batch_size, rates, seed if shuffle else None)
    return _shown(chunks, initial_step, len(rates), show_progress)


def _chunks(
    trajectories: Sequence[Trajectory], size: int, epochs: int, batch_size: int, rates: list[float], seed: int | None
) -> Iterator[SFTChunk]:
    steps = len(rates) // max(epochs, 1)
    for epoch in range(epochs):
        ordered = list(trajectories)
        if seed is not None:
            random.Random(seed + epoch).shuffle(ordered)
        for first in range(0, steps, size):
            step = epoch * steps + first
            part = rates[step : min(step + size, (epoch + 1) * steps)]
            chosen = ordered[first * batch_size :][: len(part) * batch_size]
            yield SFTChunk(chosen, TrainSFTConfig(part, batch_size), step, epoch, first)


def _shown(chunks: Iterator[SFTChunk], done: int, steps: int, shown: bool) -> Iterator[SFTChunk]:
    """The chunks that are not done yet."""
    with tqdm(total=steps, initial=done, desc="SFT Training", unit="step", disable=not shown) as bar:
        for chunk in chunks:
            size = math.ceil(len(chunk.trajectories) / chunk.config.trajectories_per_step)
            if chunk.step + size > done:
                yield chunk
                bar.update(size)
