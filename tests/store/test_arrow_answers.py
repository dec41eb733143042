"""Answers to SQL as Arrow: a column that Arrow has no type for is refused by its name, not by a server's error."""

from __future__ import annotations

from typing import Any

import pyarrow.ipc
import pytest

from arttrace.store.server import api


@pytest.mark.parametrize("value", [{1: 2}, 2**70, [1, "a"], object()], ids=["keys", "size", "kinds", "unknown"])
def test_a_value_that_arrow_cannot_hold_is_refused_with_its_column(value: Any) -> None:
    with pytest.raises(api.RequestRefused, match=r"^odd\b.*JSON") as refused:
        api._arrow(["id", "odd"], [("a", value), ("b", None)])
    assert refused.value.status == 406


def test_what_arrow_can_hold_is_as_it_was() -> None:
    answer = api._arrow(["id", "rows"], [("a", [{"k": 1}]), ("b", None)])
    assert pyarrow.ipc.open_stream(answer).read_all().to_pylist() == [
        {"id": "a", "rows": [{"k": 1}]},
        {"id": "b", "rows": None},
    ]
