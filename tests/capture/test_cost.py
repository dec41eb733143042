"""What a decorated call costs, counted and not timed, and what was put in the place of dearer things of Python's."""

from __future__ import annotations

import inspect
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import openai
import pytest
from chat_server import ChatServer
from spool import finished_spans

import arttrace
from arttrace.capture.base.annotations import binder
from arttrace.capture.export.recorder import Recorder

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
    bind = binder(signature)
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


TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
REQUESTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "with tools": {"tools": TOOLS},
    "stream": {"stream": True},
    "tokens": {"logprobs": True, "extra_body": {"return_token_ids": True}},
    "stream of tokens": {"stream": True, "logprobs": True, "extra_body": {"return_token_ids": True}},
}


@pytest.mark.parametrize("content", ["full", "redacted", "off"])
@pytest.mark.parametrize("name", REQUESTS)
def test_a_body_is_parsed_once(
    name: str, content: Any, server: ChatServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request's and the response's, on the user's thread and in the background together."""
    parsed: list[str] = []

    def profile(frame: FrameType, event: str, called: Any) -> None:
        if event != "c_call" or called.__name__ not in ("decode", "json_decode", "loads"):
            return
        if isinstance(called.__self__, (bytes, str)) or f"{os.sep}arttrace{os.sep}" not in frame.f_code.co_filename:
            return
        for value in frame.f_locals.values():
            if value == server.requests[-1][1]:
                parsed.append("request")
            elif b'"object": "chat.completion' in (
                value[0] if isinstance(value, list) else value if isinstance(value, bytes) else b""
            ):
                parsed.append("response")

    arttrace.init(dir=tmp_path, capture_content=content)
    with arttrace.trajectory(name="root"), openai.OpenAI(base_url=server.url, api_key="sk-test-0123456789") as client:
        messages: Any = [{"role": "user", "content": "the question"}]
        monkeypatch.setattr(Recorder, "submit", lambda self, job, weight=0, *, waits=True: job())
        sys.setprofile(profile)
        try:
            answer = client.chat.completions.create(model="m", messages=messages, **REQUESTS[name])
            if "stream" in name:
                list(answer)
        finally:
            sys.setprofile(None)
        monkeypatch.undo()
    assert arttrace.flush()
    assert sorted(parsed) == ["request", "response"]
    assert len([span for span in finished_spans(tmp_path) if span.name == "chat m"]) == 1
