"""`arttrace train` by SFT or DPO: what would be trained on and what is left out, or one version."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from arttrace.commands.shared.progress import Progress, say
from arttrace.records.group import Group
from arttrace.records.trajectory import Trajectory
from arttrace.records.values.units import quantity
from arttrace.store import AnyStore
from arttrace.trajectories.groups import group_trajectories
from trainer.commands.train.report import print_hint, print_step, print_uses, require_base_model, uses_document
from trainer.commands.train.settings import TrainSettings
from trainer.commands.train.training import Training
from trainer.gateway.engines.vllm.model import read_model
from trainer.offline.plan import Method, OfflinePlan, plan_batches, plan_dpo, plan_sft, require_examples
from trainer.offline.step import load_tokenizer, train_offline
from trainer.policies.checkpoints import Checkpoints
from trainer.step.left_out import left_out_lines
from trainer.step.signals import stop_on_signals


class OfflineTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What counts as an example; `again` includes runs that the method was trained on before."""

    method: Method
    min_reward: float | None = None
    min_gap: float = 0.1
    max_length: int | None = None
    again: bool = False

    @classmethod
    def of(cls, settings: TrainSettings) -> OfflineTerms:
        """Those of settings whose method is "sft" or "dpo"."""
        return cls(
            method="dpo" if settings.method == "dpo" else "sft",
            min_reward=settings.min_reward,
            min_gap=settings.min_gap,
            max_length=settings.max_length,
            again=settings.again,
        )


def run_offline(training: Training, *, dry_run: bool) -> None:
    """Make one version, or print what it would be made of. Raises TrainingError."""
    store, checkpoints, settings = training.store, training.checkpoints, training.settings
    base_model = require_base_model(training.base_model)
    print_uses(checkpoints)
    plan = plan_offline(store, checkpoints, base_model, OfflineTerms.of(settings))
    if dry_run:
        _print_plan(checkpoints, plan, training.as_json)
        return
    require_examples(plan)
    _tell_plan(checkpoints.policy, plan, "is", err=True)
    training.reporting.begin()
    say(f"loading {base_model}")
    done = train_offline(
        store,
        checkpoints,
        training.gateway,
        base_model,
        plan,
        settings.learner,
        progress=lambda total: Progress(total, "optimizer steps"),
        keep_states=settings.keep_states,
        uninterrupted=stop_on_signals(threading.Event(), say),
        say=say,
    )
    print_step(done, as_json=training.as_json)
    sys.stdout.flush()
    training.reporting.catch_up()


def _groups(store: AnyStore, checkpoints: Checkpoints, terms: OfflineTerms) -> tuple[list[Group], frozenset[str]]:
    """The groups to choose from, and the ids in them that the method was trained on before."""
    if terms.again:
        return group_trajectories(store.trajectories()), frozenset()
    consumed = checkpoints.consumed_ids(terms.method)  # a dry run has recorded nothing
    if terms.method == "sft":  # which run is the best of its group, those before count too
        unused = {one.id for one in store.summaries(unconsumed_by=checkpoints.policy, method=terms.method)} - consumed
        runs = store.trajectories()
        return group_trajectories(runs), frozenset(run.id for run in runs if run.id not in unused)
    found = store.trajectories(unconsumed_by=checkpoints.policy, method=terms.method)
    return group_trajectories([one for one in found if one.id not in consumed]), frozenset()


def plan_offline(
    store: AnyStore,
    checkpoints: Checkpoints,
    base_model: Path,
    terms: OfflineTerms,
    groups: Sequence[Group] | None = None,
    *,
    say: Callable[[str], None] | None = None,
) -> OfflinePlan:
    """What would be trained on: from these groups, or from all runs that the method was not trained on yet. `say` is
    called with the progress; by default it is shown on standard error."""
    groups, used = _groups(store, checkpoints, terms) if groups is None else (groups, frozenset())
    tokenizer, bounds = load_tokenizer(base_model), _bounds(base_model, terms, say)
    if terms.method == "sft":
        return plan_sft(groups, tokenizer, min_reward=terms.min_reward, used=used, **bounds)
    return plan_dpo(groups, tokenizer, min_gap=terms.min_gap, **bounds)


def plan_ordered(
    base_model: Path,
    terms: OfflineTerms,
    batches: Sequence[tuple[Sequence[Trajectory], float]],
    say: Callable[[str], None],
) -> OfflinePlan:
    """What would be trained on of batches, (runs, learning rate); `say` as for `plan_offline`. Raises TrainingError
    where that is nothing."""
    plan = plan_batches(batches, load_tokenizer(base_model), **_bounds(base_model, terms, say))
    require_examples(plan, "What the messages of the role assistant say is imitated: give each trajectory some.")
    return plan


def offline_lines(plan: OfflinePlan) -> Iterator[str]:
    """What the plan leaves out, in lines."""
    return left_out_lines(
        plan.trajectories_left_out,
        conversations=plan.conversations_left_out,
        reasoning_dropped=plan.reasoning_dropped,
    )


def _bounds(base_model: Path, terms: OfflineTerms, say: Callable[[str], None] | None) -> dict[str, Any]:
    return {
        "max_length": terms.max_length,
        "max_positions": read_model(base_model).max_positions,
        "progress": lambda total: Progress(total, "runs rendered", say, tells_short=False),
    }


def _print_plan(checkpoints: Checkpoints, plan: OfflinePlan, as_json: bool) -> None:
    if not as_json:
        _tell_plan(checkpoints.policy, plan, "would be")
        print_hint(lambda: require_examples(plan))
        return
    document = {
        "policy": checkpoints.policy,
        "method": plan.method,
        "groups": plan.groups,
        "groups_with_equal_rewards": plan.groups_equal,
        "trajectories": len(plan.consumed),
        "examples": len(plan.sft) or len(plan.dpo),
        "tokens_learned": plan.learned_tokens,
        "trajectories_left_out": plan.trajectories_left_out,
        "conversations_left_out": plan.conversations_left_out,
        "reasoning_dropped": plan.reasoning_dropped,
        "already_trained_on": uses_document(checkpoints),
    }
    click.echo(json.dumps(document))


def _tell_plan(policy: str, plan: OfflinePlan, how: str, *, err: bool = False) -> None:
    what = "conversations" if plan.method == "sft" else "pairs"
    lines = [
        f"{policy} {how} trained by {plan.method.upper()} on {len(plan.sft) or len(plan.dpo)} {what} of "
        f"{quantity(len(plan.consumed), 'trajectory')}, {quantity(plan.learned_tokens, 'token')} learned.",
        f"  {quantity(plan.groups, 'group')}, {plan.groups_equal} of them with equal rewards.",
    ]
    lines += [f"  {line}" for line in offline_lines(plan)]
    click.echo("\n".join(lines), err=err)
