"""Starts of a program that are forks of one process, which has done the slow imports for all of them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any


def ended_in_a_fork(start: Callable[[], object]) -> int:
    """Run `start` in a fork of this process, which ends with it. Its exit code; minus the signal that killed it."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code: Any = 0
        try:
            if sys.platform == "linux":  # never left behind
                ctypes.CDLL(None).prctl(1, signal.SIGKILL)
            start()
        except SystemExit as ended:
            code = ended.code or 0
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
