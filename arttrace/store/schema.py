"""The tables and views of the store, and its version.

Tables are append-only and hold every record losslessly. What many spans repeat is stored once: the texts of input
messages, tool definitions, system instructions and origins lie in `texts`; the input of a call is a row of `prompts`
that names the prompt it extends and the messages added, and its prompt token ids a row of `token_prompts` likewise,
so that a turn costs what is new in it. `document` is the rest of a span as JSON. There are no keys and no indexes:
they cost DuckDB most of its ingest rate. Views are what people and programs read with SQL.
"""

from __future__ import annotations

import hashlib
from typing import Final

from arttrace.store import links, placing

VERSION: Final = 3

TABLES: Final = f"""
{links.TABLE};
{placing.TABLES}CREATE TABLE arttrace_schema (version INTEGER NOT NULL);
CREATE TABLE span_records (
    trace_id VARCHAR NOT NULL, span_id VARCHAR NOT NULL, parent_span_id VARCHAR,
    trajectory_id VARCHAR,          -- as the span says; its trace where it says nothing but is a GenAI span; where
                                    -- it is part of another one all the same, placed_spans says so
    operation VARCHAR, name VARCHAR NOT NULL, start_ns BIGINT NOT NULL, end_ns BIGINT NOT NULL, error VARCHAR,
    entry VARCHAR, scenario VARCHAR, group_key VARCHAR, project VARCHAR,   -- of an entry's span only
    model VARCHAR, policy_version VARCHAR, input_tokens BIGINT, output_tokens BIGINT,   -- of a call only
    prompt BIGINT, prompt_form TINYINT,     -- prompts.id, and how its messages stood on the span
    prompt_tokens BIGINT,                   -- token_prompts.id
    tools BIGINT, instructions BIGINT, origin BIGINT,   -- texts.id; origin: resource and instrumentation scope
    bytes BIGINT NOT NULL,                  -- of the whole span as JSON
    content_hash BIGINT NOT NULL, document VARCHAR NOT NULL
);
CREATE TABLE texts (id BIGINT NOT NULL, hash BLOB NOT NULL, text VARCHAR NOT NULL);
CREATE TABLE prompts (              -- the messages of `parent`, then `messages` (texts.id)
    id BIGINT NOT NULL, trace_id VARCHAR NOT NULL, parent BIGINT, messages BIGINT[] NOT NULL
);
CREATE TABLE token_prompts (        -- the first `keep` characters of `parent`, then `tail`
    id BIGINT NOT NULL, trace_id VARCHAR NOT NULL, parent BIGINT, keep BIGINT NOT NULL, tail VARCHAR NOT NULL
);
CREATE TABLE reward_records (
    id VARCHAR NOT NULL, trajectory_id VARCHAR NOT NULL, agent_id VARCHAR, name VARCHAR NOT NULL,
    source VARCHAR NOT NULL, value DOUBLE NOT NULL, explanation VARCHAR NOT NULL, judgement_id VARCHAR,
    time_ns BIGINT NOT NULL, content_hash VARCHAR NOT NULL, document VARCHAR NOT NULL
);
CREATE TABLE judgement_records (
    id VARCHAR NOT NULL, key VARCHAR NOT NULL, "group" VARCHAR NOT NULL, judge VARCHAR NOT NULL,
    input_tokens BIGINT NOT NULL, output_tokens BIGINT NOT NULL, cost DOUBLE,
    time_ns BIGINT NOT NULL, content_hash VARCHAR NOT NULL, document VARCHAR NOT NULL
);
CREATE TABLE policy_step_records (
    policy VARCHAR NOT NULL, step BIGINT NOT NULL, adapter VARCHAR NOT NULL, base_model VARCHAR NOT NULL,
    time_ns BIGINT NOT NULL, content_hash VARCHAR NOT NULL, document VARCHAR NOT NULL
);
CREATE TABLE consumption (          -- what policy steps were trained on; can be rebuilt from policy_step_records
    policy VARCHAR NOT NULL, step BIGINT NOT NULL, trajectory_id VARCHAR NOT NULL, revision VARCHAR NOT NULL
);
CREATE TABLE ingested_segments (    -- how far each journal segment was taken in, written with its records
    name VARCHAR NOT NULL, "offset" BIGINT NOT NULL
);
CREATE TABLE summaries (            -- of what spans with this trajectory_id are part of: none ("null"), one or several
    trajectory_id VARCHAR NOT NULL, version VARCHAR NOT NULL, document VARCHAR NOT NULL
);
"""

_VIEWS: Final = """
CREATE VIEW spans AS
    SELECT s.* EXCLUDE (document) REPLACE (
            CASE WHEN p.span_id IS NULL THEN s.trajectory_id ELSE p.trajectory_id END AS trajectory_id),
        s.document::JSON AS document
    FROM (SELECT * FROM span_records QUALIFY row_number() OVER (
        PARTITION BY trace_id, span_id ORDER BY end_ns > 0 DESC, bytes DESC, content_hash DESC) = 1) s
    LEFT JOIN placed_spans p ON p.trace_id = s.trace_id AND p.span_id = s.span_id;

CREATE VIEW calls AS
    SELECT trajectory_id, trace_id, span_id, parent_span_id, make_timestamp_ns(start_ns) AS started,
        (end_ns - start_ns) / 1e9 AS seconds, model, policy_version, input_tokens, output_tokens, error,
        document->'attributes'->'gen_ai.response.finish_reasons' AS finish_reasons, prompt,
        document->'attributes'->>'gen_ai.output.messages' AS output_messages
    FROM spans WHERE operation IN ('chat', 'text_completion');

CREATE VIEW messages AS
    WITH RECURSIVE chain(prompt, above, messages) AS (
        SELECT id, parent, messages FROM prompts
        UNION ALL
        SELECT c.prompt, p.parent, list_concat(p.messages, c.messages) FROM chain c JOIN prompts p ON p.id = c.above
    )
    SELECT s.trajectory_id, s.span_id, m.position, t.text::JSON->>'role' AS role, t.text::JSON AS message, m.id
    FROM spans s JOIN chain c ON c.prompt = s.prompt AND c.above IS NULL,
        (SELECT unnest(c.messages) AS id, generate_subscripts(c.messages, 1) AS position) m
        JOIN texts t ON t.id = m.id
    WHERE s.operation IN ('chat', 'text_completion');

CREATE VIEW tool_calls AS
    SELECT trajectory_id, trace_id, span_id, parent_span_id, make_timestamp_ns(start_ns) AS started,
        (end_ns - start_ns) / 1e9 AS seconds, document->'attributes'->>'gen_ai.tool.name' AS name,
        document->'attributes'->>'gen_ai.tool.call.id' AS id,
        document->'attributes'->>'gen_ai.tool.call.arguments' AS arguments,
        document->'attributes'->>'gen_ai.tool.call.result' AS result, error
    FROM spans WHERE operation = 'execute_tool';

CREATE VIEW agents AS
    SELECT trajectory_id, trace_id, span_id, parent_span_id, make_timestamp_ns(start_ns) AS started,
        (end_ns - start_ns) / 1e9 AS seconds,
        coalesce(document->'attributes'->>'gen_ai.agent.name', name) AS name, entry, error
    FROM spans WHERE operation = 'invoke_agent';

CREATE VIEW rewards AS
    SELECT coalesce(p.trajectory_id, t.trajectory_id, r.trajectory_id) AS trajectory_id, r.agent_id, r.name, r.source,
        r.value, r.explanation, r.judgement_id, r.id, make_timestamp_ns(r.time_ns) AS given
    FROM (SELECT *,
            CASE WHEN trajectory_id IN (SELECT trajectory_id FROM placed_spans WHERE trajectory_id IS NOT NULL)
            THEN NULL ELSE split_part(trajectory_id, ':', 1) END AS trace
        FROM reward_records QUALIFY row_number() OVER (
            PARTITION BY id ORDER BY time_ns DESC, value DESC, name DESC, explanation DESC) = 1) r
    LEFT JOIN (SELECT DISTINCT ON (id) id, trajectory_id FROM placed_rewards ORDER BY id, trace_id) p ON p.id = r.id
    LEFT JOIN trace_roots t ON t.trace_id = r.trace;

CREATE VIEW trajectories AS
    SELECT s.trajectory_id AS id, any_value(s.project) AS project, any_value(s.entry) AS entry,
        any_value(s.scenario) AS scenario, any_value(s.group_key) AS "group",
        make_timestamp_ns(min(s.start_ns)) AS started, (max(s.end_ns) - min(s.start_ns)) / 1e9 AS seconds,
        count(*) FILTER (s.operation = 'invoke_agent') AS recorded_agents,
        count(*) FILTER (s.operation IN ('chat', 'text_completion')) AS calls,
        count(*) FILTER (s.operation = 'execute_tool') AS recorded_tool_calls,
        sum(s.input_tokens)::BIGINT AS input_tokens, sum(s.output_tokens)::BIGINT AS output_tokens,
        list_sort(list(DISTINCT s.policy_version) FILTER (s.policy_version IS NOT NULL)) AS policy_versions,
        any_value(s.error) FILTER (s.entry IS NOT NULL) AS error,
        any_value(r.rewards) AS rewards
    FROM spans s LEFT JOIN (
        SELECT trajectory_id, map(list(name ORDER BY name), list(value ORDER BY name)) AS rewards
        FROM (SELECT trajectory_id, name, sum(value) AS value FROM rewards WHERE agent_id IS NULL GROUP BY ALL)
        GROUP BY trajectory_id
    ) r USING (trajectory_id)
    WHERE s.trajectory_id IS NOT NULL AND s.operation IS DISTINCT FROM 'evaluate' GROUP BY s.trajectory_id;

CREATE VIEW groups AS
    SELECT coalesce("group", id) AS key, count(*) AS trajectories, sum(calls)::BIGINT AS calls,
        min(started) AS started, avg(reward) AS mean_reward, stddev_pop(reward) AS spread
    FROM (SELECT *, list_sum(map_values(rewards)) AS reward FROM trajectories) GROUP BY 1;

CREATE VIEW policy_steps AS
    SELECT policy, step, policy || '@' || step AS version, make_timestamp_ns(time_ns) AS finished, adapter, base_model,
        json_array_length(document::JSON->'consumed') AS trajectories, document::JSON->'metrics' AS metrics
    FROM policy_step_records
    QUALIFY row_number() OVER (PARTITION BY policy, step ORDER BY time_ns DESC, content_hash DESC) = 1;
"""

VIEWS_HASH: Final = hashlib.blake2b(_VIEWS.encode(), digest_size=8).hexdigest()
"""What stands on the table `arttrace_schema` of a store whose views are these; others are replaced at open."""
VIEWS: Final = f"{_VIEWS}COMMENT ON TABLE arttrace_schema IS '{VIEWS_HASH}';"
