"""One run of a tool or an agent by a library, as a `with` block around it."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from arttrace.capture import program
from arttrace.capture.flow import current_flow
from arttrace.capture.guard import Guard
from arttrace.capture.scope import Scope, open_scope
from arttrace.capture.steps import Step, close

_opening = Guard("opening a scope for a library")
_returning = Guard("recording a tool's result")

TOOL_ERROR = ("tool_error", "the tool reported an error")
"""The error of a tool that said so in its result and raised nothing; the type is that of the MCP conventions."""


class _LibraryRun:
    """Opens a scope where one is to be recorded, makes it current inside, and ends it with the block.

    An exception of a type named in `control_flow` is how the library passes control on: no failure.
    """

    def __init__(self, control_flow: tuple[str, ...]) -> None:
        self._scope: Scope | None = None
        self._control_flow = control_flow

    def _open(self) -> Scope | None:
        raise NotImplementedError

    def __enter__(self) -> None:
        with _opening:
            self._scope = self._open()
        self._step = Step(self._scope)
        self._step.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._step.__exit__(kind, error, traceback)
        if kind is not None and any(base.__name__ in self._control_flow for base in kind.__mro__):
            error = self._left()
        close(self._scope, error)

    def _left(self) -> BaseException | None:
        """What ended a run that control passed out of."""
        return None


class ToolRun(_LibraryRun):
    """One execution of a tool.

    Args:
        library: Which library runs it, to know one execution seen at several places from a tool that calls another.
        name: The tool's name as the model knows it.
        arguments: By name; anything else is recorded as `input`.
        call_id: The id that the model gave the call, where the library knows it.
    """

    def __init__(
        self,
        library: str,
        name: str,
        arguments: Any,
        call_id: str | None = None,
        *,
        control_flow: tuple[str, ...] = (),
    ) -> None:
        super().__init__(control_flow)
        self._library = library
        self._name = name
        self._arguments = arguments
        self._call_id = call_id

    def _open(self) -> Scope | None:
        scope = open_scope("tool", self._name, outside=program.scope, library=self._library, call_id=self._call_id)
        if scope is not None:
            scope.run_by(self._library, self._call_id)
            by_name = isinstance(self._arguments, dict) and all(isinstance(key, str) for key in self._arguments)
            scope.set_arguments(**(self._arguments if by_name else {"input": self._arguments}))
        return scope

    def _left(self) -> BaseException | None:
        return GeneratorExit()  # it waits for a person, say, and will be run anew

    def returned(self, result: Any, *, failed: bool = False) -> None:
        """What the tool gave back. `failed`: it says itself that it is an error."""
        if self._scope is not None:
            with _returning:
                self._scope.set_result(result)
                if failed:
                    self._scope.failed(*TOOL_ERROR)


class AgentRun(_LibraryRun):
    """One run of an agent."""

    def __init__(self, name: str, *, control_flow: tuple[str, ...] = ()) -> None:
        super().__init__(control_flow)
        self._name = name

    def _open(self) -> Scope | None:
        return open_agent(self._name)


def open_agent(name: str) -> Scope | None:
    """The scope of an agent that a library runs. Right inside one of its name, as `@agent` gives, it is that one."""
    outer = current_flow().scope
    if outer is not None and outer.kind != "tool" and outer.name == name:
        return None
    return open_scope("agent", name, outside=program.scope)
