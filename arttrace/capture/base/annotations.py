"""Recorded JSON values, converted back to the types in a function's annotations."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable
from typing import Any

import msgspec


def hints_of(fn: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of `fn` by name; empty if they cannot be read."""
    try:
        return typing.get_type_hints(inspect.unwrap(fn))
    except Exception:  # noqa: BLE001  annotations are the user's and may name anything
        return {}


def as_annotated(value: Any, hint: Any) -> Any:
    """The value converted to its annotated type; unchanged if that type is not known here.

    Raises what a pydantic model raises if the value does not fit it.
    """
    if hint is None:
        return value
    validate = getattr(hint, "model_validate", None)
    if callable(validate):
        return validate(value)
    try:
        return msgspec.convert(value, hint)
    except (TypeError, ValueError):  # a type of the user's own, or an annotation that was not kept to
        pydantic = sys.modules.get("pydantic")
        if pydantic is None:
            return value
        try:
            return pydantic.TypeAdapter(hint).validate_python(value)
        except Exception:  # noqa: BLE001  as above
            return value
