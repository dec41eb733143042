"""The steps of one `arttrace train`, one after the other, which Ctrl-C ends after the running one."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import click

from arttrace.commands.shared.progress import Progress, say
from arttrace.records.values.units import quantity
from arttrace.store import AnyStore
from trainer.commands.train.report import print_step, print_uses
from trainer.commands.train.training import Training
from trainer.grpo.batch import TrainingBatch
from trainer.grpo.selection import Chosen, Selection
from trainer.grpo.shares import share_out
from trainer.grpo.trainer import PolicyTrainer
from trainer.policies.checkpoints import Checkpoints
from trainer.policies.refused_runs import refused_runs
from trainer.step.phases import Clock
from trainer.step.signals import stop_on_signals

_INTERRUPTED = 130

Due = tuple[TrainingBatch, Clock] | None
"""A batch and the clock of its step; None where there is nothing to learn."""


def waiting_shares(
    training: Training, choose: Callable[[AnyStore, Checkpoints, int | None, Collection[str]], Selection]
) -> tuple[Selection, list[Sequence[Chosen]], str]:
    """Say what the policy was trained on already, `choose` of what waits, without the runs that a step was refused for
    within the learner's bound, and share it out evenly over at most as many steps as are asked for; with why they are
    fewer."""
    settings, checkpoints = training.settings, training.checkpoints
    print_uses(checkpoints)
    refused = refused_runs(checkpoints.directory, settings.learner.logprob_bound, say)
    choice = choose(training.store, checkpoints, settings.max_staleness, refused)
    return choice, *share_out(choice.groups, settings.steps, settings.max_staleness)


def print_skip(why: str, hint: str = "", *, as_json: bool) -> None:
    """Print that a step was skipped as there is nothing to learn, why, and what to do."""
    click.echo(json.dumps({"skipped": why}) if as_json else "\n".join(filter(None, (f"skipped: {why}", hint))))


def train_steps(
    training: Training, trainer: PolicyTrainer, batches: Iterator[Due], steps: int, skipped: Callable[[], None]
) -> None:
    """Go on from the newest version by so many steps, print each version, or have `skipped` print that there was
    nothing to learn. A batch is asked for in its turn. Raises TrainingError, and SystemExit with code 130 if a signal
    stopped it before the last step."""
    stop = threading.Event()
    reporting = training.reporting
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
                skipped()
            else:
                print_step(done, as_json=training.as_json)
                reporting.catch_up()


def tell(lines: Iterable[str]) -> None:
    """Print these lines about the work."""
    for line in lines:
        say(line)
