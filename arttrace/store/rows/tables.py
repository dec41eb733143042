"""The tables of the store, each column once: what CREATE TABLE says, and the types under which rows are inserted.

Tables are append-only and hold every record losslessly. What many spans repeat is stored once: the texts of input
messages, tool definitions, system instructions and origins lie in `texts`; the input of a call is a row of `prompts`
that names the prompt it extends and the messages added, and its prompt token ids a row of `token_prompts` likewise,
so that a turn costs what is new in it. `document` is the rest of a record as JSON. There are no keys and no indexes:
they cost DuckDB most of its ingest rate. Views (views.py) are what people and programs read with SQL.

Another VERSION needs a migration (file/migrations.py) and a store of the version before in tests/store/data.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

VERSION: Final = 4

_NOT_NULL = " NOT NULL"

Row = tuple[Any, ...]
"""Values in the order of a table's columns."""


class Table(msgspec.Struct, frozen=True):
    """A table: its columns in order, each with its DuckDB type, and NOT NULL where it must have a value."""

    name: str
    columns: dict[str, str]

    def create(self) -> str:
        """The statement that makes it."""
        columns = ", ".join(f'"{name}" {type}' for name, type in self.columns.items())
        return f"CREATE TABLE {self.name} ({columns});"

    def insert(self, rows: str) -> str:
        """The statement that adds the rows of a relation, all its columns in order."""
        names = ", ".join(f'"{name}"' for name in self.columns)
        return f"INSERT INTO {self.name} ({names}) SELECT * FROM {rows}"  # noqa: S608

    def types(self) -> list[str]:
        """The DuckDB type of each column."""
        return [type.removesuffix(_NOT_NULL) for type in self.columns.values()]


def _table(table: str, /, **columns: str) -> Table:
    return Table(table, columns)


SPANS: Final = _table(
    "span_records",
    trace_id="VARCHAR NOT NULL",
    span_id="VARCHAR NOT NULL",
    parent_span_id="VARCHAR",
    # As the span says; its trace where it says nothing but is a GenAI span. Where it is part of another trajectory all
    # the same, placed_spans says so.
    trajectory_id="VARCHAR",
    operation="VARCHAR",
    name="VARCHAR NOT NULL",
    start_ns="BIGINT NOT NULL",
    end_ns="BIGINT NOT NULL",
    error="VARCHAR",
    # Of an entry's span only.
    entry="VARCHAR",
    scenario="VARCHAR",
    group_key="VARCHAR",
    project="VARCHAR",
    # Of a call only.
    model="VARCHAR",
    policy_version="VARCHAR",
    input_tokens="BIGINT",
    output_tokens="BIGINT",
    # What it shares with other spans: prompts.id, and how its messages stood on the span; token_prompts.id; texts.id,
    # `origin` for resource and instrumentation scope.
    prompt="BIGINT",
    prompt_form="TINYINT",
    prompt_tokens="BIGINT",
    tools="BIGINT",
    instructions="BIGINT",
    origin="BIGINT",
    bytes="BIGINT NOT NULL",  # of the whole span as JSON
    content_hash="BIGINT NOT NULL",
    document="VARCHAR NOT NULL",
    arrived_ns="BIGINT",  # when it came into the store
)
SPAN_ID, TRAJECTORY_ID, OPERATION, START = map(
    list(SPANS.columns).index, ("span_id", "trajectory_id", "operation", "start_ns")
)
"""Where these stand in a row of `span_records`."""

TEXTS: Final = _table("texts", id="BIGINT NOT NULL", hash="BLOB NOT NULL", text="VARCHAR NOT NULL")
PROMPTS: Final = _table(  # the messages of `parent`, then `messages` (texts.id)
    "prompts", id="BIGINT NOT NULL", trace_id="VARCHAR NOT NULL", parent="BIGINT", messages="BIGINT[] NOT NULL"
)
TOKEN_PROMPTS: Final = _table(  # the first `keep` characters of `parent`, then `tail`
    "token_prompts",
    id="BIGINT NOT NULL",
    trace_id="VARCHAR NOT NULL",
    parent="BIGINT",
    keep="BIGINT NOT NULL",
    tail="VARCHAR NOT NULL",
)
LINKS: Final = _table("links", trace_id="VARCHAR NOT NULL", linked_trace_id="VARCHAR NOT NULL")

REWARDS: Final = _table(
    "reward_records",
    id="VARCHAR NOT NULL",
    trajectory_id="VARCHAR NOT NULL",
    agent_id="VARCHAR",
    name="VARCHAR NOT NULL",
    source="VARCHAR NOT NULL",
    value="DOUBLE NOT NULL",
    explanation="VARCHAR NOT NULL",
    judgement_id="VARCHAR",
    time_ns="BIGINT NOT NULL",
    content_hash="VARCHAR NOT NULL",
    document="VARCHAR NOT NULL",
)
JUDGEMENTS: Final = _table(
    "judgement_records",
    id="VARCHAR NOT NULL",
    key="VARCHAR NOT NULL",
    group="VARCHAR NOT NULL",
    judge="VARCHAR NOT NULL",
    input_tokens="BIGINT NOT NULL",
    output_tokens="BIGINT NOT NULL",
    cost="DOUBLE",
    time_ns="BIGINT NOT NULL",
    content_hash="VARCHAR NOT NULL",
    document="VARCHAR NOT NULL",
)
POLICY_STEPS: Final = _table(
    "policy_step_records",
    policy="VARCHAR NOT NULL",
    step="BIGINT NOT NULL",
    adapter="VARCHAR NOT NULL",
    base_model="VARCHAR NOT NULL",
    time_ns="BIGINT NOT NULL",
    content_hash="VARCHAR NOT NULL",
    document="VARCHAR NOT NULL",
)
CONSUMPTION: Final = _table(  # what policy steps took; can be rebuilt from policy_step_records
    "consumption",
    policy="VARCHAR NOT NULL",
    step="BIGINT NOT NULL",
    trajectory_id="VARCHAR NOT NULL",
    revision="VARCHAR NOT NULL",
)
GROUPINGS: Final = _table(
    "grouping_records",
    id="VARCHAR NOT NULL",
    criterion="VARCHAR NOT NULL",
    time_ns="BIGINT NOT NULL",
    content_hash="VARCHAR NOT NULL",
    document="VARCHAR NOT NULL",
)
REGROUPED: Final = _table(  # the keys of grouping_records, NULL for a run's own; of several the last counts
    "regrouped",
    trajectory_id="VARCHAR NOT NULL",
    key="VARCHAR",
    time_ns="BIGINT NOT NULL",
    grouping_id="VARCHAR NOT NULL",
)
SEGMENTS: Final = _table(  # how far each journal segment was taken in, written with its records
    "ingested_segments", name="VARCHAR NOT NULL", offset="BIGINT NOT NULL"
)
SUMMARIES: Final = _table(  # of what spans with this trajectory_id are part of: none ("null"), one or several
    "summaries", trajectory_id="VARCHAR NOT NULL", version="VARCHAR NOT NULL", document="VARCHAR NOT NULL"
)

# Which trajectory a span or a reward belongs to where its row alone does not say (span_membership.py).
ODD_TRACES: Final = _table("odd_traces", trace_id="VARCHAR NOT NULL", placed="BOOLEAN NOT NULL")
PLACED_SPANS: Final = _table(
    "placed_spans", trace_id="VARCHAR NOT NULL", span_id="VARCHAR NOT NULL", trajectory_id="VARCHAR"
)
PLACED_REWARDS: Final = _table(
    "placed_rewards", trace_id="VARCHAR NOT NULL", id="VARCHAR NOT NULL", trajectory_id="VARCHAR NOT NULL"
)
TRACE_ROOTS: Final = _table("trace_roots", trace_id="VARCHAR NOT NULL", trajectory_id="VARCHAR NOT NULL")

MEMBERSHIP: Final = (ODD_TRACES, PLACED_SPANS, PLACED_REWARDS, TRACE_ROOTS)
SCHEMA: Final = _table("arttrace_schema", version="INTEGER NOT NULL", views="UBIGINT", reading="INTEGER")
"""One row: this version, which views the store has (`views.VIEWS_HASH`), and which reading made its rows of spans
(file/reread.py). Comments of tables would say as much, and take DuckDB a third of an opening to list;
texts would take a block of the file, 256 KiB."""

ALL: Final = (
    *(LINKS, *MEMBERSHIP, SCHEMA, SPANS, TEXTS, PROMPTS, TOKEN_PROMPTS),
    *(REWARDS, JUDGEMENTS, POLICY_STEPS, CONSUMPTION, GROUPINGS, REGROUPED, SEGMENTS, SUMMARIES),
)


def create(*several: Table) -> str:
    """The statements that make tables."""
    return "".join(table.create() for table in several)
