"""What `arttrace serve` and the daemon say of their work: lines with time and level, for people or as JSON, on standard
error and in a file that is rotated."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Literal

import click

LogFormat = Literal["text", "json"]

MAX_BYTES = 10 << 20
"""A log file of this size becomes NAME.log.1, that one NAME.log.2, ..."""
_KEPT = 5


class Problem(str):
    """A line about something that is wrong: its level is WARNING, that of others INFO."""

    __slots__ = ()


def same_level(line: str, text: str) -> str:
    """`text` as a line of the level that `line` has."""
    return Problem(text) if isinstance(line, Problem) else text


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"{_time(record)} {record.levelname:7} {record.getMessage()}"


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        said = {"time": _time(record), "level": record.levelname.lower(), "logger": record.name}
        return json.dumps({**said, "message": record.getMessage()}, ensure_ascii=False)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@contextlib.contextmanager
def logging_to(name: str, folder: Path, log_format: LogFormat) -> Iterator[Callable[[str], None]]:
    """A function that says a line: to standard error, and to `folder/NAME.log`, of which the newest files are kept.

    A file that cannot be written is said once on standard error; the work goes on.
    """
    formatter = _Json() if log_format == "json" else _Text()
    logger = logging.Logger(f"arttrace.{name}", logging.INFO)  # its own: no handler of the process doubles its lines
    on_screen = logging.StreamHandler(sys.stderr)
    on_screen.setFormatter(formatter)
    logger.addHandler(on_screen)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = RotatingFileHandler(folder / f"{name}.log", maxBytes=MAX_BYTES, backupCount=_KEPT, encoding="utf-8")
        file.setFormatter(formatter)
        file.handleError = lambda record: None  # type: ignore[method-assign]  # a full disk: the screen has the line
        (folder / f"{name}.log").chmod(0o600)
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


log_format_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Lines about the work, on standard error and in the data directory's logs, as text or as JSON.",
)
