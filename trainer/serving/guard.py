"""Run one command in a process group of its own, and end the whole group when the process that asked for it is gone.

Run as a script by serving/process.py: `python -I -S guard.py GRACE COMMAND...`. Standard input is the lifeline: it
ends when the owner closes it or dies, by kill -9 too. Nothing but the standard library, so that it starts at once.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading


def main(grace_s: float, command: list[str]) -> None:
    """Start `command`, pass its exit code on, and on the end of standard input stop the group within `grace_s`."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # A handler, not SIG_IGN: an ignored signal would stay ignored in the command.
        signal.signal(number, lambda *_: None)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def pass_exit_code_on() -> None:
        code = child.wait()
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
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
