"""Hooks the OpenAI Agents SDK: its function tools, its handoffs, and the agents that a run goes through by them.

Tools: the function that its tool runner invokes each function tool with, where it knows the call's id. A handoff is a
tool to the model that asks for it, and its answer is shown to the next agent only, so that it is recorded where the SDK
carries it out. Agents: the SDK's own tracing spans say when an agent takes over and when it is done, on the task that
runs it, and do so also when its tracing is disabled; nothing of its tracing is changed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import msgspec

from arttrace.capture.base.guard import Guard
from arttrace.capture.base.values import is_json
from arttrace.capture.context.flow import Flow
from arttrace.capture.context.scope import Scope
from arttrace.capture.patches.frameworks.runs import Called, LibraryToolRun, ToolOutput, open_agent
from arttrace.capture.patches.registry import patch
from arttrace.records.rollout import RecordedTool

_SHOWN_BY_TYPE = ("text", "image", "file")
# The newest first: the older one calls it.
_INVOKERS = ("_invoke_function_tool_with_metadata", "invoke_function_tool")

_agents = Guard("following the agents of the OpenAI Agents SDK")
_running: dict[int, tuple[Any, Scope, Flow]] = {}


def install_tools(module: ModuleType) -> None:
    """Hook a module of `agents` that invokes function tools, by the name it knows the invoker under."""
    for name in _INVOKERS:
        if hasattr(module, name):
            patch(module, name, _invoke)
            return


def install_handoffs(module: ModuleType) -> None:
    """Hook `agents.run_internal.turn_resolution`, which carries out the handoffs of a turn."""
    patch(module, "execute_handoffs", _hand_off)


def install_agents(module: ModuleType) -> None:
    """Hook `agents.tracing.spans`: both kinds of span, that of a disabled tracing too."""
    for kind in (module.SpanImpl, module.NoOpSpan):
        patch(kind, "start", _start)
        patch(kind, "finish", _finish)


def _invoke(invoke: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(invoke)
    async def hooked(*args: Any, **kwargs: Any) -> Any:
        run = LibraryToolRun("openai-agents", lambda: _called(**kwargs))
        with run:
            answer = run.answer(lambda tool: _again(invoke, tool))
            result = await invoke(*args, **kwargs) if answer is None else answer()
            run.returned(result, lambda result: _shown(result, kwargs["function_tool"]))
        return result

    return hooked


def _called(*, function_tool: Any, context: Any, arguments: str, **_: Any) -> Called:
    return Called(str(function_tool.name), _by_name(arguments), getattr(context, "tool_call_id", None))


def _by_name(arguments: str) -> Any:
    try:
        return msgspec.json.decode(arguments) if arguments else {}
    except msgspec.DecodeError:
        return arguments


def _shown(result: Any, function_tool: Any) -> ToolOutput:
    output = getattr(result, "output", result)  # newer invokers return it with notes of their own
    keeps_type = getattr(function_tool, "output_json_schema", None) is not None
    parts = output if isinstance(output, (list, tuple)) and output else [output]
    if is_json(output) or keeps_type or all(getattr(part, "type", None) in _SHOWN_BY_TYPE for part in parts):
        return ToolOutput(output)
    return ToolOutput(output, whole=str(output))  # which is what the SDK shows a model


def _again(invoke: Callable[..., Any], tool: RecordedTool) -> Any:
    output = tool.result if tool.whole is None else tool.whole
    result_type = invoke.__globals__.get("_FunctionToolInvocationResult")
    return output if invoke.__name__ == _INVOKERS[-1] or result_type is None else result_type(output)


def _hand_off(execute: Callable[..., Any]) -> Callable[..., Any]:
    """The first of a turn's handoffs is carried out; the SDK answers the others, if any, that it ignores them."""

    @functools.wraps(execute)
    async def hooked(*args: Any, **kwargs: Any) -> Any:
        asked = kwargs.get("run_handoffs")
        if not asked:
            return await execute(*args, **kwargs)
        first, *others = (LibraryToolRun("openai-agents", partial(_handoff_called, one)) for one in asked)
        with first:
            result = await execute(*args, **kwargs)
            first.returned(kwargs, partial(_handoff_shown, asked[0]))
        for run, one in zip(others, asked[1:], strict=True):
            with run:
                run.returned(kwargs, partial(_handoff_shown, one))
        return result

    return hooked


def _handoff_called(asked: Any) -> Called:
    tool_call = asked.tool_call
    return Called(str(tool_call.name), _by_name(tool_call.arguments), tool_call.call_id)


def _handoff_shown(asked: Any, given: dict[str, Any]) -> ToolOutput:
    answers = (item.raw_item for item in reversed(given["new_step_items"]) if isinstance(item.raw_item, dict))
    call_id = asked.tool_call.call_id
    return ToolOutput(next(answer["output"] for answer in answers if answer.get("call_id") == call_id))


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
