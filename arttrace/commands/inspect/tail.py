"""`arttrace tail`: what agents do, as they do it."""

from __future__ import annotations

import click

from arttrace.commands.shared.following import print_events, watched_store
from arttrace.commands.shared.options import json_option, store_option
from arttrace.commands.shared.run_filters import checked
from arttrace.system.paths import DataDir
from arttrace.views.console.events import Events
from arttrace.views.run_filter import RunFilter, moment


@click.command("tail")
@click.option("--entry", metavar="NAME", help="Only runs of this entry point.")
@click.option("--group", metavar="KEY", help="Only runs of this group: its key, or what `ls` shows of it.")
@click.option("--since", metavar="2h|DATE", callback=checked(moment), help="Begin with what was recorded since then.")
@json_option
@store_option
def command(entry: str | None, group: str | None, since: str | None, as_json: bool, data: DataDir) -> None:
    """Print what agents do as it is recorded, one line each: runs, agents, model calls and tools as they end (those
    that last over a second also as they begin), and rewards. With --json each line is an object.

    With a filter, a run is printed once its entry point is known: when it ends, or has lasted over a second. Other
    commands keep working meanwhile. Stop with Ctrl-C.
    """
    since_ns = None if since is None else moment(since)
    with watched_store(data) as store:
        events = Events(store, since_ns, wanted=RunFilter(entry=entry, group=group))
        print_events(events, as_json)
