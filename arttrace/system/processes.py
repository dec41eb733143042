"""Processes of this machine: whether they are alive, how those of `multiprocessing` end, what a child is given, how
often garbage is collected, when signals may interrupt, what is said where nobody may listen."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

_WITH_ENVIRON = ("linux",)
_WAITS = "ends when the libraries that it is loading are loaded; Ctrl-C again does not wait"


def is_alive(pid: int) -> bool:
    """Whether a process with this id is alive, of any user. True if the system cannot be asked without harm."""
    if os.name != "posix":
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it lives, under another user
        return True
    return True


def at_the_end_of_a_multiprocessing_child(finish: Callable[[], object], *, priority: int) -> None:
    """Call `finish` when this process ends, where it is a child of `multiprocessing`: one ends with os._exit and runs
    no atexit functions, only finalizers of multiprocessing's own, those of the highest `priority` first."""
    util, process = sys.modules.get("multiprocessing.util"), sys.modules.get("multiprocessing.process")
    if util is not None and process is not None and process.parent_process() is not None:
        util.Finalize(None, finish, exitpriority=priority)


def python_path(first: str) -> str:
    """PYTHONPATH for a child: `first` before all that it has."""
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != first]
    return os.pathsep.join([first, *others])


def python_path_before_others(environment: Mapping[Any, Any], folder: str) -> dict[str, str]:
    """PYTHONPATH of an environment that holds `folder` behind other folders, with it before them; of any other nothing.

    Python imports the `sitecustomize` that it finds first, and starters of other instrumentations
    (`opentelemetry-instrument`, `ddtrace-run`) put theirs there.
    """
    path = environment.get("PYTHONPATH")
    entries = path.split(os.pathsep) if isinstance(path, str) else []
    if folder not in entries[1:]:
        return {}
    return {"PYTHONPATH": os.pathsep.join([folder, *(entry for entry in entries if entry != folder)])}


@contextlib.contextmanager
def set_meanwhile(variables: Mapping[str, str]) -> Iterator[None]:
    """This process's environment with these variables, which it has already, at other values."""
    before = {name: os.environ[name] for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.update(before)


def inherited_environment() -> dict[Any, Any]:
    """What a child inherits that is given no environment: C's, which C code may have changed beside `os.environ`."""
    if sys.platform not in _WITH_ENVIRON:
        return dict(os.environ)
    import ctypes

    entries: Any = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    found = {}
    for entry in itertools.takewhile(bool, entries):
        name, equals, value = entry.partition(b"=")
        if equals:
            found[os.fsdecode(name)] = os.fsdecode(value)
    return found


def leave_signals_to_the_parent() -> None:
    """Ignore Ctrl-C, SIGTERM and SIGHUP: whoever started this process gets them too, and then ends its input."""
    for name in {"SIGINT", "SIGTERM", "SIGHUP"} & set(dir(signal)):
        signal.signal(getattr(signal, name), signal.SIG_IGN)


def collect_garbage_seldom() -> None:
    """Collect garbage after 50,000 new objects from now on, not after 700.

    For programs that import torch or a serving engine: none of the millions of objects that this creates is garbage,
    and scanning them takes a quarter of the start.
    """
    gc.set_threshold(50_000, 20, 20)


@contextlib.contextmanager
def signals_after_imports(*, takes_long: bool = True) -> Iterator[None]:
    """In the body, which imports libraries, Ctrl-C or SIGTERM waits until it is done; a second one does not. Where it
    `takes_long` standard error says so.

    What handles them raises KeyboardInterrupt. Amid an import that comes out as another exception (of `__set_name__`),
    aborts C++ code, or leaves a lock held, such as logging's, for which other threads then wait for ever.
    """
    found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    waits_already = any(isinstance(handler, _Waits) for handler in found.values())
    if waits_already or threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: handler for number, handler in found.items() if callable(handler)}

    wait = _Waits(handlers, takes_long)
    for number in handlers:
        signal.signal(number, wait)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if wait.came:
            signal.raise_signal(wait.came)


def tell(line: str) -> None:
    """Write a line to the standard error of this process, as it was started. One that is closed, or that takes no more,
    gets none: whatever else the process does is more than that."""
    if sys.__stderr__ is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.__stderr__.flush()
            os.write(sys.__stderr__.fileno(), f"{line}\n".encode(errors="backslashreplace"))


class _Waits:
    """Keeps the first signal; the second goes to what handled it before."""

    def __init__(
        self, handlers: Mapping[signal.Signals, Callable[[int, FrameType | None], object]], takes_long: bool
    ) -> None:
        self.came = 0
        self._handlers, self._takes_long = handlers, takes_long

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.came:
            self.came = 0
            self._handlers[signal.Signals(number)](number, frame)
            return
        self.came = number
        if self._takes_long:
            with contextlib.suppress(Exception):  # amid a line that is being written, say
                print(f"\n{_WAITS}", file=sys.stderr, flush=True)
