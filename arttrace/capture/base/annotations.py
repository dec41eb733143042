"""Values that a record has as JSON, made again what the annotations of a function say they are."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable
from typing import Any

import msgspec


def hints_of(fn: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of `fn` by name; none where they cannot be read."""
    try:
        return typing.get_type_hints(inspect.unwrap(fn))
    except Exception:  # noqa: BLE001  annotations are the user's and may name anything
        return {}


def as_annotated(value: Any, hint: Any) -> Any:
    """The value as its annotation has it; as it is, where nothing is known of that type.

    Raises what a pydantic model raises that the value is no instance of.
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
