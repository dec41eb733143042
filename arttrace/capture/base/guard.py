"""Rule 1 of docs/architecture.md: a failure of ours is logged once and counted, and the user's call goes on unchanged.

With ARTTRACE_RAISE=1, as in arttrace's own tests, it is raised instead: at once on the user's thread, and by the next
`flush` where it happened in the background.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections import Counter
from contextvars import ContextVar
from types import TracebackType

from arttrace.records.values.users_text import error_line
from arttrace.system import native_threads
from arttrace.system.errors import ArttraceError

logger = logging.getLogger("arttrace")

failures: Counter[str] = Counter()
"""How often each part of ours failed, by the part's name."""

_said_later: ContextVar[SaidLater | None] = ContextVar("arttrace_said_later", default=None)

_background: list[Exception] = []
_lock = native_threads.allocate_lock()


def _after_fork_in_child() -> None:
    global _lock
    _lock = native_threads.allocate_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def raising() -> bool:
    """Whether failures of ours are raised (arttrace's own tests)."""
    return os.environ.get("ARTTRACE_RAISE") == "1"


def failed(part: str, error: Exception, *, background: bool = False) -> None:
    """Count a failure of ours and log the first one of its part. Raises it under ARTTRACE_RAISE=1."""
    if sys.is_finalizing():  # no other thread goes on, and one may have ended with this lock, or with a log handler's
        failures[part] += 1
        with contextlib.suppress(OSError):
            os.write(2, f"arttrace: {part} failed while the interpreter ends ({error_line(error)})\n".encode())
    elif _count(part) == 1:
        with contextlib.suppress(Exception):  # a filter or handler of the user's may raise
            message = "arttrace: %s failed (%s); your program goes on, what it concerned is not recorded"
            # A failure of the machine, or of what the user set, is logged as it is; one of ours with its traceback.
            is_expected = isinstance(error, (OSError, ArttraceError))
            logger.warning(message, part, error, exc_info=None if is_expected else error)
    if raising():
        if not background:
            raise error
        _background.append(error)


def raise_background_failure() -> None:
    """Raise the first failure that the background kept for the tests, if there is one."""
    if _background and raising():
        error = _background[0]
        _background.clear()
        raise error


def _count(part: str) -> int:
    with _lock:  # nothing in here may collect garbage: a finalizer may fail, and count itself
        failures[part] = count = failures.get(part, 0) + 1
    return count


def _open_block() -> SaidLater | None:
    """The outermost one that the caller is in. One whose lock is free is over: Ctrl-C, say, has cut its end short."""
    block = _said_later.get()
    if block is None or block.lock.locked():
        return block
    block.say()
    return None


def _is_said_now(record: logging.LogRecord) -> bool:
    block = _open_block()
    if block is not None:
        block.held.append(record)
    return block is None


logger.addFilter(_is_said_now)


class SaidLater:
    """`with SaidLater(lock), lock:` logs what is said in the block once the lock is free: a filter or handler of the
    user's may ask which run it is in, or make a call of its own, and so come to the same lock."""

    __slots__ = ("held", "lock")

    def __init__(self, lock: native_threads.Lock) -> None:
        self.lock = lock
        self.held: list[logging.LogRecord] = []

    def __enter__(self) -> None:
        if _open_block() is None:
            _said_later.set(self)

    def __exit__(self, *_: object) -> None:
        if _said_later.get() is self:
            self.say()

    def say(self) -> None:
        """Log what was held back, and hold nothing back any more."""
        _said_later.set(None)
        for record in self.held:
            with contextlib.suppress(Exception):  # as in `failed`
                logger.handle(record)


class Guard:
    """`with Guard("part"):` lets no Exception of the block out. Holds no state: make one per part, use it anywhere.

    What every model call goes through says `except Exception` and `caught` instead: that costs nothing to enter.
    """

    __slots__ = ("_background", "_part")

    def __init__(self, part: str, *, background: bool = False) -> None:
        self._part = part
        self._background = background

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self.caught(error)
        return True

    def caught(self, error: Exception) -> None:
        """Count a failure of this part."""
        failed(self._part, error, background=self._background)
