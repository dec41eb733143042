"""Fields of Gemini's JSON, by the names that the API writes or by those in snake case, which it takes as well."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from arttrace.records.values.lenient_json import json_object


def member(value: dict[str, Any], name: str) -> Any:
    """A field by its name in camel case or in snake case; None where it has neither."""
    found = value.get(name)
    return value.get(_snake(name)) if found is None else found


def object_in(value: dict[str, Any], name: str) -> dict[str, Any]:
    """A field that is an object; one without members where it is none."""
    return json_object(member(value, name))


def others(value: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The fields but for some, by either name."""
    left_out = {either for name in names for either in (name, _snake(name))}
    return {name: one for name, one in value.items() if name not in left_out}


@lru_cache(maxsize=64)
def _snake(name: str) -> str:
    return re.sub(r"[A-Z]", lambda letter: f"_{letter[0].lower()}", name)
