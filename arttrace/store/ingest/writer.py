"""Writer: batches of records into the tables, each batch one transaction, each record once.

What spans share is stored once (see rows/tables.py). The writer remembers the texts and inputs it used last; losing
that memory costs space, never content. Nothing here takes longer when the store is larger.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import duckdb
import msgspec

from arttrace.formats.evaluations import rewards_of
from arttrace.records import semconv
from arttrace.records.group import Grouping
from arttrace.records.policy import PolicyStep
from arttrace.records.record import PlainRecord
from arttrace.records.reward import Reward
from arttrace.records.span import SpanRow
from arttrace.store.ingest.given_rows import GivenRows
from arttrace.store.rows import span_membership, tables, trace_links
from arttrace.store.rows.columns import rows_by_table
from arttrace.store.rows.encode import EncodedRecord, EncodedSpan
from arttrace.store.rows.prefixes import RecentInputs, extension, split
from arttrace.store.rows.summary import SUMMARY_VERSION, Summarised
from arttrace.store.rows.tables import OPERATION, SPAN_ID, START, TRAJECTORY_ID, Row, Table
from arttrace.store.rows.views import INFERRED_TOOLS, READ_MESSAGES
from arttrace.store.transactions import transaction
from arttrace.trajectories.identity.reward_membership import before_colons

_KNOWN_TEXTS = 100_000
_TOKEN_TAIL = 4  # the last four characters of base64 may change when more follows

_now_ns = time.time_ns
_encode = msgspec.json.Encoder().encode
_is_trace = re.compile("[0-9a-f]{32}").fullmatch


class _NewRows:
    """What the spans of a batch add to the tables."""

    def __init__(self) -> None:
        self.spans: list[Row] = []
        self.prompts: list[Row] = []
        self.token_prompts: list[Row] = []
        self.texts: list[Row] = []
        self.ids: dict[str, int] = {}
        """The ids of the batch's texts."""


class Writer:
    """Writes through one connection. After a failed commit make a new one with the new connection."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._given = GivenRows()
        self._texts: OrderedDict[bytes, int] | None = None
        self._uncommitted: list[bytes] = []
        self._recent, self._recent_tokens = RecentInputs(1), RecentInputs(_TOKEN_TAIL)
        self._last_id = 0
        for table in ("texts", "prompts", "token_prompts"):
            [(last,)] = self._connection.execute(f"SELECT coalesce(max(id), 0) FROM {table}").fetchall()  # noqa: S608
            self._last_id = max(self._last_id, last)

    def _forget_uncommitted(self) -> None:
        for digest in self._uncommitted:
            if self._texts is not None:
                self._texts.pop(digest, None)
        self._recent, self._recent_tokens = RecentInputs(1), RecentInputs(_TOKEN_TAIL)

    def write(self, records: Sequence[EncodedRecord], offsets: Mapping[str, int] | None = None) -> int:
        """Stores the records that are not there yet, and how far the segments they came from were read, in one
        transaction. Returns how many records were new. Raises duckdb.Error; then nothing was stored, unless the
        commit itself failed (a full disk), after which the connection is to be closed and opened anew."""
        self._uncommitted.clear()
        try:
            with transaction(self._connection):
                return self._write(records, offsets or {})
        except BaseException:
            self._forget_uncommitted()
            raise

    def _write(self, records: Sequence[EncodedRecord], offsets: Mapping[str, int]) -> int:
        spans = [record for record in records if isinstance(record, EncodedSpan)]
        # Of those that are there too: an earlier version may have read fewer in them.
        rewards = [reward for parts in spans if parts.span is not None for reward in rewards_of(parts.span)]
        fresh = self._new_spans(spans)
        self._store_spans(fresh)
        others = [record for record in records if not isinstance(record, EncodedSpan)]
        new = len(fresh) + self._store_others([*others, *rewards], derived={reward.id for reward in rewards})
        if offsets:
            self._connection.execute(
                "DELETE FROM ingested_segments WHERE name IN (SELECT unnest(?::VARCHAR[]))", [list(offsets)]
            )
            self._insert(tables.SEGMENTS, list(offsets.items()))
        return new

    # --- spans ---------------------------------------------------------------------------------------------

    def _new_spans(self, spans: Sequence[EncodedSpan]) -> list[EncodedSpan]:
        if not spans:
            return []
        parts = {(one.digest, one.trace_id, one.columns[SPAN_ID]): one for one in spans}
        # One that is there has the same start, and spans arrive about in the order of their starts: DuckDB then looks
        # at the newest row groups only, however large the table is.
        query = """SELECT content_hash, trace_id, span_id FROM span_records
            WHERE start_ns BETWEEN {first} AND {last} AND content_hash IN (SELECT item FROM {{given}})"""
        starts = [one.columns[START] for one in spans]
        query = query.format(first=min(starts), last=max(starts))
        known = self._given.query(self._connection, query, {"item": ("BIGINT", [key[0] for key in parts])})
        for key in known:
            parts.pop(key, None)
        return list(parts.values())

    def _store_spans(self, fresh: Sequence[EncodedSpan]) -> None:
        if not fresh:
            return
        arrived_ns = _now_ns()
        new = _NewRows()
        agents: list[SpanRow] = []
        traces: set[str] = set()
        odd: set[str] = set()
        named: set[str] = set()
        for parts in fresh:
            trace_id, columns, shared = parts.trace_id, parts.columns, parts.shared
            prompt = form = token_prompt = tools = instructions = None
            if shared:
                prompt, form = self._input(parts, new)
                if (text := shared.get(semconv.PROMPT_TOKEN_IDS)) is not None:
                    token_prompt = self._tokens(trace_id, text, new)
                if (text := shared.get(semconv.TOOL_DEFINITIONS)) is not None:
                    tools = self._text_id(text, new)
                if (text := shared.get(semconv.SYSTEM_INSTRUCTIONS)) is not None:
                    instructions = self._text_id(text, new)
            origin = self._text_id(parts.origin, new) if parts.origin else None
            ids = prompt, form, token_prompt, tools, instructions, origin
            new.spans.append((*columns, *ids, parts.size, parts.digest, parts.document, arrived_ns))
            traces.add(trace_id)
            if parts.odd:
                odd.add(trace_id)
            if columns[TRAJECTORY_ID] is not None:
                named.add(columns[TRAJECTORY_ID])
            if parts.span is not None and columns[OPERATION] in trace_links.LINKING:
                agents.append(parts.span)
        self._insert(tables.LINKS, trace_links.links_of(agents))
        span_membership.mark(self._connection, traces, odd)
        self._outdate_traces(traces, named)
        self._insert(tables.TEXTS, new.texts)
        self._insert(tables.PROMPTS, new.prompts)
        self._insert(tables.TOKEN_PROMPTS, new.token_prompts)
        self._insert(tables.SPANS, new.spans)
        self._forget_oldest_texts()

    def _input(self, parts: EncodedSpan, new: _NewRows) -> tuple[int | None, int | None]:
        """The id and the form under which a call's input is stored; None when it has none.

        An input that cannot be made again exactly from its messages goes back into the document.
        """
        value = parts.shared.get(semconv.INPUT_MESSAGES)
        if value is None:
            return None, None
        trace_id, above, added = parts.trace_id, None, None
        earlier = self._recent.longest(trace_id, value) if isinstance(value, str) else None
        if earlier is not None:
            above, form = earlier.made.id, earlier.made.form
            added = extension(value, earlier.made)
            if added == []:
                return above, form
        if not added:
            taken = split(value)
            if taken is None:
                parts.document = _with_attribute(parts.document, semconv.INPUT_MESSAGES, value)
                return None, None
            above, (added, form) = None, taken
        id = self._next_id()
        if isinstance(value, str):
            self._recent.remember(trace_id, value, form, id, earlier)
        new.prompts.append((id, trace_id, above, [self._text_id(text, new) for text in added]))
        return id, form

    def _tokens(self, trace_id: str, text: str, new: _NewRows) -> int:
        earlier = self._recent_tokens.longest(trace_id, text)
        if earlier is not None and earlier.made.is_same(text):
            return earlier.made.id
        id = self._next_id()
        keep = earlier.length if earlier else 0
        parent = earlier.made.id if earlier and keep else None
        new.token_prompts.append((id, trace_id, parent, keep, text[keep:]))
        self._recent_tokens.remember(trace_id, text, 0, id, earlier)
        return id

    def _text_id(self, text: str, new: _NewRows) -> int:
        """The id of a text; one that is not among the last used is stored. The table is never searched."""
        id = new.ids.get(text)
        if id is None:
            known = self._known_texts()
            digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
            id = known.get(digest)
            if id is None:
                id = known[digest] = self._next_id()
                self._uncommitted.append(digest)
                new.texts.append((id, digest, text))
            else:
                known.move_to_end(digest)
            new.ids[text] = id
        return id

    def _forget_oldest_texts(self) -> None:
        known = self._known_texts()
        while len(known) > _KNOWN_TEXTS:
            known.popitem(last=False)

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

    def keep_summaries(self, found: Summarised) -> None:
        """Keeps what was just made of what is stored under an id, in the place of what another one made of it."""
        query = "DELETE FROM summaries WHERE version IN (?, ?, ?) AND trajectory_id IN (SELECT unnest(?::VARCHAR[]))"
        rows = [
            (id, SUMMARY_VERSION, _encode(one).decode())
            for id, made in found.summaries.items()
            for one in made or (None,)
        ]
        rows += [(id, INFERRED_TOOLS, _encode(tools).decode()) for id, tools in found.tools.items()]
        rows += [(id, READ_MESSAGES, _encode(one).decode()) for id, read in found.messages.items() for one in read]
        with transaction(self._connection):
            self._connection.execute(query, [SUMMARY_VERSION, INFERRED_TOOLS, READ_MESSAGES, list(found.summaries)])
            self._insert(tables.SUMMARIES, rows)

    # --- everything else -----------------------------------------------------------------------------------

    def _store_others(self, records: Sequence[PlainRecord], derived: set[str]) -> int:
        """Returns how many were new, those derived from spans not counted."""
        new = 0
        for table, rows in rows_by_table(records).values():
            query = f"SELECT content_hash FROM {table.name} WHERE content_hash IN (SELECT unnest(?::VARCHAR[]))"  # noqa: S608
            known = {digest for (digest,) in self._connection.execute(query, [list(rows)]).fetchall()}
            fresh = [row for digest, row in rows.items() if digest not in known]
            self._insert(table, [row for row, _ in fresh])
            steps = [record for _, record in fresh if isinstance(record, PolicyStep)]
            consumed = [(s.policy, s.step, item.trajectory_id, item.revision) for s in steps for item in s.consumed]
            self._insert(tables.CONSUMPTION, consumed)
            groupings = [record for _, record in fresh if isinstance(record, Grouping)]
            regrouped = [(id, key, one.time_ns, one.id) for one in groupings for id, key in one.keys.items()]
            self._insert(tables.REGROUPED, regrouped)
            self._outdate({part for id, *_ in regrouped for part in (id, *before_colons(id))})
            self._outdate_rewarded([record.id for _, record in fresh if isinstance(record, Reward)])
            new += sum(1 for _, record in fresh if not (isinstance(record, Reward) and record.id in derived))
        return new

    def _outdate_traces(self, traces: set[str], named: set[str]) -> None:
        """A span may change every trajectory that has a part in its trace."""
        if self._connection.execute("SELECT 1 FROM summaries LIMIT 1").fetchone() is None:
            return
        if trace_links.any_links(self._connection):
            traces = trace_links.above(self._connection, trace_links.below(self._connection, traces))
        query = "SELECT DISTINCT trajectory_id FROM span_records WHERE trace_id IN (SELECT unnest(?::VARCHAR[]))"
        found = self._connection.execute(query, [list(traces)]).fetchall()
        self._outdate(named | {id for (id,) in found if id})

    def _outdate_rewarded(self, rewards: Sequence[str]) -> None:
        """What was rewarded, or was before under the same id, may be a trace, or a conversation of one, that is a part
        of other trajectories by now."""
        if rewards:
            query = "SELECT DISTINCT trajectory_id FROM reward_records WHERE id IN (SELECT unnest(?::VARCHAR[]))"
            ids = {id for (id,) in self._connection.execute(query, [list(rewards)]).fetchall()}
            of_traces = ids | {part for id in ids for part in before_colons(id)}
            self._outdate_traces({id for id in of_traces if _is_trace(id)}, of_traces)

    def _outdate(self, trajectory_ids: set[str]) -> None:
        if trajectory_ids:
            query = "DELETE FROM summaries WHERE trajectory_id IN (SELECT unnest(?::VARCHAR[]))"
            self._connection.execute(query, [list(trajectory_ids)])

    def _insert(self, table: Table, rows: Sequence[Row]) -> None:
        if not rows:
            return
        columns = zip(table.types(), zip(*rows, strict=True), strict=True)
        self._given.query(
            self._connection, table.insert("{given}"), {str(at): column for at, column in enumerate(columns)}
        )


def _with_attribute(document: bytes, name: str, value: Any) -> bytes:
    """A span's JSON with an attribute put back."""
    decoded = msgspec.json.decode(document)
    decoded.setdefault("attributes", {})[name] = value
    return _encode(decoded)
