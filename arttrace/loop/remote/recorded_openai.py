"""OpenAI's clients, with a trajectory on each answer. Whichever way an answer is requested (`create`, `parse`,
`stream`, a raw response, a streaming one), the request passes the client's `post`, where it is tagged and the answer
read."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from typing import Any

from openai import AsyncOpenAI, OpenAI

from arttrace.loop.remote.recorded_answer import RecordedAnswer, recorded_answer
from arttrace.loop.trajectory import Trajectory


class _RecordedStreams:
    """Both clients' resources: their streams have a `trajectory` too."""

    @cached_property
    def chat(self) -> Any:
        """Chat completions."""
        return _streaming(super().chat, "completions")  # type: ignore[misc]  # of the OpenAI client beside this class

    @cached_property
    def responses(self) -> Any:
        """Responses."""
        return _streaming(super().responses)  # type: ignore[misc]

    @cached_property
    def beta(self) -> Any:
        """What is still in beta, and second names of what no longer is."""
        made = super().beta  # type: ignore[misc]
        _streaming(made.chat, "completions")
        return made


class RecordedOpenAI(_RecordedStreams, OpenAI):
    """`openai.OpenAI`, whose answers have a `trajectory`."""

    def post(self, path: str, **asked: Any) -> Any:
        """Send a request, as OpenAI's client does."""
        recorded = recorded_answer(path, asked)
        if recorded is None:
            return super().post(path, **asked)
        return _keep(super().post(path, **recorded.request), recorded)


class AsyncRecordedOpenAI(_RecordedStreams, AsyncOpenAI):
    """`openai.AsyncOpenAI`, whose answers have a `trajectory`."""

    async def post(self, path: str, **asked: Any) -> Any:
        """Send a request, as OpenAI's client does."""
        recorded = recorded_answer(path, asked)
        if recorded is None:
            return await super().post(path, **asked)
        return _keep(await super().post(path, **recorded.request), recorded)


_entered: ContextVar[list[Trajectory] | None] = ContextVar("arttrace_entered_stream", default=None)
"""Where the request that a stream's manager sends puts its trajectory."""


def _keep(answer: Any, recorded: RecordedAnswer) -> Any:
    if (entered := _entered.get()) is not None:
        entered.append(recorded.trajectory)
    recorded.keep(answer)
    return answer


def _streaming(resource: Any, name: str | None = None) -> Any:
    """The resource, or that of its name within it, has a `stream` whose streams have a `trajectory`."""
    streamed = resource if name is None else getattr(resource, name)
    streamed.stream = _managed(streamed.stream)
    return resource


def _managed(stream: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stream)
    def managed(*args: Any, **asked: Any) -> Any:
        manager = stream(*args, **asked)
        return (_AsyncManager if hasattr(manager, "__aenter__") else _Manager)(manager)

    return managed


class _Manager:
    def __init__(self, manager: Any) -> None:
        self._manager = manager

    def __enter__(self) -> Any:
        with _posted() as trajectories:
            stream = self._manager.__enter__()
        return _with_trajectory(stream, trajectories)

    def __exit__(self, *error: Any) -> Any:
        return self._manager.__exit__(*error)


class _AsyncManager:
    def __init__(self, manager: Any) -> None:
        self._manager = manager

    async def __aenter__(self) -> Any:
        with _posted() as trajectories:
            stream = await self._manager.__aenter__()
        return _with_trajectory(stream, trajectories)

    async def __aexit__(self, *error: Any) -> Any:
        return await self._manager.__aexit__(*error)


@contextmanager
def _posted() -> Iterator[list[Trajectory]]:
    """The trajectories of the requests that are sent within."""
    trajectories: list[Trajectory] = []
    token = _entered.set(trajectories)
    try:
        yield trajectories
    finally:
        _entered.reset(token)


def _with_trajectory(stream: Any, trajectories: list[Trajectory]) -> Any:
    for trajectory in trajectories:  # none for a stored response, which is only read again
        stream.trajectory = trajectory
    return stream
