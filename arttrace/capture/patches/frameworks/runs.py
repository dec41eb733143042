"""One run of a tool or an agent by a library, as a `with` block around it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, NamedTuple

from arttrace.capture.base.guard import Guard
from arttrace.capture.context import program
from arttrace.capture.context.flow import calling_flow
from arttrace.capture.context.generators import ScopeStep, close, drive_async_generator, drive_generator, named_as
from arttrace.capture.context.scope import Scope, open_scope, recorded_answer
from arttrace.records.rollout import RecordedTool

_opening = Guard("opening a scope for a library")
_returning = Guard("recording a tool's result")
_ending = Guard("ending a scope for a library")

TOOL_ERROR = ("tool_error", "the tool reported an error")
"""The error of a tool that said so in its result and raised nothing; the type is that of the MCP conventions."""


class _LibraryRun:
    """Opens a scope where one is to be recorded, makes it current inside, and ends it with the block.

    An exception of a type named in `control_flow` is how the library passes control on: no failure.
    """

    def __init__(self, control_flow: tuple[str, ...]) -> None:
        self._scope: Scope | None = None
        self._step: ScopeStep | None = None
        self._control_flow = control_flow

    def _open(self) -> Scope | None:
        raise NotImplementedError

    def __enter__(self) -> None:
        with _opening:
            self._scope = self._open()
            self._step = ScopeStep(self._scope)
            self._step.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with _ending:
            if self._step is not None:
                self._step.__exit__(kind, error, traceback)
            close(self._scope, None if error is None else self.ended_by(error))

    def ended_by(self, error: BaseException) -> BaseException | None:
        """What is to be recorded as the end of a run that raised."""
        return self._left() if any(base.__name__ in self._control_flow for base in type(error).__mro__) else error

    def _left(self) -> BaseException | None:
        """What ended a run that control passed out of."""
        return None


class Called(NamedTuple):
    """What a library executes: the tool's name as the model knows it, its arguments (those that are no object of names
    are recorded as `input`), and the id that the model gave the call, where the library knows it."""

    name: str
    arguments: Any
    call_id: str | None = None


AS_SHOWN = object()


class ToolOutput(NamedTuple):
    """What a tool gave: the value that a model is shown, whether it is an error, and the JSON values that the
    library's result can be made from again, where these are others; None where none can."""

    value: Any
    failed: bool = False
    whole: Any = AS_SHOWN


class LibraryToolRun(_LibraryRun):
    """One execution of a tool.

    Args:
        library: Which library runs it, to know one execution seen at several places from a tool that calls another.
        called: Reads what is called.
    """

    def __init__(self, library: str, called: Callable[[], Called], *, control_flow: tuple[str, ...] = ()) -> None:
        super().__init__(control_flow)
        self._library = library
        self._called = called

    def _open(self) -> Scope | None:
        name, arguments, call_id = self._called()
        scope = open_scope("tool", name, outside=program.scope, library=self._library, call_id=call_id)
        if scope is not None:
            scope.run_by(self._library, call_id)
            by_name = isinstance(arguments, dict) and all(isinstance(key, str) for key in arguments)
            scope.set_arguments(**(arguments if by_name else {"input": arguments}))
        return scope

    def _left(self) -> BaseException | None:
        return GeneratorExit()  # it waits for a person, say, and will be run anew

    def answer(self, again: Callable[[RecordedTool], Any]) -> Callable[[], Any] | None:
        """What to call instead of the tool, in a rollout whose tools are answered from the record; None where it is to
        run. `again` makes a result of the library's own type."""
        return recorded_answer(self._scope, again)

    def returned(self, result: Any, shown: Callable[[Any], ToolOutput]) -> None:
        """The tool has returned. `shown` reads its result."""
        if self._scope is not None:
            with _returning:
                value, failed, whole = shown(result)
                self._scope.set_result(value)
                if failed:
                    self._scope.failed(*TOOL_ERROR)
                if whole is not AS_SHOWN:
                    self._scope.set_whole_result(whole)


class LibraryAgentRun(_LibraryRun):
    """One run of an agent. `name` reads its name."""

    def __init__(self, name: Callable[[], str], *, control_flow: tuple[str, ...] = ()) -> None:
        super().__init__(control_flow)
        self._name = name

    def _open(self) -> Scope | None:
        return open_agent(self._name())

    def around_generator(self, inner: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """The generator `inner`, each step of it inside the run."""
        return inner if self._is_running() else named_as(inner, drive_generator(inner, self._opened, self))

    def around_async_generator(self, inner: AsyncGenerator[Any, Any]) -> AsyncGenerator[Any, Any]:
        """The same of an async generator."""
        return inner if self._is_running() else named_as(inner, drive_async_generator(inner, self._opened, self))

    def around(self, run: Callable[[], Any]) -> Any:
        """What `run()` returns, inside the run: it lasts until a coroutine or generator that it returns is done."""
        if self._is_running():
            return run()
        scope = self._opened()
        try:
            with ScopeStep(scope):
                result = run()
        except BaseException as error:
            close(scope, self.ended_by(error))
            raise
        if inspect.iscoroutine(result):
            return named_as(result, self._awaited(result, scope))
        if inspect.isgenerator(result):
            return named_as(result, drive_generator(result, lambda: scope, self))
        if inspect.isasyncgen(result):
            return named_as(result, drive_async_generator(result, lambda: scope, self))
        close(scope)
        return result

    def around_later(self, run: Callable[[], Any]) -> Any:
        """The same where `run()` itself does nothing yet: the run begins with what it returns."""
        result = run()
        if inspect.iscoroutine(result):
            return named_as(result, self._awaited(result, None))
        return self.around_async_generator(result) if inspect.isasyncgen(result) else result

    async def _awaited(self, inner: Coroutine[Any, Any, Any], scope: Scope | None) -> Any:
        scope = scope or (None if self._is_running() else self._opened())
        try:
            with ScopeStep(scope):
                result = await inner
        except BaseException as error:
            close(scope, self.ended_by(error))
            raise
        close(scope)
        return result

    def _is_running(self) -> bool:
        """Whether what starts now is what runs already, seen again."""
        with _opening:
            outer = calling_flow().scope
            return outer is not None and outer.is_same_agent(self._name())
        return True

    def _opened(self) -> Scope | None:
        with _opening:
            return self._open()
        return None


def open_agent(name: str) -> Scope | None:
    """The scope of an agent that a library runs. Right inside one of its name, as `@agent` gives, it is that one."""
    outer = calling_flow().scope
    if outer is not None and outer.is_same_agent(name):
        return None
    return open_scope("agent", name, outside=program.scope)


def agent_method(method: Callable[..., Any], name: Callable[[Any], str], *, later: bool = False) -> Callable[..., Any]:
    """A library's method that runs an agent, hooked. `later`: it only returns what runs it."""

    @functools.wraps(method)
    def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = LibraryAgentRun(lambda: name(self))
        around = run.around_later if later else run.around
        return around(lambda: method(self, *args, **kwargs))

    return hooked


def tool_method(
    method: Callable[..., Any],
    library: str,
    called: Callable[[Any, tuple[Any, ...], dict[str, Any]], Called],
    shown: Callable[[Any], ToolOutput],
    *,
    is_async: bool = False,
) -> Callable[..., Any]:
    """A library's method that executes a tool and returns its result, hooked.

    Args:
        method: What is hooked; a coroutine function where it `is_async`.
        library: See `LibraryToolRun`.
        called: Reads what is called from the tool, the positional and the named arguments.
        shown: Reads the result.
    """

    @functools.wraps(method)
    def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = LibraryToolRun(library, lambda: called(self, args, kwargs))
        with run:
            answer = run.answer(_recorded_result)
            result = method(self, *args, **kwargs) if answer is None else answer()
            run.returned(result, shown)
        return result

    @functools.wraps(method)
    async def hooked_async(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = LibraryToolRun(library, lambda: called(self, args, kwargs))
        with run:
            answer = run.answer(_recorded_result)
            result = await method(self, *args, **kwargs) if answer is None else answer()
            run.returned(result, shown)
        return result

    return hooked_async if is_async else hooked


def _recorded_result(tool: RecordedTool) -> Any:
    return tool.result
