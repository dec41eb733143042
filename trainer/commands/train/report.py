"""What one step and the daemon share on the command line: checks before training, and how a version is shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from arttrace.records.policy import PolicyStep
from arttrace.records.values.units import quantity
from arttrace.system.errors import TrainingError
from arttrace.system.paths import require_policy_name
from trainer.gateway.engines.vllm.model import read_model
from trainer.policies.checkpoints import Checkpoints, Use
from trainer.serving import ServingFile
from trainer.serving.hub import find_base_model


def policy_to_train(named: str | None, serving: ServingFile | None) -> str:
    """The named policy, else the one that is served. Raises TrainingError where no policy can have that name."""
    found = named if named is not None else serving.policy if serving else "policy"
    require_policy_name(found)
    return found


def base_model_to_train(named: str | Path | None, serving: ServingFile | None) -> Path | None:
    """The directory of the named model (a path, or a name on the hub), else of the model that is served. Raises
    ServingError if a name on the hub cannot be fetched."""
    if named is not None:
        return find_base_model(str(named))[0]
    return Path(serving.base_model) if serving else None


def require_base_model(base_model: Path | None) -> Path:
    """The model to train, checked before the imports that take seconds."""
    if base_model is None:
        raise TrainingError(
            "Which model to train is not known: no `arttrace serve` runs on this directory.",
            "Start `arttrace serve --base-model DIR`, or pass --base-model DIR, or a name on the Hugging Face hub.",
        )
    read_model(base_model)
    return base_model


def rollback_note(checkpoints: Checkpoints) -> str:
    """What is said where serving was rolled back, from which training does not go on; "" elsewhere."""
    policy, newest, served = checkpoints.policy, checkpoints.latest(), checkpoints.served()
    if newest is None or served == newest:
        return ""
    other = (
        f"fork it (`arttrace policies fork {policy}@{served} NAME`)" if served else "train another policy (--policy)"
    )
    return (
        f"{policy} is rolled back to {policy}@{served}, but is trained from {policy}@{newest}, and what is made is "
        f"served: to train from {policy}@{served}, {other}"
    )


def after_versions(made: Sequence[Mapping[str, Any]], error: str) -> str:
    """The error of an order, and the versions that it made before."""
    versions = [str(step["version"]) for step in made]
    ends = versions if len(versions) < 3 else [versions[0], versions[-1]]
    named = (" to " if len(versions) > 2 else " and ").join(ends)
    return f"{error.rstrip('.')}. Before that, this order made {named}." if made else error


def print_hint(check: Callable[[], None]) -> None:
    """Print what to do where `check` raises TrainingError, since there is nothing to train on."""
    try:
        check()
    except TrainingError as error:
        click.echo(f"  {error.hint}")


def print_uses(checkpoints: Checkpoints) -> None:
    """Print to stderr what the policy was trained on already, by method."""
    for use in _by_method(checkpoints):
        click.echo(use.describe(checkpoints.policy), err=True)


def uses_document(checkpoints: Checkpoints) -> dict[str, dict[str, Any]]:
    """The same for programs: by method the number of runs, and the first and the last version."""
    return {
        use.method: {"trajectories": use.runs, "first": use.first, "last": use.last} for use in _by_method(checkpoints)
    }


class _Uses(msgspec.Struct, frozen=True):
    """How many runs the versions `first` to `last` were trained on by one method."""

    method: str
    runs: int
    first: int
    last: int
    inherited_from: str

    def describe(self, policy: str) -> str:
        at = f"{policy}@{self.first}" + (f" to {policy}@{self.last}" if self.last > self.first else "")
        inherited = f" (inherited from {self.inherited_from})" if self.inherited_from else ""
        return f"{self.runs} already trained on by {self.method} at {at}{inherited}"


def _by_method(checkpoints: Checkpoints) -> list[_Uses]:
    found: dict[str, list[Use]] = {}
    for use in checkpoints.uses():
        found.setdefault(use.method, []).append(use)
    return [
        _Uses(
            method,
            len(frozenset().union(*(use.trained for use in uses))),
            uses[0].step,
            uses[-1].step,
            uses[0].inherited_from if len(uses) == 1 else "",
        )
        for method, uses in sorted(found.items())
    ]


def step_line(done: PolicyStep) -> str:
    """What a new version was made of, in a line."""
    m = done.metrics
    trajectories = quantity(int(m.get("trajectories", len(done.trained))), "trajectory")
    tokens = quantity(int(m["tokens_trained"]), "token")
    if "optimizer_steps" in m:
        steps = quantity(int(m["optimizer_steps"]), "optimizer step")
        losses = f"loss {m['first_loss']:.4f} to {m['last_loss']:.4f}"
        return f"{done.version}: {trajectories}, {tokens} learned in {steps}, {losses}"
    far = m.get("far_tokens")
    if done.made_by == "distill":
        what = f"{trajectories}, {tokens} trained, {m['teacher_kl']:.3f} nats per token from the teacher"
    else:
        what = (
            f"{trajectories} in {quantity(int(m['groups']), 'group')}, {tokens} trained, "
            f"reward {m['reward_mean']:.3f} (spread {m['reward_spread']:.3f})"
        )
    return f"{done.version}: {what}, loss {m['loss']:z.4f}, gradient norm {m['grad_norm']:.3f}" + (
        f", {quantity(int(far), 'token')} left out, too far from what the policy is now" if far else ""
    )


def print_step(done: PolicyStep, *, as_json: bool) -> None:
    """Print a new version, as text or as JSON."""
    if as_json:
        click.echo(json.dumps({"version": done.version, "adapter": done.adapter, "metrics": done.metrics}))
        return
    m = done.metrics
    click.echo(step_line(done))
    if floored := m.get("groups_floored"):
        click.echo(
            f"  {floored:.0f} of {m['groups']:.0f} groups have rewards so close that they were divided by the floor, "
            "and count for less: --std-floor"
        )
    click.echo(f"  adapter: {done.adapter}")
    if (change := m.get("publish_logprob_change")) is not None:
        click.echo(
            f"  served: {done.version} answers from the next call on "
            f"(log-probabilities of the probe moved by up to {change:.3g})"
        )
    else:
        click.echo("  not served: start `arttrace serve --base-model DIR` on this directory to serve it")
