"""Hooks Agno: the runs of agents and teams, those too that go on when a person has said yes to a tool, and
`FunctionCall`, which executes each tool with the call's id."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

from arttrace.capture.base.values import is_json
from arttrace.capture.patches.frameworks.runs import Called, LibraryToolRun, ToolOutput, agent_method
from arttrace.capture.patches.registry import patch


def install_agent(module: ModuleType) -> None:
    """Hook `agno.agent.agent`."""
    _install(module.Agent)


def install_team(module: ModuleType) -> None:
    """Hook `agno.team.team`."""
    _install(module.Team)


def _install(kind: Any) -> None:
    for name in ("run", "continue_run"):
        if hasattr(kind, name):
            patch(kind, name, lambda run: agent_method(run, _name))
    for name in ("arun", "acontinue_run"):  # which give a coroutine or an iterator
        if hasattr(kind, name):
            patch(kind, name, lambda run: agent_method(run, _name, later=True))


def _name(agent: Any) -> str:
    return str(agent.name or agent.id or type(agent).__name__)


def install_tools(module: ModuleType) -> None:
    """Hook `agno.tools.function`."""
    made = module.FunctionExecutionResult
    patch(module.FunctionCall, "execute", lambda execute: _execute(execute, made))
    patch(module.FunctionCall, "aexecute", lambda aexecute: _aexecute(aexecute, made))


def _called(call: Any) -> Called:
    return Called(str(call.function.name), call.arguments or {}, call.call_id)


def _shown(outcome: Any) -> ToolOutput:
    if outcome.status != "success":
        return ToolOutput(outcome.error, failed=True)
    return ToolOutput(outcome.result) if is_json(outcome.result) else ToolOutput(str(outcome.result), whole=None)


def _returned(run: LibraryToolRun, outcome: Any) -> None:
    # A tool that yields does its work later; what it gave in the end is in the messages.
    result = getattr(outcome, "result", None)
    if not (inspect.isgenerator(result) or inspect.isasyncgen(result)):
        run.returned(outcome, _shown)


def _execute(execute: Callable[..., Any], made: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(execute)
    def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = LibraryToolRun("agno", lambda: _called(self))
        with run:
            answer = run.answer(lambda tool: made(status="success", result=tool.result))
            outcome = execute(self, *args, **kwargs) if answer is None else answer()
            _returned(run, outcome)
        return outcome

    return hooked


def _aexecute(aexecute: Callable[..., Any], made: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(aexecute)
    async def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = LibraryToolRun("agno", lambda: _called(self))
        with run:
            answer = run.answer(lambda tool: made(status="success", result=tool.result))
            outcome = await aexecute(self, *args, **kwargs) if answer is None else answer()
            _returned(run, outcome)
        return outcome

    return hooked
