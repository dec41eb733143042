"""What a response of requests is read from, with every way to read it tapped; what reads it inside reads it itself.

Mostly urllib3's response; other transports' adapters give any file, which takes less and has no `stream`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import wrapt

from arttrace.capture.base.guard import Guard

_tapping = Guard("tapping a stream")


class TappedRaw(wrapt.ObjectProxy):  # type: ignore[type-arg]
    """`raw`, whose bytes and whose end `tap` is told."""

    def __init__(self, raw: Any, tap: Any) -> None:
        super().__init__(raw)
        self._self_tap = tap

    @property
    def stream(self) -> Callable[..., Iterator[bytes]]:
        stream = self.__wrapped__.stream

        def tapped(amt: int | None = 2**16, decode_content: bool | None = None) -> Iterator[bytes]:
            return self._tapped(stream(amt, decode_content), decode_content)

        return tapped

    @property
    def data(self) -> Any:
        """urllib3 reads the rest, and keeps it: the next look reads nothing."""
        if getattr(self.__wrapped__, "_body", b"") is not None:
            return self.__wrapped__.data
        return self._taken(lambda: self.__wrapped__.data, at_end=_always, decode_content=None)

    def json(self) -> Any:
        _ = self.data
        return self.__wrapped__.json()

    def read_chunked(self, amt: int | None = None, decode_content: bool | None = None) -> Iterator[bytes]:
        return self._tapped(self.__wrapped__.read_chunked(amt, decode_content), decode_content)

    def __iter__(self) -> Iterator[bytes]:
        return self._tapped(iter(self.__wrapped__), True)

    def __next__(self) -> bytes:
        line: bytes = self._taken(lambda: next(self.__wrapped__, b""), at_end=_nothing, decode_content=None)
        if not line:
            raise StopIteration
        return line

    def read(self, amt: int | None = None, *more: Any, **named: Any) -> Any:
        read, asked = self.__wrapped__.read, more[0] if more else named.get("decode_content")
        ends = _always if amt is None or amt < 0 else _nothing if amt else _never
        return self._taken(lambda: read(amt, *more, **named), at_end=ends, decode_content=asked)

    def read1(self, amt: int | None = None, *more: Any, **named: Any) -> Any:
        read, asked = self.__wrapped__.read1, more[0] if more else named.get("decode_content")
        return self._taken(
            lambda: read(amt, *more, **named), at_end=_never if amt == 0 else _nothing, decode_content=asked
        )

    def readline(self, *size: Any) -> Any:
        read, ends = self.__wrapped__.readline, _never if size == (0,) else _nothing
        return self._taken(lambda: read(*size), at_end=ends, decode_content=None)

    def readlines(self, *hint: Any) -> list[bytes]:
        read = self.__wrapped__.readlines
        lines: list[bytes] = []

        def joined() -> bytes:
            lines.extend(read(*hint))
            return b"".join(lines)

        limited = any(each is not None and each > 0 for each in hint)
        self._taken(joined, at_end=_nothing if limited else _always, decode_content=None)
        return lines

    def readinto(self, buffer: Any) -> int:
        into, size = self.__wrapped__.readinto, 0

        def read() -> bytes:
            nonlocal size
            size = into(buffer)
            return bytes(memoryview(buffer)[:size])

        self._taken(read, at_end=_nothing if len(buffer) else _never, decode_content=None)
        return size

    def __enter__(self) -> Any:
        entered = self.__wrapped__.__enter__()
        return self if entered is self.__wrapped__ else entered

    def __exit__(self, *raised: Any) -> Any:
        try:
            return self.__wrapped__.__exit__(*raised)
        finally:
            self._self_tap._ended("closed")

    def close(self) -> None:
        try:
            self.__wrapped__.close()
        finally:
            self._self_tap._ended("closed")

    def release_conn(self) -> None:
        try:
            self.__wrapped__.release_conn()
        finally:
            self._self_tap._ended("closed")

    def _taken(self, read: Callable[[], Any], *, at_end: Callable[[bytes], bool], decode_content: bool | None) -> Any:
        try:
            data = read()
        except BaseException as error:
            self._self_tap._broken(error)
            raise
        with _tapping:
            self._note(decode_content)
        self._self_tap._take(data)
        if at_end(data):
            self._self_tap._ended("complete")
        return data

    def _tapped(self, chunks: Iterator[bytes], decode_content: bool | None) -> Iterator[bytes]:
        try:
            for chunk in chunks:
                with _tapping:
                    self._note(decode_content)
                self._self_tap._take(chunk)
                yield chunk
        except BaseException as error:
            self._self_tap._broken(error)
            raise
        self._self_tap._ended("complete")

    def _note(self, decode_content: bool | None) -> None:
        """Whether urllib3 undoes the body's encoding depends on how it is read; of a file nobody does."""
        asked = getattr(self.__wrapped__, "decode_content", False) if decode_content is None else decode_content
        self._self_tap._attempt.body_undone = bool(asked)


def _always(data: bytes) -> bool:
    return True


def _never(data: bytes) -> bool:
    return False


def _nothing(data: bytes) -> bool:
    return not data
