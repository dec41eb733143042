"""Passes the trajectory on to processes of `multiprocessing`, and to the jobs of pools of processes.

A process of `multiprocessing` that is not forked gets the trajectory with its own pickle, and each job of a pool brings
its own place with it, as the pool's processes were started for another job or for none: where they are not forked, the
first job that is captured installs the hooks. A job from outside any trajectory is a run of its own where the whole
program is captured.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from concurrent.futures import Executor
from types import ModuleType
from typing import Any

from msgspec.structs import replace

from arttrace.capture.base.entry_point import of_callable
from arttrace.capture.base.guard import Guard
from arttrace.capture.base.remote_context import VARIABLE, parse
from arttrace.capture.context import program
from arttrace.capture.context.flow import EMPTY_FLOW, OUTSIDE, calling_flow, current_flow, set_flow
from arttrace.capture.context.propagation import outgoing_context, remote_parent
from arttrace.capture.export import lifecycle
from arttrace.capture.patches.registry import patch
from arttrace.capture.patches.threads import in_flow

_carrying = Guard("telling a child process its trajectory")
_handing_over = Guard("keeping what a process of a pool recorded")
_HAND_OVER_S = 5.0  # where the disk hangs, the result is not held up longer
_NOWHERE = "nowhere"
"""In the place of a context: what is done there is not recorded."""
_late = False
"""Whether it was a job that installed the hooks in this process: none is around what a pool's process runs."""


def install_process(module: ModuleType) -> None:
    """Hook `multiprocessing.process.BaseProcess.start`, and what a process begins with."""
    patch(module.BaseProcess, "start", _start)
    if sys.version_info >= (3, 13):  # before, what is called at a process's end is told its exception
        patch(module.BaseProcess, "_bootstrap", _bootstrap)


def install_executor(module: ModuleType) -> None:
    """Hook `ProcessPoolExecutor.submit` of `concurrent.futures.process`."""
    patch(module.ProcessPoolExecutor, "submit", lambda submit: _submit(submit, module._process_chunk))


def install_pool(module: ModuleType) -> None:
    """Hook `multiprocessing.pool.Pool`: its beginning, and every way to give it a job."""
    patch(module.Pool, "__init__", _outside)
    for name in ("apply_async", "_map_async", "imap", "imap_unordered"):
        patch(module.Pool, name, lambda method: _pooled(method, module.ThreadPool))
    patch(module, "worker", _worker)


def _start(start: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(start)
    def hooked(self: Any) -> None:
        lifecycle.deliver_for_children()
        place = _place()
        if place is None:
            return start(self)
        self._arttrace = _Joining(place)  # a forked process inherits its flow and does not look at it
        try:
            return start(self)
        finally:
            del self._arttrace

    return hooked


def _bootstrap(bootstrap: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(bootstrap)
    def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _carrying:
            self.run = _ending_by_its_error(self, self.run)  # of this object, in its process
        return bootstrap(self, *args, **kwargs)

    return hooked


def _ending_by_its_error(process: Any, run: Callable[[], Any]) -> Callable[[], Any]:
    def running() -> Any:
        vars(process).pop("run", None)
        try:
            return run()
        except BaseException as error:
            with _carrying:
                program.end(error)
            raise

    return running


class _Joining:
    """Unpickled in a process that is beginning, it makes that one a part of the trajectory."""

    def __init__(self, place: str) -> None:
        self._place = place

    def __reduce__(self) -> Any:
        return _join, (self._place,)


def _join(context: str) -> None:
    from arttrace.capture.patches import hooks

    if context == _NOWHERE:
        set_flow(replace(current_flow(), muted=True))
        return
    os.environ[VARIABLE] = context  # for the settings of this process
    with _carrying:
        sent = parse(context)
        if sent is not None:
            set_flow(replace(current_flow(), scope=remote_parent(sent)))
    hooks.install()


def _submit(submit: Callable[..., Any], chunk: Callable[..., Any]) -> Callable[..., Any]:
    """`chunk` is what runs several jobs of `map`, which is a partial object of it and of their function."""

    @functools.wraps(submit)
    def hooked(self: Executor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        with _carrying:
            place = _place()
            if place is None and isinstance(fn, functools.partial) and fn.func is chunk:
                fn = functools.partial(chunk, *map(_job, fn.args))
            else:
                fn = _job(fn, place)
        with _Outside():  # it may start a process, which is for other jobs too
            return submit(self, fn, *args, **kwargs)

    return hooked


def install_joblib(module: ModuleType) -> None:
    """Hook what joblib gives a process to do, in `joblib.parallel`: several calls at a time."""
    patch(module.BatchedCalls, "__init__", _batched)


def _batched(init: Callable[..., None]) -> Callable[..., None]:
    """Which run gave a process of joblib's its jobs, it does not know: those from outside any are runs of their own."""

    @functools.wraps(init)
    def hooked(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        with _carrying:
            if _place() is None:
                self.items = [(_job(fn), args, kwargs) for fn, args, kwargs in self.items]

    return hooked


def _outside(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def hooked(self: Any, *args: Any, **kwargs: Any) -> None:
        with _Outside():
            init(self, *args, **kwargs)

    return hooked


class _Outside:
    """Outside any scope, for the length of a block."""

    def __enter__(self) -> None:
        self._flow = current_flow()
        set_flow(OUTSIDE)

    def __exit__(self, *_: object) -> None:
        set_flow(self._flow)


def _pooled(method: Callable[..., Any], thread_pool: type[Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def hooked(self: Any, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with _carrying:
            if isinstance(self, thread_pool):
                flow = calling_flow()
                func = func if flow is EMPTY_FLOW else in_flow(flow, func)
            else:
                func = _job(func, _place(), by_results=True)
        return method(self, func, *args, **kwargs)

    return hooked


def _worker(work: Callable[..., None]) -> Callable[..., None]:
    """What a process of a pool runs: leaving the pool's `with` block kills it once its results have come."""

    @functools.wraps(work)
    def hooked(inqueue: Any, outqueue: Any, *args: Any, **kwargs: Any) -> None:
        of_a_process = hasattr(outqueue, "_writer")
        work(inqueue, _Results(outqueue) if of_a_process else outqueue, *args, **kwargs)

    return hooked


class _Results:
    """The queue of a pool's results: each is put in when what was recorded on the way to it can no more be lost."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def put(self, result: Any) -> None:
        with _handing_over:
            lifecycle.hand_over(_HAND_OVER_S)
        self._queue.put(result)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class _Job:
    """A job of a pool with the place it belongs to; pickles where its function does.

    Its result leaves the process when what it recorded can be read by whoever has the result, who may take the run for
    whole by then. `by_results`: what the process runs sees to that, where the hooks were there before it.
    """

    def __init__(self, place: str, fn: Callable[..., Any], *, by_results: bool = False) -> None:
        self._place = place
        self._fn = fn
        self._by_results = by_results

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        before = current_flow()
        with _carrying:
            if self._place == _NOWHERE:
                set_flow(replace(before, muted=True))
            else:
                _capture_jobs(self._place)
                sent = parse(self._place)
                if sent is not None:
                    set_flow(replace(before, scope=remote_parent(sent), execution=None, muted=False))
        try:
            return self._fn(*args, **kwargs)
        finally:
            set_flow(before)
            if self._place != _NOWHERE:
                _hand_over(by_results=self._by_results)


class _JobOutside:
    """A job of a pool that was given to it outside any run; pickles where its function does, and is the function alone
    in the process that it was made in."""

    def __init__(self, fn: Callable[..., Any], *, by_results: bool) -> None:
        self._fn = fn
        self._named = of_callable(fn)  # here: `__main__` is another module where cloudpickle takes a function
        self._by_results = by_results
        self._made_in = os.getpid()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if os.getpid() == self._made_in:
            return self._fn(*args, **kwargs)
        result, failed = None, None
        with _carrying:
            _capture_jobs()
            program.begin_job(program.Work(*self._named, self._fn, args, kwargs))
        try:
            result = self._fn(*args, **kwargs)
            return result
        except BaseException as error:
            failed = error
            raise
        finally:
            with _carrying:
                program.end_job(result, failed)
            _hand_over(by_results=self._by_results)


def _job(fn: Callable[..., Any], place: str | None = None, *, by_results: bool = False) -> Callable[..., Any]:
    """What a pool is given for `fn`: that itself where nothing that it does is recorded."""
    if place is not None:
        return _Job(place, fn, by_results=by_results)
    if program.takes_jobs():
        with _carrying:
            return _JobOutside(fn, by_results=by_results)
    return fn


def _hand_over(*, by_results: bool) -> None:
    if _late or not by_results:
        with _handing_over:
            lifecycle.hand_over(_HAND_OVER_S)


def _capture_jobs(context: str | None = None) -> None:
    """Where nothing is hooked in this process, hook it, with the settings of the process that sent a job."""
    global _late
    from arttrace.capture.patches import hooks

    if context is not None and not lifecycle.started():
        own = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = context  # for the settings alone: the next job may be another run's
        try:
            lifecycle.recorder()
        finally:
            if own is None:
                del os.environ[VARIABLE]
            else:
                os.environ[VARIABLE] = own
    _late = hooks.install() or _late


def _place() -> str | None:
    """Where a job, or a process of `multiprocessing`, belongs that the current flow starts."""
    with _carrying:
        sent = outgoing_context()
        return _NOWHERE if calling_flow().muted else None if sent is None else sent.text()
    return None
