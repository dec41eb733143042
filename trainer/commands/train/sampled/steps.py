"""The steps of one `arttrace train`, one after the other, which Ctrl-C ends after the running one."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator

import click

from arttrace.commands.shared.progress import Progress, say
from arttrace.records.values.units import quantity
from trainer.commands.train.report import print_step
from trainer.grpo.batch import TrainingBatch
from trainer.grpo.trainer import PolicyTrainer
from trainer.step.phases import Clock
from trainer.step.reported import Reporting
from trainer.step.signals import stop_on_signals

_INTERRUPTED = 130

Due = tuple[TrainingBatch, Clock] | None
"""A batch and the clock of its step; None where there is nothing to learn."""


def train_steps(
    trainer: PolicyTrainer,
    batches: Iterator[Due],
    steps: int,
    *,
    reporting: Reporting,
    skipped: Callable[[bool], None],
    as_json: bool,
) -> None:
    """Go on from the newest version by so many steps, print each version, or what `skipped` prints where there was
    nothing to learn. A batch is asked for in its turn. Raises TrainingError, and SystemExit with code 130 if a signal
    stopped it before the last step."""
    stop = threading.Event()
    reporting.begin()
    trainer.learner.progress = lambda total: Progress(total, "tokens of the step", tells_short=False)
    with stop_on_signals(stop, say), reporting:  # Ctrl-C waits for trackers too
        trainer.resume()
        for number in range(steps):
            if stop.is_set():
                click.echo(
                    f"stopped after {number} of {quantity(steps, 'step')}; the other runs are as they were", err=True
                )
                sys.exit(_INTERRUPTED)
            due = next(batches)
            done = trainer.train_on(*due) if due else None
            if done is None:
                skipped(as_json)
            else:
                print_step(done, as_json=as_json)
                reporting.catch_up()


def tell(lines: Iterable[str]) -> None:
    """Print these lines about the work."""
    for line in lines:
        say(line)
