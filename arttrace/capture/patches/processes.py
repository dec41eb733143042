"""Passes the trajectory on to processes that are started inside it: `subprocess`, `multiprocessing`, process pools, and
what `os` starts.

A child's environment is what it would have been, and one variable more. A process of `multiprocessing` that is not
forked gets the same with its own pickle, and each job of a pool brings its own place with it, as the pool's processes
were started for another job or for none: where they are not forked, the first job that is captured installs the hooks.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NoReturn

from msgspec.structs import replace

from arttrace.capture.base.guard import Guard
from arttrace.capture.base.remote_context import VARIABLE, RemoteContext, parse
from arttrace.capture.context import program
from arttrace.capture.context.flow import EMPTY_FLOW, OUTSIDE, calling_flow, current_flow, set_flow
from arttrace.capture.context.generators import Instrumented
from arttrace.capture.context.propagation import outgoing_context, remote_parent
from arttrace.capture.export import lifecycle
from arttrace.capture.patches.registry import patch
from arttrace.capture.patches.threads import in_flow
from arttrace.system.processes import inherited_environment, python_path_before_others, set_meanwhile

_carrying = Guard("telling a child process its trajectory")
_handing_over = Guard("keeping what a process of a pool recorded")
_HAND_OVER_S = 5.0  # where the disk hangs, the result is not held up longer
_ENV = 10  # the place of `env` among the positional arguments of Popen
_BOOTSTRAP = str(Path(__file__).parents[1] / "bootstrap")
"""The folder that `arttrace run` puts on PYTHONPATH."""
_NOWHERE = "nowhere"
"""In the place of a context: what is done there is not recorded."""
_late = False
"""Whether it was a job that installed the hooks in this process: none is around what a pool's process runs."""


def install_subprocess(module: ModuleType) -> None:
    """Hook `subprocess.Popen`, which asyncio's subprocesses are started with as well."""
    patch(module.Popen, "__init__", _popen)


def install_os(module: ModuleType) -> None:
    """Hook what `os` starts programs by. Its `spawn` functions, pty and others fork, and call one of `exec` then."""
    patch(module, "execv", _execv)
    for name in ("execve", "posix_spawn", "posix_spawnp"):
        if hasattr(module, name):
            patch(module, name, _with_env)
    if module.name == "posix":
        patch(module, "system", _system)


def install_process(module: ModuleType) -> None:
    """Hook `multiprocessing.process.BaseProcess.start`."""
    patch(module.BaseProcess, "start", _start)


def install_executor(module: ModuleType) -> None:
    """Hook `ProcessPoolExecutor.submit` of `concurrent.futures.process`."""
    patch(module.ProcessPoolExecutor, "submit", _submit)


def install_pool(module: ModuleType) -> None:
    """Hook `multiprocessing.pool.Pool`: its beginning, and every way to give it a job."""
    patch(module.Pool, "__init__", _outside)
    for name in ("apply_async", "_map_async", "imap", "imap_unordered"):
        patch(module.Pool, name, lambda method: _pooled(method, module.ThreadPool))
    patch(module, "worker", _worker)


def install_cloudpickle(module: ModuleType) -> None:
    """Hook a copy of cloudpickle, by which joblib, loky, Ray and Dask give functions of `__main__` to other processes:
    it takes along what a function consists of, and so would leave its decoration behind."""
    pickler = vars(module).get("CloudPickler")  # before its major 3 in another module
    if hasattr(pickler, "reducer_override"):
        patch(pickler, "reducer_override", lambda reduce: _reduce(reduce, module.dumps))


def _reduce(reduce: Callable[..., Any], dumps: Callable[[Any], bytes]) -> Callable[..., Any]:
    @functools.wraps(reduce)
    def hooked(self: Any, obj: Any) -> Any:
        reduced = reduce(self, obj)
        if type(obj) is Instrumented and isinstance(reduced, tuple):  # by what it consists of
            with _carrying:
                return _decorated_again, (obj.__wrapped__, dumps(obj._self_again))
        return reduced

    return hooked


def _decorate_again(fn: Any, again: bytes) -> Any:
    """Taken along itself, as the other process may have no arttrace."""
    import pickle

    try:
        return pickle.loads(again)(fn)  # noqa: S301  what this module has pickled
    except Exception:  # noqa: BLE001  then it runs there undecorated
        return fn


_decorated_again = FunctionType(_decorate_again.__code__, {"__builtins__": builtins}, "_decorated_again")
_decorated_again.__module__ = "__main__"  # whose functions are taken along


def _popen(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def hooked(self: Any, *args: Any, **kwargs: Any) -> None:
        with _carrying:
            if (told := _told()) is not None:
                if len(args) > _ENV:
                    args = (*args[:_ENV], told.added_to(args[_ENV]), *args[_ENV + 1 :])
                else:
                    kwargs["env"] = told.added_to(kwargs.get("env"))
        init(self, *args, **kwargs)

    return hooked


def _execv(start: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
    @functools.wraps(start)
    def hooked(*args: Any, **kwargs: Any) -> NoReturn:
        env = None
        with set_meanwhile(python_path_before_others(os.environ, _BOOTSTRAP)):
            with _carrying:
                if (told := _told()) is not None:
                    env = told.added_to(None)
            if env is not None and len(args) == 2:
                with contextlib.suppress(Exception):  # `execv` has other words for it
                    os.execve(*args, env)  # noqa: S606  what the user starts
            start(*args, **kwargs)

    return hooked


def _with_env(start: Callable[..., Any]) -> Callable[..., Any]:
    """Of what takes the environment as its third argument; None for the inherited one is for `posix_spawn` alone, from
    Python 3.13 on."""
    takes_none = sys.version_info >= (3, 13) and start.__name__ != "execve"

    @functools.wraps(start)
    def hooked(*args: Any, **kwargs: Any) -> Any:
        with _carrying:
            if (told := _told()) is not None:
                if len(args) > 2 and (takes_none or args[2] is not None):
                    args = (*args[:2], told.added_to(args[2]), *args[3:])
                elif kwargs.get("env") is not None or (takes_none and "env" in kwargs):
                    kwargs["env"] = told.added_to(kwargs["env"])
        return start(*args, **kwargs)

    return hooked


def _system(start: Callable[..., int]) -> Callable[..., int]:
    """The shell that runs the command sets the variable: it inherits this process's environment, as others do that
    are started meanwhile."""

    @functools.wraps(start)
    def hooked(*args: Any, **kwargs: Any) -> int:
        with _carrying:
            if (told := _told()) is not None:
                if args:
                    args = told.set_before(args[0]), *args[1:]
                elif "command" in kwargs:
                    kwargs["command"] = told.set_before(kwargs["command"])
        return start(*args, **kwargs)

    return hooked


class _Notice:
    """What a program that is started is told: its place in the trajectory, or without one that it is not captured. To
    all of them ours goes before others' folders on PYTHONPATH."""

    def __init__(self, sent: RemoteContext | None, *, is_told: bool = True) -> None:
        self._sent = sent
        self._is_told = is_told

    def added_to(self, env: Any) -> Any:
        """An environment and our variable; None is the inherited one. What is no mapping is left to be refused."""
        if env is not None and not isinstance(env, Mapping):
            return env
        sent = self._sent
        if sent is not None and env is not None and env.get("ARTTRACE_DIR") != os.environ.get("ARTTRACE_DIR"):
            sent = replace(sent, dir=None)  # the child was given a directory of its own
        kept = inherited_environment() if env is None else env
        told = self._variable(sent) | python_path_before_others(kept, _BOOTSTRAP)
        return {name: value for name, value in kept.items() if _text(name) not in told} | told

    def set_before(self, command: Any) -> Any:
        """A command of the shell that sets our variables first."""
        told = self._variable(self._sent) | python_path_before_others(os.environ, _BOOTSTRAP)
        first = "".join(f"export {name}={shlex.quote(value)}; " for name, value in told.items())
        command = os.fspath(command)
        return first + command if isinstance(command, str) else first.encode() + command

    def _variable(self, sent: RemoteContext | None) -> dict[str, str]:
        told = {"ARTTRACE_DISABLED": "1"} if sent is None else {VARIABLE: sent.text()}
        return told if self._is_told else {}


def _text(name: Any) -> Any:
    """A variable's name as text: an environment of bytes may hold ours too."""
    return os.fsdecode(name) if isinstance(name, bytes) else name


def _told() -> _Notice | None:
    """What a program that the current flow starts is told; None where that is nothing."""
    sent = outgoing_context(joins=False)  # most programs are not Python's, or not captured
    if sent is not None or (calling_flow().muted and (program.captures_all() or VARIABLE in os.environ)):
        return _Notice(sent)
    return _Notice(None, is_told=False) if python_path_before_others(os.environ, _BOOTSTRAP) else None


def _start(start: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(start)
    def hooked(self: Any) -> None:
        place = _place()
        if place is None:
            return start(self)
        self._arttrace = _Joining(place)  # a forked process inherits its flow and does not look at it
        try:
            return start(self)
        finally:
            del self._arttrace

    return hooked


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


def _submit(submit: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(submit)
    def hooked(self: Executor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        place = _place()
        with _Outside():  # it may start a process, which is for other jobs too
            return submit(self, fn if place is None else _Job(place, fn), *args, **kwargs)

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
            elif (place := _place()) is not None:
                func = _Job(place, func, by_results=True)
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
            if self._place != _NOWHERE and (_late or not self._by_results):
                with _handing_over:
                    lifecycle.hand_over(_HAND_OVER_S)


def _capture_jobs(context: str) -> None:
    """Where nothing is hooked in this process, hook it, with the settings of the process that sent a job."""
    global _late
    from arttrace.capture.patches import hooks

    if not lifecycle.started():
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
