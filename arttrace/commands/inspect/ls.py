"""`arttrace ls`: the trajectories of a data directory, newest first."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
import msgspec
from rich.table import Table

from arttrace.collector.unread_requests import unread_requests_message, unread_spans_message
from arttrace.commands.shared.following import EVERY_S, show_live, watched_store
from arttrace.commands.shared.json_output import print_json
from arttrace.commands.shared.options import json_option, store_option
from arttrace.commands.shared.run_filters import run_filters
from arttrace.records.values.units import quantity
from arttrace.rewards.combine import trajectory_reward
from arttrace.store import AnyStore, TrajectorySummary, open_store
from arttrace.store.access.client import NotUnderstood
from arttrace.store.access.late_spans import late
from arttrace.store.access.open_store import elsewhere
from arttrace.store.file.prune import REWARDS_OF_NO_RUN
from arttrace.store.ingest.segments import unread_entries_message
from arttrace.store.unread import unread_in
from arttrace.system.paths import DataDir
from arttrace.trajectories import advice
from arttrace.trajectories.identity.collisions import ADVICE_ON_COLLISIONS, has_collisions
from arttrace.views import labels, run_filter, terminal
from arttrace.views.console.reward_scales import two_scales_lines
from arttrace.views.console.shown_ids import shown_ids
from arttrace.views.run_filter import RunFilter, chosen, newest
from arttrace.views.web.store_reader import StoreReader


@click.command("ls")
@run_filters
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="At most this many.")
@click.option("--wide", is_flag=True, help="Show used tokens, tags and metadata too, and nothing shortened.")
@click.option("--follow", is_flag=True, help="Keep showing runs as they begin, change and end.")
@json_option
@store_option
def command(
    limit: int,
    wide: bool,
    follow: bool,
    as_json: bool,
    data: DataDir,
    wanted: RunFilter,
) -> None:
    """List captured trajectories, newest first. If there are several filters, all must match.

    The status "unread" means that a run has calls without a readable message, which are named below the list. The
    column "tokens" reads trained/captured: how many of the sampled tokens a policy can be trained on; "used", with
    --wide, has the tokens of all prompts -> of all answers. `arttrace show ID` shows one run. With --follow the list
    stays up to date until Ctrl-C; in a pipe, and with --json, a run is a line, printed again when it has changed, and
    --limit counts those that there were before.
    """
    if follow:
        _follow(data, wanted, limit, wide, as_json)
        return
    with open_store(data) as store:
        found = newest(store, wanted, limit + 1)
        summaries = found[:limit]
        first_ns = min((one.start_ns for one in summaries), default=0)
        waiting = [] if as_json else [id for (id,) in store.sql(_REWARDED_AND_NOT_HERE.format(first_ns))[1]]
        late_in = late(store, summaries)
        ids_shown = {} if as_json else shown_ids(store, [one.id for one in summaries])
        lost = [] if as_json else _unread(store, first_ns)
        others = 0 if summaries or as_json or wanted else sum(count for (count,) in store.sql(_SPANS)[1])
    if as_json:
        print_json([_document(one, late_in.get(one.id, ())) for one in summaries])
        return
    if waiting:
        named = ", ".join(map(labels.one_line, waiting[:_NAMED])) + (", ..." if len(waiting) > _NAMED else "")
        count = f"{len(waiting)} runs that are" if len(waiting) < _COUNTED else "many runs that are"
        count = "a run that is" if len(waiting) == 1 else count
        click.secho(f"rewards wait for {count} not here: {named}", fg="yellow", err=True)
    for line in lost:
        click.secho(line, fg="yellow", err=True)
    if not summaries:
        only_group = wanted.group is not None and wanted == RunFilter(group=wanted.group)
        click.echo(
            f"no trajectories in group {wanted.group!r}" if only_group
            else "no trajectory matches" if wanted
            else "no trajectories yet"
        )  # fmt: skip
        if others:
            click.secho(f"{quantity(others, 'span')} stored, of no run. {advice.ON_NO_RUN}", fg="yellow", err=True)
        return
    console = terminal.console()
    terminal.make_room(console, ids_shown.values())
    if wide:
        console.width = max(console.width, 10_000)
    console.print(_table(summaries, ids_shown, wide))
    if any(has_collisions(summary.incomplete) for summary in summaries):
        console.print(ADVICE_ON_COLLISIONS, style="yellow")
    for id, versions in late_in.items():
        console.print(f"{ids_shown[id]}: {terminal.came_late(versions)}", style="yellow", markup=False)
    unread = Counter[str]()
    for summary in summaries:
        unread.update(summary.unread)
    silent = sum(map(run_filter.without_call, summaries))
    calls = (f"no answer of a model was captured in {quantity(silent, 'run')}", advice.ON_NO_CALL) if silent else ()
    for line in (*terminal.unread_lines(unread), *advice.on_unread(unread), *calls, *two_scales_lines(summaries)):
        console.print(line, style="yellow", markup=False)
    if len(found) > limit:
        console.print(f"the newest {limit}; more with --limit", style="dim")


_SPANS = "SELECT count(*) FROM spans"


def _unread(store: AnyStore, since_ns: int) -> list[str]:
    """What could not be read since then, and names no run: a line of each kind."""
    try:
        there = store.unread() if elsewhere(store.data) else unread_in(store.data)
    except NotUnderstood as error:
        return [f"how much it could not read is not known: {error.hint or error.message}"]
    kinds = (
        (there.requests, unread_requests_message),
        (there.spans, unread_spans_message),
        (there.entries, unread_entries_message),
    )
    return [message(lost) for lost, message in kinds if lost.count and lost.last_ns >= since_ns]


def _follow(data: DataDir, wanted: RunFilter, limit: int, wide: bool, as_json: bool) -> None:
    page = terminal.console()
    with watched_store(data) as store:
        reader = StoreReader(store)

        def now() -> tuple[TrajectorySummary, ...]:
            store.ingest_spool()
            return reader.runs()

        def matching(runs: Iterable[TrajectorySummary], at_most: int | None) -> list[TrajectorySummary]:
            ids = reader.with_text(wanted.search) if wanted.search else None
            return chosen(runs, wanted, ids, at_most)

        def table() -> Table:
            found = matching(now(), limit)
            return _table(found, shown_ids(store, [one.id for one in found]), wide)

        if page.is_terminal and not as_json:
            show_live(page, table)
        known: dict[str, TrajectorySummary] = {}
        at_most: int | None = limit  # of the runs that there are; each that comes or changes from then on is printed
        while True:
            found = now()
            new = matching((one for one in found if known.get(one.id) != one), at_most)[::-1]
            ids_shown = {} if as_json else shown_ids(store, [one.id for one in new])
            names = _group_names(found) if new and not as_json else {}
            for one in new:
                if as_json:
                    print_json(_document(one, ()))
                else:
                    id, *cells = _row(one, ids_shown[one.id], names, wide)
                    click.echo("  ".join([id, *(terminal.cell_line(cell, wide) for cell in cells)]))
            known, at_most = {one.id: one for one in found}, None
            time.sleep(EVERY_S)


def _table(summaries: Sequence[TrajectorySummary], ids_shown: Mapping[str, str], wide: bool) -> Table:
    names = _group_names(summaries)
    return terminal.trajectory_table((_row(one, ids_shown[one.id], names, wide) for one in summaries), wide=wide)


def _group_names(summaries: Iterable[TrajectorySummary]) -> dict[tuple[str, str], str]:
    return labels.group_names((one.group, one.entry) for one in summaries)


def _document(summary: TrajectorySummary, late_in: Sequence[str]) -> dict[str, Any]:
    return {**msgspec.to_builtins(summary), "reward": trajectory_reward(summary), "late": late_in}


_NAMED, _COUNTED = 3, 1000
_REWARDED_AND_NOT_HERE = f"""SELECT DISTINCT trajectory_id FROM {REWARDS_OF_NO_RUN}
    AND (time_ns = 0 OR time_ns >= {{}}) ORDER BY 1 LIMIT {_COUNTED}"""  # noqa: S608

_HUGE = 1e6  # a reward that would take the other columns' room


def _row(
    summary: TrajectorySummary, id_shown: str, names: Mapping[tuple[str, str], str], wide: bool
) -> tuple[str, ...]:
    reward = trajectory_reward(summary)
    name = summary.group if wide else names[summary.group, summary.entry]
    metadata = msgspec.json.encode(summary.metadata).decode() if summary.metadata else ""
    return (
        id_shown,
        summary.entry if wide else labels.entry_name(summary.entry),
        "" if summary.group == summary.id else name,
        labels.age(summary.start_ns),
        str(summary.agents),
        str(summary.calls),
        f"{summary.trained_tokens}/{summary.captured_tokens}",
        ", ".join(summary.policy_versions) or "-",
        "-" if reward is None else f"{reward:.3f}" if abs(reward) < _HUGE else f"{reward:.3g}",
        run_filter.status(summary),
        *((_used(summary), ", ".join(summary.tags), metadata) if wide else ()),
    )


def _used(summary: TrajectorySummary) -> str:
    asked, answered = ("?" if side is None else str(side) for side in (summary.input_tokens, summary.output_tokens))
    return "-" if asked == answered == "?" else f"{asked}->{answered}"
