"""How a command ends on a signal: SIGTERM and a closed terminal end it as Ctrl-C does, so that stores are closed and
children end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterator
from types import FrameType

_OUTPUTS = (1, 2)
_GONE = select.POLLERR | select.POLLHUP | select.POLLNVAL if hasattr(select, "poll") else 0


@contextlib.contextmanager
def ended_as_by_ctrl_c() -> Iterator[None]:
    """In the body SIGTERM acts as Ctrl-C does there, unless the command handles it itself, and the first SIGHUP acts as
    SIGTERM. A signal that is ignored, as by `nohup`, stays ignored. For the main thread."""
    handlers = {"SIGTERM": _as_ctrl_c, "SIGHUP": _hang_up}
    known = {getattr(signal, name): handler for name, handler in handlers.items() if hasattr(signal, name)}
    ours = {number: handler for number, handler in known.items() if signal.getsignal(number) is signal.SIG_DFL}
    for number, handler in ours.items():
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _as_ctrl_c(_number: int, frame: FrameType | None) -> None:
    """An event loop has its own handler of Ctrl-C: a KeyboardInterrupt in one of its tasks would leave a traceback."""
    handler = signal.getsignal(signal.SIGINT)
    (handler if callable(handler) else signal.default_int_handler)(signal.SIGINT, frame)


def _hang_up(number: int, _frame: FrameType | None) -> None:
    # A shell passes it on to its jobs, and the system sends it once more: this is no second wish.
    signal.signal(number, lambda *_: None)
    for output in filter(nobody_reads, _OUTPUTS):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, output)
        os.close(nowhere)
    signal.raise_signal(signal.SIGTERM)


def nobody_reads(output: int, *, wait: bool = False) -> bool:
    """Whether writing would fail, and with it the work that says what it does; where it is to wait, only once it would.
    Not for Windows, which has no such signals either."""
    poll = select.poll()
    poll.register(output, 0)
    return any(event & _GONE for _, event in poll.poll(None if wait else 0))
