"""`arttrace diff`: two runs side by side, from where they differ."""

from __future__ import annotations

import click

from arttrace.commands.shared.json_output import print_json
from arttrace.commands.shared.options import json_option, store_option
from arttrace.store import open_store
from arttrace.system.paths import DataDir
from arttrace.views import terminal
from arttrace.views.console import comparison
from arttrace.views.console.shown_ids import shown_ids


@click.command("diff")
@click.argument("first", metavar="ID")
@click.argument("second", metavar="ID")
@click.option(
    "--limit", type=click.IntRange(min=1), default=40, show_default=True, help="At most this many steps of each."
)
@json_option
@store_option
def command(first: str, second: str, limit: int, as_json: bool, data: DataDir) -> None:
    """Show where two runs begin to differ: their last common steps, then what each did from there.

    Messages and tool calls are compared; times, models and token counts are not. Later steps that are equal are on one
    line. A prefix of an ID is enough if no other id has it.
    """
    with open_store(data) as store:
        found = comparison.compare(store.trajectory(first), store.trajectory(second), limit)
        ids = [side.id for side in found.sides]
        shown = shown_ids(store, ids)
    if as_json:
        print_json(comparison.document(found))
        return
    page = terminal.console()
    page.print(comparison.side_by_side(found, page, [shown[id] for id in ids]))
