"""Whose a reward is, for SQL. What was said of one span is of the run of that span, and in it of the agent at or above
the span, or of the whole run where it is the uppermost: the rules of trajectories/agents/scored_spans.py."""

from __future__ import annotations

from typing import Final

from arttrace.records import semconv
from arttrace.store.rows.columns import LAST_GIVEN
from arttrace.store.rows.left_out import IS_MARK
from arttrace.store.rows.view_parts.definition import BELONGS_TO

_SAYS_SO: Final = """contains({0}document, '"of_span":true')"""

_SCORED_SPANS: Final = f"""(WITH RECURSIVE scored AS MATERIALIZED (
        SELECT DISTINCT trajectory_id AS given_to, agent_id AS span_id FROM reward_records
        WHERE agent_id IS NOT NULL AND {_SAYS_SO.format("")}
    ), near AS MATERIALIZED (
        SELECT DISTINCT s.trace_id, s.span_id, s.parent_span_id, s.entry IS NOT NULL AS is_entry,
            CASE WHEN s.operation = '{semconv.OPERATION_INVOKE_AGENT}' THEN s.span_id END AS agent,
            s.trajectory_id IS NOT NULL AS of_a_run, {BELONGS_TO} AS run
        FROM span_records s LEFT JOIN placed_spans p ON p.trace_id = s.trace_id AND p.span_id = s.span_id
        WHERE NOT (s.{IS_MARK})
            AND s.trace_id IN (SELECT trace_id FROM span_records WHERE span_id IN (SELECT span_id FROM scored))
    ), walk AS (
        SELECT c.given_to, c.span_id, n.run, n.trace_id, n.span_id AS here, n.parent_span_id AS above, n.agent,
            n.is_entry, n.agent IS NOT NULL AS is_agent, false AS is_inner
        FROM scored c JOIN near n ON n.span_id = c.span_id AND (n.trace_id = c.given_to OR n.run = c.given_to)
        UNION
        SELECT w.given_to, w.span_id, coalesce(w.run, n.run), w.trace_id, n.span_id,
            CASE WHEN n.run = w.run OR n.run IS NULL OR w.run IS NULL THEN n.parent_span_id END,
            coalesce(w.agent, CASE WHEN n.run = coalesce(w.run, n.run) THEN n.agent END),
            w.is_entry, w.is_agent, w.is_inner OR (n.of_a_run AND n.run = w.run) IS TRUE
        FROM walk w JOIN near n ON n.trace_id = w.trace_id AND n.span_id = w.above
    ) SELECT given_to, span_id, min(run) AS run, max(agent) AS agent, bool_or(here = span_id AND above IS NULL)
        OR bool_and(is_agent AND NOT is_inner) AND bool_or(above IS NULL OR is_entry) AS is_uppermost
    FROM walk GROUP BY given_to, span_id)"""  # noqa: S608
"""One row for each span of which something is said: what it was given to, its run, the recorded agent that it is or is
of (NULL where none is), and whether what is said of it is said of the run."""

_IS_OF: Final = f"""{_SAYS_SO.format("r.")} AND o.given_to = r.trajectory_id AND o.span_id = r.agent_id"""

GIVEN: Final = f"""(
        SELECT r.* REPLACE (coalesce(p.trajectory_id, r.run, t.trajectory_id, r.trajectory_id) AS trajectory_id)
        FROM (SELECT r.* REPLACE (
                CASE WHEN o.is_uppermost IS NOT TRUE THEN coalesce(o.agent, r.agent_id) END AS agent_id), o.run,
            CASE WHEN r.trajectory_id NOT IN (SELECT trajectory_id FROM placed_spans WHERE trajectory_id IS NOT NULL)
            THEN regexp_replace(r.trajectory_id, ':.*', ':', 's') END AS trace
            FROM (FROM reward_records QUALIFY {LAST_GIVEN}) r LEFT JOIN {_SCORED_SPANS} o ON {_IS_OF}) r
        LEFT JOIN (SELECT DISTINCT ON (id) id, trajectory_id FROM placed_rewards ORDER BY id, trace_id) p ON p.id = r.id
        LEFT JOIN trace_roots t ON t.trace_id = r.trace)"""  # noqa: S608
"""The last of the rewards with each id, with the trajectory and the agent that they are of by now."""
