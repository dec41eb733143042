"""The whole program as one trajectory, for `arttrace run`: calls outside any `@trajectory` belong to it.

It begins with the first such call, so that a program whose calls are all inside trajectories of its own has none
beside them, and ends when the process does. Each process of a program has its own.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from arttrace.capture import runtime
from arttrace.capture.flow import Execution
from arttrace.capture.guard import Guard
from arttrace.capture.ids import random_hex
from arttrace.capture.scope import Run, Scope

_lock = threading.Lock()
_enabled = False
_scope: Scope | None = None
_ending = Guard("ending the program's trajectory", background=True)


def enable() -> None:
    """From now on calls outside a trajectory are recorded under the program's."""
    global _enabled
    if not _enabled:
        _enabled = True
        runtime.before_exit.append(_finish)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_after_fork_in_child)


def scope() -> Scope | None:
    """The program's root scope, begun now if it has not; None where programs are not captured."""
    global _scope
    if not _enabled:
        return None
    with _lock:
        if _scope is None:
            recorder = runtime.recorder()
            if recorder.settings.disabled:
                return None
            run = Run(id=random_hex(32), project=recorder.settings.project)
            entry = _program()
            _scope = Scope("trajectory", Path(entry).stem or entry, run=run, parent=None, entry=entry)
            _scope.set_arguments(argv=sys.argv[1:])
            _scope.belongs_to(Execution.start(None, owner=threading.main_thread()))
        return _scope


def _program() -> str:
    """What was started: the module given with -m, else the script's path."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name.removesuffix(".__main__"))
    return str(getattr(main, "__file__", None) or sys.argv[0] or "python")


def _finish() -> None:
    with _ending:
        if _scope is not None:
            _scope.close(getattr(sys, "last_value", None))


def _after_fork_in_child() -> None:
    global _lock, _scope
    _lock, _scope = threading.Lock(), None
