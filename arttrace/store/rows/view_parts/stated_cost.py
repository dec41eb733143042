"""What the sender of a call states that it cost, for SQL."""

from __future__ import annotations

from arttrace.records import semconv
from arttrace.store.rows.view_parts.definition import of_document


def _amount(value: str) -> str:
    amount = f"TRY_CAST({value} AS DOUBLE)"
    return f"CASE WHEN isfinite({amount}) AND {amount} >= 0 THEN {amount} END"


def stated_cost(of: str = "") -> str:
    """US dollars, of a row of `span_records`; NULL where nothing is stated. In Python: records/values/costs.py."""
    by_kind = f"TRY_CAST(TRY_CAST({of_document(semconv.STATED_COSTS_IN_JSON, of=of)} AS JSON) AS MAP(VARCHAR, DOUBLE))"
    parts = [_amount(of_document(name, of=of)) for name in semconv.STATED_COSTS_OF_PARTS]
    return f"""coalesce({", ".join(_amount(of_document(name, of=of)) for name in semconv.STATED_COSTS)},
        CASE WHEN {" IS NOT NULL OR ".join(parts)} IS NOT NULL
            THEN {" + ".join(f"coalesce({part}, 0)" for part in parts)} END,
        {_amount(f"coalesce({by_kind}['total'], list_sum(map_values({by_kind})))")})"""
