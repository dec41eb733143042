"""Run one command in a process group of its own, and end the whole group when the process that asked for it is gone.

Run as a script by vllm/process.py: `python -I -S process_group.py GRACE SCRATCH COMMAND...`. Standard input is the
lifeline: it ends when the owner closes it or dies, by kill -9 too. Nothing but the standard library, so that it starts
at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading


def main(grace_s: float, scratch: str, command: list[str]) -> None:
    """Start `command`, pass its exit code on, and on the end of standard input stop the group within `grace_s`.

    The directory `scratch`, unless it is "", is removed before the end, with the files in it.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # A handler, not SIG_IGN: an ignored signal would stay ignored in the command.
        signal.signal(number, lambda *_: None)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def pass_exit_code_on() -> None:
        code = child.wait()
        remove(scratch)
        os._exit(code if code >= 0 else 128 - code)

    threading.Thread(target=pass_exit_code_on, daemon=True).start()
    while os.read(0, 4096):
        pass
    os.killpg(0, signal.SIGTERM)
    try:
        child.wait(grace_s)
    except subprocess.TimeoutExpired:
        pass
    finally:
        remove(scratch)
        os.killpg(0, signal.SIGKILL)


def remove(directory: str) -> None:
    """Remove a directory that holds no other, if it is there. Two may do so at once: each goes on to the end."""
    if directory:
        with contextlib.suppress(OSError):
            for name in os.listdir(directory):  # noqa: PTH208 - pathlib would double the time to start
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"{directory}/{name}")  # noqa: PTH108
            os.rmdir(directory)  # noqa: PTH106


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2], sys.argv[3:])
