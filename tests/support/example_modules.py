"""A file of examples/ as a module of its own: examples have files of the same names, and are no packages."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

EXAMPLES = Path(__file__).parents[2] / "examples"
OWN_ENVIRONMENT = {"frameworks/llamaindex"}
"""Examples whose packages conflict with ours; see own_environment.py."""


def load(path: str) -> ModuleType:
    """The module at `path` below examples/, such as "2048/board.py". It may import only what is installed."""
    name = f"example_{path.removesuffix('.py').replace('/', '_')}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)  # dataclasses look themselves up there
        spec.loader.exec_module(module)
    return sys.modules[name]
