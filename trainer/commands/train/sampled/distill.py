"""`arttrace train` by on-policy distillation: what would be trained on, or a number of steps towards the teacher."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing, nullcontext
from pathlib import Path
from typing import NamedTuple

import click

from arttrace.commands.shared.progress import CountedProgress, say
from arttrace.records.values.units import quantity
from arttrace.store import AnyStore
from trainer.commands.train.report import print_hint, print_uses, require_base_model, uses_document
from trainer.commands.train.sampled.steps import tell, train_steps
from trainer.grpo.batch import TrainingBatch
from trainer.grpo.distill.runs import (
    METHOD,
    SampledRun,
    choose_runs,
    make_batch,
    quarantined,
    rate,
    require_sampled,
    sampled_runs,
    within_reach,
)
from trainer.grpo.distill.teacher import TeacherModel, open_teacher, require_same_tokens
from trainer.grpo.shares import share_out
from trainer.grpo.trainer import NothingToTrain, PolicyTrainer
from trainer.learner import LearnerConfig, make_learner
from trainer.policies.checkpoints import Checkpoints
from trainer.policies.refused_runs import refused_runs
from trainer.policies.retention import KEPT_STATES
from trainer.step.engines import engines_asleep
from trainer.step.left_out import left_out_lines
from trainer.step.phases import Clock, Phase
from trainer.step.reported import Reporting
from trainer.step.retry import no_retry
from trainer.step.version import PublishingGateway

_SKIPPED = "the teacher rates every token as the policy did, so there is nothing to learn from it"


class TeacherNames(NamedTuple):
    """What --teacher and --teacher-model say."""

    teacher: str
    model: str | None = None


def train_distill(
    store: AnyStore,
    checkpoints: Checkpoints,
    gateway: PublishingGateway,
    base_model: Path | None,
    learner: LearnerConfig,
    names: TeacherNames,
    *,
    steps: int,
    max_staleness: int | None,
    reporting: Reporting,
    keep_states: int = KEPT_STATES,
    as_json: bool,
) -> None:
    """Have the teacher rate what waits, share the runs out evenly over at most `steps` steps, and train them.

    All of it is rated before the policy is loaded: a teacher that fails costs nothing, and one that is loaded has the
    memory to itself. Raises TrainingError, and SystemExit with code 130 if a signal stopped it before the last step.
    """
    print_uses(checkpoints)
    refused = refused_runs(checkpoints.directory, learner.logprob_bound, say)
    choice = choose_runs(store, checkpoints, max_staleness, refused)
    shares, fewer = share_out(choice.groups, steps, max_staleness)
    runs = [sampled_runs(store, share, checkpoints.policy) for share in shares]
    waiting = [run for share in runs for run in share]
    require_sampled(waiting, choice.left_out)
    tell(left_out_lines(choice.left_out, calls=quarantined(waiting)))
    base_model = require_base_model(base_model)
    gateway.status()
    with closing(open_teacher(names.teacher, names.model, learner)) as teacher:
        require_same_tokens(teacher, base_model, [one for run in waiting for one in run.sequences])
        asleep = engines_asleep(gateway, no_retry, lora_rank=learner.lora_rank) if teacher.on_device else nullcontext()
        if teacher.on_device:
            say(f"loading the teacher {names.teacher}")
        with asleep:
            rated = _rated(runs, teacher)
    del runs, waiting
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
        max_staleness=max_staleness,
        keep_states=keep_states,
    )

    def batches() -> Iterator[tuple[TrainingBatch, Clock]]:
        """That of each share in its turn, by then the runs are a step older; the first counts what was left out."""
        left_out = choice.left_out
        while rated:
            clock = Clock()
            clock(Phase.BATCH)
            step = checkpoints.latest() or 0
            made = make_batch(rated.pop(0), step=step, policy=checkpoints.policy, left_out=left_out)
            left_out = {}
            clock.stop()
            yield made, clock

    train_steps(trainer, batches(), len(rated), reporting=reporting, skipped=_print_skip, as_json=as_json)


def _rated(shares: list[list[SampledRun]], teacher: TeacherModel) -> list[list[SampledRun]]:
    """The shares in which anything was rated. Raises NothingToTrain where that is none."""
    waiting = [run for share in shares for run in share]
    total = sum(run.tokens for run in waiting)
    reached, lost = within_reach(waiting, teacher)
    asked = sum(run.tokens for run in reached)
    progress = CountedProgress(asked, f"tokens rated by {teacher.name}", tells_short=False)
    every = rate(reached, teacher, lambda done: progress.of(done, asked)) if asked else reached
    if unknown := asked - sum(run.tokens for run in every):
        lost["without a log-probability by the teacher"] = unknown
    if sum(lost.values()) == total:
        raise NothingToTrain(
            f"The teacher {teacher.name} can rate none of the {total} tokens: {_reasons(lost)}.",
            "Name a teacher of a longer context, or sample at temperature 1; a teacher that is loaded from a directory "
            "rates at any temperature.",
        )
    tell(_unrated_lines(lost))
    found = iter(every)
    rated = [[next(found) for _ in share] for share in shares]
    return [share for share in rated if any(run.tokens for run in share)]


def _unrated_lines(lost: Mapping[str, int]) -> list[str]:
    return [f"left out: {quantity(count, 'token')} ({why})" for why, count in lost.items()]


def _reasons(lost: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {why}" for why, count in lost.items())


def _print_skip(as_json: bool) -> None:
    click.echo(json.dumps({"skipped": _SKIPPED}) if as_json else f"skipped: {_SKIPPED}")


def print_distillation(
    store: AnyStore,
    checkpoints: Checkpoints,
    base_model: Path | None,
    learner: LearnerConfig,
    names: TeacherNames,
    *,
    steps: int,
    max_staleness: int | None,
    as_json: bool,
) -> None:
    """Print what would be trained on and what not, with the reasons. The teacher is found and its tokens compared, and
    is not asked to rate."""
    print_uses(checkpoints)
    refused = refused_runs(checkpoints.directory, learner.logprob_bound, say)
    choice = choose_runs(store, checkpoints, max_staleness, refused)
    shares, fewer = share_out(choice.groups, steps, max_staleness)
    runs = sampled_runs(store, choice.groups, checkpoints.policy)
    base_model = require_base_model(base_model)
    with closing(open_teacher(names.teacher, names.model, learner)) as teacher:
        require_same_tokens(teacher, base_model, [one for run in runs for one in run.sequences])
        reached, lost = within_reach(runs, teacher)
    batch = make_batch(reached, step=checkpoints.latest() or 0, policy=checkpoints.policy, left_out=choice.left_out)
    if fewer:
        click.echo(fewer, err=True)
    if as_json:
        plan = {
            "policy": checkpoints.policy,
            "method": METHOD,
            "teacher": teacher.name,
            "steps": len(shares),
            "trajectories": len(batch.samples),
            "tokens_captured": batch.captured_tokens,
            "tokens_trained": batch.trained_tokens,
            "trajectories_left_out": batch.left_out,
            "calls_quarantined": batch.quarantined,
            "already_trained_on": uses_document(checkpoints),
        }
        click.echo(json.dumps(plan))
        return
    trajectories = quantity(len(batch.samples), "trajectory")
    click.echo(f"{checkpoints.policy} would be distilled from {teacher.name} on {trajectories}.")
    click.echo(f"  {batch.trained_tokens} of {batch.captured_tokens} sampled tokens would be trained.")
    for line in (*left_out_lines(batch.left_out, calls=batch.quarantined), *_unrated_lines(lost)):
        click.echo(f"  {line}")
    print_hint(lambda: require_sampled(runs, choice.left_out))
