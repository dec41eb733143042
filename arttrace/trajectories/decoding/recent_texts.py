"""Texts that were read not long ago, each found again as the beginning of a longer one.

A history that grows by a turn per call comes as ever longer texts, each beginning with the one before it. What was made
of the earlier text is looked up by comparing characters, so only the rest has to be parsed, stored or hashed. This
memory never changes a result: what it has forgotten is read whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

T = TypeVar("T")

_MOST = 32


class RecentText(Generic[T]):
    """A text of `length` characters, and what was `made` of it. It lies in pieces, each less than half of the one
    before, which a longer text shares: to extend it copies little, and to compare it takes few steps."""

    __slots__ = ("_pieces", "length", "made")

    def __init__(self, pieces: Sequence[str], made: T) -> None:
        self._pieces = list(pieces)
        while len(self._pieces) > 1 and len(self._pieces[-2]) < 2 * len(self._pieces[-1]):
            self._pieces[-2:] = ["".join(self._pieces[-2:])]
        self.length = sum(map(len, self._pieces))
        self.made = made

    def begins(self, text: str, end: int) -> bool:
        """Whether the first `end` characters of `text` begin with this one."""
        at = 0
        for piece in self._pieces:
            if not text.startswith(piece, at, end):
                return False
            at += len(piece)
        return True

    def extended(self, further: str, made: T) -> RecentText[T]:
        """This text with `further` characters behind it."""
        return RecentText([*self._pieces, further], made)


class RecentTexts(Generic[T]):
    """The last few texts. `size` is the sum of their lengths in characters."""

    def __init__(self) -> None:
        self._texts: list[RecentText[T]] = []
        self.size = 0

    def weight(self, of_one: int) -> int:
        """`size`, and `of_one` more for each of them."""
        return self.size + of_one * len(self._texts)

    def longest(self, text: str, end: int) -> RecentText[T] | None:
        """The longest of them that the first `end` characters of `text` begin with; of several the one kept last."""
        found = None
        for one in reversed(self._texts):
            if (found is None or one.length > found.length) and one.begins(text, end):
                found = one
        return found

    def keep(self, further: str, made: T, after: RecentText[T] | None) -> None:
        """Keeps a text, `further` characters after another one (None: they are the whole text); the oldest gives
        way."""
        kept: RecentText[T] = RecentText([further], made) if after is None else after.extended(further, made)
        self._texts.append(kept)
        self.size += kept.length
        if len(self._texts) > _MOST:
            self.size -= self._texts.pop(0).length
