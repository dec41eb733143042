"""What runs cost and how long they took, by entry, agent, model or tool: queries over the store's views."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from arttrace.store import AnyStore
from arttrace.store.rows.columns import REWARDS_OF_RUN
from arttrace.views.costs.prices import Prices, load_prices
from arttrace.views.costs.usage import AGENTS_OF_CALLS, Cost, began_since, costs_by

By = Literal["entry", "agent", "model", "tool"]

_SECONDS = "quantile_cont(seconds, 0.5), quantile_cont(seconds, 0.9), quantile_cont(seconds, 0.99)"
# Rewards by the view that every version has: a collector of an earlier one has no column of what a run is worth.
_QUERIES: Final[dict[By, str]] = {
    "entry": """SELECT entry, count(*), count(*), sum(calls), sum(input_tokens), sum(output_tokens), count(error),
        {seconds}, avg(worth)
        FROM trajectories LEFT JOIN (SELECT trajectory_id AS id, reward AS worth FROM ({rewards})) USING (id)
        WHERE {since} GROUP BY 1 ORDER BY 2 DESC, 1""",
    "agent": f"""WITH made AS (SELECT trace_id, agent_id, count(*) calls, sum(input_tokens) asked,
            sum(output_tokens) answered FROM calls JOIN {AGENTS_OF_CALLS} USING (trace_id, span_id) GROUP BY 1, 2)
        SELECT a.name, count(*), count(DISTINCT a.trajectory_id), sum(made.calls), sum(asked), sum(answered),
        count(error), {{seconds}}, NULL
        FROM agents a LEFT JOIN made ON made.trace_id = a.trace_id AND made.agent_id = a.span_id
        WHERE {{since}} GROUP BY 1 ORDER BY 2 DESC, 1""",  # noqa: S608
    "model": """SELECT coalesce(policy_version, model), count(*), count(DISTINCT trajectory_id), count(*),
        sum(input_tokens), sum(output_tokens), count(error), {seconds}, NULL
        FROM calls WHERE {since} GROUP BY 1 ORDER BY 2 DESC, 1""",
    "tool": """SELECT name, count(*), count(DISTINCT trajectory_id), NULL, NULL, NULL, count(error),
        {seconds}, NULL
        FROM tool_calls WHERE {since} GROUP BY 1 ORDER BY 2 DESC, 1""",
}


class Statistics(msgspec.Struct, frozen=True):
    """One entry, agent, model or tool.

    `count` is how often it ran, in so many `runs`; `errors` how often it failed; `p50_s`, `p90_s` and `p99_s` are
    quantiles of its seconds. None stands where a figure has no meaning, or nobody reported it. `reward` is the mean
    over the runs that have one. `cost` is US dollars for the calls whose price is known, None where of none is;
    `unpriced_calls` counts the others, which are in no cost.
    """

    name: str
    count: int
    runs: int
    calls: int | None
    input_tokens: int | None
    output_tokens: int | None
    errors: int
    p50_s: float | None
    p90_s: float | None
    p99_s: float | None
    reward: float | None
    cost: float | None = None
    unpriced_calls: int | None = None


def statistics(store: AnyStore, by: By, *, since_ns: int = 0, prices: Prices | None = None) -> list[Statistics]:
    """One for each entry, agent, model (a policy's version by its name) or tool, the most frequent first.

    Args:
        store: The store to ask.
        by: What is counted together.
        since_ns: Only what began since, in nanoseconds since 1970.
        prices: What models cost; by default what `load_prices` finds.

    Raises:
        StoreError: The store refuses the query.
        ArttraceError: The file of the user's prices cannot be read.
    """
    since = began_since("started", since_ns)
    _, rows = store.sql(_QUERIES[by].format(seconds=_SECONDS, since=since, rewards=REWARDS_OF_RUN))
    costs = costs_by(store, by, prices or load_prices(), since_ns=since_ns)
    found = []
    for name, *rest in rows:
        cost = costs.get(name or "", Cost(unpriced_calls=0))
        unpriced = None if by == "tool" else cost.unpriced_calls
        values = (name or "", *rest, cost.usd, unpriced)
        found.append(msgspec.convert(dict(zip(Statistics.__struct_fields__, values, strict=True)), Statistics))
    return found
