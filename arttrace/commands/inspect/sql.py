"""`arttrace sql`: a query over the store's views."""

from __future__ import annotations

import click

from arttrace.commands.shared.options import json_option, store_option
from arttrace.records.values.units import quantity
from arttrace.store import open_store
from arttrace.store.access.sql import encode_values, named_rows
from arttrace.store.rows.view_parts.definition import as_text
from arttrace.store.rows.views import DESCRIBED
from arttrace.system.paths import DataDir
from arttrace.views import terminal
from arttrace.views.console.rows import plan_lines, print_rows


class _SqlCommand(click.Command):
    """Its help ends with every view and column, from the table that makes them."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Views"):
            for line in as_text(DESCRIBED, formatter.width - formatter.current_indent).splitlines():
                formatter.write(f"{'':{formatter.current_indent}}{line}".rstrip() + "\n")


@click.command("sql", cls=_SqlCommand)
@click.argument("query")
@json_option
@store_option
def command(query: str, as_json: bool, data: DataDir) -> None:
    """Run a SQL query (DuckDB's dialect) that reads the store. Times are TIMESTAMPTZ, in UTC.

    \b
    Examples:
      arttrace sql 'SELECT scenario, avg(value) FROM rewards
                    JOIN trajectories t ON t.id = trajectory_id GROUP BY scenario'
      arttrace sql "SELECT id, calls, tags FROM trajectories
                    WHERE started > now() - interval 1 hour AND metadata->>'user' = 'u1'"
    """
    with open_store(data) as store:
        columns, rows = store.sql(query)
    if as_json:
        click.echo(encode_values(named_rows(columns, rows)))
        return
    if plan := plan_lines(columns, rows):
        click.echo("\n".join(plan))
        return
    console = terminal.console()
    print_rows(console, columns, rows)
    console.print(quantity(len(rows), "row"), style="dim")
