"""`arttrace train` by on-policy distillation: what would be trained on, or a number of steps towards the teacher."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from functools import partial

import click

from arttrace.commands.shared.progress import CountedProgress, say
from arttrace.records.values.units import quantity
from trainer.commands.train.report import require_base_model
from trainer.commands.train.sampled.plan import SampledPlan
from trainer.commands.train.sampled.steps import print_skip, tell, train_steps, waiting_shares
from trainer.commands.train.settings import TrainSettings
from trainer.commands.train.training import Training
from trainer.grpo.batch import TrainingBatch
from trainer.grpo.distill.kept import KeptShare, KeptShares
from trainer.grpo.distill.runs import (
    METHOD,
    Sampled,
    choose_runs,
    make_batch,
    rate,
    require_sampled,
    sampled_runs,
    within_reach,
)
from trainer.grpo.distill.teacher import TeacherModel, open_teacher, require_same_tokens
from trainer.grpo.trainer import NothingToTrain
from trainer.step.engines import engines_asleep
from trainer.step.left_out import left_out_lines
from trainer.step.phases import Clock, Phase
from trainer.step.retry import no_retry

_SKIPPED = "the teacher rates every token as the policy did, so there is nothing to learn from it"


def train_distill(training: Training) -> None:
    """Share the runs that wait out evenly over at most as many steps as are asked for, have the teacher rate them, and
    train them.

    All of it is rated before the policy is loaded: a teacher that fails costs nothing, and one that is loaded has the
    memory to itself. One step's runs at a time are in memory, the others on disk. Raises TrainingError, and SystemExit
    with code 130 if a signal stopped it before the last step.
    """
    settings, checkpoints, gateway = training.settings, training.checkpoints, training.gateway
    learner = settings.learner
    choice, shares, fewer = waiting_shares(training, choose_runs)
    with KeptShares(checkpoints.directory) as kept, ExitStack() as opened:
        sampled, waiting = Sampled(), []
        for share in shares:
            runs = sampled_runs(training.store, share, checkpoints.policy)
            sampled.add(runs)
            waiting.append(kept.put(runs))
            del runs
        require_sampled(sampled, choice.left_out)
        tell(left_out_lines(choice.left_out, calls=sampled.quarantined))
        base_model = require_base_model(training.base_model)
        gateway.status()
        teacher = opened.enter_context(closing(_teacher(settings)))
        require_same_tokens(teacher, base_model, sampled.token_ids)
        on_device = teacher.on_device
        asleep = engines_asleep(gateway, no_retry, lora_rank=learner.rank) if on_device else nullcontext()
        if on_device:
            say(f"loading the teacher {settings.teacher}")
        with asleep, opened.pop_all():  # it is gone before the engines wake up
            rated = _rated(waiting, teacher, kept)
        del teacher, waiting, sampled
        if fewer:
            click.echo(fewer, err=True)
        trainer = training.trainer(base_model)

        skipped = partial(print_skip, _SKIPPED, as_json=training.as_json)

        def batches() -> Iterator[tuple[TrainingBatch, Clock]]:
            """That of each share in its turn, by then the runs are a step older; the first counts what was left out."""
            left_out = choice.left_out
            for share in rated:
                clock = Clock()
                clock(Phase.BATCH)
                step = checkpoints.latest() or 0
                made = make_batch(kept.get(share), step=step, policy=checkpoints.policy, left_out=left_out)
                left_out = {}
                clock.stop()
                yield made, clock
                del made

        train_steps(training, trainer, batches(), len(rated), skipped)


def _teacher(settings: TrainSettings, *, weights: bool = True) -> TeacherModel:
    assert settings.teacher is not None  # the command line asks for it
    return open_teacher(settings.teacher, settings.teacher_model, settings.learner, weights=weights)


def _rated(waiting: Sequence[KeptShare], teacher: TeacherModel, kept: KeptShares) -> list[KeptShare]:
    """The shares in which anything was rated, each in its turn. Raises NothingToTrain where that is none."""
    total = sum(share.tokens for share in waiting)
    lost: Counter[str] = Counter()
    for share in waiting:
        lost.update(within_reach(kept.get(share), teacher)[1])
    asked = total - sum(lost.values())
    progress = CountedProgress(asked, f"tokens rated by {teacher.name}", tells_short=False)
    rated: list[KeptShare] = []
    done = 0
    for share in waiting if asked else ():
        runs, _ = within_reach(kept.get(share), teacher)
        own = sum(run.tokens for run in runs)
        rated.append(kept.put(rate(runs, teacher, partial(_tell_rated, progress, done, asked)) if own else runs))
        done += own
    if unknown := asked - sum(share.tokens for share in rated):
        lost["without a log-probability by the teacher"] = unknown
    if lost.total() == total:
        raise NothingToTrain(
            f"The teacher {teacher.name} can rate none of the {total} tokens: {_reasons(lost)}.",
            "Name a teacher of a longer context, or sample at temperature 1; a teacher that is loaded from a directory "
            "rates at any temperature.",
        )
    tell(_unrated_lines(lost))
    return [share for share in rated if share.tokens]


def _tell_rated(progress: CountedProgress, before: int, asked: int, done: int) -> None:
    progress.of(before + done, asked)


def _unrated_lines(lost: Mapping[str, int]) -> list[str]:
    return [f"left out: {quantity(count, 'token')} ({why})" for why, count in lost.items()]


def _reasons(lost: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {why}" for why, count in lost.items())


def print_distillation(training: Training) -> None:
    """Print what would be trained on and what not, with the reasons. The teacher is found and its tokens compared, and
    is not asked to rate."""
    checkpoints = training.checkpoints
    choice, shares, fewer = waiting_shares(training, choose_runs)
    base_model = require_base_model(training.base_model)
    sampled, within, lost, made = Sampled(), Sampled(), Counter[str](), 0
    with closing(_teacher(training.settings, weights=False)) as teacher:
        for share in shares:
            runs = sampled_runs(training.store, share, checkpoints.policy)
            sampled.add(runs)
            reached, out = within_reach(runs, teacher)
            lost.update(out)
            within.add(reached)
            made += any(run.tokens for run in reached)
            del runs, reached
        require_same_tokens(teacher, base_model, sampled.token_ids)
    plan = SampledPlan(
        made, within.taught, sampled.captured_tokens, within.tokens, choice.left_out, sampled.quarantined
    )
    plan.show(
        checkpoints,
        f"would be distilled from {teacher.name} on {quantity(plan.trajectories, 'trajectory')}",
        {"method": METHOD, "teacher": teacher.name},
        last=_unrated_lines(lost),
        fewer=fewer,
        check=lambda: require_sampled(sampled, choice.left_out),
        as_json=training.as_json,
    )
