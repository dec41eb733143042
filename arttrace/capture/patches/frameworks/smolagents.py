"""Hooks smolagents, which shows its models tool results as plain text that no history can be read for.

Tools: `Tool.__call__`. Agents: `run`. A managed agent is called by its manager as a tool and is an agent: both are
recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from arttrace.capture.base.values import is_json
from arttrace.capture.patches.frameworks.runs import Called, ToolOutput, agent_method, tool_method
from arttrace.capture.patches.registry import patch


def install_tools(module: ModuleType) -> None:
    """Hook `smolagents.tools`."""
    patch(module.Tool, "__call__", _tool)


def install_agents(module: ModuleType) -> None:
    """Hook `smolagents.agents`."""
    patch(module.MultiStepAgent, "__call__", lambda call: _tool(agent_method(call, _name)))
    patch(module.MultiStepAgent, "run", lambda run: agent_method(run, _name))


def _called(tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Called:
    by_name = {name: value for name, value in kwargs.items() if name != "sanitize_inputs_outputs"}
    alone = len(args) == 1 and not by_name
    return Called(str(tool.name), args[0] if alone else {**by_name, "args": list(args)} if args else by_name)


def _shown(result: Any) -> ToolOutput:
    return ToolOutput(result) if is_json(result) else ToolOutput(result, whole=None)


def _name(agent: Any) -> str:
    return str(agent.name or type(agent).__name__)


def _tool(call: Callable[..., Any]) -> Callable[..., Any]:
    return tool_method(call, "smolagents", _called, _shown)
