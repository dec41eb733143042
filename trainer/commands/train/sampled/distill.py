"""`arttrace train` by on-policy distillation: what would be trained on, or a number of steps towards the teacher."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple

import click

from arttrace.commands.shared.progress import CountedProgress, say
from arttrace.records.values.units import quantity
from arttrace.store import AnyStore
from trainer.commands.train.report import require_base_model
from trainer.commands.train.sampled.plan import SampledPlan
from trainer.commands.train.sampled.steps import print_skip, tell, train_steps, waiting_shares
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
from trainer.grpo.trainer import NothingToTrain, PolicyTrainer
from trainer.learner import LearnerConfig, make_learner
from trainer.policies.checkpoints import Checkpoints
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
    """Share the runs that wait out evenly over at most `steps` steps, have the teacher rate them, and train them.

    All of it is rated before the policy is loaded: a teacher that fails costs nothing, and one that is loaded has the
    memory to itself. One step's runs at a time are in memory, the others on disk. Raises TrainingError, and SystemExit
    with code 130 if a signal stopped it before the last step.
    """
    bound = learner.logprob_bound
    choice, shares, fewer = waiting_shares(store, checkpoints, bound, choose_runs, steps, max_staleness)
    with KeptShares(checkpoints.directory) as kept, ExitStack() as opened:
        sampled, waiting = Sampled(), []
        for share in shares:
            runs = sampled_runs(store, share, checkpoints.policy)
            sampled.add(runs)
            waiting.append(kept.put(runs))
            del runs
        require_sampled(sampled, choice.left_out)
        tell(left_out_lines(choice.left_out, calls=sampled.quarantined))
        base_model = require_base_model(base_model)
        gateway.status()
        teacher = opened.enter_context(closing(open_teacher(names.teacher, names.model, learner)))
        require_same_tokens(teacher, base_model, sampled.token_ids)
        on_device = teacher.on_device
        asleep = engines_asleep(gateway, no_retry, lora_rank=learner.lora_rank) if on_device else nullcontext()
        if on_device:
            say(f"loading the teacher {names.teacher}")
        with asleep, opened.pop_all():  # it is gone before the engines wake up
            rated = _rated(waiting, teacher, kept)
        del teacher, waiting, sampled
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
            say=say,
        )

        skipped = partial(print_skip, _SKIPPED, as_json=as_json)

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

        train_steps(trainer, batches(), len(rated), reporting=reporting, skipped=skipped, as_json=as_json)


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
    bound = learner.logprob_bound
    choice, shares, fewer = waiting_shares(store, checkpoints, bound, choose_runs, steps, max_staleness)
    base_model = require_base_model(base_model)
    sampled, within, lost, made = Sampled(), Sampled(), Counter[str](), 0
    with closing(open_teacher(names.teacher, names.model, learner, weights=False)) as teacher:
        for share in shares:
            runs = sampled_runs(store, share, checkpoints.policy)
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
        as_json=as_json,
    )
