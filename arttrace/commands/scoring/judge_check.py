"""`arttrace judge-check`: how far a judge can be trusted, on groups of runs whose true rewards are known."""

from __future__ import annotations

import asyncio
from collections import Counter

import click
import msgspec
from rich.table import Table

from arttrace.commands.scoring.judge_options import judge_base_url_option, judge_option, judge_params, rubric_option
from arttrace.commands.shared.json_output import print_json
from arttrace.commands.shared.options import json_option, store_option
from arttrace.commands.shared.progress import CountedProgress
from arttrace.records.sequence import NotTrained
from arttrace.records.values.units import quantity
from arttrace.rewards.judge_calls import load_litellm
from arttrace.rewards.judge_check import JudgeCheck, check_judge
from arttrace.rewards.selection import judgeable
from arttrace.store.server.owner import hold_store
from arttrace.system.paths import DataDir
from arttrace.trajectories.groups import group_trajectories
from arttrace.views.terminal import print_whole


@click.command("judge-check")
@judge_option
@judge_base_url_option
@rubric_option
@click.option(
    "--repeats",
    type=click.IntRange(1, 100),
    default=3,
    show_default=True,
    help="How often to ask about each group, in another order each time.",
)
@click.option("--limit", type=click.IntRange(min=1), help="Ask about this many groups only.")
@store_option
@json_option
def command(
    judge: str,
    judge_base_url: str | None,
    rubric: str,
    repeats: int,
    limit: int | None,
    data: DataDir,
    as_json: bool,
) -> None:
    """Have a judge score groups whose runs have rewards from code, and compare.

    Nothing is stored, and the judge sees no reward. Incomplete runs, and those of the status "unread" (see `arttrace
    ls`), are left out. An agreement of 50 % is chance. A judge whose scores vary by more
    than the differences it should detect, or that favours a place in the prompt, needs more --votes when scoring, or
    should be replaced.
    """
    with hold_store(data) as store:
        stored = group_trajectories(store.trajectories())
    groups, left_out = [], Counter[NotTrained]()
    for group, reasons in map(judgeable, stored):
        left_out += reasons
        groups += [group] if len(group.trajectories) > 1 else []
    groups = groups[:limit]

    params = judge_params(judge, judge_base_url)
    bar = CountedProgress(0, "answers")
    if groups:
        load_litellm()  # as `score` does
    found = asyncio.run(check_judge(groups, judge, params, rubric, repeats=repeats, on_ballot=bar.of))
    found = msgspec.structs.replace(found, left_out=dict(left_out))
    if as_json:
        print_json(found)
    else:
        _show(judge, found)


def _show(judge: str, found: JudgeCheck) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    cost = "price not known" if found.cost is None else f"${found.cost:.4f}"
    for name, value, meaning in (
        ("pairs ordered as the rewards", _share(found.agreement), "50 % is chance"),
        ("rank correlation (tau-b)", _number(found.tau), "1 is the same order"),
        (
            "spread where rewards are equal",
            _number(found.equal_spread),
            f"{quantity(found.equal_groups, 'group')}; 0 is right",
        ),
        ("first place less last place", _number(found.first_minus_last, signed=True), "0 is no bias"),
        ("deviation over repeats", _number(found.repeat_std), "0 is always the same score"),
        ("answers", f"{found.ballots}", f"{found.failed} more could not be used" if found.failed else ""),
        ("tokens", f"{found.input_tokens + found.output_tokens}", cost),
    ):
        table.add_row(name, value, meaning)
    click.echo(f"{judge} on {quantity(found.groups, 'group')} of {quantity(found.runs, 'run')}")
    print_whole(table)
    if found.left_out:
        reasons = "; ".join(f"{quantity(count, 'run')} left out: {reason}" for reason, count in found.left_out.items())
        click.echo(f"{reasons}.")


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _number(value: float | None, *, signed: bool = False) -> str:
    return "-" if value is None else f"{value:{'+' if signed else ''}.3f}"
