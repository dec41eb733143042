"""What a decorated call costs, counted and not timed, and what was put in the place of dearer things of Python's."""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

import arttrace
from arttrace.capture.decorators import _binder
from arttrace.records.record import Record


def calls_in(work: Callable[[], object]) -> int:
    """How many functions, Python's own among them, `work` enters on this thread."""
    count = 0

    def profile(frame: FrameType, event: str, _: Any) -> None:
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


def test_a_decorated_tool_enters_few_functions(records: Callable[[], list[Record]]) -> None:
    looks(2)
    few, many = calls_in(lambda: looks(2)), calls_in(lambda: looks(52))
    assert (many - few) / 50 <= 115, "of a decorated tool, beside what a longer loop enters"


def test_a_decorated_trajectory_enters_few_functions(records: Callable[[], list[Record]]) -> None:
    nothing("quartz")
    least = min(
        calls_in(lambda: nothing("quartz")) for _ in range(10)
    )  # waking the worker, where it sleeps, is four more
    assert least <= 165


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
