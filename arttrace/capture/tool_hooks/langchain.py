"""Hooks `BaseTool.run` and `arun` of LangChain: what LangGraph's tool nodes and every `invoke` of a tool come to."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from arttrace.capture.guard import Guard
from arttrace.capture.tool_hooks.runs import ToolRun

_reading = Guard("reading a LangChain tool's arguments")


def install(module: ModuleType) -> None:
    """Hook `langchain_core.tools.base`."""
    module.BaseTool.run = _run(module.BaseTool.run)
    module.BaseTool.arun = _arun(module.BaseTool.arun)


def _tool_run(tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ToolRun:
    given = args[0] if args else kwargs.get("tool_input")
    if isinstance(given, dict):
        with _reading:  # without what the graph injects: the state, the store
            given = tool._filter_injected_args(given)
    call_id = kwargs.get("tool_call_id")
    return ToolRun("langchain", str(tool.name), given, call_id, control_flow=("GraphBubbleUp",))  # LangGraph's


def _returned(run: ToolRun, result: Any) -> None:
    is_message = hasattr(result, "tool_call_id") and hasattr(result, "content")
    run.returned(result.content if is_message else result, failed=getattr(result, "status", "") == "error")


def _run(run_tool: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run_tool)
    def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = _tool_run(self, args, kwargs)
        with run:
            result = run_tool(self, *args, **kwargs)
            _returned(run, result)
        return result

    return hooked


def _arun(run_tool: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run_tool)
    async def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = _tool_run(self, args, kwargs)
        with run:
            result = await run_tool(self, *args, **kwargs)
            _returned(run, result)
        return result

    return hooked
