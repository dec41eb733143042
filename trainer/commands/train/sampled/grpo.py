"""`arttrace train` by GRPO: what would be trained on, or a number of steps, which Ctrl-C ends after the running one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain

import click

from arttrace.records.group import Group
from arttrace.records.values.units import quantity
from trainer.commands.train.report import require_base_model
from trainer.commands.train.sampled.plan import SampledPlan
from trainer.commands.train.sampled.steps import print_skip, tell, train_steps, waiting_shares
from trainer.commands.train.training import Training
from trainer.grpo.batch import TrainingBatch, make_batch
from trainer.grpo.shares import build, choose_groups
from trainer.grpo.trainer import require_trainable
from trainer.learner.interface import teaches
from trainer.policies.made_here import made_here
from trainer.step.left_out import left_out_lines
from trainer.step.phases import Clock, Phase

_SKIPPED = "all rewards within each group are equal, so there is nothing to learn from them"
_SKIPPED_HINT = "Run the scenarios more often, take harder ones, or score them by a finer rubric."


def train_grpo(training: Training) -> None:
    """Share the groups out evenly over at most as many steps as are asked for, and train them. Raises TrainingError,
    and SystemExit with code 130 if a signal stopped it before the last step."""
    choice, shares, fewer = waiting_shares(training, choose_groups)

    skipped = partial(print_skip, _SKIPPED, _SKIPPED_HINT, as_json=training.as_json)

    def batches() -> Iterator[tuple[TrainingBatch, Clock]]:
        """That of each share in its turn, and says what is left out of it; the first can be trained on."""
        for number, share in enumerate(shares):
            groups = build(training.store, share)
            clock = Clock()
            clock(Phase.BATCH)
            made = _batch(training, groups)
            clock.stop()
            del groups  # not held during the step
            if number == 0:
                require_trainable(made)
                tell(left_out_lines(choice.left_out))
            others = {reason: count for reason, count in made.left_out.items() if reason not in choice.left_out}
            tell(left_out_lines(others, calls=made.quarantined))
            yield made, clock

    if not shares:
        require_trainable(TrainingBatch(left_out=choice.left_out))
    coming = batches()
    batch, clock = next(coming)  # before the imports that take seconds
    base_model = require_base_model(training.base_model)
    training.gateway.status()
    # A share that teaches nothing makes no version, so that the batch of the next one stays as it is until its turn.
    ready: list[tuple[TrainingBatch, Clock] | None] = []  # None: nothing to learn
    while not teaches(batch.samples, training.settings.learner):
        ready.append(None if batch.samples else (batch, clock))
        if len(ready) == len(shares):
            skipped()
            return
        batch, clock = next(coming)
    ready.append((batch, clock))
    if fewer:
        click.echo(fewer, err=True)
    trainer = training.trainer(base_model)
    train_steps(training, trainer, chain(ready, coming), len(shares), skipped)


def print_plan(training: Training) -> None:
    """Print what would be trained on and what not, with the reasons."""
    checkpoints = training.checkpoints
    choice, shares, fewer = waiting_shares(training, choose_groups)
    batch = _batch(training, build(training.store, choice.groups))
    left_out = batch.left_out | choice.left_out
    groups = quantity(len(batch.rewards), "group")
    plan = SampledPlan(
        len(shares), len(batch.samples), batch.captured_tokens, batch.trained_tokens, left_out, batch.quarantined
    )
    equal = f"{batch.equal_groups} of the groups have equal rewards and teach nothing."
    plan.show(
        checkpoints,
        f"would be trained on {quantity(plan.trajectories, 'trajectory')} in {groups}",
        {"groups": len(batch.rewards), "groups_with_equal_rewards": batch.equal_groups},
        first=[equal] if batch.equal_groups else [],
        fewer=fewer,
        check=lambda: require_trainable(dataclasses.replace(batch, left_out=left_out)),
        as_json=training.as_json,
    )


def _batch(training: Training, groups: Sequence[Group]) -> TrainingBatch:
    """What a step after the newest version trains on."""
    settings, checkpoints = training.settings, training.checkpoints
    return make_batch(
        groups,
        policy=checkpoints.policy,
        scale=settings.advantages,
        std_floor=settings.std_floor,
        step=checkpoints.latest() or 0,
        max_staleness=settings.max_staleness,
        made=made_here(checkpoints),
    )
