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
from arttrace.records.values.nesting import UNREADABLE

_PER_TRACE = 8
_KEPT_BYTES = 32 << 20  # of texts, each kept whole and cut
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
    except UNREADABLE:
        return None


class Recent:
    """The last inputs of recent traces, each with the id under which it is stored. One is met again by its text without
    the last `cut` characters, which what follows may change."""

    def __init__(self, cut: int) -> None:
        self._cut = cut
        self._of_trace: OrderedDict[str, list[tuple[str, str, int, int]]] = OrderedDict()
        self._bytes = 0

    def longest(self, trace_id: str, text: str) -> tuple[str, int, int] | None:
        """The longest of the trace's inputs that `text` goes on from: (text, form, id)."""
        found, longest = None, -1
        for held in self._of_trace.get(trace_id, ()):
            if text.startswith(held[0]) and len(held[0]) > longest:
                found, longest = held[1:], len(held[0])
        return found

    def remember(self, trace_id: str, text: str, form: int, id: int) -> None:
        """Keeps an input; the oldest give way."""
        held = self._of_trace.setdefault(trace_id, [])
        self._of_trace.move_to_end(trace_id)
        held.append((text[: -self._cut], text, form, id))
        self._bytes += len(text)
        if len(held) > _PER_TRACE:
            self._bytes -= len(held.pop(0)[1])
        while self._bytes > _KEPT_BYTES and len(self._of_trace) > 1:
            _, dropped = self._of_trace.popitem(last=False)
            self._bytes -= sum(len(text) for _, text, _, _ in dropped)


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
