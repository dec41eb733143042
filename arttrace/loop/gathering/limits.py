"""`retry` and `limit_concurrency`, for rollouts that call services which fail now and then, or take only so many calls
at a time."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, ParamSpec, TypeVar, cast
from weakref import WeakKeyDictionary, WeakValueDictionary

from arttrace.records.values.users_text import safe_text

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger("arttrace.loop")


def retry(
    max_attempts: int = 3,
    delay: float = 1.0,
    backoff_factor: float = 2.0,
    exceptions: tuple[type[Exception], ...] = (Exception,),
    on_retry: Callable[[Exception, int], None] | None = None,
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A decorator: call a function, a coroutine function or not, again when it raises.

    All attempts of a rollout are one run: what those that raised have sampled is trained on with its reward.

    Args:
        max_attempts: The largest number of calls, 1 or more.
        delay: Seconds before the second attempt.
        backoff_factor: The factor between one delay and the next.
        exceptions: The exceptions to retry on; any other is raised at once.
        on_retry: Called with the exception and the number of the attempt that failed, from 1; a warning is logged
            where it is None.

    Returns:
        The decorator. The exception of the last attempt is raised.

    Raises:
        ValueError: `max_attempts` is below 1, or a delay below 0.
    """
    _require_number("retry()", max_attempts)
    if max_attempts < 1:
        raise ValueError(f"max_attempts is {max_attempts}, below 1")
    for name, given in (("delay", delay), ("backoff_factor", backoff_factor)):
        if given < 0:
            raise ValueError(f"{name} is {given}, below 0")

    def attempts() -> Iterator[tuple[int, float]]:
        """The attempts before the last, each with the delay after it."""
        wait = delay
        for attempt in range(1, max_attempts):
            yield attempt, wait
            wait *= backoff_factor

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        def failed(error: Exception, attempt: int) -> None:
            if on_retry is not None:
                on_retry(error, attempt)
            else:
                name, shown = getattr(function, "__name__", type(function).__name__), safe_text(error, repr)
                _log.warning("%s raised in attempt %d of %d: %s", name, attempt, max_attempts, shown)

        @functools.wraps(function)
        async def awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
            again = cast("Callable[P, Awaitable[Any]]", function)
            for attempt, wait in attempts():
                try:
                    return await again(*args, **kwargs)
                except exceptions as error:
                    failed(error, attempt)
                await asyncio.sleep(wait)
            return await again(*args, **kwargs)

        @functools.wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> T:
            for attempt, wait in attempts():
                try:
                    return function(*args, **kwargs)
                except exceptions as error:
                    failed(error, attempt)
                time.sleep(wait)
            return function(*args, **kwargs)

        return cast("Callable[P, T]", awaited) if inspect.iscoroutinefunction(function) else called

    return decorate


def limit_concurrency(
    n: int, derive_key: Callable[..., str] | None = None
) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Coroutine[Any, Any, T]]]:
    """A decorator: at most `n` calls of a coroutine function run at a time in an event loop.

    Args:
        n: The largest number of calls, 1 or more.
        derive_key: Called with the arguments; calls with the same key share one bound.

    Returns:
        The decorator.

    Raises:
        ValueError: `n` is below 1.
    """
    _require_number("limit_concurrency(8)", n)
    if n < 1:
        raise ValueError(f"n is {n}, below 1")

    def decorate(function: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        every_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakValueDictionary[str, asyncio.Semaphore]] = (
            WeakKeyDictionary()
        )

        @functools.wraps(function)
        async def limited(*args: P.args, **kwargs: P.kwargs) -> T:
            key = "" if derive_key is None else derive_key(*args, **kwargs)
            slots = every_loop.setdefault(asyncio.get_running_loop(), WeakValueDictionary())  # of keys in use alone
            async with slots.setdefault(key, asyncio.Semaphore(n)):
                return await function(*args, **kwargs)

        return limited

    return decorate


def _require_number(written: str, given: object) -> None:
    if callable(given):
        raise TypeError(f"{written.partition('(')[0]} takes no function: write @{written}, with parentheses")
