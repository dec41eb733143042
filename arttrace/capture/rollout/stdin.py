"""Standard input of a run that is run again: empty. A run that reads from it says nothing about its agent."""

from __future__ import annotations

import io
import os
import sys

from arttrace.capture.base.guard import Guard
from arttrace.capture.context import program
from arttrace.capture.context.flow import calling_flow

_noting = Guard("noting that a run asked for input")


class _NoInput(io.TextIOWrapper):
    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]
        with _noting:
            scope = calling_flow().scope or program.scope()
            if scope is not None:
                scope.run.interrupted = "it asked for standard input, which no record holds"
        return super().readline(size)


def install() -> None:
    """Put it in place of this process's standard input."""
    sys.stdin = _NoInput(io.BufferedReader(io.FileIO(os.devnull)))
