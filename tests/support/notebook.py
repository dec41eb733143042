"""Runs a notebook's code cells as Jupyter does: one after the other in one namespace, with `await` at the top."""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import json
from pathlib import Path
from typing import Any


async def execute(path: Path) -> list[str]:
    """Run the code cells; what each printed. Raises what a cell raises."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    namespace: dict[str, Any] = {"__name__": "__main__"}
    printed = []
    for number, cell in enumerate(cells):
        if cell["cell_type"] != "code":
            continue
        code = compile("".join(cell["source"]), f"{path.name}[{number}]", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            result = eval(code, namespace)
            if inspect.isawaitable(result):
                await result
        printed.append(out.getvalue())
    return printed
