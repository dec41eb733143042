"""`arttrace stats`: counts, tokens, errors, latency and reward, by entry, agent, model and tool."""

from __future__ import annotations

from typing import get_args

import click

from arttrace.commands.shared.json_output import print_json
from arttrace.commands.shared.options import json_option, store_option
from arttrace.commands.shared.run_filters import checked
from arttrace.records.values.units import quantity
from arttrace.store import open_store
from arttrace.system.paths import DataDir
from arttrace.views import labels, terminal
from arttrace.views.console.rows import print_rows
from arttrace.views.costs.prices import load_prices
from arttrace.views.costs.usage import dollars
from arttrace.views.run_filter import moment
from arttrace.views.statistics import By, Statistics, statistics

_COLUMNS: dict[By, tuple[str, ...]] = {
    "entry": ("runs", "calls", "input_tokens", "output_tokens", "cost", "errors", "p50_s", "p90_s", "p99_s", "reward"),
    "agent": ("count", "runs", "calls", "input_tokens", "output_tokens", "cost", "errors", "p50_s", "p90_s", "p99_s"),
    "model": ("runs", "calls", "input_tokens", "output_tokens", "cost", "errors", "p50_s", "p90_s", "p99_s"),
    "tool": ("count", "runs", "errors", "p50_s", "p90_s", "p99_s"),
}
"""The figures that each table shows."""


@click.command("stats")
@click.option(
    "--by", type=click.Choice(get_args(By)), multiple=True, help="Only this table; may be repeated.  [default: all]"
)
@click.option("--since", metavar="2h|DATE", callback=checked(moment), help="Only what began since then.")
@json_option
@store_option
def command(by: tuple[By, ...], since: str | None, as_json: bool, data: DataDir) -> None:
    """Summarise the store: how often each entry point, agent, model and tool ran, what it cost and how it went.

    Seconds are quantiles: half of them are below p50, 99 of 100 below p99. Each version of a policy counts as a model.
    Input and output are tokens. The cost is in US dollars, as the sender of a call states it, else by the prices in
    $ARTTRACE_PRICES and litellm's; "?" marks calls whose price is not known, which are in no sum. The reward is the
    mean of the runs that have one, as `ls` shows it.
    """
    since_ns = 0 if since is None else moment(since)
    with open_store(data) as store:
        tables = {kind: statistics(store, kind, since_ns=since_ns) for kind in by or get_args(By)}
    if as_json:
        print_json(tables)
        return
    if not any(tables.values()):
        click.echo("nothing began since" if since else "no trajectories yet")
        return
    console = terminal.console()
    for number, (kind, rows) in enumerate((kind, rows) for kind, rows in tables.items() if rows):
        if number:
            console.print()
        columns = [kind, *(name.removesuffix("_tokens").replace("_", " ") for name in _COLUMNS[kind])]
        print_rows(console, columns, [_cells(kind, row) for row in rows])
    if unpriced := max((sum(row.unpriced_calls or 0 for row in rows) for rows in tables.values()), default=0):
        hint = "" if load_prices().has_table else "; prices come with pip install 'arttrace[judge]'"
        console.print()
        console.print(
            f"?: no price is known of {quantity(unpriced, 'call')} ($ARTTRACE_PRICES){hint}",
            style="yellow",
            markup=False,
        )


def _cells(kind: By, row: Statistics) -> list[object]:
    figures = [_cost(row) if name == "cost" else getattr(row, name) for name in _COLUMNS[kind]]
    name = labels.entry_name(row.name) if kind == "entry" else row.name
    return [name or "-", *(round(one, 3) if isinstance(one, float) else one for one in figures)]


def _cost(row: Statistics) -> str:
    if row.cost is None:
        return "?" if row.unpriced_calls else ""
    return dollars(row.cost) + (" + ?" if row.unpriced_calls else "")
