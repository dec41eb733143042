"""Hooks `BaseTool.run` and `arun` of LangChain: what LangGraph's tool nodes and every `invoke` of a tool come to."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from arttrace.capture.tool_hooks.runs import Called, Shown, ToolRun
from arttrace.capture.values import is_json
from arttrace.records.rollout import RecordedTool

_CONTROL_FLOW = ("GraphBubbleUp",)  # LangGraph's, when the tool waits for a person


def install(module: ModuleType) -> None:
    """Hook `langchain_core.tools.base`."""
    format_output = getattr(module, "_format_output", None)
    module.BaseTool.run = _run(module.BaseTool.run, format_output)
    module.BaseTool.arun = _arun(module.BaseTool.arun, format_output)


def _called(tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Called:
    given = args[0] if args else kwargs["tool_input"]
    not_injected = getattr(tool, "_filter_injected_args", None)
    if isinstance(given, dict) and not_injected is not None:  # without what a graph injects: its state, its store
        given = not_injected(given)
    return Called(str(tool.name), given, kwargs.get("tool_call_id"))


def _shown(result: Any) -> Shown:
    is_message = hasattr(result, "tool_call_id") and hasattr(result, "content")
    value = result.content if is_message else result
    failed = getattr(result, "status", "") == "error"
    artifact = getattr(result, "artifact", None) if is_message else None
    if not is_json(value) or not is_json(artifact):  # a command to the graph, say
        return Shown(value, failed, None)
    return Shown(value, failed) if artifact is None else Shown(value, failed, {"content": value, "artifact": artifact})


def _again(format_output: Any, tool: Any, kwargs: dict[str, Any], recorded: RecordedTool) -> Any:
    """As the tool gives it: a message where a model's call is answered, else the content alone."""
    whole = recorded.whole or {"content": recorded.result, "artifact": None}
    status = "error" if recorded.failed else "success"
    return format_output(whole["content"], whole["artifact"], kwargs.get("tool_call_id"), tool.name, status)


def _run(run_tool: Callable[..., Any], format_output: Any) -> Callable[..., Any]:
    @functools.wraps(run_tool)
    def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = ToolRun("langchain", lambda: _called(self, args, kwargs), control_flow=_CONTROL_FLOW)
        with run:
            answer = run.answer(lambda tool: _again(format_output, self, kwargs, tool))
            result = run_tool(self, *args, **kwargs) if answer is None else answer()
            run.returned(result, _shown)
        return result

    return hooked


def _arun(run_tool: Callable[..., Any], format_output: Any) -> Callable[..., Any]:
    @functools.wraps(run_tool)
    async def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = ToolRun("langchain", lambda: _called(self, args, kwargs), control_flow=_CONTROL_FLOW)
        with run:
            answer = run.answer(lambda tool: _again(format_output, self, kwargs, tool))
            result = await run_tool(self, *args, **kwargs) if answer is None else answer()
            run.returned(result, _shown)
        return result

    return hooked
