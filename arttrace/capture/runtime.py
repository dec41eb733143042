"""The one recorder of this process: made on first use, flushed at exit, renewed in a forked child."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from pathlib import Path

from arttrace.capture.config import Settings
from arttrace.capture.guard import Guard
from arttrace.capture.recorder import Recorder

_lock = threading.Lock()
_recorder: Recorder | None = None
_replaced: list[Recorder] = []  # their open scopes may still end
_exiting = Guard("the flush at exit", background=True)

before_exit: list[Callable[[], None]] = []
"""Called before the last flush: what is still open ends here."""


def recorder() -> Recorder:
    """The recorder, with the settings of `init` or of the environment."""
    return _recorder if _recorder is not None else configure()


def configure(
    project: str | None = None,
    dir: str | Path | None = None,
    *,
    endpoint: str | None = None,
    api_key: str | None = None,
    renew: bool = False,
) -> Recorder:
    """Make the recorder, or with `renew` put one with other settings in its place."""
    global _recorder
    with _lock:
        if _recorder is not None and not renew:
            return _recorder
        settings = Settings.resolve(project=project, dir=dir, endpoint=endpoint, api_key=api_key)
        if _recorder is not None:
            if _recorder.settings == settings:
                return _recorder
            _recorder.close()
            _replaced.append(_recorder)
        else:
            atexit.register(_at_exit)
        _recorder = Recorder(settings)
        return _recorder


def started() -> bool:
    """Whether anything of this process could have been recorded."""
    return _recorder is not None


def _at_exit() -> None:
    for finish in before_exit:
        with _exiting:
            finish()
    for each in [*_replaced, *([_recorder] if _recorder is not None else [])]:
        with _exiting:
            each.close(timeout_s=10.0)


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()
    for each in [*_replaced, *([_recorder] if _recorder is not None else [])]:
        each.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
