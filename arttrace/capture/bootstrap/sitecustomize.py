"""Imported by Python itself at its start: switches capture on, then runs the sitecustomize that it shadows."""

import os
import sys
from importlib import import_module
from pathlib import Path


def _start_capture() -> None:
    try:
        from arttrace.capture.context import program
        from arttrace.capture.export import summary
        from arttrace.capture.patches import hooks

        if program.enable():
            import_module("arttrace.capture.rollout.stdin").install()
        hooks.install()
        summary.begin()
    except Exception as error:  # noqa: BLE001  the user's program runs, whatever is wrong with us
        line = f"arttrace: nothing is captured in {sys.executable}: {error}\n"
        try:
            if sys.stderr is not None:  # closed: its number may be another file's
                os.write(sys.stderr.fileno(), line.encode(errors="backslashreplace"))
        except OSError:  # nobody reads it, or there is no room: Python would not start the program for an error here
            pass


def _give_way() -> None:
    """Leave sys.path as it would be without us, and load the sitecustomize that we hid, if there is one."""
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if not _is(entry, here)]
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import_module("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours


def _is(entry: str, folder: Path) -> bool:
    try:
        return bool(entry) and Path(entry).resolve() == folder
    except OSError:  # relative to a working directory that is gone
        return False


_start_capture()
_give_way()
