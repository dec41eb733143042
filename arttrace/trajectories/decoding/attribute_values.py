"""Attribute values, which may be anything a sender wrote: as text, as what their JSON holds, or None; never raising."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import msgspec

from arttrace.records.message import MessageTexts
from arttrace.records.values.integers import INT64
from arttrace.records.values.lenient_json import json_object, read_json
from arttrace.records.values.nesting import UNREADABLE, are_shallow

_T = TypeVar("_T")
DEPTH = 256
"""Levels of the deepest value that is read: whoever writes it again, within whatever, stays within what msgspec can."""


def as_text(value: Any) -> str | None:
    """Text as it is, None as None, anything else as JSON with sorted keys; None for what is too deep to be written."""
    return _text(value, "sorted")


def as_written(value: Any) -> str | None:
    """The same, with the keys in their order: a chat template shows a model's arguments, and its tools, in theirs."""
    return _text(value, None)


def _text(value: Any, order: Literal["sorted"] | None) -> str | None:
    if value is None or isinstance(value, str):
        return value
    try:
        return msgspec.json.encode(value, order=order).decode()
    except UNREADABLE:
        return None


def from_json(value: Any) -> Any:
    """What a JSON text holds; the value itself when it is no text, no JSON, or JSON of more than 256 levels."""
    if not isinstance(value, str):
        return value
    try:
        found = read_json(value)
    except UNREADABLE:
        return value
    return value if _may_be_deep(value) and not is_shallow(found) else found


def listed(messages: Any) -> list[Any] | None:
    """The messages of an attribute that says a list of them, each as what its JSON holds; None for any other value."""
    found = [*map(from_json, messages)] if isinstance(messages, MessageTexts) else from_json(messages)
    return found if isinstance(found, list) else None


def _may_be_deep(json: str) -> bool:
    return len(json) > 2 * DEPTH and json.count("[") + json.count("{") > DEPTH


def whole_object(value: Any) -> dict[str, Any]:
    """The members of an object, or of its JSON text, however deep they are; none of anything else."""
    found = value
    if isinstance(value, str):
        try:
            found = read_json(value)
        except UNREADABLE:
            return {}
    return json_object(found)


def shallow_object(value: Any) -> dict[str, Any]:
    """The members of an object, or of its JSON text, without which it would have more than 256 levels."""
    found = from_json(value)
    if found is not value or not isinstance(value, str):
        return json_object(found)
    return {name: item for name, item in whole_object(value).items() if are_shallow([item], DEPTH - 1)}


def too_deep(value: Any) -> int:
    """How many members of an object, or of its JSON text, `shallow_object` leaves out."""
    if not isinstance(value, str) or not _may_be_deep(value):
        return 0
    return len(whole_object(value)) - len(shallow_object(value))


def is_shallow(value: Any) -> bool:
    """Whether a value has no more than 256 levels."""
    return are_shallow([value], DEPTH)


def text(value: Any) -> str | None:
    """The value when it is a text that is not empty."""
    return value if isinstance(value, str) and value else None


def finite(value: Any) -> float | None:
    """The value when it is a number that a float can hold, and neither infinite nor NaN."""
    try:
        return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None
    except OverflowError:
        return None


def any_number(value: Any) -> float | None:
    """The value when it is a finite number, in digits too: some exporters know no numbers."""
    if isinstance(value, str):
        value = or_none(lambda digits: msgspec.convert(digits, float, strict=False), value)
    return None if isinstance(value, bool) else finite(value)


def whole_number(value: Any) -> int | None:
    """The value when it is a whole number of 64 bits, as a float or in digits too."""
    if type(value) is not int:
        value = None if isinstance(value, bool) else or_none(lambda v: msgspec.convert(v, int, strict=False), value)
    return value if value is not None and value in INT64 else None


def or_none(decode: Callable[[Any], _T | None], value: Any) -> _T | None:
    """What `decode` makes of a value; None for None, and for what it cannot read."""
    if value is None:
        return None
    try:
        return decode(value)
    except UNREADABLE:
        return None
