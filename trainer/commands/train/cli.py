"""`arttrace train`: the next version of a policy from the runs in the store, by GRPO, distillation, SFT or DPO."""

from __future__ import annotations

from contextlib import nullcontext
from typing import get_args

import click
import msgspec

from arttrace.commands.shared.options import dir_option, json_option
from arttrace.commands.shared.progress import say, with_reading_progress
from arttrace.store.server.owner import hold_store
from arttrace.system.addresses import without_login
from arttrace.system.errors import TrainingError
from arttrace.system.paths import DataDir
from trainer.commands.names_elsewhere import TrainCommand
from trainer.commands.train.choices import routing_note, show_config
from trainer.commands.train.daemon_options import DaemonFlags, daemon_options, run_daemon
from trainer.commands.train.learner_options import learner_options
from trainer.commands.train.offline import run_offline
from trainer.commands.train.orders import take_orders
from trainer.commands.train.report import base_model_to_train, policy_to_train, require_base_model, rollback_note
from trainer.commands.train.sampled.distill import print_distillation, train_distill
from trainer.commands.train.sampled.grpo import print_plan, train_grpo
from trainer.commands.train.settings import SAMPLED, TrainSettings, not_read
from trainer.commands.train.training import Training
from trainer.daemon.gateway import LONGEST_DRAIN_S, FoundGateway
from trainer.daemon.state import reported_steps
from trainer.gateway.status import ServingFile
from trainer.grpo.advantages import STD_FLOOR, Scale
from trainer.learner import LearnerConfig
from trainer.output.log import LogFormat, log_format_option
from trainer.policies.checkpoints import Checkpoints
from trainer.serving import find_serving
from trainer.serving.base_models import require_base_of_newest, require_served
from trainer.serving.precision import in_precision_of
from trainer.step.adapter_shape import in_shape_of
from trainer.step.reported import Reporting
from trainer.step.version import finish_open_step


@click.command(cls=TrainCommand)
@dir_option
@click.option(
    "--method",
    type=click.Choice(["grpo", "distill", "sft", "dpo"]),
    default="grpo",
    show_default=True,
    help="grpo: from what this policy sampled. distill: the same, as a better model rates it. sft: imitate good runs. "
    "dpo: prefer the better run of a group.",
)
@click.option(
    "--steps", default=1, show_default=True, type=click.IntRange(min=1), help="Versions to make (grpo, distill)."
)
@click.option(
    "--teacher",
    metavar="URL|DIR|NAME",
    type=click.UNPROCESSED,
    help="The better model: a vLLM's address, with its key in ARTTRACE_TEACHER_API_KEY, or a directory or name as "
    "--base-model has it, which is loaded to rate and then removed (distill).",
)
@click.option("--teacher-model", metavar="NAME", help="Which model of the teacher's server.  [default: its only one]")
@click.option("--policy", help="Name of the policy.  [default: that of the running `arttrace serve`, else policy]")
@click.option(
    "--base-model",
    metavar="DIR|NAME",
    type=click.UNPROCESSED,
    help="Directory of the model to train on, or its name on the Hugging Face hub.  "
    "[default: that of the running `arttrace serve`]",
)
@click.option(
    "--advantages",
    type=click.Choice(get_args(Scale)),
    default="none",
    show_default=True,
    help="How rewards are scaled within a group (grpo).",
)
@click.option(
    "--std-floor",
    type=click.FloatRange(0, min_open=True),
    default=STD_FLOOR,
    show_default=True,
    help="Least standard deviation that --advantages std and batch divide by (grpo).",
)
@click.option(
    "--max-staleness",
    type=click.IntRange(min=0),
    help="Leave out runs sampled by versions older than this many steps (grpo, distill).  [default: no bound]",
)
@click.option(
    "--min-reward", type=float, help="Imitate runs of at least this reward (sft).  [default: each group's best]"
)
@click.option(
    "--min-gap",
    type=click.FloatRange(min=0),
    default=0.1,
    show_default=True,
    help="Least difference of a pair's rewards (dpo).",
)
@click.option("--max-length", type=click.IntRange(min=2), help="Leave out longer conversations, in tokens (sft, dpo).")
@click.option("--again", is_flag=True, help="Train again on runs that the method was trained on before (sft, dpo).")
@learner_options
@daemon_options
@log_format_option
@click.option(
    "--orders", is_flag=True, hidden=True, help="Stay up and train on order; see trainer.commands.train.orders."
)
@click.option("--dry-run", is_flag=True, help="Print what would be trained, what not, and why; change nothing.")
@json_option
@with_reading_progress
def command(
    data: DataDir,
    method: str,
    steps: int,
    teacher: str | None,
    teacher_model: str | None,
    policy: str | None,
    base_model: str | None,
    advantages: Scale,
    std_floor: float,
    max_staleness: int | None,
    min_reward: float | None,
    min_gap: float,
    max_length: int | None,
    again: bool,
    learner: LearnerConfig,
    daemon: DaemonFlags,
    log_format: LogFormat,
    orders: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Train the policy on captured runs that it has not yet been trained on by the same method.

    GRPO trains on scored groups whose tokens this policy sampled; the groups are shared out evenly over the steps. A
    distillation trains on single runs that it sampled, with or without a reward: each token by how much likelier the
    teacher finds it. Runs of any other model, which have no token ids, train by SFT on good runs or by DPO on pairs of
    one group. Every step writes a new version, `policy@N`; while `arttrace serve` runs on the same directory the
    version is loaded there, checked, and answers the next call. Ctrl-C finishes the running step, then exits with code
    130 if steps are left. A second Ctrl-C drops the running step (exit code 130).

    With --daemon it trains by GRPO, step after step, as groups of runs become ready, until it is stopped; it may be
    killed at any moment and started again. Ctrl-C stops it after the running step (exit code 0), a second Ctrl-C drops
    that step (130). `arttrace status` shows what it is doing.
    """
    as_json = as_json or log_format == "json"
    asked = TrainSettings(
        method=method,
        steps=steps,
        advantages=advantages,
        std_floor=std_floor,
        max_staleness=max_staleness,
        min_reward=min_reward,
        min_gap=min_gap,
        max_length=max_length,
        again=again,
        teacher=teacher,
        teacher_model=teacher_model,
        keep_states=daemon.keep_states,
        learner=learner,
    )
    for name, methods in not_read(asked):
        flag, others = name.replace("_", "-"), " and ".join(methods)
        raise click.UsageError(f"--{flag} is an option of --method {others}, and does nothing for {method}")
    if method == "distill" and teacher is None:
        raise click.UsageError("--method distill needs the model to learn from: --teacher URL|DIR|NAME")
    serving = find_serving(data)
    if daemon.wanted:
        _train_daemon(data, asked, daemon, serving, log_format, dry_run=dry_run, as_json=as_json)
        return
    learner = in_precision_of(learner, serving)
    try:
        learner.checked()
    except TrainingError as error:
        raise click.UsageError(f"{error.message} {error.hint or ''}".strip()) from None
    policy = policy_to_train(policy, serving)
    directory = base_model_to_train(base_model, serving)
    if orders:
        take_orders(data, policy, require_base_model(directory))
        return
    checkpoints = Checkpoints(data.policies, policy)
    learner = in_shape_of(learner, checkpoints)
    asked = msgspec.structs.replace(asked, learner=learner)
    gateway = FoundGateway(data, policy, directory, first_drain_s=LONGEST_DRAIN_S)
    report_to = () if dry_run else daemon.report_to
    reported_config = {"method": method, **msgspec.to_builtins(learner)}
    if teacher is not None:
        reported_config["teacher"] = without_login(teacher)
    with (
        hold_store(data) as store,
        nullcontext() if dry_run else checkpoints.only_writer(),
        Reporting(report_to, reported_steps(checkpoints, store), checkpoints, reported_config, say) as reporting,
    ):
        if not dry_run:
            require_served(serving, policy, directory)
            if directory is not None:
                require_base_of_newest(checkpoints, directory)
            finish_open_step(store, checkpoints, gateway)
            reporting.catch_up()
            notes = (rollback_note(checkpoints), routing_note(directory) if method in SAMPLED else "")
            for note in filter(None, notes):
                click.echo(f"note: {note}", err=True)
        training = Training(store, checkpoints, gateway, directory, asked, reporting, as_json)
        match method:
            case "grpo":
                print_plan(training) if dry_run else train_grpo(training)
            case "distill":
                print_distillation(training) if dry_run else train_distill(training)
            case _:
                run_offline(training, dry_run=dry_run)


def _train_daemon(
    data: DataDir,
    asked: TrainSettings,
    daemon: DaemonFlags,
    serving: ServingFile | None,
    log_format: LogFormat,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Run it, or print its configuration; the rest is checked of what its file and the environment make of it."""
    shown = "--print-config prints the daemon's configuration, which" if daemon.print_only else "--daemon"
    if dry_run or asked.method != "grpo":
        raise click.UsageError(f"{shown} trains by GRPO, and has no --dry-run")
    if asked.steps != 1:
        raise click.UsageError(f"{shown} makes one version after the other: --max-steps ends it, not --steps")
    config = daemon.config()
    checkpoints = Checkpoints(data.policies, policy_to_train(config.policy, serving))
    learner = in_shape_of(in_precision_of(config.learner, serving), checkpoints)
    config = config.model_copy(update={"learner": learner})
    if daemon.print_only:
        show_config(config, base_model_to_train(config.base_model, serving), as_json=as_json)
    else:
        run_daemon(data, config, serving, log_format, as_json)
