"""A streamed answer that passes to the user as it comes, and is put together beside that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import wrapt

from arttrace.wire.apis.completion_response import read_stream


def collecting(stream: Any, keep: Callable[[Any], None]) -> Any:
    """The stream, whose answer is kept when it was read to its end.

    Args:
        stream: An `openai.Stream` or `openai.AsyncStream` of a chat completion.
        keep: Called with the first choice, as a client that does not stream returns it. Not called for an answer that
            did not come whole.

    Returns:
        What behaves as the stream does.
    """
    return (_AsyncCollected if hasattr(stream, "__anext__") else _Collected)(stream, keep)


class _Chunks:
    """What has come so far."""

    def __init__(self, keep: Callable[[Any], None]) -> None:
        self._chunks: list[bytes] | None = []
        self._keep = keep

    def add(self, chunk: Any) -> None:
        if self._chunks is not None:
            self._chunks.append(chunk.model_dump_json(exclude_unset=True, warnings=False).encode())

    def end(self) -> None:
        chunks, self._chunks = self._chunks, None
        if chunks is None:
            return
        from openai.types.chat.chat_completion import Choice

        whole = read_stream(chunks)
        if whole.choices and whole.choices[0].finish_reason is not None and not whole.error:
            first = whole.choices[0]
            reason: Any = first.finish_reason  # as with the client, also one that it does not know
            self._keep(Choice.construct(index=0, finish_reason=reason, message=first.message))


class _AsyncCollected(wrapt.ObjectProxy):  # type: ignore[type-arg]
    def __init__(self, stream: Any, keep: Callable[[Any], None]) -> None:
        super().__init__(stream)
        self._self_chunks = _Chunks(keep)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            chunk = await self.__wrapped__.__anext__()
        except StopAsyncIteration:
            self._self_chunks.end()
            raise
        self._self_chunks.add(chunk)
        return chunk

    async def __aenter__(self) -> Self:
        await self.__wrapped__.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self.__wrapped__.__aexit__(*error)


class _Collected(wrapt.ObjectProxy):  # type: ignore[type-arg]
    def __init__(self, stream: Any, keep: Callable[[Any], None]) -> None:
        super().__init__(stream)
        self._self_chunks = _Chunks(keep)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            chunk = next(self.__wrapped__)
        except StopIteration:
            self._self_chunks.end()
            raise
        self._self_chunks.add(chunk)
        return chunk

    def __enter__(self) -> Self:
        self.__wrapped__.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self.__wrapped__.__exit__(*error)
