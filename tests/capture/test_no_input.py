"""Standard input of a run that is run again: whatever way it is read, the run is no word about its agent."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

import arttrace
from arttrace.capture.rollout import stdin
from arttrace.records.span import SpanRow
from arttrace.trajectories import build_trajectories


def raw() -> Any:
    return sys.stdin.buffer


READ: dict[str, Callable[[], Any]] = {
    "input": input,
    "a line": lambda: sys.stdin.readline(),
    "lines": lambda: sys.stdin.readlines(),
    "line by line": lambda: list(sys.stdin),
    "all": lambda: sys.stdin.read(),
    "a part": lambda: sys.stdin.read(10),
    "a document": lambda: json.load(sys.stdin),
    "bytes": lambda: raw().read(),
    "some bytes": lambda: raw().read1(10),
    "a line of bytes": lambda: raw().readline(),
    "bytes into a place": lambda: raw().readinto(bytearray(10)),
}
LOOK: dict[str, Callable[[], Any]] = {
    "is a terminal": lambda: sys.stdin.isatty(),
    "number": lambda: sys.stdin.fileno(),
    "is closed": lambda: sys.stdin.closed,
    "is of text": lambda: sys.stdin.read(0),
    "is of bytes": lambda: raw().read(0),
}


@pytest.mark.parametrize("way", [*READ, *LOOK])
def test_a_run_that_reads_it_is_marked(
    way: str, monkeypatch: pytest.MonkeyPatch, spans: Callable[[], list[SpanRow]]
) -> None:
    monkeypatch.setattr(sys, "stdin", sys.stdin)
    stdin.install()
    with arttrace.trajectory(name="run"), contextlib.suppress(EOFError, ValueError):
        (READ | LOOK)[way]()
    sys.stdin.close()
    [run] = build_trajectories(spans())
    assert run.incomplete == ("interrupted: it asked for standard input, which no record holds" if way in READ else "")
