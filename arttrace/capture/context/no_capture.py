"""Switches capture off: for a block, or for each step of a function of any kind."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from msgspec.structs import replace

from arttrace.capture.base.guard import Guard
from arttrace.capture.context.execution import EnteredBlock
from arttrace.capture.context.flow import Blocks, Flow, current_flow, set_flow
from arttrace.capture.context.generators import (
    Instrumented,
    ScopeStep,
    drive_async_generator,
    drive_coroutine,
    drive_generator,
    is_coroutine,
    named_as,
)

_muting = Guard("switching capture off")

F = TypeVar("F", bound=Callable[..., Any])


class _Muted:
    """Nothing is recorded while it is current."""

    def enter(self) -> Flow:
        before = current_flow()
        set_flow(replace(before, muted=True))
        return before

    def leave(self, before: Flow) -> Flow:
        inside = current_flow()
        set_flow(replace(inside, muted=before.muted))
        return inside

    def close(self, error: BaseException | None = None) -> None:
        pass


_MUTED = _Muted()


class _MutedBlock(EnteredBlock):
    """Whether a flow is muted that knows of the block."""

    def __init__(self, opened_by: object, before: object) -> None:
        super().__init__(opened_by)
        self.before = before
        with _muting:
            self.before = _in_force(before)

    def __bool__(self) -> bool:
        with _muting:
            return _in_force(self) is not False
        return True


def _entered(muted: object) -> list[_MutedBlock]:
    """The blocks that a flow is in and nobody has left, the innermost first."""
    found = []
    while isinstance(muted, _MutedBlock):
        if not muted.is_left:
            found.append(muted)
        muted = muted.before
    return found


def _in_force(muted: object) -> object:
    while isinstance(muted, _MutedBlock) and muted.is_over:
        muted = muted.before
    return muted


class NoCapture:
    """What `arttrace.no_capture()` returns: a context manager, and a decorator of functions."""

    def __init__(self) -> None:
        with _muting:
            self._blocks: Blocks[_MutedBlock] = Blocks()

    def __enter__(self) -> None:
        flow = current_flow()
        block = _MutedBlock(self, flow.muted)
        set_flow(replace(flow, muted=block))
        with _muting:
            self._blocks.enter(block)

    def __exit__(self, *_: object) -> None:
        flow = current_flow()
        with _muting:
            entered = _entered(flow.muted)
            here = next((each for each in entered if each.opened_by is self), None)
            self._blocks.leave(here)
            if here is not None and here is entered[0]:
                set_flow(replace(flow, muted=here.before))
            elif here is not None:  # a generator's is inside it, and ends when that does
                here.is_left = True

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
