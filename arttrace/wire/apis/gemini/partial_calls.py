"""Function calls whose arguments Vertex AI streams in pieces (`streamFunctionCallArguments`), put together.

The first piece has the name, each has some `partialArgs` (a path, and a value or a piece of a text), and all but the
last say `willContinue`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from arttrace.records.values.lenient_json import json_objects
from arttrace.wire.apis.gemini.members import member

_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d{1,4})\]|\[['\"]([^'\"]*)['\"]\]")
_MAX_STEPS = 100
_VALUES = ("stringValue", "numberValue", "boolValue")


def whole_calls(parts: Iterable[Any]) -> list[Any]:
    """The parts, of the pieces of each call the first alone, with all arguments as far as they came."""
    begun: dict[str, Any] | None = None
    listed: list[Any] = []
    for part in parts:
        called = member(part, "functionCall") if isinstance(part, dict) else None
        pieces = json_objects(member(called, "partialArgs")) if isinstance(called, dict) else []
        if begun is None or not isinstance(called, dict) or called.get("name"):
            begun = None
            if isinstance(called, dict) and (pieces or member(called, "willContinue") is True):
                arguments = called.get("args")
                begun = {"args": dict(arguments) if isinstance(arguments, dict) else {}}
                part = {**part, "functionCall": {**called, **begun}}
            listed.append(part)
        if begun is not None and isinstance(called, dict):
            for piece in pieces:
                _set(begun["args"], piece)
            if member(called, "willContinue") is not True:
                begun = None
    return listed


def _set(arguments: dict[str, Any], piece: dict[str, Any]) -> None:
    """Put the value of a piece at its place; a text goes on the one that is there."""
    path = member(piece, "jsonPath")
    steps: list[Any] = [
        int(index) if index else name or quoted
        for name, index, quoted in (_STEP.findall(path)[:_MAX_STEPS] if isinstance(path, str) else ())
    ]
    value = next((found for name in _VALUES if (found := member(piece, name)) is not None), None)
    at: Any = arguments
    for step, then in zip(steps, [*steps[1:], None], strict=True):
        if isinstance(at, list) and isinstance(step, int):
            at.extend([None] * (step + 1 - len(at)))
        elif not isinstance(at, dict):
            return
        before = at[step] if isinstance(at, list) else at.get(step)
        if then is None:
            goes_on = isinstance(before, str) and isinstance(value, str)
            at[step] = before + value if goes_on else value
        elif not isinstance(before, dict | list):
            at[step] = [] if isinstance(then, int) else {}
        at = at[step]
