"""Whether the package `trainer` that Python finds is the one that came with arttrace.

The name is a common one: a file of the user's, or another package, may stand before it.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


def foreign_trainer() -> str | None:
    """Where another module named `trainer` lies that Python finds first; None when it is arttrace's, or none."""
    own = Path(__file__).parents[3] / "trainer" / "__init__.py"
    spec = find_spec("trainer")
    found = spec.origin or next(iter(spec.submodule_search_locations or ()), None) if spec is not None else None
    if found is None or not own.is_file() or Path(found).resolve() == own.resolve():
        return None
    return found
