"""Counts calls of models by WebSocket, which have no hook, so that the program's end can say that they were not
captured."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from arttrace.capture.base.guard import Guard
from arttrace.capture.export import summary
from arttrace.capture.patches.httpx import note_passed
from arttrace.capture.patches.registry import patch

_counting = Guard("counting what is not captured")


def install_websockets(module: ModuleType) -> None:
    """Hook `connect` of `websockets.sync.client` or `websockets.asyncio.client`, by which realtime and responses go."""
    if isinstance(module.connect, type):
        patch(module.connect, "__init__", _connect)
    else:
        patch(module, "connect", _connect)


def _connect(connect: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(connect)
    def hooked(*args: Any, **kwargs: Any) -> Any:
        with _counting:
            uri = kwargs.get("uri") or next((each for each in args if isinstance(each, str)), "")
            url = urlsplit(uri)
            note_passed(url.hostname, url.path, summary.BY_A_SOCKET)
        return connect(*args, **kwargs)

    return hooked
