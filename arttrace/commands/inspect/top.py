"""`arttrace top`: what runs now."""

from __future__ import annotations

import time
from itertools import chain

import click
from rich.console import RenderableType

from arttrace.commands.shared.following import show_live, watched_store
from arttrace.commands.shared.json_output import print_json
from arttrace.commands.shared.options import json_option, store_option
from arttrace.commands.shared.units import age_ns
from arttrace.store import open_store
from arttrace.store.access.summary_pages import summary_pages
from arttrace.system.paths import DataDir
from arttrace.views import terminal
from arttrace.views.console.running import Running, running, running_table
from arttrace.views.console.shown_ids import shown_ids
from arttrace.views.web.store_reader import StoreReader


def _age(context: click.Context, option: click.Parameter, value: str) -> tuple[str, int]:
    return value, age_ns(context, option, value) or 0


@click.command("top")
@click.option(
    "--idle",
    metavar="AGE",
    default="1h",
    show_default=True,
    callback=_age,
    help="Leave out runs that have been idle for this long.",
)
@click.option("--once", is_flag=True, help="Print once and exit, as without a terminal.")
@json_option
@store_option
def command(idle: tuple[str, int], once: bool, as_json: bool, data: DataDir) -> None:
    """Show the runs that have not ended: how long they have been running, when they were last active, their calls,
    tools and tokens (prompts/answers), and what they are doing. The view stays up to date until Ctrl-C.

    A run is shown within a second of its beginning, or with its first call. A run whose process died looks like an idle
    one.
    """
    page = terminal.console()
    if as_json or once or not page.is_terminal:
        with open_store(data) as store:
            found = running(store, chain.from_iterable(summary_pages(store)))
            shown = _active(found, idle[1])
            ids_shown = {} if as_json else shown_ids(store, [one.id for one in shown])
        if as_json:
            print_json(shown)
        else:
            terminal.make_room(page, ids_shown.values())
            page.print(running_table(shown, ids_shown, len(found) - len(shown), idle[0]))
        return
    with watched_store(data) as store:
        reader = StoreReader(store)

        def view() -> RenderableType:
            store.ingest_spool()
            found = running(store, reader.runs())
            shown = _active(found, idle[1])
            ids_shown = shown_ids(store, [one.id for one in shown])
            return running_table(shown, ids_shown, len(found) - len(shown), idle[0])

        show_live(page, view)


def _active(found: list[Running], idle_ns: int) -> list[Running]:
    since = time.time_ns() - idle_ns
    return [one for one in found if one.last_ns >= since]
