"""`arttrace train` by GRPO: what would be trained on, or so many steps, which Ctrl-C ends after the running one."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path

import click
import msgspec

from arttrace.records.group import Group
from arttrace.store import AnyStore
from arttrace.trajectories.groups import group_trajectories
from trainer.commands.train.report import print_step, require_base_model, tell_uses, uses_document
from trainer.grpo.advantages import Scale
from trainer.grpo.batch import Batch, make_batch
from trainer.grpo.selection import Choice, Chosen, choose
from trainer.grpo.trainer import PolicyTrainer, require_trainable
from trainer.learner import LearnerConfig, make_learner
from trainer.learner.interface import teaches
from trainer.policies.checkpoints import Checkpoints
from trainer.serving import GatewayClient, ServingFile
from trainer.step.reporters import open_reporters
from trainer.step.signals import stop_on_signals

_SKIPPED = "all rewards within each group are equal, so there is nothing to learn from them"
_SKIPPED_MEND = "Run the scenarios more often, take harder ones, or score them by a finer rubric."
_INTERRUPTED = 130


def choose_groups(store: AnyStore, checkpoints: Checkpoints, max_staleness: int | None) -> Choice:
    """The groups of the store that the policy's next step can compare."""
    consumed = checkpoints.consumed_ids("grpo")  # a dry run has recorded nothing
    found = store.summaries(unconsumed_by=checkpoints.policy, method="grpo")
    fresh = (one for one in found if one.id not in consumed)
    return choose(fresh, policy=checkpoints.policy, step=checkpoints.latest() or 0, max_staleness=max_staleness)


def share_out(groups: Sequence[Chosen], steps: int, max_staleness: int | None) -> tuple[list[Sequence[Chosen]], str]:
    """The groups in even shares for `steps` steps at most, and why there are fewer, "" when that needs no word.

    A step makes the runs of all shares after its own older by one: the stalest groups go first, and there are as many
    shares as keep every group within `max_staleness` until its turn.
    """
    asked = min(steps, len(groups))
    count = asked if max_staleness is None else min(asked, max_staleness + 1)
    shares = _oldest_first(groups, count)
    while max_staleness is not None and any(share[0].staleness + n > max_staleness for n, share in enumerate(shares)):
        count -= 1
        shares = _oldest_first(groups, count)
    if count == asked:
        return shares, ""
    why = f"{count} {'step' if count == 1 else 'steps'} instead of {asked}: with more, runs would be too stale"
    return shares, f"{why} by their turn (--max-staleness {max_staleness})"


def _oldest_first(groups: Sequence[Chosen], count: int) -> list[Sequence[Chosen]]:
    """`count` even shares by falling staleness; groups of one staleness whose keys are neighbours are dealt apart."""
    dealt = [groups[n::count] for n in range(count)]
    ordered = iter(sorted((group for share in dealt for group in share), key=lambda one: one.staleness, reverse=True))
    return [list(islice(ordered, len(share))) for share in dealt]


def train_grpo(
    store: AnyStore,
    checkpoints: Checkpoints,
    serving: ServingFile | None,
    base_model: Path | None,
    learner: LearnerConfig,
    *,
    steps: int,
    scale: Scale,
    max_staleness: int | None,
    report_to: Sequence[str] = (),
    as_json: bool,
) -> None:
    """Share the groups out evenly over `steps` steps at most, and take them. Raises TrainingError; SystemExit with code
    130 when a signal asked it to end before the last of them."""
    tell_uses(checkpoints)
    choice = choose_groups(store, checkpoints, max_staleness)
    shares, fewer = share_out(choice.groups, steps, max_staleness)

    def batch_of(groups: Sequence[Group]) -> Batch:
        step = checkpoints.latest() or 0
        return make_batch(groups, policy=checkpoints.policy, scale=scale, step=step, max_staleness=max_staleness)

    first = build(store, shares[0]) if shares else []
    batch = batch_of(first)
    require_trainable(batch if shares else Batch(left_out=choice.left_out))  # before the imports that take seconds
    base_model = require_base_model(base_model)
    gateway = GatewayClient(serving.url) if serving else None
    if gateway:
        gateway.status()
    if not teaches(batch.samples, learner) and not any(
        teaches(batch_of(build(store, share)).samples, learner) for share in shares[1:]
    ):
        print_skip(as_json)
        return
    if fewer:
        click.echo(fewer, err=True)
    loop = PolicyTrainer(
        policy=checkpoints.policy,
        base_model=str(base_model),
        store=store,
        learner=make_learner(base_model, learner),
        checkpoints=checkpoints,
        gateway=gateway,
        scale=scale,
        max_staleness=max_staleness,
    )
    stop = threading.Event()

    def say(line: str) -> None:
        click.echo(line, err=True)

    config = {"method": "grpo", **msgspec.to_builtins(learner)}
    reporters = open_reporters(report_to, checkpoints.directory, checkpoints.policy, config, say)
    with stop_on_signals(stop, say), closing(reporters):
        loop.resume()
        for number, share in enumerate(shares):
            if stop.is_set():
                click.echo(f"stopped after {number} of {len(shares)} steps; the other runs are as they were", err=True)
                sys.exit(_INTERRUPTED)
            done = loop.train(build(store, share) if number else first)
            if done is None:
                print_skip(as_json)
            else:
                print_step(done, served=serving is not None, as_json=as_json)
                reporters.catch_up([done], {}, checkpoints)


def print_skip(as_json: bool) -> None:
    """Tell that there is nothing to learn, and why."""
    click.echo(json.dumps({"skipped": _SKIPPED}) if as_json else f"skipped: {_SKIPPED}\n{_SKIPPED_MEND}")


def print_plan(
    store: AnyStore,
    checkpoints: Checkpoints,
    scale: Scale,
    max_staleness: int | None,
    *,
    steps: int,
    as_json: bool,
) -> None:
    """Tell what would be trained on and what not, with the reasons."""
    tell_uses(checkpoints)
    choice = choose_groups(store, checkpoints, max_staleness)
    batch = make_batch(
        build(store, choice.groups),
        policy=checkpoints.policy,
        scale=scale,
        step=checkpoints.latest() or 0,
        max_staleness=max_staleness,
    )
    left_out = batch.left_out | choice.left_out
    shares, fewer = share_out(choice.groups, steps, max_staleness)
    plan = {
        "policy": checkpoints.policy,
        "steps": len(shares),
        "groups": len(batch.rewards),
        "groups_with_equal_rewards": batch.equal_groups,
        "trajectories": len(batch.samples),
        "tokens_captured": batch.captured_tokens,
        "tokens_trained": batch.trained_tokens,
        "trajectories_left_out": left_out,
        "calls_quarantined": batch.quarantined,
        "already_trained_on": uses_document(checkpoints),
    }
    if fewer:
        click.echo(fewer, err=True)
    if as_json:
        click.echo(json.dumps(plan))
        return
    click.echo(
        f"{checkpoints.policy} would be trained on {plan['trajectories']} trajectories in {plan['groups']} groups."
    )
    if batch.equal_groups:
        click.echo(f"  {batch.equal_groups} of the groups have equal rewards and teach nothing.")
    click.echo(f"  {batch.trained_tokens} of {batch.captured_tokens} sampled tokens would be trained.")
    for reason, count in sorted(left_out.items()):
        click.echo(f"  left out: {count} trajectories ({reason})")
    for reason, count in sorted(batch.quarantined.items()):
        click.echo(f"  quarantined: {count} calls ({reason})")


def build(store: AnyStore, chosen: Sequence[Chosen]) -> list[Group]:
    """The runs of the chosen groups."""
    ids = [id for group in chosen for id in group.ids]
    return group_trajectories(store.trajectories(ids=ids)) if ids else []
