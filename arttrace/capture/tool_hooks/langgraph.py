"""Hooks `invoke` and `ainvoke` of LangGraph's compiled graphs: each run of a graph, and of a graph inside it, is an
agent's. What a graph is asked for by `stream` directly is not; the graphs inside it are."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from arttrace.capture.tool_hooks.runs import AgentRun

_CONTROL_FLOW = ("GraphBubbleUp",)  # an interrupt, or a command for the graph above


def install(module: ModuleType) -> None:
    """Hook the module that defines `Pregel`, the class of every compiled graph."""
    module.Pregel.invoke = _invoke(module.Pregel.invoke)
    module.Pregel.ainvoke = _ainvoke(module.Pregel.ainvoke)


def _name(graph: Any) -> str:
    return str(graph.name)


def _invoke(invoke: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(invoke)
    def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        with AgentRun(lambda: _name(self), control_flow=_CONTROL_FLOW):
            return invoke(self, *args, **kwargs)

    return hooked


def _ainvoke(ainvoke: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(ainvoke)
    async def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        with AgentRun(lambda: _name(self), control_flow=_CONTROL_FLOW):
            return await ainvoke(self, *args, **kwargs)

    return hooked
