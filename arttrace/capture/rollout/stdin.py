"""Standard input of a run that is run again: empty. A run that reads from it says nothing about its agent."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path
from typing import Any

from arttrace.capture.base.guard import Guard
from arttrace.capture.context import program
from arttrace.capture.context.flow import calling_flow

_noting = Guard("noting that a run asked for input")


class _Nothing(io.FileIO):
    """What is read below text and buffers, by whichever of their methods."""

    def readinto(self, buffer: Any, /) -> int:
        _note()
        return 0

    def readall(self) -> bytes:
        _note()
        return b""


def _note() -> None:
    with _noting:
        scope = calling_flow().scope or program.scope()
        if scope is not None:
            scope.run.interrupted = "it asked for standard input, which no record holds"


def install() -> None:
    """Put it in place of this process's standard input, where that is empty: what a command of a rollout pipes into one
    of its programs is read."""
    with contextlib.suppress(OSError):
        if not os.path.samestat(os.fstat(0), Path(os.devnull).stat()):
            return
    sys.stdin = io.TextIOWrapper(io.BufferedReader(_Nothing(os.devnull)))
