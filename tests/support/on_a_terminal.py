"""A program on a terminal of its own: what the terminal is sent, and what of it stays on the screen."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROWS, COLUMNS = 50, 100


class Drawn(NamedTuple):
    """What came of a program on a terminal."""

    exit_code: int
    sent: str
    screen: list[str]
    has_cursor: bool


def on_a_terminal(
    code: str,
    *arguments: str,
    stdout: Path | None = None,
    keys: Sequence[tuple[str, bytes]] = (),
    environ: Mapping[str, str] | None = None,
) -> Drawn:
    """Runs Python code with arguments; `stdout` goes to a file instead. Of `keys` each is pressed when its text has
    been sent."""
    screen, program = pty.openpty()
    fcntl.ioctl(program, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    plain = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    with contextlib.ExitStack() as files:
        output = program if stdout is None else files.enter_context(stdout.open("wb"))
        running = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            stdin=program,
            stdout=output,
            stderr=program,
            env={**plain, "TERM": "xterm", **(environ or {})},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(program)
        sent, waiting = b"", list(keys)
        with contextlib.suppress(OSError):  # the end, on Linux
            while part := os.read(screen, 65536):
                sent += part
                if waiting and waiting[0][0].encode() in sent:
                    os.write(screen, waiting.pop(0)[1])
        os.close(screen)
        exit_code = running.wait(60)
    text = sent.decode()
    return Drawn(exit_code, text, _screen(text), text.rfind("\x1b[?25h") >= text.rfind("\x1b[?25l"))


def _screen(sent: str) -> list[str]:
    """The rows that stay, of what moves up and down, clears rows and begins new ones; colours are no part of it."""
    rows, at, column = [""], 0, 0
    for word in re.findall(r"\x1b\[[?0-9;]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", sent):
        if word == "\r":
            column = 0
        elif word == "\n":
            at += 1
            rows += [""] * (at + 1 - len(rows))
        elif word.startswith("\x1b"):
            if word.endswith("A"):
                at -= int(word[2:-1] or 1)
            elif word == "\x1b[2K":
                rows[at] = ""
        else:
            rows[at] = rows[at].ljust(column)[:column] + word + rows[at][column + len(word) :]
            column += len(word)
    return [row.rstrip() for row in rows if row.strip()]
