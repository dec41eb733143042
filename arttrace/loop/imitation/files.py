"""JSONL files of conversations to imitate: read in a shuffled order without holding them, and trained on."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from arttrace.loop.imitation.schedule import Schedule, create_lr_schedule
from arttrace.loop.model import TrainableModel
from arttrace.loop.processes.art_names import AssistantTurns, TrainSFTConfig
from arttrace.loop.processes.trainer_process import TrainedStep
from arttrace.loop.trajectory import Trajectory
from arttrace.records.values.lenient_json import read_json
from arttrace.records.values.nesting import UNREADABLE
from arttrace.system.errors import ArttraceError

_Line = tuple[int, str]


def get_file_row_count(file_path: str | Path) -> int:
    """The number of lines of a file that are not empty.

    Args:
        file_path: The file, whose name ends in .jsonl.

    Raises:
        ValueError: Its name ends otherwise.
        OSError: It cannot be read.
    """
    return sum(1 for _ in _lines(_jsonl(file_path)))


def iterate_file(
    file_path: str | Path, epochs: int = 1, shuffle_buffer_size: int = 10000, seed: int = 42, initial_skip: int = 0
) -> Iterator[Trajectory]:
    """The trajectories of a file, in ART's order: shuffled within a buffer, each epoch otherwise.

    Args:
        file_path: The file, whose name ends in .jsonl. Each line is an object with `messages` in OpenAI's form, and
            with `tools` where the model is offered some.
        epochs: How often it is gone through.
        shuffle_buffer_size: How many lines are held at a time, of which the next is drawn.
        seed: That of the first epoch's order; each further one has the next.
        initial_skip: The number of trajectories to leave out at the beginning, which are not read.

    Yields:
        The trajectories.

    Raises:
        ValueError: Its name ends otherwise.
        ArttraceError: A line is none of a conversation.
        OSError: It cannot be read.
    """
    return _read(_jsonl(file_path), epochs, shuffle_buffer_size, seed, initial_skip)


async def train_sft_from_file(
    model: TrainableModel,
    file_path: str | Path,
    epochs: int = 1,
    batch_size: int = 2,
    peak_lr: float = 2e-4,
    schedule_type: Schedule = "linear",
    warmup_ratio: float = 0.1,
    initial_step: int = 0,
    final_step: int | None = None,
    _config: Mapping[str, Any] | None = None,
    verbose: bool = False,
    shuffle_buffer_size: int = 10000,
    *,
    assistant_turns: AssistantTurns = "all",
    log_metrics: bool = True,
    **settings: Any,
) -> list[TrainedStep]:
    """Imitate the conversations of a file, in one version: see `iterate_file` for its lines and their order.

    Args:
        model: The model to train, registered.
        file_path: The file, whose name ends in .jsonl.
        epochs: How often it is gone through.
        batch_size: The number of conversations in an optimizer step.
        peak_lr: The highest learning rate.
        schedule_type: How it falls; see `create_lr_schedule`.
        warmup_ratio: The share of all steps over which it rises.
        initial_step: The first optimizer step to take, of all that the file makes.
        final_step: The one before which to end; None: none.
        _config: Nothing, as in ART.
        verbose: Taken: a step says how far it is in any case.
        shuffle_buffer_size: How many lines are held at a time, of which the next is drawn.
        assistant_turns: Which messages of the role assistant are imitated: all, or the last of each conversation.
        log_metrics: Taken: the version has its numbers in any case.
        settings: The options of `arttrace train --method sft` by their names: `lora_rank=8`.

    Returns:
        The TrainedStep, whose version is served when this returns; none where no optimizer step is left to take.

    Raises:
        ValueError: The file's name ends otherwise, `batch_size` is below 1, or there is no such schedule.
        OSError: It cannot be read.
        ArttraceError: A line is none of a conversation, or the file has none.
        TrainingError: There is nothing to imitate, or the step failed.
        ServingError: The model is not registered.

    Example:
        ```python
        await train_sft_from_file(model, "data/train.jsonl", epochs=3, batch_size=4, peak_lr=2e-4)
        ```
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, not {batch_size}")
    count = get_file_row_count(file_path) * epochs
    if not count:
        raise ArttraceError(f"{file_path} has no conversation to imitate", "Each of its lines is one.")
    steps = -(-count // batch_size)
    rates = create_lr_schedule(steps, peak_lr, schedule_type, int(steps * warmup_ratio))[initial_step:final_step]
    if not rates:
        return []
    given = iterate_file(file_path, epochs, shuffle_buffer_size, initial_skip=initial_step * batch_size)
    config = TrainSFTConfig(rates, batch_size, assistant_turns)
    chosen = islice(given, len(rates) * batch_size)
    return await model.train_sft(chosen, config, _config, verbose, log_metrics=log_metrics, **settings)


def _jsonl(file_path: str | Path) -> Path:
    path = Path(file_path)
    if path.suffix != ".jsonl":
        raise ValueError(f"{file_path} is no .jsonl file: `arttrace import` reads other forms")
    return path


def _lines(path: Path) -> Iterator[_Line]:
    with path.open(encoding="utf-8") as file:
        yield from ((number, line) for number, line in enumerate(file, 1) if line.strip())


def _read(path: Path, epochs: int, held: int, seed: int, skipped: int) -> Iterator[Trajectory]:
    for number, line in islice(_shuffled(path, epochs, held, seed), skipped, None):
        yield _trajectory(path, number, line)


def _shuffled(path: Path, epochs: int, held: int, seed: int) -> Iterator[_Line]:
    for epoch in range(epochs):
        draw = random.Random(seed + epoch)
        waiting: list[_Line] = []
        for line in _lines(path):
            waiting.append(line)
            if len(waiting) >= held:
                yield waiting.pop(draw.randint(0, len(waiting) - 1))
        draw.shuffle(waiting)
        yield from waiting


def _trajectory(path: Path, number: int, line: str) -> Trajectory:
    try:
        row = read_json(line)
    except UNREADABLE as error:
        raise ArttraceError(f"line {number} of {path} is no JSON: {error}") from None
    messages = row.get("messages") if isinstance(row, dict) else None
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        raise ArttraceError(
            f"line {number} of {path} has no list of messages",
            'Such as {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}.',
        )
    if row.get("loss_mask") is not None:
        raise ArttraceError(
            f"line {number} of {path} has a loss_mask, which is not read",
            'Messages of the role assistant with "weight": 0 are not imitated, as in OpenAI\'s fine-tuning.',
        )
    return Trajectory(messages_and_choices=messages, tools=row.get("tools"))
