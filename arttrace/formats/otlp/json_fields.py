"""The fields of OTLP's JSON, as protobuf's JSON mapping has them: each reader gives the value or raises ValueError."""

from __future__ import annotations

import base64
import re
from typing import Any

_WHOLE = re.compile(r"-?[0-9]{1,20}", re.ASCII)
_DOUBLE = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?|NaN|-?Infinity", re.ASCII)
_STANDARD_ALPHABET = str.maketrans("-_", "+/")


def mapping(value: Any) -> dict[str, Any]:
    """An object."""
    if not isinstance(value, dict):
        raise ValueError("expected an object")
    return value


def array(holder: Any, key: str) -> list[Any]:
    """An array; empty where it is missing."""
    value = mapping(holder).get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"{key} is no array")
    return value


def object_of(holder: Any, key: str) -> dict[str, Any]:
    """An object; empty where it is missing."""
    value = mapping(holder).get(key)
    return {} if value is None else mapping(value)


def integer(holder: Any, key: str, among: range) -> int:
    """A number, or a text that is one, as protobuf's JSON has it: never a part of it, a truth value or a list."""
    given = mapping(holder).get(key)
    match given:
        case None | "":
            return 0
        case bool():
            raise ValueError(f"{key} is no number")
        case int():
            value = given
        case float() if given.is_integer():
            value = int(given)
        case str() if (whole := _WHOLE.fullmatch(given)) is not None:
            value = int(whole[0])
        case _:
            raise ValueError(f"{key} is not a whole number")
    if value not in among:
        raise ValueError(f"{key} is out of range")
    return value


def boolean(given: Any) -> bool:
    """A truth value."""
    if isinstance(given, bool):
        return given
    if given in ("true", "false"):  # no protobuf writes it so, but people do
        return bool(given == "true")
    raise ValueError("boolValue is neither true nor false")


def double(given: Any) -> float:
    """A floating-point number, or a text that is one."""
    if isinstance(given, bool) or not isinstance(given, (int, float, str)):
        raise ValueError("doubleValue is no number")
    if isinstance(given, str) and not _DOUBLE.fullmatch(given):
        raise ValueError("doubleValue is no number")
    return float(given)


def texts(holder: Any, key: str) -> list[str]:
    """An array of texts."""
    found = array(holder, key)
    if not all(isinstance(one, str) for one in found):
        raise ValueError(f"{key} has a value that is not text")
    return found


def text(holder: Any, key: str) -> str:
    """A text; empty where it is missing."""
    value = mapping(holder).get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{key} is no text")
    return value


def base64_bytes(encoded: str) -> bytes:
    """Bytes in base64 of either alphabet, padded or not, as protobuf's JSON allows."""
    standard = encoded.translate(_STANDARD_ALPHABET).rstrip("=")
    return base64.b64decode(standard + "=" * (-len(standard) % 4), validate=True)
