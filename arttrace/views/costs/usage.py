"""The tokens that calls used, by what is counted together and by what has a price of its own, and what they cost: as
the sender of a call states it, else by its price."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any, Final

import msgspec

from arttrace.records import semconv
from arttrace.records.trajectory import AgentCall
from arttrace.store import AnyStore
from arttrace.store.rows.columns import LAST_READING
from arttrace.store.rows.left_out import IS_MARK
from arttrace.store.rows.view_parts.calls_once import CALLS_ONCE, CALLS_WITHIN
from arttrace.store.rows.view_parts.definition import BELONGS_TO, known_time, of_document
from arttrace.store.rows.view_parts.stated_cost import stated_cost
from arttrace.store.sql_text import listed, quoted
from arttrace.views.costs.prices import TIERS, Prices, Usage

_CACHED = (
    semconv.USAGE_CACHE_READ_INPUT_TOKENS,
    "gen_ai.usage.cache_read_input_tokens",
    "llm.token_count.prompt_details.cache_read",
    "ai.usage.cachedInputTokens",
)
_WRITTEN = (
    semconv.USAGE_CACHE_WRITE_INPUT_TOKENS,
    "gen_ai.usage.cache_creation.input_tokens",
    "gen_ai.usage.cache_creation_input_tokens",
    "llm.token_count.prompt_details.cache_write",
)
"""How SDKs call tokens of the provider's cache."""


def _first(names: Iterable[str]) -> str:
    return "coalesce(" + ", ".join(of_document(name, of="c.") for name in names) + ")"


_PROVIDER = f"coalesce({_first((semconv.PROVIDER_NAME, 'gen_ai.system', 'llm.provider', 'llm.system'))}, '')"
_MODEL = f"""coalesce(CASE {_PROVIDER} WHEN 'aws.bedrock' THEN {of_document(semconv.REQUEST_MODEL, of="c.")} END,
        c.model, '')"""
"""Its maker's name of a model is not the one under which Bedrock sells it."""
_TIER = "CASE " + " ".join(f"WHEN c.input_tokens > {tier} THEN {tier}" for tier in reversed(TIERS)) + " ELSE 0 END"
_CALLS = f"""WITH calls_of_source AS MATERIALIZED (
        SELECT trace_id, span_id, trajectory_id, {known_time("start_ns")} AS started, operation, error, model,
            policy_version, input_tokens, output_tokens, {_PROVIDER} AS provider, {_MODEL} AS sold_as,
            coalesce({of_document(semconv.SERVER_ADDRESS, of="c.")}, '') AS host,
            TRY_CAST({_first(_CACHED)} AS BIGINT) AS cached, TRY_CAST({_first(_WRITTEN)} AS BIGINT) AS written,
            {stated_cost("c.")} AS stated
        FROM {{source}} c WHERE operation = '{semconv.OPERATION_INSIDE_A_CALL}'
            OR (operation IN {semconv.CALL_OPERATIONS} AND end_ns > 0))"""  # noqa: S608
"""What is told of calls, and of outer records of calls, without their documents: it is read twice, and planned once."""
_TOKENS = "coalesce(input_tokens, 0) + output_tokens"
_ALL_TOKENS = f"sum({_TOKENS}) OVER (PARTITION BY trace_id, above)"
_OF_OUTER = f"""(WITH RECURSIVE outer_record AS MATERIALIZED (
        SELECT trace_id, span_id, stated FROM calls_of_source
        WHERE operation = '{semconv.OPERATION_INSIDE_A_CALL}'),
    share AS MATERIALIZED (
        SELECT trace_id, above, span_id, CASE WHEN {_ALL_TOKENS} > 0 THEN ({_TOKENS}) / {_ALL_TOKENS}
            WHEN 1 = row_number() OVER (PARTITION BY trace_id, above ORDER BY start_ns, span_id) THEN 1 END AS part
        FROM (
            SELECT b.*, w.above FROM outer_record o
            JOIN {CALLS_WITHIN} w ON w.trace_id = o.trace_id AND w.above = o.span_id
            JOIN span_records b ON b.trace_id = w.trace_id AND b.span_id = w.below
            QUALIFY 1 = row_number() OVER (PARTITION BY b.trace_id, b.span_id ORDER BY b.bytes DESC))),
    passed_on AS (
        SELECT s.trace_id, s.span_id, o.stated * s.part AS amount FROM outer_record o
        JOIN share s ON s.trace_id = o.trace_id AND s.above = o.span_id WHERE o.stated IS NOT NULL
        UNION ALL
        SELECT s.trace_id, s.span_id, p.amount * s.part FROM passed_on p
        JOIN outer_record o ON o.trace_id = p.trace_id AND o.span_id = p.span_id AND o.stated IS NULL
        JOIN share s ON s.trace_id = o.trace_id AND s.above = o.span_id)
    SELECT trace_id AS in_trace, span_id AS in_span, amount AS outer_stated FROM passed_on)"""  # noqa: S608
"""What the nearest outer record of a call that states a cost states, of the inner one, which counts; of several, by
their tokens."""
_USAGES = f"""{_CALLS}
    SELECT {{name}}, c.sold_as, c.policy_version, c.provider, c.host, {_TIER}, count(*),
        coalesce(sum(c.input_tokens), 0)::BIGINT, coalesce(sum(c.cached), 0)::BIGINT,
        coalesce(sum(c.written), 0)::BIGINT, coalesce(sum(c.output_tokens), 0)::BIGINT,
        coalesce(c.input_tokens, c.output_tokens) IS NOT NULL AS reported, sum(c.cost)
    FROM (SELECT s.*, coalesce(stated, outer_stated) AS cost
        FROM calls_of_source s LEFT JOIN {_OF_OUTER} ON in_trace = s.trace_id AND in_span = s.span_id) c {{join}}
    WHERE c.operation IN {semconv.CALL_OPERATIONS}
        AND NOT (c.error IS NOT NULL AND coalesce(c.input_tokens, c.output_tokens) IS NULL AND c.cost IS NULL)
        AND {{which}} GROUP BY 1, 2, 3, 4, 5, 6, reported, c.cost IS NULL"""  # noqa: S608
AGENTS_OF_CALLS: Final = f"""(WITH RECURSIVE counts AS (
        SELECT trace_id, span_id, parent_span_id, operation FROM span_records WHERE NOT ({IS_MARK})
        QUALIFY row_number() OVER (PARTITION BY trace_id, span_id ORDER BY {LAST_READING}) = 1),
    above AS (
        SELECT DISTINCT trace_id, span_id, parent_span_id FROM span_records
        WHERE parent_span_id IS NOT NULL AND operation IS DISTINCT FROM '{semconv.OPERATION_INVOKE_AGENT}'),
    upwards(trace_id, span_id, agent_id) AS (
        SELECT trace_id, span_id, parent_span_id FROM counts
        WHERE parent_span_id IS NOT NULL AND operation IN {semconv.CALL_OPERATIONS}
        UNION
        SELECT u.trace_id, u.span_id, a.parent_span_id
        FROM upwards u JOIN above a ON a.trace_id = u.trace_id AND a.span_id = u.agent_id)
    FROM upwards)"""  # noqa: S608
"""The recorded agent of each call, the next one above it, and `span_id` of the call: tools and a framework's own steps
may lie between. Those are there as well, as an `agent_id` that is none in `agents`, and calls that are none in `calls`:
whoever joins it to both leaves them out, and the views, which take DuckDB long to plan, stand there once."""
_BY: Final = {
    "entry": ("t.entry", "JOIN trajectories t ON t.id = c.trajectory_id", "t.started"),
    "agent": (
        "a.name",
        f"""JOIN {AGENTS_OF_CALLS} u ON u.trace_id = c.trace_id AND u.span_id = c.span_id
            JOIN agents a ON a.trace_id = u.trace_id AND a.span_id = u.agent_id""",
        "a.started",
    ),
    "model": ("coalesce(c.policy_version, c.model)", "", "c.started"),
}
_OF_A_RUN: Final = f"""(SELECT s.* FROM (SELECT * FROM {CALLS_ONCE}
        WHERE (trajectory_id = {{id}} OR trace_id = {{trace}}
        OR (trace_id, span_id) IN (SELECT (trace_id, span_id) FROM placed_spans WHERE trajectory_id = {{id}}))
        AND NOT ({IS_MARK})
        QUALIFY row_number() OVER (PARTITION BY trace_id, span_id ORDER BY {LAST_READING}) = 1) s
    LEFT JOIN placed_spans p ON p.trace_id = s.trace_id AND p.span_id = s.span_id WHERE {BELONGS_TO} = {{id}})"""  # noqa: S608


class Cost(msgspec.Struct, frozen=True):
    """What calls cost in US dollars: `usd` of those whose sender states it or whose price is known, None where of none
    is. `unpriced_calls` are the others; `unpriced_models` names their models, with "" for calls whose tokens nobody
    reported. `stated_usd` is the part of `usd` that senders state, None where none does."""

    usd: float | None = None
    unpriced_calls: int = 0
    unpriced_models: tuple[str, ...] = ()
    stated_usd: float | None = None


def began_since(started: str, since_ns: int) -> str:
    """The condition that what a view says `started` then did so since, in nanoseconds since 1970; 0 takes what has no
    time too."""
    return f"{started} >= make_timestamptz({since_ns // 1000})" if since_ns else "true"


def costs_by(store: AnyStore, by: str, prices: Prices, *, since_ns: int = 0) -> dict[str, Cost]:
    """The cost of each entry, agent or model by its name, as `statistics` has them; nothing for tools.

    Args:
        store: The store to ask.
        by: "entry", "agent" or "model".
        prices: What models cost.
        since_ns: Only what began since, in nanoseconds since 1970.

    Raises:
        StoreError: The store refuses the query.
    """
    if by not in _BY:
        return {}
    name, join, began = _BY[by]
    query = _USAGES.format(name=name, source="spans", join=join, which=began_since(began, since_ns))
    found: dict[str, list[Any]] = {}
    for row in store.sql(query)[1]:
        found.setdefault(row[0] or "", []).append(row)
    return {key: _cost(rows, prices) for key, rows in found.items()}


def cost_of_run(store: AnyStore, id: str, prices: Prices, *, calls: Iterable[AgentCall] | None = None) -> Cost:
    """The cost of one run, or of some of its calls. Raises StoreError."""
    source = _OF_A_RUN.format(id=quoted(id), trace=quoted(id.partition(":")[0]))
    which = "true"
    if calls is not None:
        which = (
            f"c.trace_id || c.span_id IN ({listed(one.call.trace_id + one.call.span_id for one in calls) or 'NULL'})"
        )
    query = _USAGES.format(name="''", source=source, join="", which=which)
    return _cost(store.sql(query)[1], prices)


def _cost(rows: Iterable[tuple[Any, ...]], prices: Prices) -> Cost:
    known: list[float] = []
    stated: list[float] = []
    unpriced: dict[str, int] = {}
    for _, *fields, reported, said in rows:
        if said is not None:
            stated.append(said)
            continue
        usage = Usage(*fields)
        cost = prices.cost(usage) if reported else None
        if cost is None:
            name = (usage.policy_version or usage.model) if reported else ""
            unpriced[name] = unpriced.get(name, 0) + usage.calls
        else:
            known.append(cost)
    models = tuple(sorted(unpriced, key=lambda name: (-unpriced[name], name)))
    of_senders = sum(stated) if stated else None
    return Cost(sum([*known, *stated]) if known or stated else None, sum(unpriced.values()), models, of_senders)


def cost_words(cost: Cost, prices: Prices) -> str:
    """What a run cost, in words; "" for a run without calls."""
    parts = [] if cost.usd is None else [dollars(cost.usd)]
    if cost.usd is not None and cost.stated_usd is not None:
        whole = cost.stated_usd == cost.usd
        parts = [f"{parts[0]}, {'' if whole else f'of it {dollars(cost.stated_usd)} '}as its sender states"]
    if cost.unpriced_calls:
        named = ", ".join(name or "calls without token counts" for name in cost.unpriced_models[:3])
        noun = "call" if cost.unpriced_calls == 1 else "calls"
        parts.append(f"no price known of {cost.unpriced_calls} {noun} ({named})")
        if not prices.has_table:
            parts.append("prices come with pip install 'arttrace[judge]'")
    return "; ".join(parts)


def dollars(usd: float) -> str:
    """An amount with as many digits as it needs."""
    return f"${usd:,.2f}" if usd >= 100 else f"${usd:.4f}" if usd >= 0.01 or not usd else f"${Decimal(f'{usd:.3g}'):f}"
