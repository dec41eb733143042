"""Switches capture off: for a block, or for each step of a function of any kind."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from msgspec.structs import replace

from arttrace.capture.base.guard import Guard
from arttrace.capture.context.execution import Execution
from arttrace.capture.context.flow import Flow, current_flow, set_flow
from arttrace.capture.context.generators import (
    Instrumented,
    ScopeStep,
    drive_async_generator,
    drive_coroutine,
    drive_generator,
    is_coroutine,
    named_as,
)

_MAX_OPEN = 1000  # of blocks of one object that nobody leaves
_muting = Guard("switching capture off")

F = TypeVar("F", bound=Callable[..., Any])


class _Muted:
    """Nothing is recorded while it is current."""

    def enter(self) -> Flow:
        before = current_flow()
        set_flow(replace(before, muted=True))
        return before

    def leave(self, before: Flow) -> None:
        set_flow(replace(current_flow(), muted=before.muted))

    def close(self, error: BaseException | None = None) -> None:
        pass


_MUTED = _Muted()


class _MutedBlock:
    """Whether a flow is muted that entered a `with` block or was started inside it. In the task or thread that entered
    the block it is over once that is left, wherever: a generator that is left early is closed in another task."""

    execution: Execution | None = None
    is_left = False

    def __init__(self, before: object) -> None:
        self.before = before

    def __bool__(self) -> bool:
        if self.is_left and self.execution is not None:
            with _muting:
                return not self.execution.is_current or bool(self.before)
        return True


class NoCapture:
    """What `arttrace.no_capture()` returns: a context manager, and a decorator of functions."""

    def __init__(self) -> None:
        self._blocks: deque[_MutedBlock] = deque(maxlen=_MAX_OPEN)

    def __enter__(self) -> None:
        flow = current_flow()
        block = _MutedBlock(flow.muted)
        set_flow(replace(flow, muted=block))
        with _muting:
            block.execution = Execution.start(None)
        self._blocks.append(block)

    def __exit__(self, *_: object) -> None:
        flow = current_flow()
        here = next((block for block in self._blocks if block is flow.muted), None)
        block = here or (self._blocks[0] if len(self._blocks) == 1 else None)
        if block is not None:
            self._blocks.remove(block)
            block.is_left = True
        if here is not None:
            set_flow(replace(flow, muted=here.before))

    def __call__(self, fn: F) -> F:
        """Decorate a function, coroutine function, generator function of either kind, or method."""
        return _muted(fn)  # type: ignore[no-any-return]


def _muted(fn: Any) -> Any:
    return Instrumented(fn, _call, "muted", _muted)


def _call(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with ScopeStep(_MUTED):
        result = wrapped(*args, **kwargs)
    if is_coroutine(result):
        return named_as(result, drive_coroutine(result, lambda: _MUTED))
    if inspect.isgenerator(result) and inspect.isgeneratorfunction(inspect.unwrap(wrapped)):
        return named_as(result, drive_generator(result, lambda: _MUTED))
    if inspect.isasyncgen(result) and inspect.isasyncgenfunction(inspect.unwrap(wrapped)):
        return named_as(result, drive_async_generator(result, lambda: _MUTED))
    return result
