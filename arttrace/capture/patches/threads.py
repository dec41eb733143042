"""Carries the flow, and nothing else of the context, into threads and thread pools that a trajectory starts.

The user's own context variables stay as Python has them: not inherited. A pool's worker thread inherits nothing from
the job that happened to start it; each job brings its own flow.
"""

from __future__ import annotations

import _thread
import functools
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from arttrace.capture.base.guard import Guard
from arttrace.capture.context.flow import EMPTY_FLOW, OUTSIDE, Flow, calling_flow, current_flow, set_flow
from arttrace.capture.patches.registry import patch

_carrying = Guard("carrying the flow into a thread")


def install() -> None:
    """Hook `Thread.start`, `_thread.start_new_thread` with its old name, and `ThreadPoolExecutor.submit`."""
    patch(threading.Thread, "start", _start)
    for name in ("start_new_thread", "start_new"):
        patch(_thread, name, _start_new)
    patch(ThreadPoolExecutor, "submit", _submit)


def _start(start: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    @functools.wraps(start)
    def hooked(self: threading.Thread) -> None:
        flow = current_flow()
        with _carrying:
            flow = calling_flow()
        if flow is EMPTY_FLOW or flow is OUTSIDE:
            return start(self)
        with _carrying:
            run = self.run

            def run_in_flow() -> None:
                del self.__dict__["run"]
                set_flow(flow)
                run()

            self.run = run_in_flow  # type: ignore[method-assign]
        try:
            return start(self)
        except BaseException:
            self.__dict__.pop("run", None)
            raise

    return hooked


def _start_new(start: Callable[..., int]) -> Callable[..., int]:
    """`threading` has a name of its own for it, so that its threads do not come here."""

    @functools.wraps(start)
    def hooked(*args: Any, **named: Any) -> int:
        with _carrying:
            flow = calling_flow()
            if args and callable(args[0]) and flow is not EMPTY_FLOW and flow is not OUTSIDE:
                args = in_flow(flow, args[0]), *args[1:]
        return start(*args, **named)

    return hooked


def _submit(submit: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(submit)
    def hooked(self: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        own = flow = current_flow()
        job = fn
        with _carrying:
            flow = calling_flow()
            if flow is not EMPTY_FLOW and not _is_of_interpreters(self):
                job = in_flow(flow, fn)
        if flow is EMPTY_FLOW:
            return submit(self, fn, *args, **kwargs)
        set_flow(OUTSIDE)
        try:
            return submit(self, job, *args, **kwargs)
        finally:
            set_flow(own)

    return hooked


def _is_of_interpreters(pool: ThreadPoolExecutor) -> bool:
    """Whether the pool's threads run other interpreters (from Python 3.14 on), which take only what can be pickled."""
    module = sys.modules.get("concurrent.futures.interpreter")
    return module is not None and isinstance(pool, module.InterpreterPoolExecutor)


def in_flow(flow: Flow, fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn` as a job that brings its flow to whichever thread runs it."""

    def job(*args: Any, **kwargs: Any) -> Any:
        before = current_flow()
        set_flow(flow)
        try:
            return fn(*args, **kwargs)
        finally:
            set_flow(before)

    return job
