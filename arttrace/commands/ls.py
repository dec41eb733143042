"""`arttrace ls`: the trajectories of a data directory, the newest first."""

from __future__ import annotations

import click
import msgspec

from arttrace.commands.options import dir_option, json_option
from arttrace.paths import DataDir
from arttrace.records.trajectory import Trajectory
from arttrace.rewards.mix import trajectory_reward
from arttrace.store import TrajectorySummary, open_store
from arttrace.trajectories.membership import ADVICE_ON_COLLISIONS, has_collisions
from arttrace.views import terminal


@click.command("ls")
@click.option("--group", metavar="KEY", help="Only trajectories of this group (an explicit group or a scenario).")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="At most this many.")
@json_option
@dir_option
def command(group: str | None, limit: int, as_json: bool, data: DataDir) -> None:
    """List captured trajectories, the newest first.

    The column "tokens" reads trained/captured: how many of the sampled tokens a policy can be trained on.
    `arttrace show ID` shows one of them.
    """
    with open_store(data) as store:
        summaries = store.summaries(limit=limit, group=group)
    if as_json:
        click.echo(msgspec.json.encode([{**msgspec.to_builtins(s), "reward": _reward(s)} for s in summaries]))
        return
    if not summaries:
        click.echo(f"no trajectories in group {group!r}" if group else "no trajectories yet")
        return
    prefixes = terminal.short_ids([summary.id for summary in summaries])
    console = terminal.console()
    console.print(terminal.trajectory_table(_row(summary, prefixes[summary.id]) for summary in summaries))
    if any(has_collisions(summary.incomplete) for summary in summaries):
        console.print(ADVICE_ON_COLLISIONS, style="yellow")
    if len(summaries) == limit:
        console.print(f"the newest {limit}; more with --limit", style="dim")


_HUGE = 1e6  # a reward that would take the other columns' room


def _row(summary: TrajectorySummary, prefix: str) -> tuple[str, ...]:
    reward = _reward(summary)
    group = "" if summary.group == summary.id else terminal.group_name(summary.group, summary.entry)
    return (
        prefix,
        terminal.entry_name(summary.entry),
        group,
        terminal.age(summary.start_ns),
        str(summary.agents),
        str(summary.calls),
        f"{summary.trained_tokens}/{summary.captured_tokens}",
        ", ".join(summary.policy_versions) or "-",
        "-" if reward is None else f"{reward:.3f}" if abs(reward) < _HUGE else f"{reward:.3g}",
        "incomplete" if summary.incomplete else "failed" if summary.error else "complete",
    )


def _reward(summary: TrajectorySummary) -> float | None:
    return trajectory_reward(Trajectory(id=summary.id, revision=summary.revision, rewards=summary.rewards))
