"""`@trajectory`, `@agent` and `@tool`: decorators, with or without arguments, that are context managers as well.

The wrapped callable keeps its kind, signature, laziness, identity when pickled, and every value and exception. A scope
is current only while the user's code runs: between the steps of a generator it is not.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from types import TracebackType
from typing import Any, TypeVar, overload

from arttrace.capture.base.annotations import binder, function_of, given_to, require_function, signature_of
from arttrace.capture.base.entry_point import EntryPoint, of_callable
from arttrace.capture.base.guard import Guard
from arttrace.capture.base.settings import content_mode
from arttrace.capture.context import program
from arttrace.capture.context.flow import Blocks, current_flow, left_elsewhere, opened_here
from arttrace.capture.context.generators import (
    AlreadyOpen,
    Instrumented,
    ScopeStep,
    close,
    drive_async_generator,
    drive_coroutine,
    drive_generator,
    finish,
    is_coroutine,
    leave,
    named_as,
)
from arttrace.capture.context.position import ScopeKind
from arttrace.capture.context.scope import Scope, open_scope, recorded_answer
from arttrace.capture.handle import RunHandle, handle_of
from arttrace.capture.patches import hooks
from arttrace.records.values.users_text import plain_text
from arttrace.wire.content import ContentMode

F = TypeVar("F", bound=Callable[..., Any])
Group = str | Callable[..., str]

_opening = Guard("opening a scope")
_stepping = Guard("making a scope current")
_grouping = Guard("the callable given as group")


class ScopeDecorator:
    """What `trajectory(...)`, `agent(...)` and `tool(...)` return: decorate with it, or enter it with `with`."""

    def __init__(
        self,
        kind: ScopeKind,
        *,
        name: str | None = None,
        group: Group | None = None,
        scenario: str | None = None,
        tags: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        trajectory_id: str | None = None,
        capture_content: ContentMode | None = None,
    ) -> None:
        self._kind: ScopeKind = kind
        self._name = name
        self._group = None if callable(group) else group
        self._group_rule = group if callable(group) else None
        self._scenario = scenario
        self._trajectory_id = trajectory_id
        self._tags: Sequence[str] = ()
        self._metadata: dict[str, Any] = {}
        with _opening:
            self._blocks: Blocks[Scope] = Blocks()
            self._name, self._group, self._scenario = _text(name), _text(self._group), _text(scenario)
            self._trajectory_id = _text(trajectory_id)
            self._tags = tags if isinstance(tags, str) else tuple(tags or ())
            self._metadata = dict(metadata or {})
        self._capture_content = None if capture_content is None else content_mode(capture_content)
        hooks.install()

    def __call__(self, fn: F) -> F:
        """Decorate a function, coroutine function, generator function of either kind, method or class method."""
        require_function(fn, self._kind)
        with _opening:
            return self._decorated(fn)  # type: ignore[no-any-return]
        return fn

    def _decorated(self, fn: Any, entry: EntryPoint | None = None) -> Any:
        """`fn` decorated, of a property what reads it; `entry` is the entry point that it was where it came from."""
        if isinstance(fn, property):
            return fn if fn.fget is None else fn.getter(self._decorated(fn.fget))
        if isinstance(fn, cached_property):
            return type(fn)(self._decorated(fn.func))
        plain = getattr(fn, "__func__", fn)
        function_name, own = of_callable(plain)
        entry = entry or own
        hooks.install()
        again = partial(self._decorated, entry=entry)
        return Instrumented(fn, self._wrapper(plain, self._name or function_name, entry), self._kind, again)

    def __enter__(self) -> RunHandle:
        scope = self._open(self._name or self._kind, None, None)
        with _stepping:
            self._blocks.enter(scope)
            if scope is not None:
                scope.opened_by, scope.before = self, scope.enter()
        with _opening:
            return handle_of(scope)
        return RunHandle(None)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        _at_the_end: Callable[[], bool] = sys.is_finalizing,
    ) -> None:
        if _at_the_end():
            return
        flow = current_flow()
        block = flow.scope if isinstance(flow.scope, Scope) and flow.scope.opened_by is self else None
        with _stepping:
            # One object may be entered by several tasks, or where nothing is recorded: what ends is what this flow
            # opened.
            opened = None if flow.muted and self._blocks.hold_none else opened_here(self, flow)
            here = opened if isinstance(opened, Scope) else None
            block = self._blocks.leave(here)
            if block is not None and here is None:
                left_elsewhere(block)
        if block is not None and block.before is not None:
            leave(block, block.before)
            close(block, error)

    async def __aenter__(self) -> RunHandle:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)

    def _open(
        self, name: str, entry: EntryPoint | None, call: tuple[tuple[Any, ...], Mapping[str, Any]] | None
    ) -> Scope | None:
        try:
            return open_scope(
                self._kind,
                name,
                entry=entry,
                scenario=self._scenario,
                group=self._group if self._group_rule is None else self._group_by(self._group_rule, call),
                group_is_computed=self._group_rule is not None,
                tags=self._tags,
                metadata=self._metadata,
                trajectory_id=self._trajectory_id,
                capture_content=self._capture_content,
                outside=program.scope,
            )
        except Exception as error:  # noqa: BLE001  rule 1: docs/architecture.md
            _opening.caught(error)
            return None

    @staticmethod
    def _group_by(rule: Callable[..., str], call: tuple[tuple[Any, ...], Mapping[str, Any]] | None) -> str | None:
        args, kwargs = call or ((), {})
        with _grouping:
            key = rule(*args, **kwargs)
            return None if key is None else str(key)
        return None

    def _wrapper(self, plain: Callable[..., Any], name: str, entry: EntryPoint) -> Callable[..., Any]:
        bind: Callable[..., dict[str, Any]] | None = None
        function = function_of(plain)
        # The run of a partial object without a name is its function's; what a model gave a tool is the call's alone.
        is_functions = function is not plain and self._kind != "tool" and not hasattr(plain, "__name__")
        at_the_end = sys.is_finalizing  # nothing is recorded then: modules lose their names, ours too

        def start(wrapped: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Scope | None:
            nonlocal bind
            scope = self._open(name, entry, (args, kwargs))
            if scope is not None:
                try:
                    if bind is None:
                        bind = binder(signature_of(function if is_functions else wrapped))
                    if is_functions:
                        args, kwargs = given_to(wrapped, args, kwargs)
                    scope.set_arguments(**bind(args, kwargs))
                    if scope.run.tools is not None:  # else a run would hold the user's module to the very end
                        scope.function = function_of(wrapped)
                except Exception as error:  # noqa: BLE001  rule 1: docs/architecture.md
                    _opening.caught(error)
            return scope

        def driven_by(drive: Callable[..., Any]) -> Callable[..., Any]:
            def in_steps(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
                inner = wrapped(*args, **kwargs)
                if at_the_end():
                    return inner
                drive_it = drive_coroutine if is_coroutine(inner) else drive
                return named_as(inner, drive_it(inner, lambda: start(wrapped, args, kwargs)))

            return in_steps

        def in_function(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if at_the_end():
                return wrapped(*args, **kwargs)
            scope = start(wrapped, args, kwargs)
            try:
                answer = recorded_answer(scope)
                with ScopeStep(scope):
                    result = wrapped(*args, **kwargs) if answer is None else answer()
            except BaseException as error:
                close(scope, error)
                raise
            # Of a plain function that returns one of these the run ends when that does.
            if is_coroutine(result):
                return named_as(result, drive_coroutine(result, AlreadyOpen(scope)))
            if makes_generator and inspect.isgenerator(result):
                return named_as(result, drive_generator(result, AlreadyOpen(scope)))
            if makes_generator and inspect.isasyncgen(result):
                return named_as(result, drive_async_generator(result, AlreadyOpen(scope)))
            finish(scope, result)
            return result

        innermost = inspect.unwrap(function if inspect.isroutine(function) else type(function).__call__)
        makes_generator = inspect.isgeneratorfunction(innermost) or inspect.isasyncgenfunction(innermost)
        if inspect.iscoroutinefunction(plain):
            return driven_by(drive_coroutine)
        if inspect.isgeneratorfunction(plain):
            return driven_by(drive_generator)
        if inspect.isasyncgenfunction(plain):
            return driven_by(drive_async_generator)
        return in_function


def _text(value: Any) -> str | None:
    """A name or id as text: a number, or a text of numpy's, is none to whoever reads the record."""
    return None if value is None else plain_text(value)


@overload
def trajectory(fn: F, /) -> F: ...
@overload
def trajectory(
    *,
    name: str | None = None,
    group: Group | None = None,
    scenario: str | None = None,
    tags: Sequence[str] = (),
    metadata: Mapping[str, Any] | None = None,
    trajectory_id: str | None = None,
    capture_content: ContentMode | None = None,
) -> ScopeDecorator: ...
def trajectory(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    group: Group | None = None,
    scenario: str | None = None,
    tags: Sequence[str] = (),
    metadata: Mapping[str, Any] | None = None,
    trajectory_id: str | None = None,
    capture_content: ContentMode | None = None,
) -> Any:
    """Record everything one run does: `@trajectory`, `@trajectory(...)` or `with trajectory(...) as run:`.

    Args:
        fn: The function, coroutine function, (async) generator function, method or callable object to decorate. What
            it takes, returns and raises stays as it is.
        name: The root agent's name; the function's own by default.
        group: Runs of one group are compared with each other. Text, or a callable that gets the run's arguments.
        scenario: What the run attempted; runs of one scenario are a group when no group is given.
        tags: Free words. `update` adds more while the run goes on.
        metadata: Free JSON values by name; `update` adds more.
        trajectory_id: The run's id, for a run that was announced before it started; random by default. What is given
            one id, blocks or calls, is one run, whose rewards add up.
        capture_content: "full", "redacted" or "off" for everything in the run; it can lower what is set already, not
            raise it.

    Returns:
        The decorated function; without `fn` a decorator, which is also a context manager that returns the run's handle.

    Inside another trajectory that has not ended it becomes a sub-agent of that one: its tags, and metadata under keys
    that the run does not have yet, are added to the run; its group, scenario and id are ignored.

    Example:
        ```python
        @arttrace.trajectory(group=lambda question: question)
        def answer(question: str) -> str: ...
        ```
    """
    decorator = ScopeDecorator(
        "trajectory",
        name=name,
        group=group,
        scenario=scenario,
        tags=tags,
        metadata=metadata,
        trajectory_id=trajectory_id,
        capture_content=capture_content,
    )
    return decorator if fn is None else decorator(fn)


@overload
def agent(fn: F, /) -> F: ...
@overload
def agent(*, name: str | None = None, capture_content: ContentMode | None = None) -> ScopeDecorator: ...
def agent(
    fn: Callable[..., Any] | None = None, /, *, name: str | None = None, capture_content: ContentMode | None = None
) -> Any:
    """Record a sub-agent's run: `@agent`, `@agent(name=...)` or `with agent(name=...):`.

    Args:
        fn: The function to decorate, of any kind that `trajectory` takes.
        name: The agent's name; the function's own by default.
        capture_content: "full", "redacted" or "off" for all that it does, where that is less than is set already.

    Returns:
        The decorated function; without `fn` what decorates one, or opens a `with` block.

    Outside any trajectory nothing is recorded.
    """
    decorator = ScopeDecorator("agent", name=name, capture_content=capture_content)
    return decorator if fn is None else decorator(fn)


@overload
def tool(fn: F, /) -> F: ...
@overload
def tool(*, name: str | None = None, capture_content: ContentMode | None = None) -> ScopeDecorator: ...
def tool(
    fn: Callable[..., Any] | None = None, /, *, name: str | None = None, capture_content: ContentMode | None = None
) -> Any:
    """Record a tool's run: `@tool`, `@tool(name=...)` or `with tool(name=...) as run:`.

    Args:
        fn: The function to decorate, of any kind that `trajectory` takes.
        name: The tool's name as the model calls it; the function's own by default.
        capture_content: "full", "redacted" or "off" for all that it does, where that is less than is set already.

    Returns:
        The decorated function; without `fn` what decorates one, or opens a `with` block.

    Tools that are not decorated are found in the message history. Outside any trajectory nothing is recorded.
    """
    decorator = ScopeDecorator("tool", name=name, capture_content=capture_content)
    return decorator if fn is None else decorator(fn)
