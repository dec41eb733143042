"""Text as it stands in SQL."""

from __future__ import annotations

from collections.abc import Iterable


def quoted(text: str) -> str:
    """A text as a literal."""
    return "'" + text.replace("'", "''") + "'"


def listed(texts: Iterable[str]) -> str:
    """Texts as literals between commas, for IN (...) or [...]."""
    return ", ".join(map(quoted, texts))
