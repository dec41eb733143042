"""Hooks smolagents, which shows its models tool results as plain text that no history can be read for.

Tools: `Tool.__call__`. A managed agent is called by its manager as a tool and is an agent: both are recorded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from arttrace.capture.patches import patch
from arttrace.capture.tool_hooks.runs import AgentRun, Called, Shown, ToolRun
from arttrace.capture.values import is_json


def install_tools(module: ModuleType) -> None:
    """Hook `smolagents.tools`."""
    patch(module.Tool, "__call__", _tool)


def install_agents(module: ModuleType) -> None:
    """Hook `smolagents.agents`."""
    patch(module.MultiStepAgent, "__call__", lambda call: _tool(_in_agent(call)))


def _called(tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Called:
    by_name = {name: value for name, value in kwargs.items() if name != "sanitize_inputs_outputs"}
    alone = len(args) == 1 and not by_name
    return Called(str(tool.name), args[0] if alone else {**by_name, "args": list(args)} if args else by_name)


def _shown(result: Any) -> Shown:
    return Shown(result) if is_json(result) else Shown(result, whole=None)


def _name(agent: Any) -> str:
    return str(agent.name)


def _tool(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = ToolRun("smolagents", lambda: _called(self, args, kwargs))
        with run:
            answer = run.answer(lambda tool: tool.result)
            result = call(self, *args, **kwargs) if answer is None else answer()
            run.returned(result, _shown)
        return result

    return hooked


def _in_agent(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        with AgentRun(lambda: _name(self)):
            return call(self, *args, **kwargs)

    return hooked
