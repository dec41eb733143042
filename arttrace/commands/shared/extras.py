"""What of arttrace is installed: its extras, and whether `trainer` is its own or another package of that name."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

PACKAGE_OF_EXTRA = {"store": "duckdb", "grpc": "grpc", "mcp": "mcp", "judge": "litellm", "trainer": "torch"}
"""The package by which an extra is known to be installed, as it is imported."""


def is_missing(extra: str) -> bool:
    """Whether the extra is not installed; "" is the bare package."""
    return bool(extra) and find_spec(PACKAGE_OF_EXTRA[extra]) is None


def installed_version(distribution: str) -> str | None:
    """The version of a distribution that is installed; None where it is not."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def foreign_trainer() -> str | None:
    """Where another module named `trainer` lies that Python finds first; None when it is arttrace's, or none."""
    own = Path(__file__).parents[3] / "trainer" / "__init__.py"
    spec = find_spec("trainer")
    found = spec.origin or next(iter(spec.submodule_search_locations or ()), None) if spec is not None else None
    if found is None or not own.is_file() or Path(found).resolve() == own.resolve():
        return None
    return found
