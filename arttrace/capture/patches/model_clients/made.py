"""Runs a client's own request while the call that our hook has begun is the one whose requests are sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from arttrace.capture.base.guard import Guard
from arttrace.capture.calls.model_call import ModelCall, UnrecordedCall
from arttrace.capture.patches.httpx import current_call

_ending = Guard("ending a model call")


def made(call: ModelCall | UnrecordedCall, request: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What the client's own `request` gives, while the call is the one whose requests are sent."""
    before = current_call.get()
    current_call.set(call)
    try:
        result = request(*args, **kwargs)
    except BaseException as error:
        with _ending:
            call.raised(error)
        raise
    finally:
        current_call.set(before)
    try:
        call.returned()
    except Exception as error:  # noqa: BLE001  rule 1: docs/architecture.md
        _ending.caught(error)
    return result


async def awaited(call: ModelCall | UnrecordedCall, request: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The same of an asynchronous client."""
    before = current_call.get()
    current_call.set(call)
    try:
        result = await request(*args, **kwargs)
    except BaseException as error:
        with _ending:
            call.raised(error)
        raise
    finally:
        current_call.set(before)
    try:
        call.returned()
    except Exception as error:  # noqa: BLE001  rule 1: docs/architecture.md
        _ending.caught(error)
    return result
