"""A record becomes a row of its table: the hot attributes as columns, the whole record as its JSON document."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any, Final

from arttrace.formats.evaluations import is_reward_span
from arttrace.records import semconv
from arttrace.records.group import Grouping
from arttrace.records.message import canonical_json
from arttrace.records.policy import PolicyStep
from arttrace.records.record import PlainRecord, encode_record
from arttrace.records.reward import Judgement, Reward
from arttrace.records.span import Attributes, SpanRow
from arttrace.store.rows.tables import GROUPINGS, JUDGEMENTS, POLICY_STEPS, REWARDS, Row, Table
from arttrace.trajectories import groups
from arttrace.trajectories.decoding.attribute_values import from_json, text, whole_number
from arttrace.trajectories.decoding.operation import span_error
from arttrace.trajectories.identity.membership import stored_id
from arttrace.trajectories.identity.session_readings import SOURCES

_FIELDS = {"criterion": "by"}  # columns that are named otherwise than the field of the record


EVALUATE = "evaluate"
"""The operation under which a span stands that only carries a reward: no part of the trajectory."""


def rows_by_table(records: Iterable[PlainRecord]) -> dict[str, tuple[Table, dict[str, tuple[Row, PlainRecord]]]]:
    """Rows by table name and content hash, so that a record twice in a batch is one row."""
    found: dict[str, tuple[Table, dict[str, tuple[Row, PlainRecord]]]] = {}
    for record in records:
        digest = hashlib.blake2b(canonical_json(record), digest_size=16).hexdigest()
        table = _table_of(record)
        values = [getattr(record, _FIELDS.get(name, name)) for name in [*table.columns][:-2]]
        _, rows = found.setdefault(table.name, (table, {}))
        rows[digest] = ((*values, digest, encode_record(record).decode()), record)
    return found


def _table_of(record: PlainRecord) -> Table:
    match record:
        case Reward():
            return REWARDS
        case Judgement():
            return JUDGEMENTS
        case PolicyStep():
            return POLICY_STEPS
        case Grouping():
            return GROUPINGS


def span_columns(span: SpanRow, named: Attributes) -> Row:
    """What queries need of a span, in the order of SPANS. `named`: its attributes under the names of the conventions,
    whatever SDK it comes from."""
    get = named.get
    kind = EVALUATE if is_reward_span(span) else text(get(semconv.OPERATION_NAME))
    entry = scenario = key = project = None
    if kind == semconv.OPERATION_INVOKE_AGENT:
        name = text(get(semconv.ENTRY_NAME)) or ""
        entry = name or text(get(semconv.ENTRY))
        scenario, project = text(get(semconv.SCENARIO)), text(get(semconv.PROJECT))
        group = text(get(semconv.GROUP))
        if entry or scenario or group:
            arguments = from_json(get(semconv.ENTRY_ARGUMENTS))
            key = groups.key_of(group=group, scenario=scenario, entry=entry or "", entry_name=name, arguments=arguments)
    elif kind in _CALLS and (semconv.SCENARIO in named or semconv.GROUP in named):  # of a run without a root
        scenario = text(get(semconv.SCENARIO))
        key = text(get(semconv.GROUP)) or scenario
    return (
        span.trace_id,
        span.span_id,
        span.parent_span_id,
        stored_id(span.trace_id, text(get(semconv.TRAJECTORY_ID)), kind),
        kind,
        span.name,
        span.start_ns,
        span.end_ns,
        span_error(span) if span.status_code else None,
        entry,
        scenario,
        key,
        project,
        *(_of_call(get) if kind in _CALLS else _NO_CALL),
    )


def _of_call(get: Callable[[str], Any]) -> Row:
    return (
        text(get(semconv.RESPONSE_MODEL)) or text(get(semconv.REQUEST_MODEL)),
        text(get(semconv.POLICY_VERSION)),
        _count(get(semconv.USAGE_INPUT_TOKENS)),
        _count(get(semconv.USAGE_OUTPUT_TOKENS)),
    )


_CALLS = semconv.CALL_OPERATIONS
_NO_CALL: Row = (None,) * 4


def _count(value: Any) -> int | None:
    number = whole_number(value)
    return number if number is not None and 0 <= number < 1 << 62 else None


LAST_READING: Final = f"""end_ns > 0 DESC, CASE WHEN operation = '{semconv.OPERATION_INVOKE_AGENT}'
            AND (project IN {SOURCES} AND coalesce(entry, '') = '' AND parent_span_id IS NULL
                OR parent_span_id IS NOT NULL AND trajectory_id = trace_id)
            THEN end_ns ELSE 0 END DESC, bytes DESC, content_hash DESC"""
"""The order in which the first row of `span_records` under one id is the span that counts: that of `deduplicate`."""

LAST_GIVEN: Final = """1 = row_number() OVER (
            PARTITION BY id ORDER BY time_ns DESC, value DESC, name DESC, explanation DESC, document DESC)"""
"""Of the rewards with one id the one that counts, whichever run the others were given to."""

REWARDS_OF_RUN: Final = """
        SELECT trajectory_id, map(list(name ORDER BY name), list(value ORDER BY name)) AS rewards,
            coalesce((sum(code) + max(judged).value) / 2, sum(code), max(judged).value) AS reward
        FROM (SELECT trajectory_id, name, sum(value) AS value, sum(value) FILTER (source <> 'judge') AS code,
            max({'at': given, 'id': id, 'value': value}) FILTER (source = 'judge') AS judged FROM rewards
            WHERE agent_id IS NULL GROUP BY trajectory_id, name) GROUP BY trajectory_id"""
"""What the view of rewards says of a run: the sum of each name, and what the run is worth."""

_TO = "(trajectory_id IN (SELECT unnest($ids)) OR split_part(trajectory_id, ':', 1) IN (SELECT unnest($ids)))"
GIVEN_TO: Final = f"""SELECT document FROM (
        SELECT * FROM reward_records WHERE id IN (SELECT id FROM reward_records WHERE {_TO}) QUALIFY {LAST_GIVEN})
    WHERE {_TO}"""  # noqa: S608
"""The rewards given under these ids or to conversations of these traces."""

MADE_BY: Final = """coalesce(json_extract_string(document, '$.method'), CASE
    WHEN json_extract_string(document, '$.metrics.learned_tokens') IS NULL THEN 'grpo'
    WHEN coalesce(json_extract_string(document, '$.metrics.accuracy')::DOUBLE, 0) > 0 THEN 'dpo' ELSE 'sft' END)"""
"""PolicyStep.made_by in SQL."""

REGROUPED: Final = """SELECT trajectory_id, key FROM regrouped
    QUALIFY row_number() OVER (PARTITION BY trajectory_id ORDER BY time_ns DESC, grouping_id DESC) = 1"""
"""The keys that runs have by a grouping; NULL where it was taken back."""

STEPS: Final = """(SELECT *, coalesce(list_filter(from_json(document::JSON->'consumed',
                '[{"trajectory_id":"VARCHAR","revision":"VARCHAR","set_aside":"BOOLEAN"}]'),
            lambda one: one.set_aside IS NOT TRUE), []) AS trained,
            if(document::JSON->>'forked_from' IS NULL, len(trained), 0) AS own_runs
        FROM policy_step_records
        QUALIFY row_number() OVER (PARTITION BY policy, step ORDER BY time_ns DESC, content_hash DESC) = 1)"""
"""The optimisation steps, each with what it was `trained` on and with its `own_runs`, as PolicyStep has them."""
