"""A program: an `arttrace` for shells whose every command is a fork of one process, which has imported what they need.

    python forked_arttrace.py FOLDER

It writes FOLDER/arttrace, a script to be found on PATH, prints a line when that works, and ends with its standard
input. A command has the script's arguments, directory, environment and standard files, and the script ends as the
command does. `on_path` starts it.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path

from forked_starts import ended_in_a_fork

_SCRIPT = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as asking:
    asking.connect({address!r})
    socket.send_fds(asking, [b"."], [0, 1, 2])
    asking.sendall(json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode())
    asking.shutdown(socket.SHUT_WR)
    code = int(asking.makefile().read() or 255)
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


@contextmanager
def on_path(folder: Path) -> Iterator[Path]:
    """The folder, with the script in it."""
    command = [sys.executable, __file__, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        yield folder
        running.communicate()


def _answer(asking: socket.socket) -> None:
    _, files, _, _ = socket.recv_fds(asking, 1, 3)
    with asking.makefile() as rest:
        arguments, directory, environment = json.load(rest)

    def start() -> None:
        from arttrace.__main__ import main

        asking.close()  # what the command leaves behind keeps no script waiting
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, mode) for n, mode in enumerate("rww"))
        os.chdir(directory)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = ["arttrace", *arguments]
        try:
            main()
        finally:
            atexit._run_exitfuncs()

    code = ended_in_a_fork(start)
    asking.sendall(str(code).encode())


def _serve(folder: Path) -> None:
    import arttrace.commands

    for each in arttrace.commands._COMMANDS.values():
        if each.module and each.extra in ("", "store"):
            import_module(each.module)
    import_module("duckdb")
    address = folder / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(address))
        listener.listen()
        script = folder / "arttrace"
        script.write_text(_SCRIPT.format(python=sys.executable, address=str(address)), encoding="utf-8")
        script.chmod(0o755)
        os.write(1, b"ready\n")
        threading.Thread(target=lambda: (os.read(0, 1), os._exit(0)), daemon=True).start()
        while True:
            asking, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _answer(asking)
                os._exit(0)
            asking.close()
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
