"""The items of a file: objects of JSON lines, of JSON arrays or documents one after another, or rows of Parquet, packed
or not, each with its place. A file is read piece by piece: what is in memory is an item, or a document that is one.
"""

from __future__ import annotations

import codecs
import io
import json
import re
from collections.abc import Generator, Iterator
from typing import Any, BinaryIO, Protocol, cast

from arttrace.formats.files.checked_file import CheckedFile
from arttrace.formats.files.pages import page_items
from arttrace.formats.files.unpacked import Unpacked, Unreadable, packing_of
from arttrace.records.values.lenient_json import bounded_integer, read_json, well_formed
from arttrace.records.values.nesting import UNREADABLE

Item = tuple[str, Any]
"""Where it stands (`line 3`), and what it is: a JSON value, or the error that reading it raised."""

MAX_ITEM_BYTES = 256 << 20
_TOO_LONG = f"it has over {MAX_ITEM_BYTES >> 20} MiB"
_AT_ONCE = 16 << 20
"""Files up to this size are read whole."""
_PIECE = 1 << 20
_UTF8_MARK = b"\xef\xbb\xbf"
_HEAD = 4096
_NO_JSON = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_HEADER_OF_CSV = re.compile(rb"""("?)[\w.]+\1(?:,("?)[\w.][\w. -]*\2){2,}\r?\n""")
_NOT_READ = {
    b"PK\x03\x04": "it is a zip archive: unpack it first (`unzip`; a log of Inspect AI: `inspect log dump`)",
    b"\xff\xfe": "it is text in UTF-16: write it as UTF-8 first",
    b"\xfe\xff": "it is text in UTF-16: write it as UTF-8 first",
}
"""What files begin with that are not read as they are."""
_BRACKETS = (b"{", b"[")
_DECODER = json.JSONDecoder(parse_int=bounded_integer)
_LONGEST_WORD = 16
"""At least as long as any word or escape of JSON, which the end of what was read by now may cut."""


class _Pieces(Protocol):
    def read(self, size: int, /) -> bytes: ...


class ItemFile:
    """An open file of `size` bytes. `is_binary` says that it holds neither JSON nor Parquet; `rest` has it whole.
    Raises Unreadable for one that is empty, or packed in a way that is not understood."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = self._whole = file
        self._size = size
        self._behind = _Behind()
        self._reached = 0
        self._unpacked: Unpacked | None = None
        head = file.read(4)
        file.seek(0)
        self._is_parquet = head == b"PAR1"
        if packing := packing_of(head):
            self._unpacked = Unpacked(file, packing, size)
            self._file = cast("BinaryIO", io.BufferedReader(self._unpacked, _PIECE))
        self._text = CheckedFile(self._file)
        begun = b"" if self._is_parquet else self._text.read(_AT_ONCE)
        self._is_whole = len(begun) < _AT_ONCE
        self._begun = begun.removeprefix(_UTF8_MARK)
        if not self._is_parquet and not self._begun.strip():
            raise Unreadable(self.cut or "it is empty")
        if again := packing_of(self._begun):
            raise Unreadable(f"what it unpacks to is packed with {again.name} again: unpack it first")
        for mark, said in _NOT_READ.items():
            if self._begun.startswith(mark):
                raise Unreadable(said)
        if _HEADER_OF_CSV.match(self._begun[:_HEAD]):
            raise Unreadable("it is CSV: export it as JSON, JSON lines or Parquet instead")
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

    @property
    def position(self) -> int:
        """About how many of the file's bytes are those of the items that were given."""
        read = self._size if self._is_parquet else self._whole.tell()
        found = read * self._behind.size // max(self._behind.of or self._text.size, self._behind.size, 1)
        self._reached = max(self._reached, found)  # packed, what is read comes in blocks
        return self._reached

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
            yield from _rows(self._file, self._behind)
        elif self._is_whole:
            yield from _document(self._begun, self._behind)
        else:
            yield from _stream(self._begun, self._text, self._behind)


class _Behind:
    """How much of what was read is behind the items that were given: bytes, characters, items or rows. `of` is how much
    there is, where it is not the bytes read by now."""

    def __init__(self) -> None:
        self.size = self.of = 0


def _is_protobuf(begun: bytes) -> bool:
    """Whether what begins as JSON behind an empty line is a request in protobuf: its first tag is that of a line's end,
    a length may be that of a bracket, and the tags within are bytes that no JSON has."""
    return begun[:1] == b"\n" and _NO_JSON.search(begun) is not None


def _document(data: bytes, behind: _Behind) -> Iterator[Item]:
    try:
        document = read_json(data)
    except UNREADABLE:
        yield from _stream(data, io.BytesIO(), behind)
    else:
        yield from _items(document, behind)


def _stream(begun: bytes, file: _Pieces, behind: _Behind) -> Iterator[Item]:
    """The items of what is not read as one document at once."""
    if begun.lstrip()[:1] == b"[":
        yield from _documents(_FileText(begun, file, behind))
    else:
        yield from _lines(begun, file, behind)


def _items(document: Any, behind: _Behind) -> Iterator[Item]:
    """A document's items."""
    items, has_more = page_items(document)
    behind.of = len(items)
    for number, item in enumerate(items, 1):
        behind.size = number
        yield f"item {number}", item
    if has_more:
        yield _next_page(f"item {len(items)}")


def _next_page(last: str) -> Item:
    said = "the file is one page of an answer that has more: ask for the next pages too"
    return f"what comes behind {last}", ValueError(said)


def _read(text: bytes) -> Any:
    try:
        return read_json(text.removeprefix(_UTF8_MARK))  # in files that were put together
    except UNREADABLE as error:
        return error


def _lines(begun: bytes, file: _Pieces, behind: _Behind) -> Iterator[Item]:
    """JSON lines. Where the first, or a bracket alone in a later one, is but the beginning of a document, documents."""
    lines = _line_by_line(begun, file, behind)
    is_first, first = True, list[Item]()  # the first, until it is known whether it is all
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        value: Any = ValueError(_TOO_LONG) if len(line) >= MAX_ITEM_BYTES else _read(line)
        is_begun = isinstance(value, Exception) and len(line) < MAX_ITEM_BYTES
        yield from first
        first.clear()
        if is_begun and (is_first or line.strip() in _BRACKETS):
            yield from _documents(_FileText(line, _Joined(lines), _Behind(), number))
            return
        if is_first:
            first.append((f"line {number}", value))
        else:
            yield f"line {number}", value
        is_first = False
    for place, value in first:
        yield from [(place, value)] if isinstance(value, Exception) else _items(value, behind)


class _Joined:
    """What is left of lines, as a file that is read on."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        self._lines = lines

    def read(self, size: int, /) -> bytes:
        """At least so many bytes, to the end of a line."""
        lines: list[bytes] = []
        for line in self._lines:
            lines.append(line)
            size -= len(line)
            if size <= 0:
                break
        return b"".join(lines)


def _line_by_line(begun: bytes, file: _Pieces, behind: _Behind) -> Iterator[bytes]:
    """Lines with their ends, each cut at the bound."""
    unread = begun
    while unread:
        start = 0
        while (end := unread.find(b"\n", start)) >= 0:
            behind.size += end + 1 - start
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


def _documents(text: _FileText) -> Iterator[Item]:
    """The items of documents one after another. One that is damaged is refused alone: the next line that begins as it
    does begins another."""
    items = line = on_line = 0
    next_page: Item | None = None
    while mark := text.skip():
        if mark == "[":
            counted = yield from _array(text, items)
            if counted is None:
                return
            items = counted
            continue
        on_line = on_line + 1 if text.line(text.at) == line else 1
        line = text.line(text.at)
        place = f"line {line}" if on_line == 1 else f"line {line}, document {on_line}"
        try:
            document = text.value()
        except UNREADABLE as error:
            said = f"the document that begins here cannot be read: {error}"
            yield place, ValueError(f"{said}; fix it or take it out, and import the file again")
            text.skip_lines_to(mark if mark == '"' else "{")
            continue
        found, has_more = page_items(document)
        is_page = found and found[0] is not document
        yield from ((f"{place}, item {at}" if is_page else place, item) for at, item in enumerate(found, 1))
        next_page = _next_page(place) if has_more else None
    if next_page:
        yield next_page


def _array(text: _FileText, before: int) -> Generator[Item, None, int | None]:
    """The items of an array, counted on from so many; how many there are then, None where it is damaged."""
    number = before
    text.at += 1
    while (mark := text.skip()) != "]":
        if not mark:
            yield f"item {number + 1}", ValueError("the file ends within its array")
            return None
        if mark == "," and number > before:
            text.at += 1
            text.skip()
        number += 1
        try:
            value = text.value()
        except UNREADABLE as error:
            yield f"item {number}", ValueError(f"{error}; nothing behind it was read")
            return None
        yield f"item {number}", value
    text.at += 1
    return number


class _FileText:
    """A file's text from some line on, read as it is asked for; `at` is the place that was reached in what is held."""

    def __init__(self, begun: bytes, file: _Pieces, behind: _Behind, line: int = 1) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._file = file
        self._behind = behind
        self.unread = self._utf8.decode(begun)
        self.at = 0
        self._line, self._counted = line, 0

    def more(self, size: int) -> bool:
        """Reads on; whether there was something."""
        piece = self._file.read(size)
        self.unread += self._utf8.decode(piece, final=not piece)
        return bool(piece)

    def drop(self) -> None:
        """Forgets what is behind, now and then."""
        if self.at > max(_PIECE, len(self.unread) >> 1):
            self._forget(self.at)

    def _forget(self, end: int) -> None:
        self.line(end)
        self._behind.size += end
        self.unread = self.unread[end:]
        self.at, self._counted = max(0, self.at - end), self._counted - end

    def line(self, at: int) -> int:
        """The number of the line that a place is in."""
        if at < self._counted:
            return self._line - self.unread.count("\n", at, self._counted)
        self._line += self.unread.count("\n", self._counted, at)
        self._counted = at
        return self._line

    def skip(self) -> str:
        """The next character that is no space, "" at the end of the file."""
        while True:
            while self.at < len(self.unread) and (self.unread[self.at].isspace() or self.unread[self.at] == "\ufeff"):
                self.at += 1
            if self.at < len(self.unread):
                return self.unread[self.at]
            self._forget(len(self.unread))
            if not self.more(_PIECE):
                return ""

    def skip_lines_to(self, mark: str) -> None:
        """To the next line that begins with the mark, or the end of the file."""
        begins = re.compile(f"[\r\n]\ufeff?(?={mark})")
        while (found := begins.search(self.unread, self.at)) is None:
            self.at = max(self.at, len(self.unread) - 2)
            self._forget(self.at)
            if not self.more(_PIECE):
                self.at = len(self.unread)
                return
        self.at = found.end()

    def value(self) -> Any:
        """The JSON value that begins here; the place is behind it then. Raises ValueError where there is none,
        RecursionError if it is too deep."""
        while True:
            error: ValueError | None = None
            value, end, is_cut = None, self.at, False
            try:
                value, end = _DECODER.raw_decode(self.unread, self.at)
            except json.JSONDecodeError as failed:
                error = ValueError(f"{failed.msg} in line {self.line(failed.pos)}")
                is_open = failed.msg.startswith("Unterminated")
                if failed.pos < len(self.unread) - _LONGEST_WORD and not is_open:
                    raise error from None
                is_cut = is_open or failed.pos >= len(self.unread.rstrip())
            if error is None and (end < len(self.unread) or isinstance(value, (dict, list, str))):
                break
            if len(self.unread) - self.at >= MAX_ITEM_BYTES:
                raise ValueError(_TOO_LONG)
            if not self.more(max(_PIECE, len(self.unread) - self.at)):
                if error:
                    raise ValueError("it is truncated: the file ends within it") if is_cut else error
                break
        self.at = end
        self.drop()
        return well_formed(value)


def _rows(file: BinaryIO, behind: _Behind) -> Iterator[Item]:
    from arttrace.formats.files.parquet_rows import ParquetRows

    rows = ParquetRows(file)
    behind.of = rows.count
    for number, row in enumerate(rows, 1):
        behind.size = number
        yield f"row {number}", row
