"""Bars at the foot of the terminal, for long work; what is printed meanwhile stands above them."""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.progress import Progress as Display
    from rich.progress import TaskID

_REFRESHES_PER_SECOND = 4
_BAR_WIDTH = 24
_KEY = __name__


class Bars:
    """Those of one command. They are on the screen from the first one's beginning to the last one's end, and no longer
    than the command runs, however it ends."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._display: Display | None = None
        self._printing = contextlib.ExitStack()
        self._unfinished: set[TaskID] = set()

    def begin(self) -> TaskID:
        """A bar below the others."""
        with self._lock:
            if self._display is None:
                self._display = self._start()
            bar = self._display.add_task("", total=None)
            self._unfinished.add(bar)
            return bar

    def show(self, bar: TaskID, text: str, done: int, total: int | None) -> None:
        """A bar, as far as it is, with a text beside it; one without a total moves to and fro."""
        with self._lock:
            if self._display is not None and bar in self._unfinished:
                self._display.update(bar, description=text, completed=done, total=total)

    def end(self, bar: TaskID | None = None) -> None:
        """Leave a bar on the screen as it is; without one, all of them."""
        with self._lock:
            self._unfinished -= self._unfinished if bar is None else {bar}
            if self._display is not None and not self._unfinished:
                self._display.stop()
                self._printing.close()
                self._display = None

    def _start(self) -> Display:
        from rich.console import Console  # here: most commands end before there is a bar
        from rich.file_proxy import FileProxy
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

        class Above(FileProxy):
            """Prints above the bars. Click takes a stream without an encoding for a misconfigured one, and takes
            colours out of what is for no terminal, as a proxy of rich before 15 says of itself."""

            encoding = "utf-8"
            errors = "backslashreplace"

            def isatty(self) -> bool:
                return self.rich_proxied_file.isatty()

        console = Console(file=sys.stderr, soft_wrap=True, highlight=False)
        display = Progress(
            SpinnerColumn("line", finished_text=" "),
            BarColumn(_BAR_WIDTH),
            TextColumn("{task.description}", markup=False),
            console=console,
            refresh_per_second=_REFRESHES_PER_SECOND,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        display.start()
        self._printing.enter_context(contextlib.redirect_stderr(Above(console, sys.stderr)))
        if sys.stdout.isatty():
            self._printing.enter_context(contextlib.redirect_stdout(Above(console, sys.stdout)))
        return display


def bars_of_command() -> Bars | None:
    """Those of the command that runs; None where there is no terminal to show them on, or no command to end them."""
    context = click.get_current_context(silent=True)
    if context is None or not _is_a_screen():
        return None
    command = context.find_root()
    if _KEY not in command.meta:
        command.meta[_KEY] = Bars()
        command.call_on_close(command.meta[_KEY].end)
    bars: Bars | None = command.meta[_KEY]
    return bars


def show_no_bars() -> None:
    """For a command that prints its data to the terminal: progress is said in lines."""
    click.get_current_context().find_root().meta[_KEY] = None


def _is_a_screen() -> bool:
    if not sys.stderr.isatty():
        return False
    from rich.console import Console

    return Console(stderr=True).is_interactive
