"""`arttrace train` by GRPO: what would be trained on, or a number of steps, which Ctrl-C ends after the running one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path

import click

from arttrace.commands.shared.progress import say
from arttrace.records.values.units import quantity
from arttrace.store import AnyStore
from trainer.commands.train.report import require_base_model
from trainer.commands.train.sampled.plan import SampledPlan
from trainer.commands.train.sampled.steps import print_skip, tell, train_steps, waiting_shares
from trainer.grpo.advantages import Scale
from trainer.grpo.batch import TrainingBatch, make_batch
from trainer.grpo.shares import build, choose_groups
from trainer.grpo.trainer import PolicyTrainer, require_trainable
from trainer.learner import LearnerConfig, make_learner
from trainer.learner.interface import teaches
from trainer.policies.checkpoints import Checkpoints
from trainer.policies.made_here import made_here
from trainer.policies.retention import KEPT_STATES
from trainer.step.left_out import left_out_lines
from trainer.step.phases import Clock, Phase
from trainer.step.reported import Reporting
from trainer.step.version import PublishingGateway

_SKIPPED = "all rewards within each group are equal, so there is nothing to learn from them"
_SKIPPED_HINT = "Run the scenarios more often, take harder ones, or score them by a finer rubric."


def train_grpo(
    store: AnyStore,
    checkpoints: Checkpoints,
    gateway: PublishingGateway,
    base_model: Path | None,
    learner: LearnerConfig,
    *,
    steps: int,
    scale: Scale,
    std_floor: float,
    max_staleness: int | None,
    reporting: Reporting,
    keep_states: int = KEPT_STATES,
    as_json: bool,
) -> None:
    """Share the groups out evenly over at most `steps` steps, and train them. Raises TrainingError, and SystemExit with
    code 130 if a signal stopped it before the last step."""
    bound = learner.logprob_bound
    choice, shares, fewer = waiting_shares(store, checkpoints, bound, choose_groups, steps, max_staleness)

    skipped = partial(print_skip, _SKIPPED, _SKIPPED_HINT, as_json=as_json)

    def batches() -> Iterator[tuple[TrainingBatch, Clock]]:
        """That of each share in its turn, and says what is left out of it; the first can be trained on."""
        for number, share in enumerate(shares):
            groups = build(store, share)
            clock = Clock()
            clock(Phase.BATCH)
            step = checkpoints.latest() or 0
            made = make_batch(
                groups,
                policy=checkpoints.policy,
                scale=scale,
                std_floor=std_floor,
                step=step,
                max_staleness=max_staleness,
                made=made_here(checkpoints),
            )
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
    base_model = require_base_model(base_model)
    gateway.status()
    # A share that teaches nothing makes no version, so that the batch of the next one stays as it is until its turn.
    ready: list[tuple[TrainingBatch, Clock] | None] = []  # None: nothing to learn
    while not teaches(batch.samples, learner):
        ready.append(None if batch.samples else (batch, clock))
        if len(ready) == len(shares):
            skipped()
            return
        batch, clock = next(coming)
    ready.append((batch, clock))
    if fewer:
        click.echo(fewer, err=True)
    say(f"loading {base_model}")
    trainer = PolicyTrainer(
        policy=checkpoints.policy,
        base_model=str(base_model),
        store=store,
        learner=make_learner(base_model, learner),
        checkpoints=checkpoints,
        gateway=gateway,
        scale=scale,
        std_floor=std_floor,
        max_staleness=max_staleness,
        keep_states=keep_states,
        say=say,
    )
    train_steps(trainer, chain(ready, coming), len(shares), reporting=reporting, skipped=skipped, as_json=as_json)


def print_plan(
    store: AnyStore,
    checkpoints: Checkpoints,
    learner: LearnerConfig,
    scale: Scale,
    max_staleness: int | None,
    *,
    steps: int,
    as_json: bool,
) -> None:
    """Print what would be trained on and what not, with the reasons."""
    bound = learner.logprob_bound
    choice, shares, fewer = waiting_shares(store, checkpoints, bound, choose_groups, steps, max_staleness)
    batch = make_batch(
        build(store, choice.groups),
        policy=checkpoints.policy,
        scale=scale,
        step=checkpoints.latest() or 0,
        max_staleness=max_staleness,
        made=made_here(checkpoints),
    )
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
        as_json=as_json,
    )
