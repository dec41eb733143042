"""What the sender of a call states that it cost, for SQL."""

from __future__ import annotations

from arttrace.records import semconv
from arttrace.store.rows.view_parts.definition import of_document


def _amounts(values: str) -> str:
    """Those of a list that are amounts. Each value stands there once: DuckDB plans this with every query of a view."""
    numbers = f"list_transform([{values}], lambda given: TRY_CAST(given AS DOUBLE))"
    return f"list_filter({numbers}, lambda amount: isfinite(amount) AND amount >= 0)"


def stated_cost(of: str = "") -> str:
    """US dollars, of a row of `span_records`; NULL where nothing is stated. In Python: records/values/costs.py."""
    whole, parts = (
        _amounts(", ".join(of_document(name, of=of) for name in names))
        for names in (semconv.STATED_COSTS, semconv.STATED_COSTS_OF_PARTS)
    )
    by_kind = f"TRY_CAST(TRY_CAST({of_document(semconv.STATED_COSTS_IN_JSON, of=of)} AS JSON) AS MAP(VARCHAR, DOUBLE))"
    in_json = _amounts(f"coalesce({by_kind}['total'], list_sum(map_values({by_kind})))")
    return f"coalesce({whole}[1], list_sum({parts}), {in_json}[1])"
