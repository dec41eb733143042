"""The rows of spans for SQL, each model call once: what is no call of a trajectory is none there either, by the
rules of formats/sdks/whole_traces."""

from __future__ import annotations

from typing import Final

from arttrace.formats.sdks.whole_traces.messages_elsewhere import OF_A_CLIENT
from arttrace.formats.sdks.whole_traces.nested_calls import ANSWERS_IN_LOGS, SCOPES_OF_FILES
from arttrace.records import semconv
from arttrace.store.rows.tables import SPANS
from arttrace.store.rows.view_parts.definition import of_document
from arttrace.store.rows.view_parts.stated_cost import stated_cost

_IS_CALL = f"c.operation IN {semconv.CALL_OPERATIONS}"
_OF_A_CLIENT = f"""text, '"scope_name":"{OF_A_CLIENT}')"""
_OF_CLIENTS = f"""SELECT c.trace_id, c.span_id, true AS inside, NULL::BIGINT AS began FROM span_records c
        JOIN texts t ON t.id = c.origin AND contains(t.{_OF_A_CLIENT}
        JOIN span_records o ON o.trace_id = c.trace_id AND o.operation IN {semconv.CALL_OPERATIONS}
            AND (o.span_id = c.parent_span_id
            OR {of_document(semconv.RESPONSE_ID, of="o.")} = {of_document(semconv.RESPONSE_ID, of="c.")})
        LEFT JOIN texts u ON u.id = o.origin
        WHERE {_IS_CALL} AND starts_with(c.name, 'anthropic.')
            AND contains(u.{_OF_A_CLIENT} IS NOT TRUE"""  # noqa: S608
"""What Anthropic's client recorded of a call beside another SDK."""

_MODELS = ", ".join(of_document(name, of="c.") for name in (semconv.REQUEST_MODEL, semconv.RESPONSE_MODEL))
_PARTS = f"TRY_CAST(TRY_CAST({of_document(semconv.OUTPUT_MESSAGES, of='c.')} AS JSON)->'$[0].parts' AS JSON[])"
_SAID = r"""CASE part->>'type' WHEN 'text' THEN coalesce(part->>'content', '') WHEN 'tool_call' THEN chr(10)
            || coalesce(part->>'name', '') || ' '
            || regexp_replace(coalesce(part->>'arguments', ''), '[ \t\r\n]', '', 'g') ELSE '' END"""
_OF_FILES = " OR ".join(f"""contains(t.text, '"scope_name":"{scope}"')""" for scope in SCOPES_OF_FILES)
_ENDED_WELL = f"operation IN {semconv.CALL_OPERATIONS} AND end_ns > 0 AND error IS NULL"
CALLS_WITHIN: Final = f"""(WITH RECURSIVE around AS MATERIALIZED (
        SELECT DISTINCT a.trace_id, a.span_id
        FROM (FROM span_records WHERE {_ENDED_WELL} AND trajectory_id = trace_id) a
        SEMI JOIN span_records b ON b.trace_id = a.trace_id AND b.parent_span_id = a.span_id),
    up AS (
        SELECT trace_id, span_id AS below, parent_span_id AS above FROM span_records
        WHERE {_ENDED_WELL} AND parent_span_id IS NOT NULL AND trace_id IN (SELECT trace_id FROM around)
        UNION
        SELECT u.trace_id, u.below, s.parent_span_id FROM up u
        JOIN span_records s ON s.trace_id = u.trace_id AND s.span_id = u.above
        WHERE s.operation IS NULL AND s.parent_span_id IS NOT NULL)
    SELECT u.trace_id, u.above, u.below FROM up u JOIN around a ON a.trace_id = u.trace_id AND a.span_id = u.above)"""  # noqa: S608
"""Calls that ended well (`below`), each with the one that it was made in: no other call, tool or agent lies between."""
_RUN = "CASE WHEN p.span_id IS NULL THEN c.trajectory_id ELSE p.trajectory_id END"
_NESTED = f"""(WITH pair AS MATERIALIZED (FROM {CALLS_WITHIN}),
    call AS MATERIALIZED (
        SELECT c.trace_id, c.span_id, c.name, c.origin, c.input_tokens, c.output_tokens,
            c.input_tokens > 0 AND c.output_tokens > 0 AS counts, {stated_cost("c.")} AS cost,
            coalesce(array_to_string(list_transform({_PARTS}, lambda part: {_SAID}), ''), '') AS said,
            list_transform([{_MODELS}], lambda name: regexp_replace(name, '.*/', '', 's')) AS models,
            {of_document(semconv.RESPONSE_ID, of="c.")} AS answer, {_OF_FILES} AS of_file,
            {of_document(semconv.OUTPUT_MESSAGES, of="c.")} IS NOT NULL AS answers,
            {of_document(semconv.TRAJECTORY_ID, of="c.")} IS NOT NULL AS captured, {_RUN} AS run
        FROM span_records c SEMI JOIN (SELECT trace_id, unnest([above, below]) AS span_id FROM pair) p
            ON p.trace_id = c.trace_id AND p.span_id = c.span_id
        LEFT JOIN texts t ON t.id = c.origin
        LEFT JOIN placed_spans p ON p.trace_id = c.trace_id AND p.span_id = c.span_id
        QUALIFY 1 = row_number() OVER (PARTITION BY c.trace_id, c.span_id ORDER BY c.end_ns > 0 DESC, c.bytes DESC)),
    compared AS (
        SELECT a.trace_id, a.span_id, a.said, b.said AS told, list_has_any(a.models, b.models) AS of_one_model,
            a.counts AND b.counts AS counted,
            a.input_tokens = b.input_tokens AND a.output_tokens = b.output_tokens AS as_many,
            a.input_tokens AS outer_input, a.output_tokens AS outer_output, b.input_tokens, b.output_tokens,
            a.cost AS outer_cost, b.cost, a.origin IS DISTINCT FROM b.origin OR a.answer = b.answer
                OR (a.of_file AND (a.name <> b.name OR (a.said <> '' AND a.said = told AND counted AND as_many)))
                AS of_two,
            b.answers OR EXISTS (FROM span_records l
                WHERE l.trace_id = b.trace_id AND l.parent_span_id = b.span_id AND l.name IN {ANSWERS_IN_LOGS})
                AS answers
        FROM pair p JOIN call a ON a.trace_id = p.trace_id AND a.span_id = p.above
        JOIN call b ON b.trace_id = p.trace_id AND b.span_id = p.below
        WHERE NOT a.captured AND (NOT b.captured OR a.run = b.run))
    SELECT trace_id, span_id, true, NULL FROM compared GROUP BY trace_id, span_id
    HAVING (
        (count(*) FILTER (answers AND of_two) = 1
            AND bool_and(of_one_model
                AND (said = '' OR told = '' OR said = told) AND (counted AND NOT as_many) IS NOT TRUE
                AND ((said <> '' AND said = told) OR (counted AND as_many) IS TRUE)) FILTER (answers AND of_two))
        OR (count(*) FILTER (answers) > 1 AND bool_and(of_one_model) FILTER (answers)
            AND ((bool_and(counted IS TRUE) FILTER (answers)
                    AND any_value(outer_input) = sum(input_tokens) FILTER (answers)
                    AND any_value(outer_output) = sum(output_tokens) FILTER (answers))
                OR (bool_and((outer_cost > 0 AND cost > 0) IS TRUE) FILTER (answers)
                    AND abs(any_value(outer_cost) - sum(cost) FILTER (answers)) <= 1e-9 * any_value(outer_cost))))))"""  # noqa: S608
"""The outer one of two records of a call by different SDKs, or of several calls. Only of such pairs the documents are
read."""

_TYPE = of_document(semconv.LOGFIRE_SPAN_TYPE, of="c.")
_PLACEHOLDERS = f"""SELECT c.trace_id, c.span_id, true, NULL FROM span_records c
        SEMI JOIN span_records o ON o.trace_id = c.trace_id AND o.span_id = c.parent_span_id
        WHERE c.start_ns = c.end_ns AND c.operation IS NOT NULL AND contains(c.document, '"pending_span"')
            AND {_TYPE} = 'pending_span'"""  # noqa: S608
"""What Logfire sent of spans that had only begun, where these are there."""

_IS_LOG = f"starts_with(c.name, '{semconv.LOGFIRE_REPORT}')"
_TOOK = of_document(semconv.LOGFIRE_DURATION, operator="->", of="c.")
_READ_FROM = f"""c.start_ns - CASE WHEN json_type({_TOOK}) IN ('UBIGINT', 'BIGINT', 'HUGEINT', 'DOUBLE')
            AND TRY_CAST({_TOOK} AS DOUBLE) BETWEEN 0 AND {semconv.LOGFIRE_LONGEST}
            THEN TRY_CAST(trunc(TRY_CAST({_TOOK} AS DOUBLE) * 1e9) AS BIGINT) ELSE 0 END"""
_WAITS = " AND ".join(f"{of_document(name, of='c.')} IS NULL" for name in semconv.LOGFIRE_ANSWERED)
_ALIKE = "trace_id, parent_span_id, origin, asked, prompt, instructions"
_IN_ORDER = "ORDER BY moment, is_log, span_id"
_STREAMS = f"""(WITH event AS (
        SELECT DISTINCT ON (c.trace_id, c.span_id) c.trace_id, c.span_id, c.parent_span_id, c.origin, c.prompt,
            c.instructions, c.start_ns, {_IS_LOG} AS is_log,
            CASE WHEN {_IS_LOG} THEN {_READ_FROM} ELSE c.end_ns END AS moment,
            {of_document(semconv.REQUEST_MODEL, of="c.")} AS asked
        FROM span_records c SEMI JOIN (
            SELECT trace_id FROM span_records c WHERE c.start_ns = c.end_ns AND {_IS_LOG}) r ON r.trace_id = c.trace_id
        WHERE {_IS_CALL} AND c.end_ns > 0 AND CASE WHEN {_IS_LOG} THEN {_TYPE} = 'log'
            ELSE {_TYPE} = 'span' AND c.error IS NULL AND {_WAITS} END),
    counted AS (
        SELECT *, sum(if(is_log, -1, 1)) OVER (PARTITION BY {_ALIKE} {_IN_ORDER}) AS balance FROM event),
    leveled AS (
        SELECT *, balance - least(0, min(balance) OVER (PARTITION BY {_ALIKE} {_IN_ORDER})) + is_log::INT AS level
        FROM counted),
    followed AS (
        SELECT *, lead(CASE WHEN is_log THEN span_id END) OVER (PARTITION BY {_ALIKE}, level {_IN_ORDER}) AS log
        FROM leveled)
    SELECT trace_id, unnest([span_id, log]), unnest([true, false]), unnest([NULL, start_ns])
    FROM followed WHERE NOT is_log AND log IS NOT NULL)"""  # noqa: S608
"""The requests of Logfire's streams, and their logs with when these requests began. As brackets, a log closes the one
that was opened last: at each level a request and its log follow one another."""

_ELSEWHERE = dict.fromkeys(("model", "policy_version", "input_tokens", "output_tokens", "prompt"), "NULL")
_ELSEWHERE |= {"operation": f"'{semconv.OPERATION_INSIDE_A_CALL}'"}


def _column(name: str) -> str:
    if name == "start_ns":
        return "coalesce(began, start_ns) AS start_ns"
    return f"CASE WHEN inside THEN {_ELSEWHERE[name]} ELSE {name} END AS {name}" if name in _ELSEWHERE else name


# Each column by its name: of `* REPLACE` DuckDB keeps no order, and a view's text would be another each time.
CALLS_ONCE: Final = f"""(SELECT {", ".join(map(_column, SPANS.columns))} FROM span_records LEFT JOIN (
        SELECT trace_id AS in_trace, span_id AS in_span, bool_or(inside) AS inside, max(began) AS began
        FROM ({_OF_CLIENTS} UNION ALL {_PLACEHOLDERS} UNION ALL SELECT * FROM {_NESTED}
            UNION ALL SELECT * FROM {_STREAMS})
        GROUP BY ALL
    ) ON in_trace = trace_id AND in_span = span_id)"""  # noqa: S608
"""`span_records` in which a second record of a call is none, and a call of two spans begins with the first."""
