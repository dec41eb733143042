"""Runs a program's `main` as its author wrote it, then again as a trajectory; prints both results as JSON.

python twice.py PROGRAM: arttrace is imported for the second run only, so that the first one is the bare framework.
"""

import asyncio
import inspect
import json
import runpy
import sys
from pathlib import Path
from typing import Any

program = runpy.run_path(str(Path(__file__).parent / "programs" / f"{sys.argv[1]}.py"), run_name="program")


def run(main: Any) -> Any:
    return asyncio.run(main()) if inspect.iscoroutinefunction(main) else main()


bare = run(program["main"])
assert not [name for name in sys.modules if name.split(".")[0] == "arttrace"]

import arttrace  # noqa: E402

captured = run(arttrace.trajectory(program["main"]))
print(json.dumps([bare, captured]))
