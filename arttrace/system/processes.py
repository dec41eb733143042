"""Other processes of this machine."""

from __future__ import annotations

import os


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
