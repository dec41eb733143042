"""Documents that a hostile or broken sender might make of good ones: other values in some places."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import strategies as st

HUGE = 10**400

_scalars = st.one_of(
    st.sampled_from([None, True, False, "", "x", [], {}, [[]], [{}], {"a": {}}, "1" * 5000]),
    st.sampled_from([0, -1, 2**31, 2**63, 2**64, HUGE, 10**4299, 1e300, -1e300, "DEEP", "9999-12-31T23:59:59Z"]),
)
_values = st.recursive(_scalars, lambda inner: st.lists(inner, max_size=2), max_leaves=4)
_depths = st.sampled_from([100, 300, 600, 900, *range(930, 1000, 3), 3000])


def closed(depth: int) -> str:
    """JSON text of arrays in arrays."""
    return "[" * depth + "]" * depth


def _places(document: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = []
    for key, value in document.items() if isinstance(document, dict) else enumerate(document):
        found.append((*above, key))
        if isinstance(value, (dict, list)):
            found += _places(value, (*above, key))
    return found


@st.composite
def damaged(draw: st.DrawFn, document: Any) -> str:
    """The JSON text of a document with other values in one to three places."""
    document = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        *above, last = draw(st.sampled_from(_places(document)))
        holder = document
        for step in above:
            holder = holder[step]
        holder[last] = copy.deepcopy(draw(_values))
    return json.dumps(document).replace('"DEEP"', closed(draw(_depths)))
