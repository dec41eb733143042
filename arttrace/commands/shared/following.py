"""Following a store until Ctrl-C or a closed pipe."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import NoReturn

import click
from rich.console import Console, RenderableType
from rich.live import Live

from arttrace.commands.shared.json_output import print_json
from arttrace.formats.imported_run import is_undated
from arttrace.store import AnyStore
from arttrace.system.journal import list_segments
from arttrace.system.paths import DataDir, endpoints
from arttrace.system.processes import signals_after_imports
from arttrace.views import terminal
from arttrace.views.console.events import Events, RunEvent, line
from arttrace.views.labels import short_id

EVERY_S = 0.5


@contextlib.contextmanager
def watched_store(data: DataDir) -> Iterator[AnyStore]:
    """The store, opened so that other commands keep working; if nothing was captured yet, waits until something is.
    Ctrl-C ends the body without an error. Raises StoreError."""
    with contextlib.suppress(KeyboardInterrupt):
        with signals_after_imports(takes_long=False):
            from arttrace.store.server.owner import hold_store  # a server, which a list that is printed once needs not
        if not (data.url or endpoints()[0] or _anything(data)):
            click.echo(f"waiting for the first run in {data.root}", err=True)
            while not _anything(data):
                time.sleep(EVERY_S)
        with hold_store(data, create=True) as store:
            yield store


def _anything(data: DataDir) -> bool:
    return data.store.exists() or any(map(list_segments, (data.spool, data.journal)))


def show_live(page: Console, shown: Callable[[], RenderableType]) -> NoReturn:
    """What is `shown` now in place of what is on the screen, until Ctrl-C."""
    with Live(shown(), console=page, auto_refresh=False, screen=True) as live:
        while True:
            time.sleep(EVERY_S)
            live.update(shown(), refresh=True)


def print_events(events: Events, as_json: bool, *, ends: Callable[[RunEvent], bool] = lambda _: False) -> None:
    """Prints what happens, a line each, until an event `ends` it."""
    page = terminal.console()
    while True:
        for event in events.new():
            if as_json:
                print_json(event)
            else:
                shown = line(event, short_id(event.run), _clock(event.time_ns))
                page.print(shown, soft_wrap=not page.is_terminal, overflow="ellipsis")
            if ends(event):
                return
        page.file.flush()
        if not events.more:
            time.sleep(EVERY_S)


def _clock(time_ns: int) -> str:
    if not time_ns or is_undated(time_ns):
        return "--:--:--"
    return datetime.fromtimestamp(time_ns / 1e9).strftime("%H:%M:%S")
