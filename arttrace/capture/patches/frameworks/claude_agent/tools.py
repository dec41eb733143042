"""Hooks the tools of the Claude Agent SDK that are functions of the program: Claude Code calls them by MCP, at a
server that runs in the program, in a task of its own.

A call is recorded where the SDK hands it to the server, with the model's id of it; what the function does is inside.
What Claude Code runs itself, such as its shell, is in the messages of its calls.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from msgspec.structs import replace

from arttrace.capture.base.guard import Guard
from arttrace.capture.context.flow import Flow, current_flow, set_flow
from arttrace.capture.patches.frameworks.claude_agent.transport import turn_of
from arttrace.capture.patches.frameworks.runs import Called, LibraryToolRun, ToolOutput
from arttrace.capture.patches.registry import patch
from arttrace.records.rollout import RecordedTool
from arttrace.records.values.lenient_json import json_object, json_objects

_CALL_ID = "claudecode/toolUseId"
_hooking = Guard("hooking the tools of the Claude Agent SDK")
_handed_over: dict[tuple[str, str], list[tuple[Any, Flow]]] = {}
"""The calls that have not come to their function yet, by server and tool: the arguments, and the flow of each."""


def install_calls(module: ModuleType) -> None:
    """Hook `claude_agent_sdk._internal.query`."""
    patch(module.Query, "_handle_sdk_mcp_request", _handle)


def install_functions(module: ModuleType) -> None:
    """Hook `claude_agent_sdk`."""
    patch(module, "create_sdk_mcp_server", _create)


def _handle(handle: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(handle)
    async def hooked(self: Any, server_name: str, message: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        before = current_flow()
        turn = turn_of(self.transport)
        if turn is None:
            return await handle(self, server_name, message, *args, **kwargs)
        try:
            if message.get("method") != "tools/call":
                # The server's task begins by such a message: the spans of its own are of calls that are recorded.
                set_flow(replace(before, muted=True))
                return await handle(self, server_name, message, *args, **kwargs)
            set_flow(turn)
            called = json_object(message.get("params"))
            run = LibraryToolRun("claude-agent-sdk", lambda: _called(server_name, called))
            with run:
                answer = run.answer(lambda tool: _again(message, tool))
                if answer is not None:
                    return answer()
                waiting = _handed_over.setdefault((server_name, str(called.get("name"))), [])
                waiting.append((called.get("arguments"), current_flow()))
                result = await handle(self, server_name, message, *args, **kwargs)
                run.returned(result, _shown)
            return result
        finally:
            set_flow(before)

    return hooked


def _create(create: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(create)
    def hooked(name: str, version: str = "1.0.0", tools: list[Any] | None = None, **more: Any) -> Any:
        inside = tools
        with _hooking:
            inside = tools and [_inside_its_call(name, tool) for tool in tools]
        return create(name, version, inside, **more)

    return hooked


def _inside_its_call(server: str, tool: Any) -> Any:
    """The same tool, whose function runs in the flow of its call."""
    handler, same = tool.handler, copy.copy(tool)

    @functools.wraps(handler)
    async def hooked(arguments: Any) -> Any:
        before, waiting = current_flow(), _handed_over.get((server, tool.name))
        if waiting:
            place = next((place for place, (given, _) in enumerate(waiting) if given == arguments), 0)
            set_flow(waiting.pop(place)[1])
        try:
            return await handler(arguments)
        finally:
            set_flow(before)

    same.handler = hooked
    return same


def _called(server: str, called: dict[str, Any]) -> Called:
    id = json_object(called.get("_meta")).get(_CALL_ID)
    name = f"mcp__{server}__{called.get('name')}"  # as the model knows it
    return Called(name, called.get("arguments") or {}, id if isinstance(id, str) else None)


def _shown(answer: Any) -> ToolOutput:
    """The text of a result, or its parts where they are more than text."""
    if "error" in json_object(answer):
        return ToolOutput(answer["error"], failed=True, whole=answer)
    result = json_object(json_object(answer).get("result"))
    parts = json_objects(result.get("content"))
    is_text = bool(parts) and all(part.get("type") == "text" for part in parts)
    value = "\n".join(str(part.get("text")) for part in parts) if is_text else parts
    return ToolOutput(value, bool(result.get("isError")), answer)


def _again(message: dict[str, Any], tool: RecordedTool) -> Any:
    made_of = json_object(tool.whole) or {
        "jsonrpc": "2.0",
        "result": {"content": [{"type": "text", "text": str(tool.result)}], "isError": tool.failed},
    }
    return {**made_of, "id": message.get("id")}
