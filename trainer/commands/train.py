"""`arttrace train`: optimisation steps of GRPO on the scored groups in the store."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from arttrace.collector.owner import hold_store
from arttrace.commands.options import dir_option, json_option
from arttrace.errors import TrainingError
from arttrace.groups import group_trajectories
from arttrace.paths import DataDir
from arttrace.records.group import Group
from arttrace.records.policy import PolicyStep
from arttrace.store import AnyStore
from trainer.batch import Batch, make_batch
from trainer.checkpoints import Checkpoints
from trainer.daemon import Loop, finish_open_step, require_trainable
from trainer.serving import GatewayClient, ServingFile, find_serving
from trainer.serving.model import read_model

_SKIPPED = "all rewards within each group are equal, so there is nothing to learn from them"
_SKIPPED_MEND = "Run the scenarios more often, take harder ones, or score them by a finer rubric."


@click.command(short_help="Train the policy by GRPO on scored groups.")
@dir_option
@click.option("--steps", default=1, show_default=True, type=click.IntRange(min=1), help="Optimisation steps to make.")
@click.option("--policy", help="Name of the policy.  [default: that of the running `arttrace serve`, else policy]")
@click.option(
    "--base-model",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Model directory to train on.  [default: that of the running `arttrace serve`]",
)
@click.option("--learning-rate", type=float, help="AdamW learning rate.  [default: the learner's]")
@click.option("--dry-run", is_flag=True, help="Say what would be trained, what not, and why; change nothing.")
@json_option
def command(
    data: DataDir,
    steps: int,
    policy: str | None,
    base_model: Path | None,
    learning_rate: float | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Train the policy by GRPO on scored groups that it has not been trained on yet.

    The groups are shared out evenly over the steps. Every step writes a new version, `policy@N`; while
    `arttrace serve` runs on the same directory the version is loaded there, checked, and answers the next call.
    """
    serving = find_serving(data)
    policy = policy or (serving.policy if serving else "policy")
    checkpoints = Checkpoints(data.policies, policy)
    with hold_store(data) as store:
        if not dry_run:
            _require_served(serving, policy, base_model)
            finish_open_step(store, checkpoints, GatewayClient(serving.url) if serving else None)
        consumed = checkpoints.consumed_ids()  # a dry run has recorded nothing
        fresh = [one for one in store.trajectories(unconsumed_by=policy) if one.id not in consumed]
        groups = group_trajectories(fresh)
        batch = make_batch(groups, policy=policy)
        if dry_run:
            _print_plan(policy, batch, as_json)
            return
        require_trainable(batch)
        base_model = base_model or (Path(serving.base_model) if serving else None)
        if base_model is None:
            raise TrainingError(
                "Which model to train is not known: no `arttrace serve` runs on this directory.",
                "Start `arttrace serve --base-model DIR`, or pass --base-model DIR.",
            )
        # Checked before the imports that take seconds.
        read_model(base_model)
        if serving:
            GatewayClient(serving.url).status()
        if batch.equal_groups == len(batch.rewards):
            _print_skip(as_json)
            return
        for done in _steps(_loop(store, checkpoints, base_model, serving, learning_rate), groups, steps):
            if done is not None:
                _print_step(done, served=serving is not None, as_json=as_json)
            else:
                _print_skip(as_json)


def _require_served(serving: ServingFile | None, policy: str, base_model: Path | None) -> None:
    """Raise TrainingError when the running gateway would serve what is trained as another policy's version."""
    if serving is None:
        return
    if serving.policy != policy:
        raise TrainingError(
            f"`arttrace serve` runs on this directory for the policy {serving.policy!r}, not {policy!r}.",
            f"Train {serving.policy!r}, or restart it with --policy {policy}.",
        )
    if base_model is not None and base_model.resolve() != Path(serving.base_model).resolve():
        raise TrainingError(
            f"`arttrace serve` runs on this directory with the base model {serving.base_model}, not {base_model}.",
            "Leave --base-model out, or restart it with the other base model.",
        )


def _loop(
    store: AnyStore,
    checkpoints: Checkpoints,
    base_model: Path,
    serving: ServingFile | None,
    learning_rate: float | None,
) -> Loop:
    from trainer.learner import LearnerConfig, make_learner

    config = LearnerConfig() if learning_rate is None else LearnerConfig(learning_rate=learning_rate)
    loop = Loop(
        policy=checkpoints.policy,
        base_model=str(base_model),
        store=store,
        learner=make_learner(base_model, config),
        checkpoints=checkpoints,
        gateway=GatewayClient(serving.url) if serving else None,
    )
    loop.resume()
    return loop


def _steps(loop: Loop, groups: Sequence[Group], steps: int) -> Iterator[PolicyStep | None]:
    trainable = [group for group in groups if make_batch([group]).consumed]
    for n in range(min(steps, len(trainable))):
        yield loop.train(trainable[n :: min(steps, len(trainable))])


def _print_skip(as_json: bool) -> None:
    click.echo(json.dumps({"skipped": _SKIPPED}) if as_json else f"skipped: {_SKIPPED}\n{_SKIPPED_MEND}")


def _print_plan(policy: str, batch: Batch, as_json: bool) -> None:
    plan = {
        "policy": policy,
        "groups": len(batch.rewards),
        "groups_with_equal_rewards": batch.equal_groups,
        "trajectories": len(batch.samples),
        "tokens_captured": batch.captured_tokens,
        "tokens_trained": batch.trained_tokens,
        "trajectories_left_out": batch.left_out,
        "calls_quarantined": batch.quarantined,
    }
    if as_json:
        click.echo(json.dumps(plan))
        return
    click.echo(f"{policy} would be trained on {plan['trajectories']} trajectories in {plan['groups']} groups.")
    if batch.equal_groups:
        click.echo(f"  {batch.equal_groups} of the groups have equal rewards and teach nothing.")
    click.echo(f"  {batch.trained_tokens} of {batch.captured_tokens} sampled tokens would be trained.")
    for reason, count in sorted(batch.left_out.items()):
        click.echo(f"  left out: {count} trajectories ({reason})")
    for reason, count in sorted(batch.quarantined.items()):
        click.echo(f"  quarantined: {count} calls ({reason})")


def _print_step(done: PolicyStep, *, served: bool, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"version": done.version, "adapter": done.adapter, "metrics": done.metrics}))
        return
    m = done.metrics
    click.echo(
        f"{done.version}: {len(done.consumed)} trajectories in {m['groups']:.0f} groups, "
        f"{m['tokens_trained']:.0f} tokens trained, reward {m['reward_mean']:.3f} "
        f"(spread {m['reward_spread']:.3f}), loss {m['loss']:z.4f}, gradient norm {m['grad_norm']:.3f}"
    )
    click.echo(f"  adapter: {done.adapter}")
    if served:
        click.echo(
            f"  served: {done.version} answers from the next call on "
            f"(log-probabilities of the probe moved by up to {m['publish_logprob_change']:.3g})"
        )
    else:
        click.echo("  not served: start `arttrace serve --base-model DIR` on this directory to serve it")
