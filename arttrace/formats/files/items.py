"""The items of a file: objects of JSON lines, of a JSON array or document, or rows of Parquet, packed or not, each with
its place. A file is read piece by piece: what is in memory is an item, or a document that is one.
"""

from __future__ import annotations

import codecs
import io
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

from arttrace.formats.files.unpacked import Unpacked, Unreadable, packing_of
from arttrace.records.values.lenient_json import read_json, well_formed
from arttrace.records.values.nesting import UNREADABLE

Item = tuple[str, Any]
"""Where it stands (`line 3`), and what it is: a JSON value, or the error that reading it raised."""

MAX_ITEM_BYTES = 256 << 20
_TOO_LONG = f"it has over {MAX_ITEM_BYTES >> 20} MiB"
_AT_ONCE = 16 << 20
"""Files up to this size are read whole."""
_PIECE = 1 << 20
_ROWS_AT_ONCE = 64
_UTF8_MARK = b"\xef\xbb\xbf"
_HEAD = 4096
_NO_JSON = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_NOT_READ = {
    b"PK\x03\x04": "it is a zip archive: unpack it first (`unzip`)",
    b"\xff\xfe": "it is text in UTF-16: write it as UTF-8 first",
    b"\xfe\xff": "it is text in UTF-16: write it as UTF-8 first",
}
"""What files begin with that are not read as they are."""


class ItemFile:
    """An open file of `size` bytes. `is_binary` tells that it holds neither JSON nor Parquet; `rest` has it whole.
    Raises Unreadable for one that is empty, or packed in a way that is not understood."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._unpacked: Unpacked | None = None
        head = file.read(4)
        file.seek(0)
        self._is_parquet = head == b"PAR1"
        if packing := packing_of(head):
            self._unpacked = Unpacked(file, packing, size)
            self._file = cast("BinaryIO", io.BufferedReader(self._unpacked, _PIECE))
        self._text = _CheckedFile(self._file)
        self._begun = b"" if self._is_parquet else self._text.read(_AT_ONCE).removeprefix(_UTF8_MARK)
        if not self._is_parquet and not self._begun.strip():
            raise Unreadable(self.cut or "it is empty")
        if again := packing_of(self._begun):
            raise Unreadable(f"what it unpacks to is packed with {again.name} again: unpack it first")
        for mark, said in _NOT_READ.items():
            if self._begun.startswith(mark):
                raise Unreadable(said)
        if self._begun.lstrip()[:100].lower().startswith((b"<!doctype html", b"<html")):
            raise Unreadable("it is a web page, as a login or an error of a server is")
        is_json = self._begun.lstrip()[:1] in (b"{", b"[", b'"') and not _is_protobuf(self._begun[:_HEAD])
        self.is_binary = not self._is_parquet and not is_json

    @property
    def cut(self) -> str:
        """Why it ends before its end, where it does; known when all of it was read."""
        return "" if self._unpacked is None else self._unpacked.cut

    @property
    def replaced(self) -> int:
        """How many of the bytes read by now are no UTF-8: U+FFFD stands in their place."""
        return self._text.replaced

    def rest(self) -> bytes:
        """The whole file. Raises Unreadable where it cannot be unpacked to its end."""
        data = self._begun + self._text.read()
        if self.cut:
            raise Unreadable(self.cut)
        return data

    def __iter__(self) -> Iterator[Item]:
        yield from self._items()
        if self.cut:
            yield "the end of the file", ValueError(f"{self.cut}; nothing behind it was read")

    def _items(self) -> Iterator[Item]:
        if self._is_parquet:
            yield from _rows(self._file)
        elif len(self._begun) < _AT_ONCE:
            yield from _document(self._begun)
        elif self._begun.lstrip()[:1] == b"[":
            yield from _array(self._begun, self._text)
        else:
            yield from _lines(self._begun, self._text)


def _is_protobuf(begun: bytes) -> bool:
    """Whether what begins as JSON behind an empty line is a request in protobuf: its first tag is that of a line's end,
    a length may be that of a bracket, and the tags within are bytes that no JSON has."""
    return begun[:1] == b"\n" and _NO_JSON.search(begun) is not None


class _CheckedFile:
    """A file that is read on, and how many of its bytes are no UTF-8."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="surrogateescape")
        self.replaced = 0

    def read(self, size: int = -1) -> bytes:
        """Up to so many bytes, all of them without a size."""
        piece = self._file.read(size)
        begun = len(self._utf8.getstate()[0])
        if begun or not piece.isascii():
            text = self._utf8.decode(piece)
            kept = len(text.encode(errors="ignore")) + len(self._utf8.getstate()[0])
            self.replaced += begun + len(piece) - kept
        return piece


def _document(data: bytes) -> Iterator[Item]:
    try:
        document = read_json(data)
    except UNREADABLE:
        if data.lstrip()[:1] == b"[":  # cut off, or with something behind it: what stands before that is whole
            yield from _array(data, _CheckedFile(io.BytesIO()))
            return
        for number, line in enumerate(data.splitlines(), 1):
            if line.strip():
                yield f"line {number}", _read(line)
        return
    yield from _items(document)


def _items(document: Any) -> Iterator[Item]:
    """A document's items: of a list, of a page of an API's answer, or the document itself."""
    has_more = False
    if isinstance(document, dict) and isinstance(document.get("data"), list) and "custom_id" not in document:
        has_more = document.get("has_more") is True or bool(document.get("next_cursor"))
        document = document["data"]
    items = document if isinstance(document, list) else [document]
    for number, item in enumerate(items, 1):
        yield f"item {number}", item
    if has_more:
        yield (
            f"what comes behind item {len(items)}",
            ValueError("the file is one page of an answer that has more: ask for the next pages too"),
        )


def _read(text: bytes) -> Any:
    try:
        return read_json(text.removeprefix(_UTF8_MARK))  # in files that were put together
    except UNREADABLE as error:
        return error


def _lines(begun: bytes, file: _CheckedFile) -> Iterator[Item]:
    """JSON lines; where the first is no JSON, a file that is not longer than an item may be is taken for a document."""
    lines = _line_by_line(begun, file)
    first = next(lines)
    value = _read(first)
    if isinstance(value, Exception) and len(first) < MAX_ITEM_BYTES:
        held, size = [first], len(first)
        for line in lines:
            held.append(line)
            size += len(line)
            if size > MAX_ITEM_BYTES:
                break
        else:
            yield from _document(b"".join(held))
            return
        lines = itertools.chain(held[1:], lines)
    numbered = enumerate(lines, 2)
    second = next(((number, line) for number, line in numbered if line.strip()), None)
    if second is None and not isinstance(value, Exception):
        yield from _items(value)
        return
    yield "line 1", ValueError(_TOO_LONG) if len(first) >= MAX_ITEM_BYTES else value
    for number, line in itertools.chain(() if second is None else (second,), numbered):
        if len(line) >= MAX_ITEM_BYTES:
            yield f"line {number}", ValueError(_TOO_LONG)
        elif line.strip():
            yield f"line {number}", _read(line)


def _line_by_line(begun: bytes, file: _CheckedFile) -> Iterator[bytes]:
    """Lines with their ends, each cut at the bound."""
    unread = begun
    while unread:
        start = 0
        while (end := unread.find(b"\n", start)) >= 0:
            yield unread[start : end + 1]
            start = end + 1
        unread = unread[start:]
        piece = file.read(_PIECE)
        if not piece:
            if unread:
                yield unread
            return
        if len(unread) < MAX_ITEM_BYTES:
            unread += piece
        elif (end := piece.find(b"\n")) >= 0:
            yield unread[:MAX_ITEM_BYTES]
            unread = piece[end + 1 :]


def _array(begun: bytes, file: _CheckedFile) -> Iterator[Item]:
    """The items of an array, one after the other."""
    decoder = json.JSONDecoder()
    text = _FileText(begun, file)
    number = 0
    text.at = text.unread.index("[") + 1
    while True:
        mark = text.skip()
        if mark == "]":
            text.at += 1
            if text.skip():
                yield f"what stands behind item {number}", ValueError("the array ended before it, and it was not read")
            return
        if not mark:
            yield f"item {number + 1}", ValueError("the file ends within its array")
            return
        if mark == "," and number:
            text.at += 1
            text.skip()
        number += 1
        while True:
            try:
                value, end = decoder.raw_decode(text.unread, text.at)
                if end < len(text.unread) or isinstance(value, dict):
                    break
                error: Exception = ValueError("it ends within the array")
            except UNREADABLE as failed:
                error = failed
            if len(text.unread) - text.at >= MAX_ITEM_BYTES or not text.more(max(_PIECE, len(text.unread) - text.at)):
                yield f"item {number}", ValueError(f"{error}; nothing behind it was read")
                return
        text.at = end
        text.drop()
        yield f"item {number}", well_formed(value)


class _FileText:
    """A file's text from some place on, read as it is asked for."""

    def __init__(self, begun: bytes, file: _CheckedFile) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._file = file
        self.unread = self._utf8.decode(begun)
        self.at = 0

    def more(self, size: int) -> bool:
        """Reads on; whether there was something."""
        piece = self._file.read(size)
        self.unread += self._utf8.decode(piece, final=not piece)
        return bool(piece)

    def drop(self) -> None:
        """Forgets what is behind, now and then."""
        if self.at > _PIECE:
            self.unread, self.at = self.unread[self.at :], 0

    def skip(self) -> str:
        """The next character that is no space, "" at the end of the file."""
        while True:
            while self.at < len(self.unread) and self.unread[self.at].isspace():
                self.at += 1
            if self.at < len(self.unread):
                return self.unread[self.at]
            self.unread, self.at = "", 0
            if not self.more(_PIECE):
                return ""


def _rows(file: BinaryIO) -> Iterator[Item]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        for batch in pq.ParquetFile(file).iter_batches(_ROWS_AT_ONCE):
            for row in batch.to_pylist():
                number += 1
                yield f"row {number}", {name: value for name, value in row.items() if value is not None}
    except (pa.ArrowException, OSError) as error:
        raise Unreadable(f"it is not a complete Parquet file: {error}") from error
