"""`arttrace sql`: a query over the store's views."""

from __future__ import annotations

import click
import msgspec

from arttrace.commands.options import dir_option, json_option
from arttrace.paths import DataDir
from arttrace.store import open_store
from arttrace.views import terminal


@click.command("sql")
@click.argument("query")
@json_option
@dir_option
def command(query: str, as_json: bool, data: DataDir) -> None:
    """Run a SQL query (DuckDB's dialect) that reads the store.

    \b
    Views:
      trajectories  one row per run: entry, scenario, group, calls, tokens, policy versions, rewards
      groups        one row per group: trajectories, mean reward and its spread
      agents        one row per recorded agent: name, entry, error
      calls         one row per model call: model, policy version, tokens, answer as JSON
      messages      one row per message of a call's input: position, role, message as JSON
      tool_calls    one row per recorded tool call: name, arguments, result
      rewards       one row per reward: name, source, value, explanation
      policy_steps  one row per optimisation step: version, adapter, metrics as JSON
      consumption   one row per trajectory that a step was trained on
      spans         every captured span; what it does not share with others is in `document`

    \b
    Example:
      arttrace sql 'SELECT scenario, avg(value) FROM rewards
                    JOIN trajectories t ON t.id = trajectory_id GROUP BY scenario'
    """
    with open_store(data) as store:
        columns, rows = store.sql(query)
    if as_json:
        named = [dict(zip(columns, row, strict=True)) for row in rows]
        click.echo(msgspec.json.encode(named, enc_hook=str))
        return
    console = terminal.console()
    terminal.print_rows(console, columns, rows)
    console.print(f"{len(rows)} row{'' if len(rows) == 1 else 's'}", style="dim")
