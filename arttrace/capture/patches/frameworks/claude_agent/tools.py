"""Hooks the tools of the Claude Agent SDK that are functions of the program: Claude Code calls them by MCP, at a
server that runs in the program.

A call is recorded where the SDK hands it to the server, with the model's id of it. What the function does is inside, as
the MCP SDK (from 2.0) runs it in the context of its caller. What Claude Code runs itself, such as its shell, is in the
messages of its calls.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from arttrace.capture.context.flow import current_flow, set_flow
from arttrace.capture.patches.frameworks.claude_agent.transport import turn_of
from arttrace.capture.patches.frameworks.runs import Called, LibraryToolRun, ToolOutput
from arttrace.capture.patches.registry import patch
from arttrace.records.rollout import RecordedTool
from arttrace.records.values.lenient_json import json_object, json_objects

_CALL_ID = "claudecode/toolUseId"


def install(module: ModuleType) -> None:
    """Hook `claude_agent_sdk._internal.query`."""
    patch(module.Query, "_handle_sdk_mcp_request", _handle)


def _handle(handle: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(handle)
    async def hooked(self: Any, server_name: str, message: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        turn = turn_of(self.transport) if message.get("method") == "tools/call" else None
        if turn is None:
            return await handle(self, server_name, message, *args, **kwargs)
        before = current_flow()
        set_flow(turn)
        try:
            run = LibraryToolRun("claude-agent-sdk", lambda: _called(server_name, json_object(message.get("params"))))
            with run:
                answer = run.answer(lambda tool: _again(message, tool))
                if answer is not None:
                    return answer()
                result = await handle(self, server_name, message, *args, **kwargs)
                run.returned(result, _shown)
            return result
        finally:
            set_flow(before)

    return hooked


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
