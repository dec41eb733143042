"""Keeps what this process recorded where it ends itself without Python's exit functions.

That is by os._exit, which forked processes usually call, by another program that takes its place, or by a signal to
itself for which it has no handler: servers that are asked to end do so once what was under way has ended.
"""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable
from typing import Any, NoReturn

from arttrace.capture.base.guard import Guard
from arttrace.capture.export import lifecycle, summary
from arttrace.capture.patches import registry as patches
from arttrace.system import native_threads

_SIGNALS = {getattr(signal, name) for name in ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM") if hasattr(signal, name)}
_leaving = Guard("keeping what a process recorded that ends itself")
_LEAVE_S = 1.0  # where the disk hangs, it ends all the same
_END_S = 20.0  # what is done at the exit has bounds of its own, which are less together


def install() -> None:
    """Hook what a process ends itself by."""
    patches.patch(os, "_exit", _ending)
    for name in ("execv", "execve"):  # the others of their kind call one of these
        patches.patch(os, name, _replacing)
    patches.patch(os, "kill", _signalling)
    patches.patch(signal, "raise_signal", _signalling)


def _ending(leave: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
    """A forked process usually ends so: the run of the one above would be complete without what it did."""

    @functools.wraps(leave)
    def hooked(*args: Any, **kwargs: Any) -> NoReturn:
        try:
            with _leaving:
                if lifecycle.records() and not _hand_over_in_time():
                    os.write(2, b"arttrace: a process ended by os._exit before all that it recorded was kept\n")
        finally:  # whatever a handler of the user's raises meanwhile, the code of the process above is not for this one
            leave(*args, **kwargs)

    return hooked


def _replacing(replace: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
    """Another program takes the place of this one, which goes on where there is none: `execvp` tries many."""

    @functools.wraps(replace)
    def hooked(*args: Any, **kwargs: Any) -> NoReturn:
        with _leaving:
            there_is_one = lifecycle.records() and _is_program(args[0] if args else kwargs.get("path"))
            if there_is_one and not _hand_over_in_time():
                os.write(2, b"arttrace: another program took the place of this one before all was kept\n")
        replace(*args, **kwargs)

    return hooked


def _is_program(path: Any) -> bool:
    try:
        return os.access(path, os.X_OK)
    except (TypeError, ValueError):  # the call itself says so
        return False


def _signalling(send: Callable[..., None]) -> Callable[..., None]:
    """A signal that ends this process is sent when what the exit functions do has been done."""

    @functools.wraps(send)
    def hooked(*args: Any, **kwargs: Any) -> None:
        with _leaving:
            *pids, number = args or (None,)
            to_this_process = pids in ([], [os.getpid()]) and isinstance(number, int) and number in _SIGNALS
            if to_this_process and signal.getsignal(number) is signal.SIG_DFL and lifecycle.records():
                _end_in_time()
        send(*args, **kwargs)

    return hooked


def _end_in_time() -> None:
    if _hand_over_in_time():
        _in_a_thread(_END_S, lifecycle.at_exit, summary.end)
    else:
        os.write(2, b"arttrace: a process ended itself by a signal before all that it recorded was kept\n")


def _hand_over_in_time() -> bool:
    native_threads.never_switch()
    return _in_a_thread(_LEAVE_S, lambda: lifecycle.finish_all(_leaving), lambda: lifecycle.hand_over(_LEAVE_S))


def _in_a_thread(within_s: float, *functions: Callable[[], None]) -> bool:
    """In a thread of its own: this one may have been interrupted where it holds a lock, or switch to greenlets."""
    done = native_threads.Event()

    def call() -> None:
        with _leaving:
            for function in functions:
                function()
            done.set()

    native_threads.Thread(call).start()
    return done.wait(within_s)
