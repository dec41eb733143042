"""A file that is read on: how much of it was read, and how many of its bytes are no UTF-8."""

from __future__ import annotations

import codecs
from typing import BinaryIO


class CheckedFile:
    """`size` bytes of it were read; `replaced` of them are no UTF-8."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="surrogateescape")
        self.replaced = self.size = 0

    def read(self, size: int = -1) -> bytes:
        """Up to so many bytes, all of them without a size."""
        piece = self._file.read(size)
        self.size += len(piece)
        begun = len(self._utf8.getstate()[0])
        if begun or not piece.isascii():
            text = self._utf8.decode(piece)
            kept = len(text.encode(errors="ignore")) + len(self._utf8.getstate()[0])
            self.replaced += begun + len(piece) - kept
        return piece
