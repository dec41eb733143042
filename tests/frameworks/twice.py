"""Runs a program's `main` as its author wrote it, then again as a trajectory; prints both results as JSON.

python twice.py PROGRAM: arttrace is imported for the second run only, so that the first one is the bare framework.

python twice.py --each MODULE... < CASES: MODULEs, which the programs import, are imported once. CASES is a JSON list of
[PROGRAM, environment]; each runs in a fork, which ends as an interpreter does. Prints a line for each.
"""

import asyncio
import importlib
import inspect
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any


def run(main: Any) -> Any:
    return asyncio.run(main()) if inspect.iscoroutinefunction(main) else main()


def case_in_a_fork() -> str:
    """The program of the case that this process is forked for. The one that forks ends here, with 0 where all did."""
    for module in sys.argv[2:]:
        importlib.import_module(module)
    for program, environment in json.load(sys.stdin):
        pid = os.fork()
        if pid == 0:
            os.environ.update(environment)
            return str(program)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code:
            sys.exit(f"{program} ended with {code}")
    sys.exit()


name = case_in_a_fork() if sys.argv[1] == "--each" else sys.argv[1]
program = runpy.run_path(str(Path(__file__).parent / "programs" / f"{name}.py"), run_name="program")
bare = run(program["main"])
assert not [name for name in sys.modules if name.split(".")[0] == "arttrace"]

import arttrace  # noqa: E402

captured = run(arttrace.trajectory(program["main"]))
print(json.dumps([bare, captured]))
