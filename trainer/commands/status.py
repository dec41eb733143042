"""`arttrace status`: what the training daemons of a data directory do now."""

from __future__ import annotations

import contextlib
import math
import time
from typing import Any

import click
import msgspec
from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from arttrace.commands.shared.json_output import print_json
from arttrace.commands.shared.options import dir_option, json_option
from arttrace.records.values.units import duration_text, quantity
from arttrace.system.errors import TrainingError, harmless
from arttrace.system.paths import DataDir
from arttrace.views.terminal import print_whole
from trainer.daemon.state import FAILED, STOPPED, DaemonState, last_look, read_state
from trainer.policies.checkpoints import Checkpoints
from trainer.serving import ServingFile, find_serving
from trainer.step.phases import Phase

_EVERY_S = 0.5
_LOOKS_WITHIN_S = 900.0
_HANGS_AFTER_S, _HANGS_AFTER_TIMES = 3600.0, 10
_START_AGAIN = "End its process and start it again: it goes on from its last version."
_SHOWN = ("reward_mean", "reward_spread", "loss", "grad_norm", "entropy", "kl", "clip_fraction", "staleness_mean")


@click.command()
@dir_option
@click.option("--policy", help="Only this policy.")
@click.option("--watch", is_flag=True, help="Keep showing it, until Ctrl-C.")
@click.option(
    "--check",
    is_flag=True,
    help="Exit with 1 where no daemon runs, one that waits for groups has not looked for 15 minutes, or one has been "
    "in a phase of its step for more than an hour and ten times as long as for its last version.",
)
@json_option
def command(data: DataDir, policy: str | None, watch: bool, check: bool, as_json: bool) -> None:
    """Show what `arttrace train --daemon` is doing for each of its policies here, and since when.

    The command only reads files of the daemon and the gateway; it sends no request and does not disturb them.
    """
    if check and watch:
        raise click.UsageError("--check looks once: leave out --watch")
    if as_json and watch:
        raise click.UsageError("--watch is for terminals; poll `arttrace status --json` instead")
    if as_json:
        print_json([_document(data, state) for state in _states(data, policy)])
    elif not watch:
        print_whole(_view(data, policy))
    if check:
        _check(data, _states(data, policy))
    if as_json or not watch:
        return
    with Live(_view(data, policy), refresh_per_second=4) as live, contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(_EVERY_S)
            try:
                live.update(_view(data, policy))
            except TrainingError as error:  # it may be over by the next look
                live.update(Text(error.message, "red"))


def _states(data: DataDir, policy: str | None) -> list[DaemonState]:
    if policy:
        found = [Checkpoints(data.policies, policy).directory]
    else:
        found = sorted(path.parent for path in data.policies.glob("*/daemon.json"))
    states = [state for directory in found if (state := read_state(directory)) is not None]
    if not states:
        raise TrainingError(
            f"No daemon ever trained {policy or 'a policy'} in {data.root}.",
            "Start one: arttrace train --daemon --base-model DIR. One that was just started is shown in a few seconds.",
        )
    return states


def _running(data: DataDir, state: DaemonState) -> bool:
    return Checkpoints(data.policies, state.policy).writer() == state.pid


def _check(data: DataDir, states: list[DaemonState]) -> None:
    """Raises TrainingError unless a daemon runs, and each that runs goes on."""
    running = [state for state in states if _running(data, state)]
    if not running:
        raise TrainingError(f"No daemon runs in {data.root}.", "Start it again: arttrace train --daemon")
    for state in running:
        idle_s = time.time() - last_look(Checkpoints(data.policies, state.policy).directory)
        if state.state in (STOPPED, FAILED):
            raise TrainingError(f"The daemon of {state.policy} {state.state}: {state.reason}", state.hint or None)
        if state.state == Phase.WAIT and not state.in_trouble and idle_s > _LOOKS_WITHIN_S:
            raise TrainingError(
                f"The daemon of {state.policy} has not looked for runs for {duration_text(idle_s)}.",
                _START_AGAIN,
            )
        lasts_s, before_s = time.time() - state.since_ns / 1e9, state.last.get(f"{state.state}_s", math.inf)
        hangs = lasts_s > max(_HANGS_AFTER_S, _HANGS_AFTER_TIMES * before_s)
        if hangs and state.state != Phase.WAIT and not state.in_trouble:
            raise TrainingError(
                f"The daemon of {state.policy} has been in {state.state} for {duration_text(lasts_s)}, "
                f"which took {duration_text(before_s)} for its last version.",
                _START_AGAIN,
            )


def _document(data: DataDir, state: DaemonState) -> dict[str, Any]:
    serving = find_serving(data)
    ours = serving if serving and serving.policy == state.policy else None
    return {
        **msgspec.to_builtins(state),
        "running": _running(data, state),
        "served": ours.version if ours else "",
        "gateway": ours.url if ours else None,
    }


def _view(data: DataDir, policy: str | None) -> RenderableType:
    serving, now = find_serving(data), time.time_ns()
    return Group(*(_panel(state, _running(data, state), serving, now) for state in _states(data, policy)))


def _panel(state: DaemonState, running: bool, serving: ServingFile | None, now_ns: int) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for name, value in _lines(state, running, serving, now_ns):
        table.add_row(f"[bold]{name}[/]", escape(harmless(value)))
    return table


def _lines(state: DaemonState, running: bool, serving: ServingFile | None, now_ns: int) -> list[tuple[str, str]]:
    since = duration_text(max(now_ns - state.since_ns, 0) / 1e9)  # 0 where the clock stepped back
    doing = f"{state.state} for {since}, process {state.pid}"
    if not running and state.state in (STOPPED, FAILED):
        doing = f"{state.state}, {since} ago"
    elif not running:  # when it was killed is not known
        doing = f"killed while in {state.state}, which began {since} ago"
    lines = [("policy", f"{state.policy}@{state.step}"), ("daemon", doing)]
    if state.reason:
        lines.append(("reason", state.reason))
    if state.hint:
        lines.append(("hint", state.hint))
    if serving and serving.policy == state.policy:
        lines.append(("served", f"{serving.version or 'a version not known here'} at {serving.url}/v1"))
    else:
        lines.append(("served", "no: `arttrace serve` does not run for it"))
    queue = state.queue
    lines.append(("groups", f"{queue.ready} ready, {queue.waiting} waiting for more runs"))
    if paused := [one for one in state.pauses if one.until_ns > now_ns]:
        at = min(one.until_ns for one in paused) - now_ns
        wait = "1 group of them waits" if queue.paused == 1 else f"{queue.paused} groups of them wait"
        shown = f"{len(paused)} whose rewards were all equal, {wait}"
        lines.append(("scenarios skipped", f"{shown}; the next is looked at again in {duration_text(at / 1e9)}"))
    if later := [one for one in state.unscored if one.until_ns > now_ns]:
        soonest = min(later, key=lambda one: one.until_ns)
        at_once = duration_text((soonest.until_ns - now_ns) / 1e9)
        shown = f"{quantity(len(later), 'group')}; the judge is asked about {soonest.key} again in {at_once}"
        lines.append(("not scored", f"{shown}, since {soonest.reason}"))
    if queue.left_out:
        lines.append(("runs left out", ", ".join(f"{n} {why}" for why, n in sorted(queue.left_out.items()))))
    if queue.late:
        lines.append(
            (
                "late",
                f"spans came to {quantity(queue.late, 'run')} after a version took them; `arttrace ls` names them",
            )
        )
    if running and state.metrics:
        lines.append(("metrics", state.metrics))
    if state.plan:
        lines.append(
            ("in work", f"{quantity(len(state.plan.groups), 'group')}, {quantity(len(state.plan.ids), 'run')}")
        )
    if state.skips:
        aside = quantity(max(state.aside, len(state.set_aside)), "run")
        lines.append(("skipped", f"{quantity(state.skips, 'round')} in a row, {aside} set aside"))
    if state.last:
        numbers = [f"{name} {state.last[name]:.4g}" for name in _SHOWN if name in state.last]
        lines.append(("last step", ", ".join(numbers)))
        mean, most = (state.last.get(f"logprob_difference_{name}") for name in ("mean", "max"))
        if mean is not None and most is not None:
            agreement = (
                f"log-probabilities of engine and learner differ by {mean:.3g} in the mean, by {most:.3g} at most"
            )
            if state.last.get("staleness_max", 0) > 0:
                agreement += "; runs of earlier versions are among them, from which the policy has moved since"
            lines.append(("agreement", agreement))
        if state.idle:
            shares = [f"{name} {state.idle[name]:.0%}" for name in ("engine", "learner") if name in state.idle]
            lines.append(("idle", f"{', '.join(shares)} of the time between the last two versions"))
        seconds = [f"{phase} {state.last[name]:.2f}" for phase in Phase if (name := f"{phase}_s") in state.last]
        lines.append(("seconds", ", ".join(seconds)))
    lines.extend(
        ("", f"{group.key}: {quantity(group.runs, 'run')}, reward {group.mean:.3f}, spread {group.spread:.3f}")
        for group in state.last_groups
    )
    return lines
