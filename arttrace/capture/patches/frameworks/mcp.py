"""Hooks `ClientSession.call_tool` of the MCP SDK, majors 1 and 2: every client of it goes through there."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from arttrace.capture.patches.frameworks.runs import Called, LibraryToolRun, ToolOutput
from arttrace.capture.patches.registry import patch
from arttrace.records.rollout import RecordedTool

_SHOWN_FIELDS = {"content", "isError", "resultType"}


def install(module: ModuleType) -> None:
    """Hook `mcp.client.session`."""
    result_type = module.types.CallToolResult
    patch(module.ClientSession, "call_tool", lambda call_tool: _call_tool(call_tool, result_type))


def _call_tool(call_tool: Callable[..., Any], result_type: Any) -> Callable[..., Any]:
    @functools.wraps(call_tool)
    async def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = LibraryToolRun("mcp", lambda: _called(args, kwargs))
        with run:
            answer = run.answer(lambda tool: _again(result_type, tool))
            result = await call_tool(self, *args, **kwargs) if answer is None else answer()
            run.returned(result, _shown)
        return result

    return hooked


def _called(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Called:
    name = args[0] if args else kwargs["name"]
    arguments = args[1] if len(args) > 1 else kwargs.get("arguments")
    return Called(str(name), arguments or {})


def _shown(result: Any) -> ToolOutput:
    """The text of a result, or its parts where they are more than text; majors 1 and 2 spell the error differently."""
    parts = getattr(result, "content", None)
    if not isinstance(parts, list):  # the server asks for something first, say
        return ToolOutput(result, whole=None)
    failed = bool(getattr(result, "is_error", getattr(result, "isError", False)))
    is_text = bool(parts) and all(getattr(part, "type", None) == "text" for part in parts)
    value = "\n".join(part.text for part in parts) if is_text else parts
    whole = result.model_dump(mode="json", by_alias=True, exclude_none=True)
    is_all = whole.keys() <= _SHOWN_FIELDS and whole["content"] == _content(value)
    return ToolOutput(value, failed) if is_all else ToolOutput(value, failed, whole)


def _content(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [{"type": "text", "text": value}]


def _again(result_type: Any, tool: RecordedTool) -> Any:
    made_of = tool.whole or {"content": _content(tool.result), "isError": tool.failed}
    return result_type.model_validate(made_of)
