"""Whether a dotted name is there to be imported."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

STARTS_CAPTURE = "arttrace.capture.bootstrap.sitecustomize"
"""To import it is to capture all that the process does from then on."""


def exists(path: str) -> bool:
    """Whether the longest part of the path that is a module has the rest as attributes."""
    if path == STARTS_CAPTURE:
        return importlib.util.find_spec(path) is not None
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        if found.__file__ is None:  # a folder without a module, as old checkouts keep with their caches
            return False
        for attribute in parts[length:]:
            if not hasattr(found, attribute):
                return False
            found = getattr(found, attribute)
        return True
    return False
