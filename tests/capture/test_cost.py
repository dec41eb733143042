"""What a decorated call costs, counted and not timed, and what was put in the place of dearer things of Python's."""

from __future__ import annotations

import inspect
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from arttrace.capture.decorators import _binder

COUNTED = """
import sys
from collections.abc import Callable

import arttrace


def calls_in(work: Callable[[], object]) -> int:
    count = 0

    def profile(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@arttrace.tool
def look(query: str, limit: int = 3) -> str:
    return query


@arttrace.trajectory
def looks(times: int) -> None:
    for _ in range(times):
        look("quartz")


@arttrace.trajectory
def nothing(question: str) -> str:
    return question


looks(2), nothing("quartz")
tool = (min(calls_in(lambda: looks(52)) for _ in range(9)) - min(calls_in(lambda: looks(2)) for _ in range(9))) / 50
print(tool, min(calls_in(lambda: nothing("quartz")) for _ in range(50)))
"""
"""Prints how many functions, Python's own among them, a decorated tool and a decorated trajectory enter on the caller's
thread. The least of several: where the recorder's worker sleeps, waking it is four more."""


def test_a_decorated_tool_and_a_decorated_trajectory_enter_few_functions(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COUNTED],
        env={**os.environ, "ARTTRACE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    tool, trajectory = map(float, done.stdout.split())
    assert tool <= 106
    assert trajectory <= 158


def functions() -> Iterator[Callable[..., Any]]:
    def none() -> None: ...
    def plain(a: Any, b: Any) -> None: ...
    def defaults(a: Any, b: Any = 2, c: Any = None) -> None: ...
    def more(a: Any, *rest: Any, b: Any = 1, **named: Any) -> None: ...
    def positional(a: Any, /, b: Any = 2) -> None: ...
    def keyword(a: Any, *, b: Any) -> None: ...

    yield from (none, plain, defaults, more, positional, keyword)


@pytest.mark.parametrize("function", list(functions()), ids=lambda function: function.__name__)
def test_arguments_are_bound_as_inspect_binds_them(function: Callable[..., Any]) -> None:
    signature = inspect.signature(function)
    bind = _binder(signature)
    keywords = [dict(zip(names, (10, 20, 30), strict=False)) for names in itertools.permutations("abc")]
    for args in ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)):
        for given in [{}, *({name: each[name] for name in list(each)[:n]} for each in keywords for n in (1, 2, 3))]:
            try:
                bound = signature.bind(*args, **given)
            except TypeError:
                expected: dict[str, Any] = {}
            else:
                bound.apply_defaults()
                expected = bound.arguments
            assert list(bind(args, given).items()) == list(expected.items())
