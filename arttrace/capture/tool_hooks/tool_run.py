"""One execution of a tool by a library, as a `with` block around it."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from arttrace.capture import program
from arttrace.capture.guard import Guard
from arttrace.capture.scope import Scope, open_scope
from arttrace.capture.steps import Step, close

_opening = Guard("opening a tool's scope")
_returning = Guard("recording a tool's result")

TOOL_ERROR = ("tool_error", "the tool reported an error")
"""The error of a tool that said so in its result and raised nothing; the type is that of the MCP conventions."""


class ToolRun:
    """Opens the tool's scope where one is to be recorded, makes it current inside, and ends it with the block.

    Args:
        library: Which library runs it, to know one execution seen at several places from a tool that calls another.
        name: The tool's name as the model knows it.
        arguments: By name; anything else is recorded as `input`.
        call_id: The id that the model gave the call, where the library knows it.
    """

    __slots__ = ("_arguments", "_call_id", "_library", "_name", "_scope", "_step")

    def __init__(self, library: str, name: str, arguments: Any, call_id: str | None = None) -> None:
        self._library = library
        self._name = name
        self._arguments = arguments
        self._call_id = call_id
        self._scope: Scope | None = None

    def __enter__(self) -> ToolRun:
        with _opening:
            self._scope = open_scope(
                "tool", self._name, outside=program.scope, library=self._library, call_id=self._call_id
            )
            if self._scope is not None:
                self._scope.run_by(self._library, self._call_id)
                by_name = isinstance(self._arguments, dict) and all(isinstance(key, str) for key in self._arguments)
                self._scope.set_arguments(**(self._arguments if by_name else {"input": self._arguments}))
        self._step = Step(self._scope)
        self._step.__enter__()
        return self

    def returned(self, result: Any, *, failed: bool = False) -> None:
        """What the tool gave back. `failed`: it says itself that it is an error."""
        if self._scope is not None:
            with _returning:
                self._scope.set_result(result)
                if failed:
                    self._scope.failed(*TOOL_ERROR)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._step.__exit__(kind, error, traceback)
        close(self._scope, error)
