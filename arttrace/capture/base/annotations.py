"""What a function takes, and recorded JSON values converted back to the types in its annotations."""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from arttrace.capture.base.guard import logger

_PLACEHOLDER = getattr(functools, "Placeholder", object())  # of Python 3.14

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
    """Raise TypeError where a name was given in the place of what is to be decorated. A class, which other libraries
    have decorated as an agent, is logged."""
    if isinstance(fn, str):
        raise TypeError(f"arttrace.{decorator} takes a function, not {fn!r}: write arttrace.{decorator}(name={fn!r})")
    if isinstance(fn, type):
        logger.warning(
            "arttrace: arttrace.%s on the class %s records what happens while an object is made, and nothing of what"
            " the object does later: decorate the method that does the work",
            decorator,
            fn.__qualname__,
        )


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


def function_of(fn: Any) -> Any:
    """What a partial object calls in the end; anything else is it itself."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return fn


def given_to(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """What the function of a partial object is called with."""
    while isinstance(fn, functools.partial):
        left = iter(args)
        filled = [next(left, each) if each is _PLACEHOLDER else each for each in fn.args]
        fn, args, kwargs = fn.func, (*filled, *left), {**fn.keywords, **kwargs}
    return args, kwargs


def arguments_of(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of one call by name, those of a partial object with what it adds; see `binder`. Raises TypeError or
    ValueError if `fn` has no signature."""
    function = function_of(fn)
    if function is fn or hasattr(fn, "__name__"):
        return binder(signature_of(fn))(args, kwargs)
    return binder(signature_of(function))(*given_to(fn, args, kwargs))


def binder(signature: inspect.Signature) -> Callable[[tuple[Any, ...], Mapping[str, Any]], dict[str, Any]]:
    """What gives a call's arguments by name; none where they do not fit, which the call itself is about to say.

    `Signature.bind` takes longer than all else that is noted of a short tool, so it is for the rarer kinds alone.
    """
    parameters = signature.parameters
    defaults = {name: each.default for name, each in parameters.items()}
    names = tuple(parameters)
    required = sum(each.default is inspect.Parameter.empty for each in parameters.values())

    def plainly(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        given = len(args)
        bound = defaults.copy()
        bound.update(zip(names, args, strict=False))
        bound.update(kwargs)
        fits = given <= len(names) == len(bound) and kwargs.keys().isdisjoint(names[:given])
        return bound if fits and (given >= required or kwargs.keys() >= set(names[given:required])) else {}

    def by_signature(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return {}
        bound.apply_defaults()
        return bound.arguments

    plain = all(each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for each in parameters.values())
    return plainly if plain else by_signature
