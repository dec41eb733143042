"""The client of engines runs on asyncio's own event loop and on uvloop, whose transports differ: so do its tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

try:
    import uvloop
except ImportError:  # there is none for Windows
    LOOPS: Mapping[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
else:
    LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.hookimpl(optionalhook=True)  # pytest-asyncio has it since 1.4; before, asyncio's own loop alone is taken
def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return LOOPS
