"""Compact text for token ids and log-probabilities on a span: base64 of little-endian 32-bit numbers.

`i4:` + base64 holds int32 ids; `f4:` + base64 holds float32 log-probabilities, NaN where one is missing.
Engines compute log-probabilities in float32, so nothing is lost. Plain arrays are read too.
"""

from __future__ import annotations

import base64
import math
import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, overload

TOKEN_IDS, _LOGPROBS = "i4:", "f4:"
"""What encoded token ids and log-probabilities begin with."""
_LOG_OF_ZERO = -9999.0
_LARGEST = float.fromhex("0x1.fffffep127")  # of float32


class TokenIds(Sequence[int]):
    """Token ids of shape (T,) that never change: the first `length` of an array, which longer ones share and extend.

    Equal to any list or tuple of the same numbers.
    """

    __slots__ = ("_ids", "_length")

    def __init__(self, ids: array[int], length: int) -> None:
        self._ids = ids
        self._length = length

    @classmethod
    def of(cls, ids: Sequence[int]) -> TokenIds:
        """Ids in memory of their own. Raises ValueError for one outside 32 bits."""
        if isinstance(ids, TokenIds):
            return ids
        try:
            return cls(array("i", ids), len(ids))
        except OverflowError as error:
            raise ValueError(f"a token id is outside 32 bits: {error}") from error

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[int, ...]: ...
    def __getitem__(self, index: int | slice) -> int | tuple[int, ...]:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._length)
            return tuple(self._ids[start:stop:step]) if step > 0 else tuple(self)[index]
        if not -self._length <= index < self._length:
            raise IndexError("token index out of range")
        return self._ids[index if index >= 0 else self._length + index]

    def __iter__(self) -> Iterator[int]:
        return iter(self._ids[: self._length])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (TokenIds, list, tuple)):
            return NotImplemented
        if len(other) != self._length:
            return False
        return self.begins_with(other) if isinstance(other, TokenIds) else tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))

    def begins_with(self, other: TokenIds) -> bool:
        """Whether these begin with all of `other`."""
        if len(other) > self._length or self._ids is other._ids:
            return len(other) <= self._length
        return self._ids[: len(other)] == other._ids[: len(other)]

    def __lt__(self, other: TokenIds) -> bool:
        """Whether these come first in the order of lists, in which what begins with others follows them."""
        if self._ids is other._ids:
            return self._length < other._length
        return self._ids[: self._length] < other._ids[: other._length]

    def followed_by(self, further: Sequence[int]) -> TokenIds:
        """These and further ones; they share this array where it goes on so."""
        added, end = array("i", further), self._length + len(further)
        if self._ids[self._length : end] == added:
            return TokenIds(self._ids, end)
        return TokenIds(self._ids[: self._length] + added, end)

    def tobytes(self) -> bytes:
        """The ids as native 32-bit numbers."""
        return memoryview(self._ids)[: self._length].tobytes()


class TokenText:
    """An encoded prompt as the first `keep` characters of the one that it goes on from (`before`), then `tail`.

    Equal ones should be the same object: each is then read once, whatever the length of the prompt.
    """

    __slots__ = ("before", "is_ascii", "keep", "tail")

    def __init__(self, tail: str, before: TokenText | None = None, keep: int = 0) -> None:
        self.tail, self.before, self.keep = tail, before, keep
        self.is_ascii: bool = tail.isascii() and (before is None or before.is_ascii)

    def __len__(self) -> int:
        return self.keep + len(self.tail)

    def __str__(self) -> str:
        pieces: list[str] = []
        at: TokenText | None = self
        wanted = len(self)
        while at is not None:
            pieces.append(at.tail[: max(0, wanted - at.keep)])
            wanted = min(wanted, at.keep)
            at = at.before
        return "".join(reversed(pieces))


def token_bytes(token_ids: Sequence[int]) -> bytes:
    """Token ids as native 32-bit numbers."""
    return token_ids.tobytes() if isinstance(token_ids, TokenIds) else array("i", token_ids).tobytes()


def begins_with(token_ids: Sequence[int], prefix: Sequence[int]) -> bool:
    """Whether token ids begin with those of `prefix`."""
    if isinstance(token_ids, TokenIds) and isinstance(prefix, TokenIds):
        return token_ids.begins_with(prefix)
    return tuple(token_ids[: len(prefix)]) == tuple(prefix)


def plain(value: Any) -> Any:
    """TokenIds as a list: the `enc_hook` with which msgspec writes them. Raises NotImplementedError for others."""
    if isinstance(value, TokenIds):
        return list(value)
    raise NotImplementedError(f"{type(value).__name__} cannot be written")


def plain_or_text(value: Any) -> Any:
    """The same for people: what JSON cannot hold is text."""
    return list(value) if isinstance(value, TokenIds) else str(value)


def encode_token_ids(token_ids: Sequence[int]) -> str:
    """Token ids of shape (T,) as text. Raises struct.error for an id outside 32 bits."""
    return TOKEN_IDS + base64.b64encode(struct.pack(f"<{len(token_ids)}i", *token_ids)).decode("ascii")


def encode_logprobs(logprobs: Sequence[float | None]) -> str:
    """Log-probabilities of shape (T,) as text; None is kept as None, and is what becomes of one beyond float32."""
    values = [math.nan if value is None else value for value in logprobs]
    try:
        packed = struct.pack(f"<{len(values)}f", *values)
    except OverflowError:
        values = [value if abs(value) <= _LARGEST else math.nan for value in values]
        packed = struct.pack(f"<{len(values)}f", *values)
    return _LOGPROBS + base64.b64encode(packed).decode("ascii")


def token_array(text: str) -> array[int]:
    """The ids in such a text. Raises ValueError if it is not one."""
    ids = array("i", _payload(text, TOKEN_IDS))
    if sys.byteorder == "big":
        ids.byteswap()
    return ids


def decode_token_ids(value: Any) -> tuple[int, ...] | None:
    """Ids from an attribute: such a text, or a plain array. None if absent. Raises ValueError for anything else."""
    if value is None:
        return None
    if isinstance(value, str):
        return struct.unpack(f"<{len(raw := _payload(value, TOKEN_IDS)) // 4}i", raw)
    if not isinstance(value, Sequence) or any(isinstance(v, bool) or not isinstance(v, int) for v in value):
        raise ValueError("token ids are neither 'i4:' text nor an array of integers")
    return tuple(TokenIds.of(value))


def decode_logprobs(value: Any) -> tuple[float | None, ...] | None:
    """Log-probabilities from an attribute, None for a missing one. Raises ValueError if it is not a list of numbers."""
    if value is None:
        return None
    if isinstance(value, str):
        raw = _payload(value, _LOGPROBS)
        values: tuple[float, ...] = struct.unpack(f"<{len(raw) // 4}f", raw)
        if not math.isnan(sum(values)):
            return values
        return tuple(None if math.isnan(v) else v for v in values)
    if not isinstance(value, Sequence) or any(v is not None and not isinstance(v, (int, float)) for v in value):
        raise ValueError("log-probabilities are neither 'f4:' text nor an array of numbers")
    try:
        return tuple(None if v is None or math.isnan(v) else float(v) for v in value)
    except OverflowError as error:
        raise ValueError(f"a log-probability is out of range: {error}") from error


def is_logprob(value: float | None) -> bool:
    """Whether a number can be the log-probability of a sampled token: known, above what engines return for the
    logarithm of 0, and above 0 by no more than the rounding of a certain token."""
    return value is not None and _LOG_OF_ZERO < value <= 0.01


def _payload(text: str, prefix: str) -> bytes:
    if not text.startswith(prefix):
        raise ValueError(f"expected text that starts with {prefix!r}")
    raw = base64.b64decode(text[len(prefix) :], validate=True)
    if len(raw) % 4:
        raise ValueError("truncated token data: its length is no multiple of 4 bytes")
    return raw
