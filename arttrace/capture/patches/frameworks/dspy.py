"""Hooks DSPy's tools, which its `ReAct` calls by text of its own: the messages hold no tool call to infer them from."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from arttrace.capture.base.values import is_json
from arttrace.capture.patches.frameworks.runs import Called, ToolOutput, tool_method
from arttrace.capture.patches.registry import patch


def install(module: ModuleType) -> None:
    """Hook `dspy.adapters.types.tool`."""
    patch(module.Tool, "__call__", lambda call: tool_method(call, "dspy", _called, _shown))
    patch(module.Tool, "acall", lambda call: tool_method(call, "dspy", _called, _shown, is_async=True))


def _called(tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Called:
    return Called(str(tool.name), kwargs)


def _shown(result: Any) -> ToolOutput:
    return ToolOutput(result) if is_json(result) else ToolOutput(str(result), whole=None)
