"""Hooks `invoke`, `stream` and their async twins of LangGraph's compiled graphs: each run of a graph, and of a graph
inside it, is an agent's. `invoke` reads its own graph's `stream`, which is the same run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from arttrace.capture.patches.frameworks.runs import LibraryAgentRun
from arttrace.capture.patches.registry import patch

_CONTROL_FLOW = ("GraphBubbleUp",)  # an interrupt, or a command for the graph above


def install(module: ModuleType) -> None:
    """Hook the module that defines `Pregel`, the class of every compiled graph."""
    patch(module.Pregel, "invoke", _invoke)
    patch(module.Pregel, "ainvoke", _ainvoke)
    patch(module.Pregel, "stream", _stream)
    patch(module.Pregel, "astream", _astream)


def _name(graph: Any) -> str:
    return str(graph.name)


def _invoke(invoke: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(invoke)
    def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        with LibraryAgentRun(lambda: _name(self), control_flow=_CONTROL_FLOW):
            return invoke(self, *args, **kwargs)

    return hooked


def _ainvoke(ainvoke: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(ainvoke)
    async def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        with LibraryAgentRun(lambda: _name(self), control_flow=_CONTROL_FLOW):
            return await ainvoke(self, *args, **kwargs)

    return hooked


def _stream(stream: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stream)
    def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = LibraryAgentRun(lambda: _name(self), control_flow=_CONTROL_FLOW)
        return run.around_generator(stream(self, *args, **kwargs))

    return hooked


def _astream(astream: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(astream)
    def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = LibraryAgentRun(lambda: _name(self), control_flow=_CONTROL_FLOW)
        return run.around_async_generator(astream(self, *args, **kwargs))

    return hooked
