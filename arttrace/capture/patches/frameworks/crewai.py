"""Hooks CrewAI: an agent's tasks and its own runs (its role is its name), and its tools, which are run by one of two
classes; where one of these calls the other that is one execution."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

from arttrace.capture.base.values import is_json
from arttrace.capture.patches.frameworks.runs import Called, ToolOutput, agent_method, tool_method
from arttrace.capture.patches.registry import patch


def install_agents(module: ModuleType) -> None:
    """Hook `crewai.agent.core`."""
    for method in ("execute_task", "aexecute_task", "kickoff", "kickoff_async"):
        if hasattr(module.Agent, method):
            patch(module.Agent, method, lambda run: agent_method(run, _role))


def _role(agent: Any) -> str:
    return str(agent.role).strip()


def install_tools(module: ModuleType) -> None:
    """Hook `crewai.tools.base_tool`."""
    for kind in (module.BaseTool, module.Tool):
        patch(kind, "run", lambda run: tool_method(run, "crewai", _called, _shown))
        patch(kind, "arun", lambda run: tool_method(run, "crewai", _called, _shown, is_async=True))


def install_structured_tools(module: ModuleType) -> None:
    """Hook `crewai.tools.structured_tool`, whose tools are given their arguments as `input`."""
    kind, library = module.CrewStructuredTool, "crewai.structured_tool"
    patch(kind, "invoke", lambda run: tool_method(run, library, _called, _shown))
    patch(kind, "ainvoke", lambda run: tool_method(run, library, _called, _shown, is_async=True))


def _called(tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Called:
    as_the_model_knows_it = import_module("crewai.utilities.string_utils").sanitize_tool_name
    given = kwargs.get("input", args[0] if args else None)
    by_name = given if isinstance(given, dict) else {**kwargs, "args": list(args)} if args else kwargs
    return Called(str(as_the_model_knows_it(tool.name)), by_name)


def _shown(result: Any) -> ToolOutput:
    return ToolOutput(result) if is_json(result) else ToolOutput(str(result), whole=None)
