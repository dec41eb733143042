"""Other processes of this machine, and the end of one that `multiprocessing` started."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable


def is_alive(pid: int) -> bool:
    """Whether a process with this id lives, of whatever user. True where the system cannot be asked without harm."""
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
