"""Writer: batches of records into the tables, each batch one transaction, each record once.

What spans share is stored once (see schema.py). The writer remembers the texts and inputs it used last; losing that
memory costs space, never content. Nothing here takes longer when the store is larger.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import duckdb
import msgspec
import pyarrow as pa

from arttrace import semconv
from arttrace.formats.evaluations import rewards_of
from arttrace.records.policy import PolicyStep
from arttrace.records.record import Record
from arttrace.records.reward import Reward
from arttrace.records.span import SpanRow
from arttrace.store import links, placing
from arttrace.store.prefixes import Recent, extension, split
from arttrace.store.rows import SPANS, Row, rows_by_table, span_columns
from arttrace.store.summary import SUMMARY_VERSION, TrajectorySummary
from arttrace.trajectories.rewarded import before_colons

_CONSUMPTION = {"policy": "VARCHAR", "step": "BIGINT", "trajectory_id": "VARCHAR", "revision": "VARCHAR"}
_LINKS = {"trace_id": "VARCHAR", "linked_trace_id": "VARCHAR"}
_SEGMENTS = {"name": "VARCHAR", '"offset"': "BIGINT"}
_TEXTS = {"id": "BIGINT", "hash": "BLOB", "text": "VARCHAR"}
_PROMPTS = {"id": "BIGINT", "trace_id": "VARCHAR", "parent": "BIGINT", "messages": "BIGINT[]"}
_TOKEN_PROMPTS = {"id": "BIGINT", "trace_id": "VARCHAR", "parent": "BIGINT", "keep": "BIGINT", "tail": "VARCHAR"}
_SUMMARIES = {"trajectory_id": "VARCHAR", "version": "VARCHAR", "document": "VARCHAR"}
_ARROW = {
    "VARCHAR": pa.string(),
    "BIGINT": pa.int64(),
    "TINYINT": pa.int8(),
    "DOUBLE": pa.float64(),
    "BLOB": pa.binary(),
    "BIGINT[]": pa.list_(pa.int64()),
}

_AGENT = semconv.OPERATION_INVOKE_AGENT
_KNOWN_TEXTS = 100_000
_TOKEN_TAIL = 4  # the last four characters of base64 may change when more follows
_SHARED = (semconv.INPUT_MESSAGES, semconv.PROMPT_TOKEN_IDS, semconv.TOOL_DEFINITIONS, semconv.SYSTEM_INSTRUCTIONS)

_encode = msgspec.json.Encoder().encode
_is_trace = re.compile("[0-9a-f]{32}").fullmatch


class _Parts(msgspec.Struct):
    """A span taken apart: what it may share with others, and the rest as JSON."""

    span: SpanRow
    shared: dict[str, Any]
    origin: str
    document: bytes
    size: int
    digest: int


def _apart(span: SpanRow, origin: str, origin_bytes: bytes) -> _Parts:
    rest, shared = span.attributes, {}
    for name in _SHARED:
        value = rest.get(name)
        if value is not None and (isinstance(value, str) or name == semconv.INPUT_MESSAGES):
            shared[name] = value
    if shared:
        rest = rest.copy()
        for name in shared:
            del rest[name]
    document = _encode(
        msgspec.structs.replace(span, attributes=rest, resource=_NOTHING, scope_name="", scope_version="", origin=None)
    )
    size, pieces = len(document) + len(origin_bytes), [document, origin_bytes]
    for name, value in shared.items():
        written = value.encode() if isinstance(value, str) else _encode(value)
        size += len(written)
        pieces += (name.encode(), b"" if isinstance(value, str) else b"values", written)
    digest = hashlib.blake2b(b"\0".join(pieces), digest_size=8).digest()
    return _Parts(span, shared, origin, document, size, int.from_bytes(digest, "little", signed=True))


def _all_apart(spans: Iterable[SpanRow]) -> Iterator[_Parts]:
    """Spans of one request come one after the other and have the very same resource: it is encoded once."""
    last: SpanRow | None = None
    origin, encoded = "", b""
    for span in spans:
        if (
            last is None
            or span.resource is not last.resource
            or span.scope_name != last.scope_name
            or span.scope_version != last.scope_version
            or span.origin is not last.origin
        ):
            held = {name: value for name in _ORIGIN if (value := getattr(span, name))}
            encoded = _encode(held) if held else b""
            origin = encoded.decode()
        last = span
        yield _apart(span, origin, encoded)


_ORIGIN = ("resource", "scope_name", "scope_version", "origin")
_NOTHING: dict[str, Any] = {}


class Writer:
    """Writes through one connection. After a failed commit make a new one with the new connection."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._texts: OrderedDict[bytes, int] | None = None
        self._uncommitted: list[bytes] = []
        self._recent, self._recent_tokens = Recent(1), Recent(_TOKEN_TAIL)
        self._last_id = 0
        for table in ("texts", "prompts", "token_prompts"):
            [(last,)] = self._connection.execute(f"SELECT coalesce(max(id), 0) FROM {table}").fetchall()  # noqa: S608
            self._last_id = max(self._last_id, last)

    def _forget_uncommitted(self) -> None:
        for digest in self._uncommitted:
            if self._texts is not None:
                self._texts.pop(digest, None)
        self._recent, self._recent_tokens = Recent(1), Recent(_TOKEN_TAIL)

    def write(self, records: Sequence[Record], offsets: Mapping[str, int] | None = None) -> int:
        """Stores the records that are not there yet, and how far the segments they came from were read, in one
        transaction. Returns how many records were new. Raises duckdb.Error; then nothing was stored, unless the
        commit itself failed (a full disk), after which the connection is to be closed and opened anew."""
        self._connection.execute("BEGIN")
        self._uncommitted.clear()
        try:
            fresh = self._new_spans([record for record in records if isinstance(record, SpanRow)])
            rewards = [reward for parts in fresh if parts.span.events for reward in rewards_of(parts.span)]
            self._store_spans(fresh)
            new = len(fresh) + self._store_others([*records, *rewards], derived={reward.id for reward in rewards})
            if offsets:
                self._connection.execute(
                    "DELETE FROM ingested_segments WHERE name IN (SELECT unnest(?::VARCHAR[]))", [list(offsets)]
                )
                self._insert("ingested_segments", _SEGMENTS, list(offsets.items()))
            self._connection.execute("COMMIT")
        except BaseException:
            self._forget_uncommitted()
            with contextlib.suppress(duckdb.Error):
                self._connection.execute("ROLLBACK")
            raise
        return new

    # --- spans ---------------------------------------------------------------------------------------------

    def _new_spans(self, spans: Sequence[SpanRow]) -> list[_Parts]:
        if not spans:
            return []
        parts = {(p.digest, p.span.trace_id, p.span.span_id): p for p in _all_apart(spans)}
        # One that is there has the same start, and spans arrive about in the order of their starts: DuckDB then looks
        # at the newest row groups only, however large the table is.
        query = """SELECT content_hash, trace_id, span_id FROM span_records
            WHERE start_ns BETWEEN {first} AND {last} AND content_hash IN (SELECT item FROM {{given}})"""
        starts = [span.start_ns for span in spans]
        known = self._among(
            query.format(first=min(starts), last=max(starts)), pa.array([key[0] for key in parts], pa.int64())
        )
        for key in known:
            parts.pop(key, None)
        return list(parts.values())

    def _store_spans(self, fresh: Sequence[_Parts]) -> None:
        if not fresh:
            return
        inputs = [self._input(parts) for parts in fresh]
        wanted: set[str] = set()
        for parts, (_, _, added) in zip(fresh, inputs, strict=True):
            if added:
                wanted.update(added)
            if parts.origin:
                wanted.add(parts.origin)
            shared = parts.shared
            if semconv.TOOL_DEFINITIONS in shared:
                wanted.add(shared[semconv.TOOL_DEFINITIONS])
            if semconv.SYSTEM_INSTRUCTIONS in shared:
                wanted.add(shared[semconv.SYSTEM_INSTRUCTIONS])
        ids = self._text_ids(wanted)

        rows: list[Row] = []
        prompts: list[Row] = []
        tokens: list[Row] = []
        for parts, (prompt, form, added) in zip(fresh, inputs, strict=True):
            get, trace_id = parts.shared.get, parts.span.trace_id
            if added is not None and prompt is not None:
                prompts.append((prompt[0], trace_id, prompt[1], [ids[text] for text in added]))
            token_ids = get(semconv.PROMPT_TOKEN_IDS)
            tools, instructions = get(semconv.TOOL_DEFINITIONS), get(semconv.SYSTEM_INSTRUCTIONS)
            rows.append(
                (
                    *span_columns(parts.span),
                    prompt[0] if prompt else None,
                    form,
                    self._tokens(trace_id, token_ids, tokens) if token_ids is not None else None,
                    ids[tools] if tools is not None else None,
                    ids[instructions] if instructions is not None else None,
                    ids[parts.origin] if parts.origin else None,
                    parts.size,
                    parts.digest,
                    parts.document,
                )
            )
        agents = [p.span for p, row in zip(fresh, rows, strict=True) if p.span.links and row[4] == _AGENT]
        self._insert("links", _LINKS, links.links_of(agents))
        placing.mark(self._connection, [parts.span for parts in fresh], rows)
        self._outdate_traces({parts.span.trace_id for parts in fresh}, {row[3] for row in rows if row[3]})
        self._insert("prompts", _PROMPTS, prompts)
        self._insert("token_prompts", _TOKEN_PROMPTS, tokens)
        self._insert("span_records", SPANS, rows)

    def _input(self, parts: _Parts) -> tuple[tuple[int, int | None] | None, int | None, list[str] | None]:
        """Where a call's input is stored: ((id, the id it extends), form, the messages to add; None when it is there).

        An input that cannot be made again exactly from its messages goes back into the document.
        """
        value = parts.shared.get(semconv.INPUT_MESSAGES)
        if value is None:
            return None, None, None
        trace_id = parts.span.trace_id
        if isinstance(value, str) and (held := self._recent.longest(trace_id, value)) is not None:
            earlier, form, above = held
            added = extension(value, earlier, form)
            if added == []:
                return (above, None), form, None
            if added:
                id = self._next_id()
                self._recent.remember(trace_id, value, form, id)
                return (id, above), form, added
        taken = split(value)
        if taken is None:
            parts.document = _with_attribute(parts.document, semconv.INPUT_MESSAGES, value)
            return None, None, None
        messages, form = taken
        id = self._next_id()
        if isinstance(value, str):
            self._recent.remember(trace_id, value, form, id)
        return (id, None), form, messages

    def _tokens(self, trace_id: str, text: str, rows: list[Row]) -> int:
        held = self._recent_tokens.longest(trace_id, text)
        if held is not None and held[0] == text:
            return held[2]
        id = self._next_id()
        keep = max(len(held[0]) - _TOKEN_TAIL, 0) if held else 0
        rows.append((id, trace_id, held[2] if held and keep else None, keep, text[keep:]))
        self._recent_tokens.remember(trace_id, text, 0, id)
        return id

    def _text_ids(self, texts: Iterable[str]) -> dict[str, int]:
        """The id of every text; those that are not among the last used are stored. The table is never searched."""
        known = self._known_texts()
        ids: dict[str, int] = {}
        rows: list[Row] = []
        for text in texts:
            digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
            id = known.get(digest)
            if id is None:
                id = known[digest] = self._next_id()
                self._uncommitted.append(digest)
                rows.append((id, digest, text))
            else:
                known.move_to_end(digest)
            ids[text] = id
        self._insert("texts", _TEXTS, rows)
        while len(known) > _KNOWN_TEXTS:
            known.popitem(last=False)
        return ids

    def _known_texts(self) -> OrderedDict[bytes, int]:
        """The texts used last, by hash; at first those stored last."""
        if self._texts is None:
            query = f"""SELECT hash, id FROM texts WHERE id >= (
                SELECT coalesce(min(id), 0) FROM (SELECT id FROM texts ORDER BY id DESC LIMIT {_KNOWN_TEXTS})
            ) ORDER BY id"""  # noqa: S608
            self._texts = OrderedDict(self._connection.execute(query).fetchall())
        return self._texts

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def keep_summaries(self, summaries: Mapping[str, Sequence[TrajectorySummary]]) -> None:
        """Keeps summaries just made of what is stored under an id, also that there are none."""
        rows = [
            (id, SUMMARY_VERSION, _encode(one).decode()) for id, made in summaries.items() for one in made or (None,)
        ]
        self._insert("summaries", _SUMMARIES, rows)

    # --- everything else -----------------------------------------------------------------------------------

    def _store_others(self, records: Sequence[Record], derived: set[str]) -> int:
        """Returns how many were new, those derived from spans not counted."""
        new = 0
        for table, rows in rows_by_table(records).values():
            query = f"SELECT content_hash FROM {table.name} WHERE content_hash IN (SELECT unnest(?::VARCHAR[]))"  # noqa: S608
            known = {digest for (digest,) in self._connection.execute(query, [list(rows)]).fetchall()}
            fresh = [row for digest, row in rows.items() if digest not in known]
            self._insert(table.name, table.columns, [row for row, _ in fresh])
            steps = [record for _, record in fresh if isinstance(record, PolicyStep)]
            consumed = [(s.policy, s.step, item.trajectory_id, item.revision) for s in steps for item in s.consumed]
            self._insert("consumption", _CONSUMPTION, consumed)
            self._outdate_rewarded({record.trajectory_id for _, record in fresh if isinstance(record, Reward)})
            new += sum(1 for _, record in fresh if not (isinstance(record, Reward) and record.id in derived))
        return new

    def _outdate_traces(self, traces: set[str], named: set[str]) -> None:
        """A span may change every trajectory that has a part in its trace."""
        if self._connection.execute("SELECT 1 FROM summaries LIMIT 1").fetchone() is None:
            return
        if links.any_links(self._connection):
            linking = links.beside(self._connection, traces, linking=True)
            traces = links.above(self._connection, traces) | linking
        query = "SELECT DISTINCT trajectory_id FROM span_records WHERE trace_id IN (SELECT unnest(?::VARCHAR[]))"
        found = self._connection.execute(query, [list(traces)]).fetchall()
        self._outdate(named | {id for (id,) in found if id})

    def _outdate_rewarded(self, ids: set[str]) -> None:
        """What was rewarded may be a trace, or a conversation of one, that is a part of other trajectories by now."""
        of_traces = ids | {part for id in ids for part in before_colons(id)}
        if ids:
            self._outdate_traces({id for id in of_traces if _is_trace(id)}, of_traces)

    def _outdate(self, trajectory_ids: set[str]) -> None:
        if trajectory_ids:
            query = "DELETE FROM summaries WHERE trajectory_id IN (SELECT unnest(?::VARCHAR[]))"
            self._connection.execute(query, [list(trajectory_ids)])

    def _insert(self, table: str, columns: Mapping[str, str], rows: Sequence[Row]) -> None:
        if not rows:
            return
        types = [_ARROW[type] for type in columns.values()]
        arrays = [pa.array(column, type) for column, type in zip(zip(*rows, strict=True), types, strict=True)]
        names = ", ".join(f'"{name}"' if name == "group" else name for name in columns)
        given = pa.table(arrays, names=[str(number) for number in range(len(arrays))])
        self._with(f"INSERT INTO {table} ({names}) SELECT * FROM {{given}}", given)  # noqa: S608

    def _among(self, query: str, items: pa.Array) -> list[tuple[Any, ...]]:
        return self._with(query, pa.table({"item": items}))

    def _with(self, query: str, given: pa.Table) -> list[tuple[Any, ...]]:
        self._connection.register("_given", given)
        try:
            rows: list[tuple[Any, ...]] = self._connection.execute(query.format(given="_given")).fetchall()
            return rows
        finally:
            self._connection.unregister("_given")


def _with_attribute(document: bytes, name: str, value: Any) -> bytes:
    """A span's JSON with an attribute put back."""
    held = msgspec.json.decode(document)
    held.setdefault("attributes", {})[name] = value
    return _encode(held)
