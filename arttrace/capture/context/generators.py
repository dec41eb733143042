"""A decorated function: it runs the user's function, coroutine or generator step by step inside its scope, and ends the
scope when it ends. In all else it is what it decorates, copied and pickled too.

Between the steps of a generator the scope is not current: what its consumer does is not the generator's work.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from functools import reduce
from importlib import import_module
from typing import Any, Protocol, cast

import msgspec
import wrapt
from msgspec.structs import replace

from arttrace.capture.base.guard import Guard
from arttrace.capture.base.values import json_text
from arttrace.capture.context.flow import Flow, LeftOpen, current_flow, set_flow
from arttrace.capture.context.scope import Scope, recorded_answer
from arttrace.wire.content import MAX_CONTENT_BYTES

_stepping = Guard("making a scope current")
_closing = Guard("closing a scope")
_results = Guard("recording a result")


class Current(Protocol):
    """What is made current while the user's code runs: a scope, or that nothing is recorded."""

    def enter(self) -> Flow: ...
    def leave(self, before: Flow) -> Flow: ...
    def close(self, error: BaseException | None = None) -> None: ...


class InstrumentedMethod(wrapt.BoundFunctionWrapper):  # type: ignore[type-arg]
    """A decorated method, taken from its object or class."""

    __module__ = "builtins"

    def __new__(cls, *made_of: Any) -> Any:
        if len(made_of) == 2:  # by `weakref.WeakMethod`, of what the method's `__func__` and `__self__` were
            function, owner = made_of
            return function.__get__(owner, type(owner)).__call__  # none of this class, which would be made whole next
        return super().__new__(cls)

    @property
    def __func__(self) -> Any:
        method: Any = self.__wrapped__
        function = method.__func__  # static methods and those of a class have none
        return function if self._self_parent is None else self._self_parent

    def __copy__(self) -> InstrumentedMethod:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        owner = getattr(self.__wrapped__, "__self__", None)
        return self if owner is None else getattr(copy.deepcopy(owner, memo), self.__wrapped__.__name__)

    def __reduce_ex__(self, protocol: Any) -> Any:
        method = self.__wrapped__
        owner = getattr(method, "__self__", None)
        return (
            (_named, (method.__module__, method.__qualname__)) if owner is None else (getattr, (owner, method.__name__))
        )


class Instrumented(wrapt.FunctionWrapper):  # type: ignore[type-arg]
    """The transparent proxy that a decorated function is. It is copied and pickled as the function is: by its name, or,
    where a pickler takes functions along by what they consist of, together with `again`, which decorates it there."""

    # As functions are: of other objects pydantic reads the fields of a model that may stand there too, by which
    # google-genai 1 sent a tool without a name.
    __module__ = "builtins"
    __bound_function_wrapper__ = InstrumentedMethod

    def __init__(self, wrapped: Any, wrapper: Any, kind: str, again: Callable[[Any], Any]) -> None:
        super().__init__(wrapped, wrapper)
        self._self_arttrace_kind = kind
        self._self_again = again

    def __copy__(self) -> Instrumented:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        inside = copy.deepcopy(self.__wrapped__, memo)
        return self if inside is self.__wrapped__ else self._self_again(inside)

    def __reduce_ex__(self, protocol: Any) -> Any:
        fn = self.__wrapped__
        with contextlib.suppress(AttributeError, ImportError, TypeError, ValueError):
            if _named(fn.__module__, fn.__qualname__) is self:
                return fn.__qualname__
        return _decorated, (self._self_again, fn)


def _named(module: str, qualname: str) -> Any:
    return reduce(getattr, qualname.split("."), import_module(module))


def _decorated(again: Callable[[Any], Any], fn: Any) -> Any:
    return again(fn)


class ScopeStep:
    """Makes a scope current for one step of the user's code after another. Without a scope it does nothing."""

    __slots__ = ("_before", "_left_open", "_scope")

    def __init__(self, scope: Current | None) -> None:
        self._scope = scope
        self._left_open: LeftOpen | None = None

    def __enter__(self) -> None:
        self._before: Flow | None = None
        if self._scope is not None:
            try:
                self._before = self._scope.enter()
                if self._left_open is not None:
                    self._left_open.enter()
            except Exception as error:  # noqa: BLE001  rule 1: docs/architecture.md
                _stepping.caught(error)

    def __exit__(self, *_: object) -> None:
        scope, before = self._scope, self._before
        if scope is None or before is None:
            return
        own: object = scope
        inside = leave(scope, before)
        if inside.scope is not own or inside.muted is not before.muted or inside.routes is not before.routes:
            with _stepping:
                outer = scope if isinstance(scope, Scope) else before.scope
                self._left_open = LeftOpen.of(inside, replace(before, scope=outer))
                if self._left_open is not None:
                    set_flow(replace(current_flow(), muted=before.muted, routes=before.routes))
        else:
            self._left_open = None


def leave(scope: Current, before: Flow) -> Flow:
    """Make the flow as it was before the scope was entered; returns it as it was inside."""
    try:
        return scope.leave(before)
    except Exception as error:  # noqa: BLE001  rule 1: docs/architecture.md
        set_flow(before)
        _stepping.caught(error)
        return before


def close(scope: Current | None, error: BaseException | None = None) -> None:
    """End the scope, if there is one."""
    if scope is not None:
        try:
            scope.close(error)
        except Exception as failure:  # noqa: BLE001  rule 1: docs/architecture.md
            _closing.caught(failure)


def finish(scope: Current | None, result: Any) -> None:
    """Record what the run returned and end its scope, if it has one. A run that returns an account of itself, such as
    a Trajectory of arttrace.loop, has the result and the metadata that this says."""
    if type(scope) is Scope:
        try:
            if scope.is_root:
                for kind in type(result).__mro__:  # asked for by its name, a metaclass of the user's might answer
                    if "__arttrace_account__" in kind.__dict__:
                        result, metadata = result.__arttrace_account__()
                        scope.update(metadata=metadata)
                        break
            scope.set_result(result)
        except Exception as error:  # noqa: BLE001  rule 1: docs/architecture.md
            _results.caught(error)
    close(scope)


def named_as(inner: Any, outer: Any) -> Any:
    """`outer` with the name of `inner`, for tracebacks and warnings."""
    outer.__name__, outer.__qualname__ = inner.__name__, inner.__qualname__
    return outer


class AlreadyOpen:
    """Gives a scope that is open to whoever runs its code later. It ends with a coroutine or generator of which nobody
    asks the first step."""

    __slots__ = ("_scope",)

    def __init__(self, scope: Current | None) -> None:
        self._scope = scope

    def __call__(self) -> Current | None:
        scope, self._scope = self._scope, None
        return scope

    def __del__(self, _at_the_end: Callable[[], bool] = sys.is_finalizing) -> None:
        if self._scope is not None and not _at_the_end():
            close(self._scope, GeneratorExit())


class Unawaited:
    """A coroutine of the user's until it is begun. Where the one around it is closed, cancelled or dropped before that,
    Python has said what there is to say: of this one it would warn once more, or of what was closed properly."""

    __slots__ = ("_inner",)

    def __init__(self, inner: Coroutine[Any, Any, Any]) -> None:
        self._inner: Coroutine[Any, Any, Any] | None = inner

    def begin(self) -> Coroutine[Any, Any, Any]:
        inner, self._inner = self._inner, None
        assert inner is not None
        return inner

    def __del__(self) -> None:
        if self._inner is not None:
            self._inner.close()


def drive_coroutine(inner: Coroutine[Any, Any, Any], start: Callable[[], Current | None]) -> Coroutine[Any, Any, Any]:
    """The coroutine `inner` inside the scope that `start` opens when it is first awaited."""
    return _driven(Unawaited(inner), start)


def is_coroutine(value: Any) -> bool:
    """Whether it is awaited rather than iterated: a coroutine, or a generator of what `types.coroutine` decorates."""
    return inspect.iscoroutine(value) or (inspect.isgenerator(value) and inspect.isawaitable(value))


def is_driven(awaitable: Any) -> bool:
    """Whether it is a coroutine that `drive_coroutine` has made."""
    return getattr(awaitable, "cr_code", None) is _driven.__code__


async def _driven(unawaited: Unawaited, start: Callable[[], Current | None]) -> Any:
    inner, scope = unawaited.begin(), start()
    try:
        answer = recorded_answer(scope if isinstance(scope, Scope) else None)
        with ScopeStep(scope):
            if answer is None:
                result = await inner
            else:
                inner.close()
                result = answer()
    except BaseException as error:
        close(scope, error)
        raise
    finish(scope, result)
    return result


class LibraryGenerator(Protocol):
    """A generator of a library's: what it yields is its consumer's alone, and an error may be no failure."""

    def ended_by(self, error: BaseException) -> BaseException | None: ...


class _Yielded:
    """What a generator yielded, encoded as it comes (items may be mutated later), up to the bound on content."""

    def __init__(self) -> None:
        self._items: list[Any] = []
        self._room = MAX_CONTENT_BYTES

    def add(self, item: Any) -> None:
        if self._room <= 0:
            return
        with _results:
            text, _cut = json_text(item, self._room)
            self._room -= len(text)
            self._items.append(msgspec.Raw(text.encode()))

    def result(self, returned: Any) -> Any:
        return self._items if returned is None else {"yielded": self._items, "returned": returned}


def drive_generator(
    inner: Generator[Any, Any, Any],
    start: Callable[[], Current | None],
    library: LibraryGenerator | None = None,
) -> Generator[Any, Any, Any]:
    """The generator `inner` inside the scope that `start` opens at its first step."""
    scope, yielded = start(), _Yielded()
    in_scope = ScopeStep(scope)
    at_the_end = sys.is_finalizing  # a generator that was left is closed then, when modules have lost their names
    # What a generator yielded is not distinguished from what it returned: no record answers for it.
    recorded = scope if library is None and isinstance(scope, Scope) else None
    step: Callable[[], Any] = recorded_answer(recorded, comparable=False) or inner.__next__
    try:
        while True:
            with in_scope:
                try:
                    item = step()
                except StopIteration as stop:
                    returned = stop.value
                    break
            if recorded is not None:
                yielded.add(item)
            try:
                sent = yield item
            except GeneratorExit as closing:
                if at_the_end():
                    raise
                with in_scope:
                    returned = cast("Any", inner).close()  # None before Python 3.13
                if returned is None:
                    raise
                close(scope, closing if library is None else library.ended_by(closing))
                return returned
            except BaseException as thrown:  # noqa: BLE001  it goes on into the user's generator
                step = _bind(inner.throw, thrown)
            else:
                step = inner.__next__ if sent is None else _bind(inner.send, sent)
    except BaseException as error:
        if not at_the_end():
            close(scope, error if library is None else library.ended_by(error))
        raise
    if recorded is None:
        close(scope)
    else:
        finish(recorded, yielded.result(returned))
    return returned


async def drive_async_generator(
    inner: AsyncGenerator[Any, Any],
    start: Callable[[], Current | None],
    library: LibraryGenerator | None = None,
) -> AsyncGenerator[Any, Any]:
    """The async generator `inner` inside the scope that `start` opens at its first step."""
    scope, yielded = start(), _Yielded()
    in_scope = ScopeStep(scope)
    at_the_end = sys.is_finalizing  # a generator that was left is closed then, when modules have lost their names
    recorded = scope if library is None and isinstance(scope, Scope) else None
    step: Callable[[], Any] = recorded_answer(recorded, comparable=False) or inner.__anext__
    try:
        while True:
            with in_scope:
                try:
                    item = await step()
                except StopAsyncIteration:
                    break
            if recorded is not None:
                yielded.add(item)
            try:
                sent = yield item
            except GeneratorExit:
                if at_the_end():
                    raise
                with in_scope:
                    await inner.aclose()
                raise
            except BaseException as thrown:  # noqa: BLE001  it goes on into the user's generator
                step = _bind(inner.athrow, thrown)
            else:
                step = inner.__anext__ if sent is None else _bind(inner.asend, sent)
    except BaseException as error:
        if not at_the_end():
            close(scope, error if library is None else library.ended_by(error))
        raise
    if recorded is None:
        close(scope)
    else:
        finish(recorded, yielded.result(None))


def _bind(method: Callable[[Any], Any], value: Any) -> Callable[[], Any]:
    return lambda: method(value)
