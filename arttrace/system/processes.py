"""Processes of this machine: whether they are alive, how those of `multiprocessing` end, how often garbage is
collected."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable


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


def collect_garbage_seldom() -> None:
    """Collect garbage after 50,000 new objects from now on, not after 700.

    For programs that import torch or a serving engine: none of the millions of objects that this creates is garbage,
    and scanning them takes a quarter of the start.
    """
    gc.set_threshold(50_000, 20, 20)
