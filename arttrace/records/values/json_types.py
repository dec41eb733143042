"""Attribute values that JSON cannot represent, as text with a record of their places, and back. Pure."""

from __future__ import annotations

import base64
import contextlib
import math
from collections.abc import Callable
from typing import Any

Attributes = dict[str, Any]
"""Attribute values: str, bool, int, float, or lists of them; structured values (dicts) are accepted on input. Bytes and
non-finite doubles are text there, and a Typed beside it has their places."""

Typed = dict[str, list[tuple[str | int, ...]]]
"""The places, as paths of keys and indices, of values that JSON cannot represent: under "bytes" those of bytes (base64
in the attributes), under "double" those of "NaN", "Infinity" and "-Infinity"."""


def plain(attributes: Attributes) -> tuple[Attributes, Typed]:
    """Attributes that JSON can represent, and the places of bytes and non-finite doubles."""
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
    """A non-finite double as OTLP/JSON writes it."""
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


_BACK: dict[str, Callable[[str], bytes | float]] = {"bytes": base64.b64decode, "double": float}


def exact(attributes: Attributes, typed: Typed) -> Attributes:
    """The attributes that `plain` converted; the same object if there is nothing to do. Each container is copied once.
    A place without such a value is ignored: a record may claim anything."""
    if not typed:
        return attributes
    whole = attributes.copy()
    copies = {id(whole)}  # containers of `whole`, which keeps them alive
    for kind, places in typed.items():
        for place in places:
            with contextlib.suppress(LookupError, TypeError, ValueError, OverflowError):
                _put_back(whole, place, _BACK[kind], copies)
    return whole


def _put_back(node: Any, place: tuple[str | int, ...], back: Callable[[str], Any], copies: set[int]) -> None:
    *above, last = place
    for step in above:
        below = node[step]
        if id(below) not in copies:
            if not isinstance(below, (dict, list)):
                raise TypeError(step)
            node[step] = below = below.copy()
            copies.add(id(below))
        node = below
    node[last] = back(node[last])
