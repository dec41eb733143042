"""`arttrace policies`: list, compare, export, fork, roll back and prune the versions of policies."""

from __future__ import annotations

import time
from pathlib import Path

import click
import msgspec
from rich.markup import escape
from rich.table import Table

from arttrace.commands.shared.json_output import print_json
from arttrace.commands.shared.options import SharedOptionsGroup, dir_option, json_option
from arttrace.records.policy import PolicyStep, version_rewards
from arttrace.records.values.units import quantity
from arttrace.system.errors import ServingError, TrainingError
from arttrace.system.evaluations import read_evaluations
from arttrace.system.paths import DataDir, can_name_a_policy
from arttrace.views.labels import printable
from arttrace.views.terminal import print_whole
from trainer.policies.checkpoints import Checkpoints
from trainer.policies.export import export_adapter, export_merged, fork
from trainer.policies.files import STATE
from trainer.policies.retention import Keep, to_prune
from trainer.serving import GatewayClient, find_serving
from trainer.serving.base_models import require_base

_WHOLE = 1e12
"""Below it counts are shown in all their digits."""


class _Line(msgspec.Struct, frozen=True):
    """What a list shows of a version. `reward` is that of the runs it answered in, as far as a step was trained on
    them, `evaluation` has the numbers of runs that nothing was trained on. The base model, NAME@0, is listed if it was
    evaluated."""

    version: str
    time_ns: int
    reward: float | None
    trajectories: int
    tokens_trained: float
    served: bool
    pruned: bool
    adapter: str
    evaluation: dict[str, float] = {}


@click.group(cls=SharedOptionsGroup, invoke_without_command=True)
@click.pass_context
@dir_option
@json_option
def command(context: click.Context, data: DataDir, as_json: bool) -> None:
    """List the versions of all policies. A version is named NAME@N.

    The reward shown is that of the runs that the following step was trained on, so mostly the version's own; the newest
    has none yet. Evaluations are those of `model.log`, `arttrace autorl` and the demo.
    """
    context.obj = data
    if context.invoked_subcommand is None:
        lines = [line for one in _all(data) for line in _listed(data, one)]
        if as_json:
            print_json(lines)
        else:
            _print_list(data, lines)
            for one in _all(data):
                if (step := one.served()) != one.latest():
                    click.echo(f"{one.policy} is rolled back: `arttrace serve` begins with {one.policy}@{step}")


@command.command("compare")
@click.argument("first")
@click.argument("second")
@json_option
@click.pass_obj
def compare(data: DataDir, first: str, second: str, as_json: bool) -> None:
    """Show the metrics of two versions side by side."""
    a, b = (_find(data, name).numbers for name in (first, second))
    names = sorted({*a, *b})
    if as_json:
        print_json({name: [a.get(name), b.get(name)] for name in names})
        return
    table = Table("metric", box=None, header_style="bold", pad_edge=False)
    for title in (first, second, "change"):
        table.add_column(title, justify="right")
    for name in names:
        one, other = a.get(name), b.get(name)
        change = "" if one is None or other is None else ("+" if other >= one else "") + _number(other - one)
        table.add_row(name, _number(one), _number(other), change)
    print_whole(table)


def _new_directory(_ctx: click.Context, _param: click.Parameter, given: str) -> Path:
    """The callback of a directory to write: as `./-` it may be called "-"."""
    if given == "-":
        raise click.BadParameter("a version is several files, which cannot go to standard output: name a directory")
    return Path(given)


@command.command("export")
@click.argument("version")
@click.argument("directory", type=click.Path(file_okay=False), callback=_new_directory)
@click.option("--merged", is_flag=True, help="A whole model with the adapter merged in, instead of a PEFT adapter.")
@click.pass_obj
def export(data: DataDir, version: str, directory: Path, merged: bool) -> None:
    """Write VERSION into a new DIRECTORY: a PEFT adapter, or with --merged a whole model."""
    found = _find(data, version)
    source = _weights(data, found)
    if merged:
        require_base(found, found.base_model)
        export_merged(source, Path(found.base_model), directory)
    else:
        export_adapter(source, directory)
    click.echo(f"{version} -> {directory}")


@command.command("fork")
@click.argument("version")
@click.argument("name")
@click.option(
    "--base-model",
    metavar="DIR|NAME",
    type=click.UNPROCESSED,
    help="Refuse if VERSION was made for another base model.  [default: what `arttrace serve` serves as NAME]",
)
@click.pass_obj
def fork_command(data: DataDir, version: str, name: str, base_model: str | None) -> None:
    """Begin the policy NAME from VERSION, with its weights and optimizer state. Runs that VERSION was trained on count
    as consumed by NAME, by the same method."""
    found = _find(data, version)
    _weights(data, found)
    if base_model is None and (serving := find_serving(data)) is not None and serving.policy == name:
        base_model = serving.base_model
    if base_model is not None:
        require_base(found, base_model)
    target = Checkpoints(data.policies, name)
    with target.only_writer():
        made = fork(Checkpoints(data.policies, found.policy), found.step, target)
    click.echo(f"{version} -> {made.version}; train it with: arttrace train --policy {name}")
    if not (target.path(made.step) / STATE).exists():
        click.echo("  the optimizer starts afresh: retention has removed the state of this version")
    for use in target.uses():
        click.echo(f"  inherits: {quantity(len(use.trained), 'trajectory')} trained on by {use.method}")


@command.command("rollback")
@click.argument("version")
@click.pass_obj
def rollback(data: DataDir, version: str) -> None:
    """Serve VERSION in place of the newest, at once and after a restart. NAME@0 is the base model.

    The next version that is made replaces it: to continue training from VERSION itself, fork it. Roll back to the
    newest version to undo a rollback.
    """
    name, step = _parsed(version)
    checkpoints = Checkpoints(data.policies, name)
    if step:
        _weights(data, _find(data, version))
    serving = find_serving(data)
    if serving is None or serving.policy != name:
        checkpoints.roll_back(step)
        click.echo(f"{version} is what `arttrace serve --policy {name}` will begin with")
    else:
        client = GatewayClient(serving.url)
        try:
            report = client.publish(step, checkpoints.path(step))
        finally:
            client.close()
        checkpoints.roll_back(step)
        click.echo(f"{report.previous} -> {report.version} at {serving.url}/v1")
    if (writer := checkpoints.writer()) is not None:
        click.echo(
            f"note: process {writer} trains {name} and will publish its next version over it; stop it first, or fork "
            f"{version} and train that",
            err=True,
        )


@command.command("prune")
@click.argument("policy", default="policy")
@click.option(
    "--keep-best",
    default=1,
    show_default=True,
    type=click.IntRange(0),
    help="The number to keep with the highest reward.",
)
@click.option(
    "--keep-latest", default=3, show_default=True, type=click.IntRange(0), help="The number of newest versions to keep."
)
@click.option("--every", default=0, type=click.IntRange(0), help="And those whose number it divides.")
@click.option("--dry-run", is_flag=True, help="Say which would go; remove nothing.")
@click.pass_obj
def prune(data: DataDir, policy: str, keep_best: int, keep_latest: int, every: int, dry_run: bool) -> None:
    """Remove the weights of old versions of POLICY. The record of what they consumed and their metrics are kept.

    The two newest versions, versions that are served or that other policies were forked from, and the one rolled back
    to are always kept.
    """
    checkpoints = Checkpoints(data.policies, policy)
    keep = Keep(best=keep_best, latest=keep_latest, every=every, states=0)
    if keep.everything:
        raise click.UsageError("say what to keep: --keep-best, --keep-latest or --every")
    if not (made := checkpoints.all_steps()):
        raise TrainingError(f"{policy} has no version in {data.root}.", "`arttrace policies` lists the versions.")
    rewards = version_rewards([checkpoints.manifest(n) for n in made])
    served = _served(data, policy) | checkpoints.kept()
    gone = to_prune(checkpoints.steps(), rewards, keep, served)
    if not dry_run:
        gone = checkpoints.prune(gone)
    names = ", ".join(f"{policy}@{step}" for step in gone) or "none"
    left = quantity(len(set(checkpoints.steps()) - set(gone)), "version")
    click.echo(f"{'would be pruned' if dry_run else 'pruned'}: {names}; {left} left with weights")


def _all(data: DataDir) -> list[Checkpoints]:
    if not data.policies.is_dir():
        return []
    names = sorted(path.name for path in data.policies.iterdir() if path.is_dir() and can_name_a_policy(path.name))
    return [Checkpoints(data.policies, name) for name in names]


def _listed(data: DataDir, checkpoints: Checkpoints) -> list[_Line]:
    whole, served = set(checkpoints.steps()), _served(data, checkpoints.policy)
    made = [checkpoints.manifest(n) for n in checkpoints.all_steps()]
    rewards = version_rewards(made)
    evaluated = read_evaluations(data, checkpoints.policy)
    base = _Line(f"{checkpoints.policy}@0", 0, rewards.get(0), 0, 0.0, 0 in served, False, "", evaluated.get(0, {}))
    return [base] * (0 in evaluated) + [
        _Line(
            version=done.version,
            time_ns=done.time_ns,
            reward=rewards.get(done.step),
            trajectories=done.own_runs,
            tokens_trained=done.numbers.get("tokens_trained", 0.0),
            served=done.step in served,
            pruned=done.step not in whole,
            adapter=str(checkpoints.path(done.step)),
            evaluation=evaluated.get(done.step, {}),
        )
        for done in made
    ]


def _print_list(data: DataDir, lines: list[_Line]) -> None:
    if not lines:
        click.echo(f"There are no versions in {data.policies}.")
        return
    table = Table("version", "made", box=None, header_style="bold", pad_edge=False)
    for title in ("reward", "runs", "tokens"):
        table.add_column(title, justify="right")
    shows_evaluation = any(line.evaluation for line in lines)
    if shows_evaluation:
        table.add_column("evaluation")
    table.add_column("")
    for line in lines:
        made = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(line.time_ns / 1e9)) if line.time_ns else "base model"
        note = "served" if line.served else "pruned" if line.pruned else ""
        tokens = f"{line.tokens_trained:.0f}"
        numbers = ", ".join(f"{name} {value:.4g}" for name, value in sorted(line.evaluation.items()))
        evaluation = [printable(numbers) or "-"] if shows_evaluation else []
        cells = (line.version, made, _number(line.reward), str(line.trajectories), tokens, *evaluation, note)
        table.add_row(*map(escape, cells))
    print_whole(table)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value.is_integer() and abs(value) < _WHOLE else f"{value:.4g}"


def _find(data: DataDir, version: str) -> PolicyStep:
    """The manifest of NAME@N. Raises TrainingError when there is none."""
    name, step = _parsed(version)
    if step == 0:
        raise TrainingError(
            f"{version} is the base model: it has no step's metrics, adapter or optimizer state.",
            "`arttrace policies` lists the versions; a policy that has none begins with the base model.",
        )
    return Checkpoints(data.policies, name).manifest(step)


def _parsed(version: str) -> tuple[str, int]:
    name, at, number = version.rpartition("@")
    if not at or not number.isdecimal():
        raise TrainingError(f"{version!r} names no version.", "Write NAME@N; `arttrace policies` lists them.")
    return name, int(number)


def _weights(data: DataDir, found: PolicyStep) -> Path:
    checkpoints = Checkpoints(data.policies, found.policy)
    if found.step not in checkpoints.steps():
        raise TrainingError(
            f"{found.version} was pruned: its weights are gone.", "`arttrace policies` lists the others."
        )
    return checkpoints.path(found.step)


def _served(data: DataDir, policy: str) -> set[int]:
    """The steps that the gateway has loaded, or at least the one that answers, where it says no more; none if it does
    not run."""
    serving = find_serving(data)
    if serving is None or serving.policy != policy:
        return set()
    client = GatewayClient(serving.url)
    try:
        return client.status().loaded_steps
    except ServingError:
        _, _, step = serving.version.rpartition("@")
        return {int(step)} if step.isdecimal() else set()
    finally:
        client.close()
