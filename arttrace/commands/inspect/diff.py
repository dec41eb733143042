"""`arttrace diff`: two runs side by side, from where they part."""

from __future__ import annotations

import click
import msgspec

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
    """Show where two runs part: the last steps that they have in common, then what each did from there.

    What was said and done is compared; times, models and token counts are not. Where both say the same again, it stands
    on one line. An ID may be the beginning of one.
    """
    with open_store(data) as store:
        found = comparison.compare(store.trajectory(first), store.trajectory(second), limit)
        ids = [side.id for side in found.sides]
        shown = shown_ids(store, ids)
    if as_json:
        click.echo(msgspec.json.encode(comparison.document(found)))
        return
    page = terminal.console()
    page.print(comparison.side_by_side(found, page, [shown[id] for id in ids]))
