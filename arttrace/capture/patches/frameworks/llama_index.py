"""Hooks LlamaIndex's agents, alone and in an `AgentWorkflow`.

A run is a workflow, whose steps are tasks of their own: one step asks the model as one of the agents, another calls a
tool, and the one that reads the answer may ask once more. An agent's steps in a row are one run of that agent, which
ends when another takes over or the workflow is done.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from arttrace.capture.base.guard import Guard
from arttrace.capture.context.flow import go_on
from arttrace.capture.context.generators import ScopeStep
from arttrace.capture.context.scope import Scope
from arttrace.capture.patches.frameworks.runs import Called, LibraryToolRun, ToolOutput, open_agent
from arttrace.capture.patches.registry import patch

_following = Guard("following the agents of LlamaIndex")


class _Workflow:
    """The agent that one run of a workflow is at."""

    def __init__(self) -> None:
        self._name: str | None = None
        self.scope: Scope | None = None

    def at(self, name: str) -> Scope | None:
        """The scope of the agent that takes a step."""
        if name != self._name:
            self.end(None)
            self._name, self.scope = name, open_agent(name)
            if self.scope is not None:
                self.scope.run.open_library_scopes[id(self.scope)] = self.scope
        return self.scope

    def end(self, error: BaseException | None) -> None:
        """The agent is done."""
        scope, self.scope, self._name = self.scope, None, None
        if scope is not None:
            scope.run.open_library_scopes.pop(id(scope), None)
            scope.close(error)

    def done(self, task: asyncio.Task[Any]) -> None:
        """The workflow is done."""
        with _following:
            self.end(asyncio.CancelledError() if task.cancelled() else task.exception())


_current: ContextVar[_Workflow | None] = ContextVar("arttrace_llama_index", default=None)


def install_agent(module: ModuleType) -> None:
    """Hook `llama_index.core.agent.workflow.base_agent`."""
    _install(module.BaseWorkflowAgent)


def install_workflow(module: ModuleType) -> None:
    """Hook `llama_index.core.agent.workflow.multi_agent_workflow`."""
    _install(module.AgentWorkflow)


def _install(kind: Any) -> None:
    patch(kind, "run", _run)
    patch(kind, "run_agent_step", _step)
    if hasattr(kind, "parse_agent_output"):  # it asks for structured output, or for the answer that ends it early
        patch(kind, "parse_agent_output", _step)
    patch(kind, "call_tool", _call_tool)


def _run(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        workflow, before = _Workflow(), _current.get()
        _current.set(workflow)
        try:
            handler = run(self, *args, **kwargs)
        finally:
            _current.set(before)
        with _following:
            handler._result_task.add_done_callback(workflow.done)
        return handler

    return hooked


def _step(step: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(step)
    async def hooked(self: Any, ctx: Any, ev: Any, *args: Any, **kwargs: Any) -> Any:
        scope, workflow = None, _current.get()
        with _following:
            scope = None if workflow is None else workflow.at(str(ev.current_agent_name))
        with ScopeStep(scope):
            with _following:
                if scope is not None:
                    go_on(scope.execution)
            return await step(self, ctx, ev, *args, **kwargs)

    return hooked


def _call_tool(call_tool: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call_tool)
    async def hooked(self: Any, ctx: Any, ev: Any, *args: Any, **kwargs: Any) -> Any:
        workflow = _current.get()
        with ScopeStep(None if workflow is None else workflow.scope):
            run = LibraryToolRun("llama-index", lambda: Called(str(ev.tool_name), ev.tool_kwargs, ev.tool_id))
            with run:
                result = await call_tool(self, ctx, ev, *args, **kwargs)
                run.returned(result, _shown)
        return result

    return hooked


def _shown(result: Any) -> ToolOutput:
    return ToolOutput(result.tool_output.content, bool(result.tool_output.is_error), None)
