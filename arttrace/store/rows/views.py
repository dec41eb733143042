"""The views of the store, each column with what it means: `arttrace sql` reads them, its help and the docs list them.

Whatever a span holds, a view answers: numbers beyond a column are NULL, text that is no JSON stays text.
"""

from __future__ import annotations

import hashlib
from typing import Final

from arttrace.formats.imported_run import undated_in_sql
from arttrace.records import semconv
from arttrace.store.rows import span_membership
from arttrace.store.rows.columns import LAST_READING, REGROUPED, REWARDS_OF_RUN, STEPS
from arttrace.store.rows.left_out import IS_MARK, LEFT_OUT
from arttrace.store.rows.view_parts.calls_once import CALLS_ONCE
from arttrace.store.rows.view_parts.definition import (
    BELONGS_TO,
    Column,
    View,
    as_time,
    known_time,
    of_document,
    said_of_run,
)
from arttrace.store.rows.view_parts.scored_spans import GIVEN
from arttrace.store.rows.view_parts.tags_and_metadata import (
    COUNT,
    IN_ORDER,
    IS_CALL,
    IS_TOP_AGENT,
    METADATA,
    OWN_METADATA,
    OWN_TAGS,
    SAID_BY_SPAN,
    TAGS,
)

_SECONDS = f"CASE WHEN NOT {undated_in_sql('start_ns')} THEN (end_ns::HUGEINT - start_ns) / 1e9 END"
_SECONDS_OF_RUN = f"""CASE WHEN NOT {undated_in_sql("min(s.start_ns)")}
    THEN (max(s.end_ns)::HUGEINT - min(s.start_ns)) / 1e9 END"""
_NAME = f"nullif(trim(regexp_replace(name, '^{semconv.OPERATION_INVOKE_AGENT}', '')), '')"
_AGENT_NAME = f"coalesce({of_document(semconv.AGENT_NAME)}, {_NAME}, 'agent')"


_TOP_FIRST = f"(s.operation IS NULL, s.parent_span_id IS NOT NULL, {IN_ORDER})"
_OF_TOP = f"min_by(s.above, {_TOP_FIRST}) FILTER (s.above IS NOT NULL)"
_LONE = f"any_value('agent') FILTER (s.{IS_CALL} AND s.parent_span_id IS NULL)"
"""Of a run of calls alone, above which no agent is missing."""
_ENTRY = f"coalesce(min_by(s.entry, ({IN_ORDER})) FILTER (s.entry IS NOT NULL), {_OF_TOP}, {_LONE})"
_VERSIONS = "list_sort(list(DISTINCT s.policy_version) FILTER (s.policy_version IS NOT NULL))"
_ERRORS = "string_agg(s.error, '; ' ORDER BY s.error)"
_ERROR_OF_RUN = f"""CASE WHEN count(s.entry) > 0 THEN {_ERRORS} FILTER (s.entry IS NOT NULL)
        ELSE {_ERRORS} FILTER {IS_TOP_AGENT} END"""
_TRAJECTORY_ID = Column("trajectory_id", "the trajectory, as `arttrace ls` names it")
_WHERE_IT_STANDS = (
    _TRAJECTORY_ID,
    Column("trace_id", "the trace, 32 hex digits"),
    Column("span_id", "the span, 16 hex digits"),
    Column("parent_span_id", "the span above it in the trace"),
    Column("started", "when it began; NULL of an import without times", known_time("start_ns")),
    Column("seconds", "how long it took; NULL of an import without times", _SECONDS),
)
_ERROR = Column("error", "what went wrong; NULL when nothing did")

_SPANS = View(
    "spans",
    "one per captured span, the fullest version of it",
    (
        Column("trajectory_id", _TRAJECTORY_ID.meaning + "; NULL for a span of no run", BELONGS_TO),
        Column("trace_id", "the trace, 32 hex digits", "s.trace_id"),
        Column("span_id", "the span, 16 hex digits", "s.span_id"),
        Column("parent_span_id", "the span above it in the trace"),
        Column("operation", "chat, text_completion, invoke_agent, execute_tool, ...; NULL for a span of other code"),
        Column("name", "the name its SDK gave it"),
        Column("started", "when it began; NULL of an import without times", known_time("start_ns")),
        Column("seconds", "how long it took; NULL of an import without times", _SECONDS),
        Column("arrived", "when it came into the store", as_time("arrived_ns")),
        Column("start_ns", "when it began, in nanoseconds since 1970"),
        Column("end_ns", "when it ended; 0 while it has not"),
        _ERROR,
        Column("entry", "of the span of a run's entry: the entry, module:function or a name"),
        Column("scenario", "of the same: the task that was attempted"),
        Column("group_key", "of the same: the group it is compared in"),
        Column("project", "of the same: the project"),
        Column("model", "of a call: the model that answered, or the one that was asked for"),
        Column("policy_version", "of a call: the version of the policy that answered, name@step"),
        Column("input_tokens", "of a call: tokens of its prompt, as the model counted"),
        Column("output_tokens", "of a call: tokens of its answers"),
        Column("prompt", "of a call: its input; equal numbers are equal inputs"),
        Column("bytes", "the size of the whole span as JSON"),
        Column(
            "document",
            "the rest of the span as JSON: attributes, events, links, status; under `conventions` what its SDK says by"
            " names of its own",
            "s.document::JSON",
        ),
    ),
    f"""FROM (SELECT * FROM {CALLS_ONCE} s WHERE NOT (s.{IS_MARK}) QUALIFY row_number() OVER (
        PARTITION BY trace_id, span_id ORDER BY {LAST_READING}) = 1) s
    LEFT JOIN placed_spans p ON p.trace_id = s.trace_id AND p.span_id = s.span_id
    WHERE ({BELONGS_TO} IN ({LEFT_OUT})) IS NOT TRUE""",  # noqa: S608
)

READ_MESSAGES: Final = "read messages"
"""The version under which `summaries` keeps messages that stand beside their calls: in log records, events, or in the
attributes of another convention."""

_READ_MESSAGES = f"""(SELECT TRY(from_json(document,
            '{{"texts":["VARCHAR"],"calls":[{{"trajectory_id":"VARCHAR","trace_id":"VARCHAR","span_id":"VARCHAR",'
            '"messages":["BIGINT"],"output":"VARCHAR"}}]}}')) AS read
        FROM summaries WHERE version = '{READ_MESSAGES}')"""  # noqa: S608
_READ_CALLS = f"(SELECT read.texts AS texts, unnest(read.calls) AS call FROM {_READ_MESSAGES})"  # noqa: S608

_STATED_REASONS = "gen_ai.response.finish_reasons"
_REASONS_OF_ANSWERS = f"""to_json(nullif(list_filter(
        json_extract_string(TRY_CAST({of_document("gen_ai.output.messages")} AS JSON), '$[*].finish_reason'),
        lambda reason: reason IS NOT NULL), []))"""
_REASONS = f"""coalesce(TRY_CAST({of_document(_STATED_REASONS)} AS JSON),
        {of_document(_STATED_REASONS, operator="->")}, {_REASONS_OF_ANSWERS})"""
"""Those that a call states, which some senders write as text that holds the list; else those of its answers."""

_CALLS = View(
    "calls",
    "one per model call",
    (
        *_WHERE_IT_STANDS,
        Column("model", "the model that answered, or the one that was asked for"),
        Column("policy_version", "the version of the policy that answered, name@step"),
        Column("input_tokens", "tokens of the prompt, as the model counted"),
        Column("output_tokens", "tokens of the answers"),
        _ERROR,
        Column("finish_reasons", "why each answer ended, as JSON: stop, length, tool_calls, ...", _REASONS),
        Column("prompt", "the input; equal numbers are equal inputs (its messages are in the view messages)"),
        Column(
            "output_messages", "the answers as JSON text", f"coalesce({of_document('gen_ai.output.messages')}, read)"
        ),
    ),
    f"""FROM (
        SELECT s.*, r.call.output AS read FROM spans s LEFT JOIN {_READ_CALLS} r
            ON r.call.trace_id = s.trace_id AND r.call.span_id = s.span_id
        WHERE {IS_CALL}
    )""",  # noqa: S608
)

_MESSAGES = View(
    "messages",
    "one per message of a call's input",
    (
        _TRAJECTORY_ID,
        Column("span_id", "the call"),
        Column("position", "its place in the input, from 1"),
        Column("role", "system, user, assistant or tool", "TRY_CAST(text AS JSON)->>'role'"),
        Column("message", "the message as JSON", "coalesce(TRY_CAST(text AS JSON), to_json(text))"),
        Column("id", "equal numbers are equal messages; below 0 where they stand beside the span of their call"),
    ),
    f"""FROM (
        SELECT s.trajectory_id, s.span_id, m.position, t.text, m.id
        FROM spans s JOIN chain c ON c.prompt = s.prompt AND c.above IS NULL,
            (SELECT unnest(c.messages) AS id, generate_subscripts(c.messages, 1) AS position) m
            JOIN texts t ON t.id = m.id
        WHERE s.{IS_CALL}
        UNION ALL
        SELECT call.trajectory_id, call.span_id, position, text, -1 - (hash(text) >> 2)::BIGINT
        FROM (SELECT call, generate_subscripts(call.messages, 1) AS position,
                unnest(list_transform(call.messages, lambda place: texts[place + 1])) AS text
            FROM {_READ_CALLS})
    )""",  # noqa: S608
    before="""
    WITH RECURSIVE chain(prompt, above, messages) AS (
        SELECT id, parent, messages FROM prompts
        UNION ALL
        SELECT c.prompt, p.parent, list_concat(p.messages, c.messages) FROM chain c JOIN prompts p ON p.id = c.above
    )""",
)

INFERRED_TOOLS: Final = "inferred tools"
"""The version under which `summaries` keeps the tool calls of a trajectory that no span recorded."""

_INFERRED_TOOL = (
    '[{"trajectory_id":"VARCHAR","name":"VARCHAR","id":"VARCHAR","arguments":"VARCHAR","result":"VARCHAR",'
    '"start_ns":"BIGINT","end_ns":"BIGINT"}]'
)

_TOOL_CALLS = View(
    "tool_calls",
    "one per tool call",
    (
        *_WHERE_IT_STANDS,
        Column("name", "the tool", "tool"),
        Column("id", "the id the model gave the call", "call_id"),
        Column("arguments", "what the tool was called with, as JSON text"),
        Column("result", "what it returned"),
        _ERROR,
        Column(
            "inferred",
            "whether no span recorded it, and it was read from the messages: it has no span then, and began and ended "
            "within the times given",
        ),
    ),
    f"""FROM (
        SELECT trajectory_id, trace_id, span_id, parent_span_id, start_ns, end_ns,
            {of_document("gen_ai.tool.name")} AS tool, {of_document("gen_ai.tool.call.id")} AS call_id,
            {of_document("gen_ai.tool.call.arguments")} AS arguments,
            {of_document("gen_ai.tool.call.result")} AS result, error, false AS inferred
        FROM spans WHERE operation = 'execute_tool'
        UNION ALL
        SELECT t.trajectory_id, NULL, NULL, NULL, t.start_ns, t.end_ns, t.name, t.id, t.arguments, t.result, NULL, true
        FROM (SELECT unnest(TRY(from_json(document, '{_INFERRED_TOOL}'))) AS t
            FROM summaries WHERE version = '{INFERRED_TOOLS}')
    )""",  # noqa: S608
)

_HTTP_REQUESTS = View(
    "http_requests",
    "one per HTTP request that a tool made",
    (
        *_WHERE_IT_STANDS,
        Column("tool", "the tool; NULL where none made it", "tool"),
        Column("method", "GET, POST, ...", of_document(semconv.HTTP_METHOD)),
        Column("host", "the server", of_document(semconv.SERVER_ADDRESS)),
        Column(
            "url",
            "the address, without values in its query; NULL where content is not kept",
            of_document(semconv.URL_FULL),
        ),
        Column("status", "the answer's status", f"TRY_CAST({of_document(semconv.HTTP_STATUS_CODE)} AS INTEGER)"),
        Column(
            "request_bytes",
            "the size of what was sent",
            f"TRY_CAST({of_document(semconv.HTTP_REQUEST_SIZE)} AS BIGINT)",
        ),
        Column(
            "response_bytes",
            "the size of what came back",
            f"TRY_CAST({of_document(semconv.HTTP_RESPONSE_SIZE)} AS BIGINT)",
        ),
        Column("error", "the type of an exception, or a status of 400 and above; NULL when nothing went wrong"),
    ),
    f"""FROM (
        SELECT s.*, t.tool FROM spans s LEFT JOIN (
            SELECT trace_id, span_id, {of_document(semconv.TOOL_NAME)} AS tool FROM spans
            WHERE operation = 'execute_tool') t ON t.trace_id = s.trace_id AND t.span_id = s.parent_span_id
        WHERE s.operation IS NULL AND contains(s.document::VARCHAR, '"{semconv.HTTP_METHOD}"')
            AND s.document->>'kind' = '3'
    )""",  # noqa: S608
)

_AGENTS = View(
    "agents",
    "one per recorded agent",
    (
        *_WHERE_IT_STANDS,
        Column("name", "the agent", _AGENT_NAME),
        Column("entry", "of a run's entry: module:function, or the name it was given"),
        Column("tags", "its tags, a list", OWN_TAGS),
        Column("metadata", "its metadata as JSON: metadata->>'user'", OWN_METADATA),
        _ERROR,
    ),
    "FROM spans WHERE operation = 'invoke_agent'",
)

_REWARDS = View(
    "rewards",
    "one per reward that counts; of those with one id, and of judges' of one name, the last",
    (
        Column("trajectory_id", "the trajectory that it was given to"),
        Column("agent_id", "the agent or, outside any, the span it was given to; NULL where it is the trajectory's"),
        Column("name", "what it measures"),
        Column("source", "code, judge, or who else gave it"),
        Column("value", "the number"),
        Column("explanation", "why"),
        Column("judgement_id", "the judge's call that it comes from"),
        Column("id", "a reward given again under the same id replaces the earlier one"),
        Column("given", "when; NULL of an import without times", known_time("r.time_ns")),
    ),
    f"""FROM {GIVEN} r
    WHERE NOT contains(r.document, '"counts":false')
    QUALIFY r.source <> 'judge' OR r.agent_id IS NOT NULL OR 1 = row_number() OVER (
        PARTITION BY r.trajectory_id, r.source, r.agent_id, r.name ORDER BY r.time_ns DESC, r.id DESC)""",
)

_GROUP = f"coalesce(any_value(g.key), {said_of_run('group_key', IN_ORDER)})"
_TRAJECTORIES = View(
    "trajectories",
    "one per run",
    (
        Column("id", "the trajectory, as `arttrace ls` names it", "s.trajectory_id"),
        Column("project", "the project of its entry", said_of_run("project", IN_ORDER)),
        Column("entry", "module:function or a name; of another SDK's run the agent or span at its top", _ENTRY),
        Column("scenario", "the task that was attempted", said_of_run("scenario", IN_ORDER)),
        Column("group", "the group it is compared in; NULL where nothing says one", _GROUP),
        Column("started", "when its first span began; NULL of an import without times", known_time("min(s.start_ns)")),
        Column("seconds", "from then to the end of its last span; NULL of an import without times", _SECONDS_OF_RUN),
        Column("arrived", "when its last span came into the store", "max(s.arrived)"),
        Column("recorded_agents", "agents with a span of their own", COUNT.format("invoke_agent")),
        Column("calls", "model calls", f"count(*) FILTER (s.{IS_CALL})"),
        Column("recorded_tool_calls", "tools called, with a span of their own", COUNT.format("execute_tool")),
        Column("input_tokens", "tokens of all prompts", "TRY_CAST(sum(s.input_tokens) AS BIGINT)"),
        Column("output_tokens", "tokens of all answers", "TRY_CAST(sum(s.output_tokens) AS BIGINT)"),
        Column("policy_versions", "the policy versions that answered, a list", _VERSIONS),
        Column("error", "what ended the run; NULL when nothing did", _ERROR_OF_RUN),
        Column("reward", "what it is worth, as `arttrace ls` shows and training takes it", "any_value(r.reward)"),
        Column("rewards", "the sum by name, a map: rewards['correct']", "any_value(r.rewards)"),
        Column("tags", "its tags, a list: list_contains(tags, 'beta')", TAGS),
        Column("metadata", "its metadata as JSON: metadata->>'user'", METADATA),
    ),
    f"""FROM (SELECT *,
            {SAID_BY_SPAN},
            CASE WHEN operation = 'invoke_agent' THEN {_AGENT_NAME}
                WHEN operation IS NULL AND parent_span_id IS NULL THEN name END AS above
        FROM spans WHERE trajectory_id IS NOT NULL AND operation IS DISTINCT FROM 'evaluate') s
    LEFT JOIN ({REWARDS_OF_RUN}) r USING (trajectory_id)
    LEFT JOIN ({REGROUPED}) g USING (trajectory_id)
    GROUP BY s.trajectory_id""",  # noqa: S608
)

_GROUPS = View(
    "groups",
    "one per group of trajectories that are compared",
    (
        Column("key", "the group; of a run that is alone in its own, its id", 'coalesce("group", id)'),
        Column("trajectories", "how many there are", "count(*)"),
        Column("calls", "their model calls", "sum(calls)::BIGINT"),
        Column("started", "when the first began; NULL of imports without times", "min(started)"),
        Column("mean_reward", "the mean of what they are worth", "avg(reward)"),
        Column("spread", "the standard deviation of these", "stddev_pop(reward)"),
    ),
    "FROM trajectories GROUP BY 1",
)

_POLICY_STEPS = View(
    "policy_steps",
    "one per optimisation step",
    (
        Column("policy", "the policy"),
        Column("step", "its number"),
        Column("version", "what came out, name@step", "policy || '@' || step"),
        Column("finished", "when", as_time("time_ns")),
        Column("adapter", "the directory of the adapter"),
        Column("base_model", "what it adapts"),
        Column("trajectories", "how many it was trained on; none where it was forked", "own_runs"),
        Column("metrics", "loss and others as JSON", "document::JSON->'metrics'"),
    ),
    f"FROM {STEPS}",
)

_OF_STEP = (Column("policy", "the policy"), Column("step", "the step"), Column("trajectory_id", "the trajectory"))
_TRAINED_ON = View(
    "trained_on",
    "one per trajectory that a step was trained on",
    (*_OF_STEP, Column("revision", "the revision at which it was trained on")),
    f"FROM (SELECT policy, step, unnest(trained, recursive := true) FROM {STEPS})",  # noqa: S608
)

_CONSUMPTION = View(
    "consumption",
    "one per trajectory that a step took: trained on, or set aside as it taught nothing",
    (*_OF_STEP, Column("revision", "the revision at which it was taken")),
    "",
)
"""A table, which is read as it is."""

_MADE: Final = (
    *(_SPANS, _CALLS, _MESSAGES, _TOOL_CALLS, _HTTP_REQUESTS, _AGENTS, _REWARDS),
    *(_TRAJECTORIES, _GROUPS, _POLICY_STEPS, _TRAINED_ON),
)
"""In the order in which they can be made."""

DESCRIBED: Final = (
    *(_TRAJECTORIES, _GROUPS, _AGENTS, _CALLS, _MESSAGES, _TOOL_CALLS, _HTTP_REQUESTS, _REWARDS),
    *(_POLICY_STEPS, _TRAINED_ON, _CONSUMPTION, _SPANS),
)
"""In the order in which they are shown."""

_STATEMENTS: Final = "\n".join(view.sql() for view in _MADE)
_DIGEST = hashlib.blake2b(f"{_STATEMENTS}{span_membership.READING}".encode(), digest_size=8).digest()
VIEWS_HASH: Final = int.from_bytes(_DIGEST)
"""What `arttrace_schema` says in a store whose views are these and whose spans were placed by these rules; others are
replaced at open, and placed again."""
VIEWS: Final = f"{_STATEMENTS}UPDATE arttrace_schema SET views = {VIEWS_HASH};"  # noqa: S608
