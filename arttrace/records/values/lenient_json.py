"""JSON as other senders write it: with half a surrogate pair, bytes that are not UTF-8, or non-finite numbers.

A model that is cut inside an emoji answers half a surrogate pair, which Python's `json` and JavaScript write as an
escape. UTF-8 cannot encode it: it becomes U+FFFD, the replacement character, as do bytes that are not UTF-8.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any

import msgspec

_HALF = re.compile("[\ud800-\udfff]")
_MAY_BE_JSON = frozenset('"{[-0123456789NI \t\r\n')
"""What a JSON text begins with that msgspec refuses and that may be read all the same: no `true`, `false` or `null`."""


def bounded_integer(digits: str) -> int:
    """The number of a JSON text. Raises ValueError where it has more digits than Python takes for a number."""
    try:
        return int(digits)
    except ValueError:
        raise ValueError(f"a number of {len(digits):,} digits") from None


_DECODER = json.JSONDecoder(parse_int=bounded_integer)


def read_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError if it is not JSON, RecursionError if it is too deep."""
    try:
        return msgspec.json.decode(text)
    except ValueError as error:
        if isinstance(text, str) and text[:1] not in _MAY_BE_JSON:  # mostly plain text, the result of a tool
            raise
        with suppress(ValueError):
            return read_lenient(text)
        raise error from None


def read_lenient(text: str | bytes) -> Any:
    """The value of a JSON text that msgspec refuses. Raises ValueError if it is not JSON, RecursionError if it is too
    deep."""
    return well_formed(_DECODER.decode(text.decode(errors="replace") if isinstance(text, bytes) else text))


def well_formed(value: Any) -> Any:
    """The same text, or value with texts in it, with U+FFFD in place of each half of a surrogate pair."""
    if isinstance(value, str):
        return _HALF.sub("\ufffd", value)
    if isinstance(value, dict):
        return {well_formed(key): well_formed(item) for key, item in value.items()}
    return [well_formed(item) for item in value] if isinstance(value, list | tuple) else value


def json_object(value: Any) -> dict[str, Any]:
    """The value where it is an object; else one without members."""
    return value if isinstance(value, dict) else {}


def json_objects(value: Any) -> list[dict[str, Any]]:
    """The objects of a list; none where it is no list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
