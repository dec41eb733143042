"""A program: commands of arttrace, each in a fork of this process, which has imported the command line for all of them.

    python forked_commands.py MODULE... < COMMANDS

MODULEs are imported as well. COMMANDS is a JSON list of lists of arguments; each is what `sys.argv` would hold of them.
Prints a list of [exit code, standard output, standard error], these two as Latin-1, so that no byte is lost. `commands`
asks it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

from forked_starts import ended_in_a_fork


def commands(
    python: Path | str, cwd: Path, env: Mapping[str, str], asked: Sequence[Sequence[str]], *modules: str
) -> list[subprocess.CompletedProcess[bytes]]:
    """What each command came to with an interpreter, in a directory and an environment."""
    program = [str(python), __file__, *modules]
    done = subprocess.run(
        program, input=json.dumps(asked).encode(), cwd=cwd, env=env, capture_output=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return [
        subprocess.CompletedProcess(command, code, out.encode("latin-1"), err.encode("latin-1"))
        for command, (code, out, err) in zip(asked, json.loads(done.stdout), strict=True)
    ]


def _ran(arguments: Sequence[str]) -> tuple[int, str, str]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:

        def start() -> None:
            from arttrace.commands import main

            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            sys.argv = ["arttrace", *(os.fsdecode(one.encode()) for one in arguments)]
            main()

        code = ended_in_a_fork(start)
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read().decode("latin-1"))
    return code, said[0], said[1]


if __name__ == "__main__":
    sys.path[0] = ""  # as with `python -c`: no command finds the modules of tests
    for each in ("arttrace.commands", *sys.argv[1:]):
        import_module(each)
    print(json.dumps([_ran(one) for one in json.loads(sys.stdin.buffer.read())]))
