"""The log of `arttrace serve` and the daemon: lines with time and level, for people or as JSON, on standard error and
in a file that is rotated."""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import pairwise
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Literal, TextIO

import click

from arttrace.system.errors import harmless

LogFormat = Literal["text", "json"]

MAX_BYTES = 10 << 20
"""A log file of this size becomes NAME.log.1, that one NAME.log.2, ..."""
_KEPT = 5
_HEAD = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z [A-Z]+ +")
_LINE_END = re.compile("[\\r\\n]+")


class Problem(str):
    """A line about something that is wrong: its level is WARNING, that of others INFO."""

    __slots__ = ()


class ShownElsewhere(str):
    """A line that whoever watches the command has from another, such as a version on standard output: it goes to the
    file alone."""

    __slots__ = ()


class ProblemShownElsewhere(ShownElsewhere, Problem):
    """What ended a command, for one."""

    __slots__ = ()


def same_level(line: str, text: str) -> str:
    """`text` as a line of the level that `line` has."""
    return Problem(text) if isinstance(line, Problem) else text


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"{_time(record)} {record.levelname:7} {harmless(record.getMessage())}"


def without_time(line: str) -> str:
    """What a line of a log for people says, without its time and level."""
    return _HEAD.sub("", line)


class _Json(logging.Formatter):
    def __init__(self, encoding: str | None) -> None:
        super().__init__()
        # The escapes that a stream writes for letters it does not have are not JSON's.
        self._in_ascii = (encoding or "").lower() not in ("utf-8", "utf8")

    def format(self, record: logging.LogRecord) -> str:
        said = {"time": _time(record), "level": record.levelname.lower(), "logger": record.name}
        return json.dumps({**said, "message": _in_letters(record.getMessage())}, ensure_ascii=self._in_ascii)


def _in_letters(text: str) -> str:
    """With the names of files as they are called, also where Python could not read them; no half of a pair stays."""
    with contextlib.suppress(UnicodeEncodeError):
        text = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return text.encode("utf-8", "backslashreplace").decode()


class JsonLines(io.TextIOBase):
    """A stream for text whose every line becomes an object of the log; empty ones are left out."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._formatter = _Json(stream.encoding)
        self._begun = ""
        self._writing = threading.RLock()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        """Write the lines that end in the text, also those that draw themselves anew; keep the rest for the next."""
        with self._writing:
            *ended, self._begun = _LINE_END.split(self._begun + text)
            for line in filter(str.strip, ended):
                level = logging.ERROR if line.lower().startswith("error:") else logging.INFO
                record = logging.LogRecord("arttrace", level, "", 0, "%s", (line.rstrip(),), None)
                self.stream.write(self._formatter.format(record) + "\n")
            self.stream.flush()
        return len(text)

    def end(self) -> None:
        """Write the rest as a line, unless the stream is closed: that of a program which has given another back."""
        if not self.stream.closed:
            self.write("\n")

    def flush(self) -> None:
        self.stream.flush()

    def fileno(self) -> int:
        return self.stream.fileno()


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@contextlib.contextmanager
def logging_to(name: str, folder: Path, log_format: LogFormat) -> Iterator[Callable[[str], None]]:
    """A function that says a line: to standard error, and to `folder/NAME.log`, of which the newest files are kept.

    A file that cannot be written is said once on standard error; the work goes on.
    """
    screen = sys.stderr.stream if isinstance(sys.stderr, JsonLines) else sys.stderr
    as_json = log_format == "json"
    logger = logging.Logger(f"arttrace.{name}", logging.INFO)  # its own: no handler of the process doubles its lines
    on_screen = logging.StreamHandler(screen)
    on_screen.setFormatter(_Json(screen.encoding) if as_json else _Text())
    on_screen.addFilter(lambda record: not any(isinstance(part, ShownElsewhere) for part in record.args or ()))
    logger.addHandler(on_screen)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / f"{name}.log"
        file = RotatingFileHandler(
            path, maxBytes=MAX_BYTES, backupCount=_KEPT, encoding="utf-8", errors="backslashreplace"
        )
        file.setFormatter(_Json("utf-8") if as_json else _Text())
        file.handleError = lambda record: None  # type: ignore[method-assign]  # a full disk: the screen has the line
        path.chmod(0o600)
        logger.addHandler(file)
    except OSError as error:
        logger.warning("no log file: %s", error)

    def say(line: str) -> None:
        logger.log(logging.WARNING if isinstance(line, Problem) else logging.INFO, "%s", line)

    try:
        yield say
    finally:
        for handler in list(logger.handlers):
            handler.close()


def make_room(log: Path) -> None:
    """Rotate a file that another program appends to, before it is started again."""
    with contextlib.suppress(OSError):
        if log.stat().st_size < MAX_BYTES:
            return
        for number in range(_KEPT - 1, 0, -1):
            earlier = log.with_name(f"{log.name}.{number}")
            if earlier.exists():
                earlier.replace(log.with_name(f"{log.name}.{number + 1}"))
        log.replace(log.with_name(f"{log.name}.1"))


class LoggingCommand(click.Command):
    """A command with `log_format_option`: what is wrong with its command line is said as JSON where that is asked for,
    also an option that there is not, which is found before any is read."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does."""
        asked = [*args]
        try:
            return super().parse_args(ctx, args)
        except click.UsageError:
            if "--log-format=json" in asked or ("--log-format", "json") in pairwise(asked):
                _say_as_json()
            raise


def _say_as_json() -> None:
    """Makes every line on standard error an object to the end of the process: what ended it is the last one."""
    if not isinstance(sys.stderr, JsonLines):
        sys.stderr = JsonLines(sys.stderr)
        atexit.register(sys.stderr.end)


def _say_all(_context: click.Context, _parameter: click.Parameter, log_format: LogFormat) -> LogFormat:
    if log_format == "json":
        _say_as_json()
    return log_format


log_format_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    is_eager=True,  # what is wrong with another option is said so, too
    callback=_say_all,
    help="Lines about the work, on standard error and in the data directory's logs, as text or as JSON; as JSON also"
    " what goes to standard output.",
)
