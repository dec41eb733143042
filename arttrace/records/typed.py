"""Attribute values that JSON cannot hold, as text whose place is remembered, and back. Pure."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable
from typing import Any

from arttrace.records.span import Attributes, Typed


def plain(attributes: Attributes) -> tuple[Attributes, Typed]:
    """Attributes that JSON can hold, and where bytes and doubles that are no numbers stood."""
    typed: Typed = {}
    return _plain(attributes, (), typed), typed


def _plain(value: Any, place: tuple[str | int, ...], typed: Typed) -> Any:
    match value:
        case dict():
            return {key: _plain(item, (*place, key), typed) for key, item in value.items()}
        case list():
            return [_plain(item, (*place, index), typed) for index, item in enumerate(value)]
        case bytes():
            typed.setdefault("bytes", []).append(place)
            return base64.b64encode(value).decode("ascii")
        case float() if not math.isfinite(value):
            typed.setdefault("double", []).append(place)
            return double_text(value)
    return value


def double_text(value: float) -> str:
    """A double that is no number as OTLP/JSON has it."""
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def exact(attributes: Attributes, typed: Typed) -> Attributes:
    """The attributes that `plain` was given; the same object when there is nothing to do."""
    for kind, places in typed.items():
        back = base64.b64decode if kind == "bytes" else float
        for place in places:
            attributes = _changed(attributes, place, back)
    return attributes


def _changed(value: Any, place: Iterable[str | int], back: Any) -> Any:
    first, *rest = place
    copy = value.copy()
    copy[first] = _changed(value[first], rest, back) if rest else back(value[first])
    return copy
