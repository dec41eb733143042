"""`arttrace score`: a judge scores the groups in the store that it has not scored yet."""

from __future__ import annotations

import asyncio
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Any

import click
import msgspec
from click.core import ParameterSource
from rich.table import Table
from rich.text import Text

from arttrace.commands.scoring.judge_options import judge_base_url_option, judge_params, rubric_option
from arttrace.commands.scoring.score_by_function import load_rewarder, score_by_function, where_of
from arttrace.commands.shared.json_output import print_json
from arttrace.commands.shared.options import json_option, store_option
from arttrace.commands.shared.progress import BESIDE_LINES_S, Progress
from arttrace.commands.shared.run_filters import run_filters_of_complete_runs
from arttrace.records.group import Group
from arttrace.records.reward import Judgement, Reward
from arttrace.records.sequence import NotTrained
from arttrace.records.values.units import quantity
from arttrace.rewards import to_store
from arttrace.rewards.judge import score_loaded
from arttrace.rewards.judge_calls import Judge, load_litellm
from arttrace.rewards.judgements import counting_again, key_of_runs, score_that_counts
from arttrace.rewards.langfuse_scores import LangfuseScores
from arttrace.rewards.selection import judgeable, not_judged
from arttrace.store import AnyStore
from arttrace.store.bounded_parts import batched
from arttrace.store.server.owner import hold_store
from arttrace.store.sql_text import listed
from arttrace.system.errors import JudgeError, StoreError
from arttrace.system.paths import DataDir
from arttrace.views import terminal
from arttrace.views.agent_tree import cropped
from arttrace.views.labels import key_name, one_line, printable
from arttrace.views.run_filter import RunFilter, matching_pages

_NO_GROUP_HINT = (
    "A group comes about when an entry point runs more than once on the same scenario: give runs the same `scenario` "
    "or `group`, or call the entry point again with the same arguments. `arttrace ls` shows what the store holds."
)
_KEYS_AT_ONCE = 1000


class _DueGroup(msgspec.Struct, frozen=True):
    key: str
    ids: tuple[str, ...]


class _DueGroups(msgspec.Struct, frozen=True):
    """The groups to score: `due` ones are not judged yet, `judged` ones are, by this judge and rubric; `again` has by
    group the rewards of those that another judgement has replaced since. The judge is not shown `singletons`,
    `incomplete` runs, and those with `unread` calls."""

    due: list[_DueGroup]
    judged: list[Judgement]
    again: list[list[Reward]]
    singletons: int
    incomplete: int
    unread: int

    def left_out(self) -> list[str]:
        return [
            text
            for count, text in (
                (self.singletons, f"{quantity(self.singletons, 'single run')} left out (nothing to compare them with)"),
                (self.incomplete, f"{quantity(self.incomplete, 'incomplete run')} left out"),
                (self.unread, f"{quantity(self.unread, 'run')} left out (messages that cannot be read)"),
            )
            if count
        ]

    def has_again(self, has: str, have: str) -> str:
        """What is said of `again`; empty where there is none."""
        if not self.again:
            return ""
        each = f"{has} its" if len(self.again) == 1 else f"{have} their"
        return f"{quantity(len(self.again), 'group')} {each} earlier scores by this judge and rubric again"


@click.command()
@click.option("--judge", metavar="MODEL", help="Judge model by its litellm name, such as openai/o3.")
@judge_base_url_option
@rubric_option
@click.option("--reward", metavar="MODULE:FUNCTION", help="Reward runs by this function of a trajectory instead.")
@click.option("--reward-version", metavar="TEXT", help="Version of the function.  [default: a hash of its source]")
@run_filters_of_complete_runs
@click.option(
    "--votes",
    type=click.IntRange(1, 15),
    default=1,
    show_default=True,
    help="Ask this many times per group, in another order each time, and take the mean.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be scored; ask no judge.")
@store_option
@json_option
def command(
    judge: str | None,
    judge_base_url: str | None,
    rubric: str,
    reward: str | None,
    reward_version: str | None,
    votes: int,
    dry_run: bool,
    data: DataDir,
    as_json: bool,
    wanted: RunFilter,
) -> None:
    """Have a judge model score every group of runs (RULER), or a function of yours reward every run.

    The runs of one scenario are shown to the judge together, and it scores them against each other, in 0..1. Incomplete
    runs, and those of the status "unread" (see `arttrace ls`), are left out. Each group is stored as soon as it is
    scored, and is not paid for twice: if you stop the command and start it again, it continues with the groups that are
    left. Rewards from your code stay as they are.

    With --reward, `def function(trajectory) -> float | None` is called once for each complete run, and again when its
    source, --reward-version or the run has changed: the new reward then replaces the function's earlier one. It is
    added to the run's other rewards. Return None to give no reward, and to take the earlier one back.

    If there are several conditions (--entry, --group, --tag, --policy, --since), all must match. A judge compares only
    the matching runs of a group.
    """
    if (judge is None) == (reward is None):
        raise click.UsageError("give either --judge MODEL or --reward MODULE:FUNCTION")
    if others := _given("judge_base_url", "rubric", "votes") if judge is None else _given("reward_version"):
        chosen = "--reward" if judge is None else "--judge"
        raise click.UsageError(f"{', '.join(others)} cannot be combined with {chosen}")
    if reward is not None:
        rewarder = load_rewarder(reward, reward_version)
        with hold_store(data) as store, LangfuseScores(data) as scores:
            score_by_function(store, rewarder, wanted, scores, dry_run=dry_run, as_json=as_json)
        return
    assert judge is not None
    params = judge_params(judge, judge_base_url)
    with hold_store(data) as store, LangfuseScores(data) as scores:
        plan = _plan(store, judge, rubric, wanted, votes)
        if dry_run:
            _show_due(plan, votes, as_json)
            return
        if plan.again:
            scores.append(store, list(chain.from_iterable(plan.again)))
        total, done = len(plan.due), 0
        bar = Progress(total, "groups", every_s=BESIDE_LINES_S, tells_short=False)

        def on_judged(scored: Group, judgement: Judgement) -> None:
            nonlocal done
            scores.append(store, to_store(judgement))
            plan.judged.append(judgement)
            done += 1
            click.echo(
                f"[{done}/{total}] {_name(scored.key)}: {_scores(judgement)}, {_price(judgement.cost)}",
                err=True,
            )
            bar(done)

        try:
            loaded = [partial(_load, store, one) for one in plan.due]
            if loaded:
                load_litellm()  # in a thread of the event loop Ctrl-C would wait for it without a word
            results = asyncio.run(score_loaded(loaded, Judge(judge, params), rubric, votes=votes, on_judged=on_judged))
        except BaseException:
            if total:
                click.echo(f"{done} of {quantity(total, 'group')} scored and stored; run again to continue.", err=True)
            raise
    failed = [
        (one.key, result) for one, result in zip(plan.due, results, strict=True) if isinstance(result, JudgeError)
    ]
    judgements = sorted(plan.judged, key=lambda judgement: judgement.group)
    if as_json:
        print_json(_document(plan, judgements, done, failed))
    else:
        _show(plan, judgements, done, failed)
    if failed:
        raise JudgeError(f"{len(failed)} of {quantity(total, 'group')} could not be scored.", failed[0][1].hint)


def _given(*options: str) -> list[str]:
    """Those of these options that stand on the command line."""
    context = click.get_current_context()
    given = [name for name in options if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    return [f"--{name.replace('_', '-')}" for name in given]


def _plan(store: AnyStore, judge: str, rubric: str, wanted: RunFilter, votes: int) -> _DueGroups:
    known: dict[str, tuple[int, str, str, NotTrained | None]] = {}
    counting: dict[str, Reward] = {}
    for page in matching_pages(store, wanted):
        known.update((run.id, (run.start_ns, run.revision, run.group, not_judged(run))) for run in page)
        counting.update((run.id, score) for run in page if (score := score_that_counts(run)))
    groups: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    left_out: Counter[NotTrained] = Counter()
    for id, (_, revision, group, reason) in sorted(known.items(), key=lambda item: (item[1][0], item[0])):
        if reason is None:
            groups[group].append((id, revision))
        else:
            left_out[reason] += 1
    several = {group: runs for group, runs in sorted(groups.items()) if len(runs) > 1}
    if not several:
        raise StoreError(_why_no_group(len(known), left_out, where_of(wanted)), _NO_GROUP_HINT)
    due, judged = [], []
    keys = {group: key_of_runs(runs, judge, rubric, votes) for group, runs in several.items()}
    stored = _stored(store, keys.values())
    for group, runs in several.items():
        judgement = store.judgement(keys[group]) if keys[group] in stored else None
        if judgement is None:
            due.append(_DueGroup(group, tuple(id for id, _ in runs)))
        else:
            judged.append(judgement)
    alone = len(groups) - len(several)
    again = [rewards for judgement in judged if (rewards := counting_again(judgement, counting))]
    return _DueGroups(due, judged, again, alone, left_out[NotTrained.INCOMPLETE], left_out[NotTrained.UNREADABLE])


def _stored(store: AnyStore, keys: Iterable[str]) -> set[str]:
    """Which of these keys (hex digits) have a stored judgement."""
    found: set[str] = set()
    for some in batched(keys, _KEYS_AT_ONCE):
        query = f"SELECT key FROM judgement_records WHERE key IN ({listed(some)})"  # noqa: S608
        found.update(key for (key,) in store.sql(query)[1])
    return found


def _load(store: AnyStore, due: _DueGroup) -> Group:
    """The runs of a group as they are now. Raises JudgeError if there is nothing left to compare."""
    found = sorted(store.trajectories(ids=due.ids), key=lambda run: (run.start_ns, run.id))
    group, _ = judgeable(Group(due.key, tuple(found)))
    if (left := len(group.trajectories)) < 2:
        raise JudgeError(
            f"of group {due.key!r}, only {quantity(left, 'run')} left", "They were pruned, or changed; run again."
        )
    return group


def _show_due(plan: _DueGroups, votes: int, as_json: bool) -> None:
    runs = sum(len(group.ids) for group in plan.due)
    if as_json:
        due = {group.key: len(group.ids) for group in plan.due}
        print_json(
            {
                "due": due,
                "judged": len(plan.judged),
                "again": len(plan.again),
                "singletons": plan.singletons,
                "incomplete": plan.incomplete,
                "unread": plan.unread,
            }
        )
        return
    requests = quantity(len(plan.due) * votes, "request")
    click.echo(f"{quantity(len(plan.due), 'group')} ({quantity(runs, 'run')}) would be scored, in {requests} at least.")
    click.echo(f"  {quantity(len(plan.judged), 'group')} scored already by this judge and rubric.")
    for text in filter(None, (plan.has_again("would have", "would have"), *plan.left_out())):
        click.echo(f"  {text}")


def _why_no_group(trajectories: int, left_out: Counter[NotTrained], where: str) -> str:
    if not trajectories:
        return f"There is nothing to score: {where} has no trajectory."
    reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
    return (
        f"There is nothing to compare: of {quantity(trajectories, 'trajectory')} in {where}, "
        f"{trajectories - left_out.total()} can be judged{f' (left out: {reasons})' if reasons else ''}, and no two of "
        "them attempted the same scenario."
    )


def _name(group: str) -> str:
    return one_line(key_name(group))


def _scores(judgement: Judgement) -> str:
    values = judgement.scores.values()
    return f"{len(values)} runs, {min(values):.2f} to {max(values):.2f}"


def _price(cost: float | None) -> str:
    return "price not known" if cost is None else f"${cost:.4f}"


def _paid(error: JudgeError) -> str:
    tokens = error.input_tokens + error.output_tokens
    return f"; {quantity(tokens, 'token')}, {_price(error.cost)}" if tokens else ""


def _total_cost(paid: Iterable[Judgement | JudgeError]) -> float | None:
    costs = [one.cost for one in paid]
    return None if None in costs else sum(cost for cost in costs if cost is not None)


def _document(
    plan: _DueGroups, judgements: Sequence[Judgement], scored_now: int, failed: Sequence[tuple[str, JudgeError]]
) -> dict[str, Any]:
    return {
        "groups": [msgspec.to_builtins(judgement) for judgement in judgements],
        "scored_now": scored_now,
        "again": len(plan.again),
        "failed": [
            {
                "group": key,
                "error": error.message,
                "input_tokens": error.input_tokens,
                "output_tokens": error.output_tokens,
                "cost": error.cost,
            }
            for key, error in failed
        ],
        "singletons": plan.singletons,
        "incomplete": plan.incomplete,
        "unread": plan.unread,
        "cost": _total_cost([*judgements, *(error for _, error in failed)]),
    }


def _show(
    plan: _DueGroups, judgements: Sequence[Judgement], scored_now: int, failed: Sequence[tuple[str, JudgeError]]
) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("group")  # may wrap, so that it is the one that is narrowed; its cells are cropped instead
    for name in ("runs", "mean", "spread", "low", "high", "tokens", "cost"):
        table.add_column(name, justify="right", no_wrap=True)
    for judgement in judgements:
        values = list(judgement.scores.values())
        table.add_row(
            cropped(Text(_name(judgement.group))),
            str(len(values)),
            f"{statistics.fmean(values):.3f}",
            f"{statistics.pstdev(values):.3f}",
            f"{min(values):.2f}",
            f"{max(values):.2f}",
            str(judgement.input_tokens + judgement.output_tokens),
            _price(judgement.cost),
        )
    console = terminal.console()
    if judgements:
        console.print(table)
    total = len(judgements) + len(failed)
    notes = [f"{scored_now} of {quantity(total, 'group')} scored now, {len(judgements) - scored_now} before"]
    console.print(
        "; ".join(filter(None, [*notes, plan.has_again("has", "have"), *plan.left_out()])) + ".",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    for key, error in failed:
        console.print(
            f"not scored: {_name(key)}: {printable(error.message)}{_paid(error)}",
            style="red",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
