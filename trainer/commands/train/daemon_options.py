"""The options of `arttrace train --daemon`, made from the fields of DaemonConfig, and its run from the command line."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import click
from click.core import ParameterSource
from pydantic.fields import FieldInfo

from arttrace.commands.scoring.judge_options import read_rubric
from arttrace.commands.shared.progress import Progress, reading_progress
from arttrace.records.policy import PolicyStep
from arttrace.records.values.units import quantity
from arttrace.store.access.owner_file import read_owner
from arttrace.store.server.owner import HOST, hold_store
from arttrace.system.errors import ArttraceError
from arttrace.system.paths import DataDir
from trainer.commands.train.choices import describe, machine_choices
from trainer.commands.train.report import (
    base_model_to_train,
    policy_to_train,
    print_step,
    require_base_model,
    rollback_note,
    step_line,
)
from trainer.daemon.config import DaemonConfig, load_config, names
from trainer.daemon.gateway import FoundGateway
from trainer.daemon.prometheus import render, serving_metrics
from trainer.daemon.scoring import JudgeTerms
from trainer.daemon.state import DaemonState
from trainer.daemon.state_machine import Daemon
from trainer.learner import make_learner
from trainer.learner.interface import Learner
from trainer.output.log import LogFormat, ProblemShownElsewhere, ShownElsewhere, logging_to
from trainer.policies.checkpoints import Checkpoints
from trainer.policies.retention import KEPT_STATES, Keep
from trainer.serving import ServingFile
from trainer.serving.base_models import require_base_of_newest, require_served
from trainer.step.reporters import open_reporters
from trainer.step.signals import ended_by_signals, stop_on_signals

# Options that the command has anyway, or that are made otherwise.
_PROGRESS_S = 60.0  # inside a step, in the log
_OF_FILES = ("rubric",)
_ANYWHERE = ("report_to", "keep__states")  # without --daemon too
_BOUNDS = ("ge", "gt", "le", "lt")
_SHARED = ("policy", "base_model", "advantages", "std_floor", "max_staleness", "learner", "keep")


@dataclass(frozen=True, slots=True)
class DaemonFlags:
    """What the command line says about the daemon; `flags` are the fields of DaemonConfig and LearnerConfig that were
    set."""

    wanted: bool
    print_only: bool
    file: Path | None
    flags: Mapping[str, Any]

    @property
    def report_to(self) -> tuple[str, ...]:
        """Where metrics go, by the flag alone: for the methods that take no other option of the daemon."""
        return tuple(names(self.flags.get("report_to", "")))

    @property
    def keep_states(self) -> int:
        """How many of the newest versions keep their optimizer state, by the flag alone."""
        return int(self.flags.get("keep__states", KEPT_STATES))

    def config(self) -> DaemonConfig:
        """The config from flags, environment and file. Raises TrainingError."""
        return load_config(self.file, self.flags)


def daemon_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options; the command gets them as one argument, `daemon`."""
    own = {
        **{name: field for name, field in DaemonConfig.model_fields.items() if name not in _SHARED},
        **{f"keep__{name}": field for name, field in Keep.model_fields.items()},
    }

    @functools.wraps(function)
    def command(**given: Any) -> Any:
        wanted, file, show = given.pop("daemon"), given.pop("config_file"), given.pop("print_config")
        flags = {name: value for name in own if (value := given.pop(name)) is not None}
        named = "--config" if file else next((_flag(name) for name in flags if name not in _ANYWHERE), None)
        if not (wanted or show) and named:
            raise click.UsageError(f"{named} is an option of the daemon: add --daemon")
        context = click.get_current_context()
        chosen = {
            name: value
            for name, value in context.params.items()
            if name in _CHOSEN and context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        }
        return function(daemon=DaemonFlags(wanted or show, show, file, {**flags, **chosen}), **given)

    for name, field in reversed(own.items()):
        command = click.option(_flag(name), name, type=_kind(name, field), help=_help(name, field))(command)
    command = click.option(
        "--print-config",
        is_flag=True,
        help="Print the configuration, with the values that depend on the machine, and exit.",
    )(command)
    command = click.option(
        "--config",
        "config_file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="TOML file with the daemon's configuration; --print-config prints one.",
    )(command)
    return click.option(
        "--daemon", is_flag=True, help="Keep training, step after step, as groups become ready (grpo)."
    )(command)


def run_daemon(
    data: DataDir, config: DaemonConfig, serving: ServingFile | None, log_format: LogFormat, as_json: bool
) -> None:
    """Run the daemon until it is stopped. Raises the error that ended it, which is also in its log."""
    with logging_to("daemon", data.root / "logs", log_format) as say:
        try:
            _run(data, config, serving, as_json, say)
        except ArttraceError as error:
            say(ProblemShownElsewhere(f"stopped: {error.message}{f' {error.hint}' if error.hint else ''}"))
            raise


def _run(
    data: DataDir, config: DaemonConfig, serving: ServingFile | None, as_json: bool, say: Callable[[str], None]
) -> None:
    policy = policy_to_train(config.policy, serving)
    base_model = require_base_model(base_model_to_train(config.base_model, serving))
    require_served(serving, policy, base_model)
    judge = config.judge and JudgeTerms(config.judge, config.judge_base_url, read_rubric(config.rubric), config.votes)
    stop = threading.Event()

    checkpoints = Checkpoints(data.policies, policy)
    require_base_of_newest(checkpoints, base_model)
    daemon: Daemon | None = None

    def metrics() -> bytes:
        return render(daemon.state if daemon else DaemonState(policy=policy))

    with ExitStack() as stack:
        stack.enter_context(checkpoints.only_writer())
        stack.enter_context(stop_on_signals(stop, say, lambda: daemon is not None and daemon.makes_a_version))
        with reading_progress(say):
            store = stack.enter_context(hold_store(data, create=True, metrics=metrics))
        at = None
        if config.metrics_port is not None:
            at = f"http://{HOST}:{stack.enter_context(serving_metrics(metrics, config.metrics_port))}"
        elif (owner := read_owner(data)) and owner.pid == os.getpid():
            at = owner.url

        def loaded() -> Learner:
            with ended_by_signals(stop, say):
                learner = make_learner(base_model, config.learner)
            learner.progress = lambda total: Progress(
                total, "tokens of the step", say, every_s=_PROGRESS_S, tells_short=False
            )
            return learner

        def stepped(done: PolicyStep) -> None:
            say(ShownElsewhere(step_line(done)))
            print_step(done, as_json=as_json)

        daemon = Daemon(
            config,
            policy=policy,
            base_model=base_model,
            store=store,
            learner=loaded,
            gateway=FoundGateway(data, policy, base_model),
            judge=judge or None,
            reporters=open_reporters(
                config.report_to, checkpoints.directory, policy, config.model_dump(mode="json"), say
            ),
            stop=stop,
            say=say,
            on_step=stepped,
            metrics_url=f"{at}/metrics" if at else "",
        )
        for one in machine_choices(config, base_model):
            say(describe(one))
        if note := rollback_note(checkpoints):
            say(note)
        if at:
            say(f"metrics: {at}/metrics")
        say(
            f"training {policy}: {quantity(config.min_groups, 'group')} of {config.group_size} runs or more per step, "
            f"fewer when no more came for {config.max_wait:g} s"
        )
        daemon.run()
    say(f"stopped: {daemon.state.reason}")


def _flag(name: str) -> str:
    return "--" + name.replace("__", "-").replace("_", "-")


def _kind(name: str, field: FieldInfo) -> Any:
    if name in _OF_FILES:
        return click.UNPROCESSED
    wanted = field.annotation
    named = [kind for kind in (wanted, *get_args(wanted)) if kind in (int, float, str)]
    bounds = {bound: getattr(one, bound) for one in field.metadata for bound in _BOUNDS if hasattr(one, bound)}
    if not bounds:
        return named[0] if named else str
    return (click.IntRange if named[0] is int else click.FloatRange)(
        min=bounds.get("ge", bounds.get("gt")),
        max=bounds.get("le", bounds.get("lt")),
        min_open="gt" in bounds,
        max_open="lt" in bounds,
    )


def _help(name: str, field: FieldInfo) -> str:
    weights = name.startswith("keep__") and name != "keep__states"
    head = "Keep the weights of these versions only: " if weights else ""
    text = (field.description or "").rstrip(".")
    text = f"{head}{text[0].lower() if head else text[0]}{text[1:]}."
    return text if field.default in (None, (), 0) else f"{text}  [default: {field.default}]"


def _chosen() -> frozenset[str]:
    from trainer.learner import LearnerConfig

    shared = ("policy", "base_model", "advantages", "std_floor", "max_staleness")
    return frozenset({*shared, *LearnerConfig.__dataclass_fields__})


_CHOSEN = _chosen()
