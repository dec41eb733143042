"""What a turn adds: a call's input as the earlier input of its trace that it extends, and the rest.

Pure but for the memory of recent inputs, which only saves space: without it an input is stored whole. A history that
grows by a turn per call is recognised by its text alone, so its old part is neither parsed nor hashed again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import msgspec

from arttrace.records.message import MessageTexts

_PER_TRACE = 8
_KEPT_BYTES = 64 << 20
_SEPARATORS = (",", ", ")
STRUCTURED = len(_SEPARATORS)
"""The form of a list that stood on the span as values; a smaller form is a JSON text with that separator."""

_raw_list: msgspec.json.Decoder[list[msgspec.Raw]] = msgspec.json.Decoder(list[msgspec.Raw])


def split(value: Any) -> tuple[list[str], int] | None:
    """The JSON texts of a message list and the form they stood in, from which `join` makes the very same value. None
    when that cannot be."""
    if isinstance(value, MessageTexts):
        return list(value), 0
    if isinstance(value, (list, tuple)):
        return ([msgspec.json.encode(item).decode() for item in value], STRUCTURED) if value else None
    if not isinstance(value, str) or len(value) < 3:
        return None
    for form, separator in enumerate(_SEPARATORS):
        items = _items(value)
        if items and f"[{separator.join(items)}]" == value:
            return items, form
    return None


def join(items: Sequence[str], form: int) -> Any:
    """The value that `split` took apart."""
    if form == STRUCTURED:
        return msgspec.json.decode(f"[{','.join(items)}]")
    return f"[{_SEPARATORS[form].join(items)}]"


def _items(text: str) -> list[str] | None:
    try:
        return [bytes(raw).decode() for raw in _raw_list.decode(text)]
    except (msgspec.DecodeError, UnicodeError):
        return None


class Recent:
    """The last inputs of recent traces, each with the id under which it is stored."""

    def __init__(self) -> None:
        self._of_trace: OrderedDict[str, list[tuple[str, int, int]]] = OrderedDict()
        self._bytes = 0

    def longest(self, trace_id: str, text: str, cut: int) -> tuple[str, int, int] | None:
        """The longest of the trace's inputs that `text` begins with, `cut` characters of its end left aside:
        (text, form, id)."""
        found = None
        for held in self._of_trace.get(trace_id, ()):
            if (found is None or len(held[0]) > len(found[0])) and text.startswith(held[0][: len(held[0]) - cut]):
                found = held
        return found

    def remember(self, trace_id: str, text: str, form: int, id: int) -> None:
        """Keeps an input; the oldest give way."""
        held = self._of_trace.setdefault(trace_id, [])
        self._of_trace.move_to_end(trace_id)
        held.append((text, form, id))
        self._bytes += len(text)
        if len(held) > _PER_TRACE:
            self._bytes -= len(held.pop(0)[0])
        while self._bytes > _KEPT_BYTES and len(self._of_trace) > 1:
            _, dropped = self._of_trace.popitem(last=False)
            self._bytes -= sum(len(text) for text, _, _ in dropped)


def extension(text: str, earlier: str, form: int) -> list[str] | None:
    """The messages by which a JSON list extends an earlier one, none when it is the same; None when it does not."""
    if text == earlier:
        return []
    separator = _SEPARATORS[form]
    rest = len(earlier) - 1 + len(separator)
    if text[len(earlier) - 1 : rest] != separator:
        return None
    added = "[" + text[rest:]
    items = _items(added)
    return items if items and f"[{separator.join(items)}]" == added else None
