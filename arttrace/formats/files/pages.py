"""The items of one page of an API's answer, and whether the answer has more pages. Pure."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any, Final

from arttrace.records.values.lenient_json import json_object
from arttrace.trajectories.decoding.attribute_values import finite

_BESIDE: Final = frozenset({"custom_id", "strings"})
_PAGES: Final[dict[str, Callable[[AbstractSet[str]], bool]]] = {
    "data": _BESIDE.isdisjoint,
    "runs": lambda names: "cursors" in names,  # LangSmith
    "events": lambda names: names <= {"events", "cursor"},  # Braintrust
    "calls": lambda names: names == {"calls"},  # Weave
}
"""Where the items of a page stand, if so is what stands beside them."""


def page_items(document: Any) -> tuple[list[Any], bool]:
    """The items of a list, or of a page of an API's answer and whether there is a next one, or the document itself: a
    line of a batch, or ART's compact form, whose data are read with what stands beside them."""
    if not isinstance(document, dict):
        return document if isinstance(document, list) else [document], False
    for listed, beside in _PAGES.items():
        items = document.get(listed)
        if isinstance(items, list) and beside(document.keys()):
            return items, _has_more(document)
    return [document], False


def _has_more(page: dict[str, Any]) -> bool:
    meta = json_object(page.get("meta"))  # Langfuse's
    return (
        page.get("has_more") is True
        or any((page.get("next_cursor"), page.get("cursor"), meta.get("cursor")))
        or bool(json_object(page.get("cursors")).get("next"))
        or (finite(meta.get("page")) or 0) < (finite(meta.get("totalPages")) or 0)
    )
