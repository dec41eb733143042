"""Hooks `BaseTool.run` and `arun` of LangChain: what LangGraph's tool nodes and every `invoke` of a tool come to."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from arttrace.capture.base.values import is_json
from arttrace.capture.patches.frameworks.runs import Called, LibraryToolRun, ToolOutput
from arttrace.capture.patches.registry import patch
from arttrace.records.rollout import RecordedTool

_CONTROL_FLOW = ("GraphBubbleUp",)  # LangGraph's, when the tool waits for a person


def install(module: ModuleType) -> None:
    """Hook `langchain_core.tools.base`."""
    format_output = getattr(module, "_format_output", None)
    patch(module.BaseTool, "run", lambda run: _run(run, format_output))
    patch(module.BaseTool, "arun", lambda arun: _arun(arun, format_output))


def _called(tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Called:
    given = args[0] if args else kwargs["tool_input"]
    not_injected = getattr(tool, "_filter_injected_args", None)
    if isinstance(given, dict) and not_injected is not None:  # without what a graph injects: its state, its store
        given = not_injected(given)
    return Called(str(tool.name), given, kwargs.get("tool_call_id"))


def _shown(result: Any, call_id: str | None = None) -> ToolOutput:
    message = _in_command(result, call_id)
    if message is not None:  # a command to the graph: what it brings the model is shown, and none can be made again
        return ToolOutput(message.content, getattr(message, "status", "") == "error", None)
    is_message = _is_message(result)
    value = result.content if is_message else result
    failed = getattr(result, "status", "") == "error"
    artifact = getattr(result, "artifact", None) if is_message else None
    if not is_json(value) or not is_json(artifact):  # a command that answers nobody, say
        return ToolOutput(value, failed, None)
    return (
        ToolOutput(value, failed)
        if artifact is None
        else ToolOutput(value, failed, {"content": value, "artifact": artifact})
    )


def _is_message(value: Any) -> bool:
    return hasattr(value, "tool_call_id") and hasattr(value, "content")


def _in_command(result: Any, call_id: str | None) -> Any:
    """The message by which LangGraph's `Command`, or a list with one, answers this call; None where there is none."""
    given = result if isinstance(result, list) else [result]
    if not any(hasattr(one, "goto") and hasattr(one, "update") for one in given):
        return None
    for one in given:
        for message in (one, *_brought(getattr(one, "update", None))):
            if _is_message(message) and (call_id is None or message.tool_call_id == call_id):
                return message
    return None


def _brought(update: Any) -> Iterator[Any]:
    """Everything in the update of a graph's state: an object of lists, pairs of a name and a list, or a list."""
    for value in update.values() if isinstance(update, dict) else [update]:
        for item in value if isinstance(value, list | tuple) else [value]:
            value = item[1] if isinstance(item, tuple) and len(item) == 2 else item
            yield from value if isinstance(value, list | tuple) else [value]


def _again(format_output: Any, tool: Any, kwargs: dict[str, Any], recorded: RecordedTool) -> Any:
    """As the tool gives it: a message where a model's call is answered, else the content alone."""
    whole = recorded.whole or {"content": recorded.result, "artifact": None}
    status = "error" if recorded.failed else "success"
    return format_output(whole["content"], whole["artifact"], kwargs.get("tool_call_id"), tool.name, status)


def _run(run_tool: Callable[..., Any], format_output: Any) -> Callable[..., Any]:
    @functools.wraps(run_tool)
    def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = LibraryToolRun("langchain", lambda: _called(self, args, kwargs), control_flow=_CONTROL_FLOW)
        with run:
            answer = run.answer(lambda tool: _again(format_output, self, kwargs, tool))
            result = run_tool(self, *args, **kwargs) if answer is None else answer()
            run.returned(result, lambda given: _shown(given, kwargs.get("tool_call_id")))
        return result

    return hooked


def _arun(run_tool: Callable[..., Any], format_output: Any) -> Callable[..., Any]:
    @functools.wraps(run_tool)
    async def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = LibraryToolRun("langchain", lambda: _called(self, args, kwargs), control_flow=_CONTROL_FLOW)
        with run:
            answer = run.answer(lambda tool: _again(format_output, self, kwargs, tool))
            result = await run_tool(self, *args, **kwargs) if answer is None else answer()
            run.returned(result, lambda given: _shown(given, kwargs.get("tool_call_id")))
        return result

    return hooked
