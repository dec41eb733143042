"""Hooks the OpenAI Agents SDK: its function tools, and the agents that a run goes through by handoffs.

Tools: the function that its tool runner invokes each function tool with, where it knows the call's id. Agents: the
SDK's own tracing spans say when an agent takes over and when it is done, on the task that runs it, and do so also when
its tracing is disabled; nothing of its tracing is changed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import msgspec

from arttrace.capture.flow import Flow
from arttrace.capture.guard import Guard
from arttrace.capture.scope import Scope
from arttrace.capture.tool_hooks.runs import Called, ToolRun, open_agent

# The newest first: the older one calls it.
_INVOKERS = ("_invoke_function_tool_with_metadata", "invoke_function_tool")

_agents = Guard("following the agents of the OpenAI Agents SDK")
_running: dict[int, tuple[Any, Scope, Flow]] = {}


def install_tools(module: ModuleType) -> None:
    """Hook a module of `agents` that invokes function tools, by the name it knows the invoker under."""
    for name in _INVOKERS:
        invoke = getattr(module, name, None)
        if invoke is not None:
            setattr(module, name, _invoke(invoke))
            return


def install_agents(module: ModuleType) -> None:
    """Hook `agents.tracing.spans`: both kinds of span, that of a disabled tracing too."""
    for kind in (module.SpanImpl, module.NoOpSpan):
        kind.start = _start(kind.start)
        kind.finish = _finish(kind.finish)


def _invoke(invoke: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(invoke)
    async def hooked(*args: Any, **kwargs: Any) -> Any:
        run = ToolRun("openai-agents", lambda: _called(**kwargs))
        with run:
            run.may_run()
            result = await invoke(*args, **kwargs)
            run.returned(result, _shown)
        return result

    return hooked


def _called(*, function_tool: Any, context: Any, arguments: str, **_: Any) -> Called:
    try:
        by_name = msgspec.json.decode(arguments) if arguments else {}
    except msgspec.DecodeError:
        by_name = arguments
    return Called(str(function_tool.name), by_name, getattr(context, "tool_call_id", None))


def _shown(result: Any) -> tuple[Any, bool]:
    return getattr(result, "output", result), False  # newer invokers return it with notes of their own


def _start(start: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(start)
    def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _agents:
            if self.span_data.type == "agent" and id(self) not in _running:
                scope = open_agent(str(self.span_data.name))
                if scope is not None:
                    _running[id(self)] = (self, scope, scope.enter())
        return start(self, *args, **kwargs)

    return hooked


def _finish(finish: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(finish)
    def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _agents:
            running = _running.pop(id(self), None)
            if running is not None:
                _, scope, before = running
                scope.leave(before)
                scope.close()
        return finish(self, *args, **kwargs)

    return hooked
