"""Stored spans as they arrived: the document, with what it shares with other spans put back."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from typing import Any

import duckdb
import msgspec

from arttrace.records import semconv
from arttrace.records.message import MessageTexts
from arttrace.records.span import SpanRow
from arttrace.records.values.tokens import TokenText
from arttrace.store.rows.prefixes import join

_decoder = msgspec.json.Decoder(SpanRow)

_COLUMNS = "document, origin, prompt, prompt_form, prompt_tokens, tools, instructions"


def read_spans(
    connection: duckdb.DuckDBPyConnection, where: str, values: Sequence[Any], *, shared: bool = False
) -> list[SpanRow]:
    """Every stored version of the spans for which a condition on `span_records` holds, as they came; when `shared`,
    their input messages as MessageTexts, in which equal messages are one object, and the token ids of their prompts as
    TokenTexts."""
    rows = connection.execute(f"SELECT {_COLUMNS}, trace_id FROM span_records WHERE {where}", values).fetchall()  # noqa: S608
    if not rows:
        return []
    traces = sorted({row[-1] for row in rows})
    prompts = _named(connection, "id, parent, messages", "prompts", traces, {row[2] for row in rows})
    tokens = _named(connection, "id, parent, keep, tail", "token_prompts", traces, {row[4] for row in rows})
    ids = {id for row in rows for id in (row[1], row[5], row[6]) if id is not None}
    ids.update(id for _, _, messages in prompts for id in messages)
    query = "SELECT id, text FROM texts WHERE id IN (SELECT unnest(?::BIGINT[]))"
    texts: dict[int, str] = dict(connection.execute(query, [list(ids)]).fetchall())
    return _spans(rows, _Prompts(prompts, texts), _TokenPrompts(tokens), texts, shared)


def _named(
    connection: duckdb.DuckDBPyConnection, columns: str, table: str, traces: Sequence[str], ids: Collection[int | None]
) -> list[tuple[Any, ...]]:
    """The inputs that have these ids, and all that they extend."""
    where = "trace_id IN (SELECT unnest(?::VARCHAR[]))"
    above = dict(connection.execute(f"SELECT id, parent FROM {table} WHERE {where}", [traces]).fetchall())  # noqa: S608
    needed: set[int] = set()
    for id in ids:
        while id is not None and id not in needed:
            needed.add(id)
            id = above[id]
    query = f"SELECT {columns} FROM {table} WHERE {where} AND id IN (SELECT unnest(?::BIGINT[]))"  # noqa: S608
    rows: list[tuple[Any, ...]] = connection.execute(query, [traces, list(needed)]).fetchall()
    return rows


def _spans(
    rows: Sequence[tuple[Any, ...]], prompts: _Prompts, tokens: _TokenPrompts, texts: dict[int, str], as_texts: bool
) -> list[SpanRow]:
    spans = []
    for document, origin, prompt, form, prompt_tokens, tools, instructions, _ in rows:
        span = _decoder.decode(document if origin is None else f"{document[:-1]},{texts[origin][1:]}")
        shared: dict[str, Any] = {}
        if prompt is not None:
            messages = prompts.messages(prompt)
            shared[semconv.INPUT_MESSAGES] = messages if as_texts else join(list(messages), form)
        if prompt_tokens is not None:
            ids = tokens.text(prompt_tokens)
            shared[semconv.PROMPT_TOKEN_IDS] = ids if as_texts and ids.is_ascii else str(ids)
        if tools is not None:
            shared[semconv.TOOL_DEFINITIONS] = texts[tools]
        if instructions is not None:
            shared[semconv.SYSTEM_INSTRUCTIONS] = texts[instructions]
        if shared:
            span = msgspec.structs.replace(span, attributes={**span.attributes, **shared})
        spans.append(span)
    return spans


class _Prompts:
    """Inputs by id, each in terms of the one that it extends, as stored; equal messages are the same object."""

    def __init__(self, rows: Sequence[tuple[Any, ...]], texts: dict[int, str]) -> None:
        self._rows = {id: (parent, messages) for id, parent, messages in rows}
        self._texts = texts
        self._whole: dict[int, MessageTexts] = {}

    def messages(self, id: int) -> MessageTexts:
        for one in _chain(id, self._rows, self._whole):
            parent, messages = self._rows[one]
            before = None if parent is None else self._whole[parent]
            self._whole[one] = MessageTexts([self._texts[message] for message in messages], before)
        return self._whole[id]


class _TokenPrompts:
    def __init__(self, rows: Sequence[tuple[Any, ...]]) -> None:
        self._rows = {id: (parent, keep, tail) for id, parent, keep, tail in rows}
        self._whole: dict[int, TokenText] = {}

    def text(self, id: int) -> TokenText:
        for one in _chain(id, self._rows, self._whole):
            parent, keep, tail = self._rows[one]
            self._whole[one] = TokenText(tail) if parent is None else TokenText(tail, self._whole[parent], keep)
        return self._whole[id]


def _chain(id: int, rows: Mapping[int, tuple[Any, ...]], read: Container[int]) -> list[int]:
    """The ids of an input and of those that it extends, as far as they are not read yet, each after the one that it
    extends."""
    found: list[int] = []
    at: int | None = id
    while at is not None and at not in read:
        found.append(at)
        at = rows[at][0]
    return found[::-1]
