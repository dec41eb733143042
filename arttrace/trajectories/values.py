"""Attribute values, which may be anything a sender wrote: as text, as what their JSON holds, or None; never raising."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from arttrace.trajectories.shared import UNREADABLE

_T = TypeVar("_T")


def as_text(value: Any) -> str | None:
    """Text as it is, None as None, anything else as JSON with sorted keys."""
    if value is None or isinstance(value, str):
        return value
    return msgspec.json.encode(value, order="sorted").decode()


def from_json(value: Any) -> Any:
    """What a JSON text holds; the value itself when it is no text or no JSON."""
    if not isinstance(value, (str, bytes)):
        return value
    try:
        return msgspec.json.decode(value)
    except UNREADABLE:
        return value


def text(value: Any) -> str | None:
    """The value when it is a text that is not empty."""
    return value if isinstance(value, str) and value else None


def or_none(decode: Callable[[Any], _T | None], value: Any) -> _T | None:
    """What `decode` makes of a value; None for None, and for what it cannot read."""
    try:
        return None if value is None else decode(value)
    except UNREADABLE:
        return None
