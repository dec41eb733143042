"""What Weave makes of a program's values: objects with the names of their classes, their Python text where a program
wrote them with `default=str`, and references to what Weave keeps elsewhere. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

_CLASS = frozenset({"_class_name", "_bases"})
_OBJECT = "ObjectRecord"
_REFS = ("weave:///", "weave-trace-internal:///")
_FILE, _TOO_LARGE = "CustomWeaveType", "_weave"
_NOT_SENT = re.compile(r"NOT_GIVEN|NotGiven|<\w[\w.]* object at 0x[0-9a-fA-F]+>")
_LEVELS = 100


def restored(value: Any, levels: int = _LEVELS) -> Any:
    """The value without what Weave says of its class. Raises ValueError where it has more than 100 levels."""
    if levels == 0:
        raise ValueError("a value of more than 100 levels")
    if isinstance(value, str) and value.startswith(f"{_OBJECT}("):
        written = _of_python(value)
        return value if written is None else restored(written, levels - 1)
    if isinstance(value, list):
        return [restored(one, levels - 1) for one in value]
    if not isinstance(value, dict):
        return value
    names = _CLASS | {"_type"} if value.keys() >= _CLASS else ()
    return {name: restored(one, levels - 1) for name, one in value.items() if name not in names}


def _of_python(text: str) -> Any:
    """What the text of an object of Weave's says, as Python writes it; None where it cannot be read."""
    try:
        return _value_of(ast.parse(text, mode="eval").body)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def _value_of(node: ast.expr) -> Any:
    match node:
        case ast.Call(func=ast.Name(id="ObjectRecord"), args=[ast.Dict() as fields], keywords=[]):
            return _value_of(fields)
        case ast.Dict(keys=keys, values=values) if None not in keys:
            named = [(_value_of(key), _value_of(one)) for key, one in zip(keys, values, strict=True) if key is not None]
            return {str(name): one for name, one in named}
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value_of(item) for item in items]
        case _:
            value = ast.literal_eval(node)  # a number, a text, True, False or None
            if isinstance(value, (str, int, float, bool, type(None))):
                return value
            raise ValueError("a value that JSON has none of")


def is_ref(value: Any) -> bool:
    """Whether this names something that Weave keeps elsewhere."""
    return isinstance(value, str) and value.startswith(_REFS)


def name_of(ref: Any) -> str:
    """The name in a reference to an op or an object; a text that is none is the name."""
    if not is_ref(ref):
        return ref if isinstance(ref, str) else ""
    for part in ("/op/", "/object/"):
        _, found, rest = ref.partition(part)
        if found:
            return unquote(rest.partition("/")[0].rpartition(":")[0] or rest)
    return unquote(ref.rpartition("/")[2])


def elsewhere(value: Any) -> Iterator[str]:
    """What of a value, by its kind in the plural, is not in the file."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if is_ref(one):
            yield "references to what Weave keeps elsewhere"
        elif isinstance(one, dict):
            if one.get("_type") == _FILE:
                yield "files that Weave keeps apart"
            elif _TOO_LARGE in one and len(one) == 1:
                yield "values that were too large for Weave"
            else:
                waiting += one.values()
        elif isinstance(one, list):
            waiting += one


def was_sent(value: Any) -> bool:
    """Whether a client's method was given this: an object of a class that Weave could not write stands for nothing."""
    return not (isinstance(value, str) and _NOT_SENT.fullmatch(value))
