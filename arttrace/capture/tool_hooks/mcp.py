"""Hooks `ClientSession.call_tool` of the MCP SDK, majors 1 and 2: every client of it goes through there."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from arttrace.capture.tool_hooks.runs import Called, ToolRun


def install(module: ModuleType) -> None:
    """Hook `mcp.client.session`."""
    module.ClientSession.call_tool = _call_tool(module.ClientSession.call_tool)


def _call_tool(call_tool: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call_tool)
    async def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = ToolRun("mcp", lambda: _called(args, kwargs))
        with run:
            run.may_run()
            result = await call_tool(self, *args, **kwargs)
            run.returned(result, _shown)
        return result

    return hooked


def _called(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Called:
    name = args[0] if args else kwargs["name"]
    arguments = args[1] if len(args) > 1 else kwargs.get("arguments")
    return Called(str(name), arguments or {})


def _shown(result: Any) -> tuple[Any, bool]:
    """The text of a result, or its parts where they are more than text; majors 1 and 2 spell the error differently."""
    parts = getattr(result, "content", result)
    failed = bool(getattr(result, "is_error", getattr(result, "isError", False)))
    if isinstance(parts, list) and parts and all(getattr(part, "type", None) == "text" for part in parts):
        return "\n".join(part.text for part in parts), failed
    return parts, failed
