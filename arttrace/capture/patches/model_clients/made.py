"""Begins the call of a client's own request, and runs that while the call is the one whose requests are sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import unquote, urlsplit

from arttrace.capture.base.guard import Guard
from arttrace.capture.calls.model_call import ModelCall, UnrecordedCall, begin_call
from arttrace.capture.patches.httpx import current_call
from arttrace.wire import api_of, provider_of

_beginning = Guard("beginning a model call")
_ending = Guard("ending a model call")


def begun(request: Any, provider: str | None = None) -> ModelCall | UnrecordedCall | None:
    """The call that a request makes, which has a `method` and a `url`, if it is one. Its client may send it by any HTTP
    client: none is named. `provider` is that of a client whose API others have too."""
    with _beginning:
        parts = urlsplit(str(request.url))
        path = unquote(parts.path)
        if request.method.lower() == "post" and api_of(path) is not None:
            return begin_call(None, path=path, provider=provider or provider_of(path, parts.hostname))
    return None


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
