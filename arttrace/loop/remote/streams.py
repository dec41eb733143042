"""A streamed answer that passes to the user as it arrives, and is assembled meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Self

import wrapt

from arttrace.capture.base.guard import Guard

_collecting = Guard("reading a server's stream")


def as_json(answer: Any, **options: Any) -> bytes:
    """An object of the OpenAI client's as JSON, half of a surrogate pair, which UTF-8 cannot hold, by its escape.

    Args:
        answer: The object.
        options: Those of pydantic's `model_dump_json`.
    """
    try:
        return bytes(answer.model_dump_json(warnings=False, **options).encode())
    except ValueError:
        return json.dumps(answer.model_dump(mode="json", warnings=False, **options)).encode()


def collecting(stream: Any, keep: Callable[[list[bytes]], None]) -> Any:
    """The stream; its events are kept once it has been read to its end.

    Args:
        stream: An `openai.Stream` or `openai.AsyncStream`.
        keep: Called with the events as JSON, once the stream has ended.

    Returns:
        A stream that behaves in the same way.
    """
    return (_AsyncCollected if hasattr(stream, "__anext__") else _Collected)(stream, keep)


class _Events:
    """What has come so far."""

    def __init__(self, keep: Callable[[list[bytes]], None]) -> None:
        self._events: list[bytes] = []
        self._keep: Callable[[list[bytes]], None] | None = keep

    def add(self, event: Any) -> None:
        keep, self._keep = self._keep, None
        if keep is not None:
            with _collecting:  # nothing is kept of a stream that lacks an event
                self._events.append(as_json(event, exclude_unset=True))
                self._keep = keep

    def end(self) -> None:
        keep, self._keep = self._keep, None
        if keep is not None:
            keep(self._events)


class _AsyncCollected(wrapt.ObjectProxy):  # type: ignore[type-arg]
    def __init__(self, stream: Any, keep: Callable[[list[bytes]], None]) -> None:
        super().__init__(stream)
        self._self_events = _Events(keep)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            event = await self.__wrapped__.__anext__()
        except StopAsyncIteration:
            self._self_events.end()
            raise
        self._self_events.add(event)
        return event

    async def __aenter__(self) -> Self:
        await self.__wrapped__.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self.__wrapped__.__aexit__(*error)


class _Collected(wrapt.ObjectProxy):  # type: ignore[type-arg]
    def __init__(self, stream: Any, keep: Callable[[list[bytes]], None]) -> None:
        super().__init__(stream)
        self._self_events = _Events(keep)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            event = next(self.__wrapped__)
        except StopIteration:
            self._self_events.end()
            raise
        self._self_events.add(event)
        return event

    def __enter__(self) -> Self:
        self.__wrapped__.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self.__wrapped__.__exit__(*error)
