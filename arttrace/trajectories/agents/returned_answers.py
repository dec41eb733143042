"""Which tool call returned an agent's answer: word for word, or wrapped (`{"result": ...}`, `researcher: ...`).

Word for word it is taken for a fact. Found inside a result it is a reading: the times must allow it, and how sure it is
goes with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

import msgspec

from arttrace.trajectories.decoding.attribute_values import as_text, from_json

_T = TypeVar("_T")

_LEAVES = 1000
"""Values looked at inside one result."""
_CONTAINED = 16
"""Characters of an answer that is looked for anywhere in a text."""
_SEARCHED = 256
"""Results that one answer is looked for in."""
_LABEL = 80
"""Characters of what stands before an answer, `researcher:` or a heading."""


class Found(msgspec.Struct, Generic[_T], frozen=True):
    """A tool call that gave back an answer; `how` completes "its answer ... NAME returned"."""

    item: _T
    confidence: float
    how: str


class Returned(Generic[_T]):
    """Results of tool calls, in order, to be searched for answers. `LEVELS` are the ways to look, the surest first."""

    LEVELS = (0, 1, 2)

    def __init__(self, results: Iterable[tuple[str | None, _T]]) -> None:
        self._given: Iterable[tuple[str | None, _T]] | None = results  # most runs have nobody who searches them
        self._results: list[tuple[str, _T]] = []
        self._whole: dict[str, list[_T]] = {}
        self._inside: dict[str, list[_T]] | None = None

    def find(self, answer: str, level: int, fits: Callable[[_T], bool]) -> list[Found[_T]]:
        """The tool calls that gave back this answer, as far as this level sees. `fits` says whether the times allow
        it, and is asked for wrapped answers alone."""
        if not answer:
            return []
        if self._given is not None:
            self._read(self._given)
        if level == 0:
            return [Found(item, 1.0, "is what") for item in self._whole.get(answer, ())]
        if level == 1:
            if self._inside is None:
                self._inside = {}
                for text, item in self._results:
                    for part in dict.fromkeys(_parts(text)):
                        self._inside.setdefault(part, []).append(item)
            items = [item for item in self._inside.get(answer, ()) if fits(item)]
            return [Found(item, 0.9 if len(items) == 1 else 0.6, "is a part of what") for item in items]
        if len(answer) < _CONTAINED:
            return []
        searched = 0
        items = []
        for text, item in self._results:
            if searched == _SEARCHED:
                break
            if fits(item):
                searched += 1
                if answer in text or as_text([answer])[2:-2] in text:  # type: ignore[index]
                    items.append(item)
        return [Found(item, 0.7 if len(items) == 1 else 0.5, "is inside what") for item in items]

    def _read(self, results: Iterable[tuple[str | None, _T]]) -> None:
        self._given = None
        self._results = [(text, item) for result, item in results if result and (text := result.strip())]
        for text, item in self._results:
            self._whole.setdefault(text, []).append(item)


def _parts(text: str) -> Iterator[str]:
    """What a result holds one level down: the values of JSON, and what follows a label or a heading."""
    for mark in (":", "\n"):
        label, _, rest = text.partition(mark)
        if rest.strip() and len(label) <= _LABEL:
            yield rest.strip()
    if text[:1] in ("{", "["):
        yield from _leaves(from_json(text))


def _leaves(value: Any) -> Iterator[str]:
    waiting, seen = [value], 0
    while waiting and seen < _LEAVES:
        at = waiting.pop()
        seen += 1
        if isinstance(at, dict):
            waiting += at.values()
        elif isinstance(at, list):
            waiting += at
        elif at is not None and (leaf := (as_text(at) or "").strip()):
            yield leaf
