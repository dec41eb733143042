"""The tables of the store, and its version.

Tables are append-only and hold every record losslessly. What many spans repeat is stored once: the texts of input
messages, tool definitions, system instructions and origins lie in `texts`; the input of a call is a row of `prompts`
that names the prompt it extends and the messages added, and its prompt token ids a row of `token_prompts` likewise,
so that a turn costs what is new in it. `document` is the rest of a span as JSON. There are no keys and no indexes:
they cost DuckDB most of its ingest rate. Views (views.py) are what people and programs read with SQL.
"""

from __future__ import annotations

from typing import Final

from arttrace.store.rows import span_membership, trace_links

VERSION: Final = 4

REGROUPED: Final = """
CREATE TABLE grouping_records (
    id VARCHAR NOT NULL, criterion VARCHAR NOT NULL, time_ns BIGINT NOT NULL, content_hash VARCHAR NOT NULL,
    document VARCHAR NOT NULL
);
CREATE TABLE regrouped (            -- the keys of grouping_records, NULL for a run's own; of several the last counts
    trajectory_id VARCHAR NOT NULL, key VARCHAR, time_ns BIGINT NOT NULL, grouping_id VARCHAR NOT NULL
);
"""

TABLES: Final = f"""
{trace_links.TABLE};
{span_membership.TABLES}CREATE TABLE arttrace_schema (version INTEGER NOT NULL);
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
    content_hash BIGINT NOT NULL, document VARCHAR NOT NULL,
    arrived_ns BIGINT                       -- when it came into the store
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
{REGROUPED}
CREATE TABLE ingested_segments (    -- how far each journal segment was taken in, written with its records
    name VARCHAR NOT NULL, "offset" BIGINT NOT NULL
);
CREATE TABLE summaries (            -- of what spans with this trajectory_id are part of: none ("null"), one or several
    trajectory_id VARCHAR NOT NULL, version VARCHAR NOT NULL, document VARCHAR NOT NULL
);
"""
