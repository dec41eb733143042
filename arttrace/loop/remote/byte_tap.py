"""The bytes of an HTTP answer, kept as its reader takes them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import wrapt

MAX_BYTES = 256 << 20
"""Nothing is kept of a longer answer."""


def tapped(stream: Any, keep: Callable[[bytes], None]) -> Any:
    """The byte stream of a response, whose bytes are kept when it was read to its end.

    Args:
        stream: `response.stream` of httpx or httpx2, not read yet.
        keep: Called with its bytes.

    Returns:
        A stream that behaves in the same way.
    """
    return _Tapped(stream, keep)


class _Tapped(wrapt.ObjectProxy):  # type: ignore[type-arg]
    def __init__(self, stream: Any, keep: Callable[[bytes], None]) -> None:
        super().__init__(stream)
        self._self_parts: list[bytes] = []
        self._self_left = MAX_BYTES
        self._self_keep: Callable[[bytes], None] | None = keep

    def __iter__(self) -> Iterator[bytes]:
        for part in self.__wrapped__:
            self._self_add(part)
            yield part
        self._self_end()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self.__wrapped__:
            self._self_add(part)
            yield part
        self._self_end()

    def _self_add(self, part: bytes) -> None:
        self._self_left -= len(part)
        if self._self_left < 0:
            self._self_keep = None
            self._self_parts.clear()
        elif self._self_keep is not None:
            self._self_parts.append(part)

    def _self_end(self) -> None:
        keep, self._self_keep = self._self_keep, None
        if keep is not None:
            keep(b"".join(self._self_parts))
