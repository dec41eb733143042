"""What a function takes, and recorded JSON values converted back to the types in its annotations."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable
from typing import Any

import msgspec

if sys.version_info >= (3, 14):
    from annotationlib import Format

    def signature_of(fn: Callable[..., Any]) -> inspect.Signature:
        """The signature of `fn` with its annotations as text: Python computes them where they are read, and a name in
        one that only type checkers import would raise NameError. Raises TypeError or ValueError if `fn` has none."""
        return inspect.signature(fn, annotation_format=Format.STRING)

else:

    def signature_of(fn: Callable[..., Any]) -> inspect.Signature:
        """The signature of `fn`. Raises TypeError or ValueError if it has none."""
        return inspect.signature(fn)


def require_function(fn: object, decorator: str) -> None:
    """Raise TypeError where a name was given in the place of what is to be decorated."""
    if isinstance(fn, str):
        raise TypeError(f"arttrace.{decorator} takes a function, not {fn!r}: write arttrace.{decorator}(name={fn!r})")


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
