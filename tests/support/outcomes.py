"""What a program got from a client, as plain data, so that two runs can be compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel


def plain(value: Any) -> Any:
    """A result as plain data with its types."""
    if isinstance(value, BaseModel):
        return (type(value).__qualname__, value.model_dump(warnings=False))
    return [plain(item) for item in value] if isinstance(value, list) else value


def outcome(run: Callable[[], Any]) -> Any:
    """What `run` returned, or what it raised: type, message, body and status, and the type of the cause."""
    try:
        return ("returned", plain(run()))
    except BaseException as error:
        said = getattr(error, "body", None), getattr(error, "status_code", None)
        return ("raised", type(error), str(error), said, type(error.__cause__))
