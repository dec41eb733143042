"""Rows that are given to a query: the first few as parameters, more of them as a table of Arrow.

Arrow is the fastest way for many, but its library and numpy take a quarter of a second to load, which is most of what a
command takes that stores a run or a reward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import duckdb

from arttrace.store.arrow_tables import arrow_table, checked_column
from arttrace.store.transactions import registered

FEW: Final = 500
"""Rows in all that go as parameters, which takes as long as loading Arrow does."""


class GivenRows:
    """What one writer gives to its queries."""

    def __init__(self) -> None:
        self._left = FEW

    def query(
        self, connection: duckdb.DuckDBPyConnection, query: str, columns: Mapping[str, tuple[str, Sequence[Any]]]
    ) -> list[tuple[Any, ...]]:
        """The answer to a query in which `{given}` stands for the rows: columns of equal length by name, each with its
        type and values. Raises what `arrow_table` raises."""
        self._left -= max(len(values) for _, values in columns.values())
        if self._left < 0:
            with registered(connection, _given=arrow_table(columns)):
                return _answer(connection, query.format(given="_given"))
        given = ", ".join(f'unnest(?::{type}[]) AS "{name}"' for name, (type, _) in columns.items())
        parameters = [checked_column(type, values) for type, values in columns.values()]
        return _answer(connection, query.format(given=f"(SELECT {given})"), parameters)


def _answer(connection: duckdb.DuckDBPyConnection, query: str, parameters: object = None) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = connection.execute(query, parameters).fetchall()
    return rows
