"""Hooks `BaseTool.run` and `arun` of LangChain: what LangGraph's tool nodes and every `invoke` of a tool come to."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from arttrace.capture.tool_hooks.runs import Called, ToolRun

_CONTROL_FLOW = ("GraphBubbleUp",)  # LangGraph's, when the tool waits for a person


def install(module: ModuleType) -> None:
    """Hook `langchain_core.tools.base`."""
    module.BaseTool.run = _run(module.BaseTool.run)
    module.BaseTool.arun = _arun(module.BaseTool.arun)


def _called(tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Called:
    given = args[0] if args else kwargs["tool_input"]
    not_injected = getattr(tool, "_filter_injected_args", None)
    if isinstance(given, dict) and not_injected is not None:  # without what a graph injects: its state, its store
        given = not_injected(given)
    return Called(str(tool.name), given, kwargs.get("tool_call_id"))


def _shown(result: Any) -> tuple[Any, bool]:
    is_message = hasattr(result, "tool_call_id") and hasattr(result, "content")
    return (result.content if is_message else result), getattr(result, "status", "") == "error"


def _run(run_tool: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run_tool)
    def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = ToolRun("langchain", lambda: _called(self, args, kwargs), control_flow=_CONTROL_FLOW)
        with run:
            run.may_run()
            result = run_tool(self, *args, **kwargs)
            run.returned(result, _shown)
        return result

    return hooked


def _arun(run_tool: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run_tool)
    async def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = ToolRun("langchain", lambda: _called(self, args, kwargs), control_flow=_CONTROL_FLOW)
        with run:
            run.may_run()
            result = await run_tool(self, *args, **kwargs)
            run.returned(result, _shown)
        return result

    return hooked
