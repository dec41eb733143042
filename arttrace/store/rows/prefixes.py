"""What a turn adds: a call's input as the earlier input of its trace that it extends, and the rest.

Pure but for the memory of recent inputs, which only saves space: without it an input is stored whole. A history that
grows by a turn per call is recognised by its text alone, so its old part is neither parsed nor hashed again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from arttrace.records.message import MessageTexts
from arttrace.records.values.nesting import UNREADABLE
from arttrace.trajectories.decoding.recent_texts import RecentText, RecentTexts

_KEPT_CHARACTERS = 32 << 20
_CHARACTERS_OF_ONE = 1000  # what keeping an input costs beside its text
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


class StoredInput(NamedTuple):
    """An input that is stored under `id`: how many characters it has, its last ones, and its form."""

    length: int
    end: str
    form: int
    id: int

    def is_same(self, text: str) -> bool:
        """Whether a text that begins as this one does is this one."""
        return len(text) == self.length and text.endswith(self.end)


class RecentInputs:
    """The last inputs of recent traces. One is found again by its text without the last `cut` characters, which what
    follows may change."""

    def __init__(self, cut: int) -> None:
        self._cut = cut
        self._of_trace: OrderedDict[str, RecentTexts[StoredInput]] = OrderedDict()
        self._size = 0

    def longest(self, trace_id: str, text: str) -> RecentText[StoredInput] | None:
        """The longest of the trace's inputs that `text` goes on from."""
        recent = self._of_trace.get(trace_id)
        return None if recent is None else recent.longest(text, len(text))

    def remember(
        self, trace_id: str, text: str, form: int, id: int, after: RecentText[StoredInput] | None = None
    ) -> None:
        """Keeps an input, which goes on from another one if `after` is given; the oldest give way."""
        recent = self._of_trace.setdefault(trace_id, RecentTexts())
        self._of_trace.move_to_end(trace_id)
        before, end = recent.weight(_CHARACTERS_OF_ONE), max(len(text) - self._cut, 0)
        recent.keep(text[after.length if after else 0 : end], StoredInput(len(text), text[end:], form, id), after)
        self._size += recent.weight(_CHARACTERS_OF_ONE) - before
        while self._size > _KEPT_CHARACTERS and len(self._of_trace) > 1:
            _, dropped = self._of_trace.popitem(last=False)
            self._size -= dropped.weight(_CHARACTERS_OF_ONE)


def extension(text: str, earlier: StoredInput) -> list[str] | None:
    """The messages by which a JSON list extends an earlier one that it begins with, none when it is the same; None when
    it does not extend it."""
    if earlier.is_same(text):
        return []
    separator = _SEPARATORS[earlier.form]
    rest = earlier.length - 1 + len(separator)
    if text[earlier.length - 1 : rest] != separator:
        return None
    added = "[" + text[rest:]
    items = _items(added)
    return items if items and f"[{separator.join(items)}]" == added else None
