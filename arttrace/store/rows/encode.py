"""Records encoded for the tables, one by one. Pure.

A span is taken apart into its columns, what it may share with others, and the rest as JSON; of the span itself is
kept what only few have.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from arttrace.formats.sdks.openinference.feedback import has_feedback
from arttrace.formats.sdks.tolerant import added_by_conventions
from arttrace.records import semconv
from arttrace.records.record import PlainRecord, Record
from arttrace.records.span import Attributes, SpanRow
from arttrace.store.rows.columns import span_columns
from arttrace.store.rows.tables import OPERATION, TRAJECTORY_ID, Row
from arttrace.trajectories.identity.membership import may_belong_elsewhere

_SHARED = (semconv.INPUT_MESSAGES, semconv.PROMPT_TOKEN_IDS, semconv.TOOL_DEFINITIONS, semconv.SYSTEM_INSTRUCTIONS)
_ORIGIN = ("resource", "scope_name", "scope_version", "origin")
_NOTHING: dict[str, Any] = {}

_encode = msgspec.json.Encoder().encode


CONVENTIONS = "conventions"
"""Where a span's JSON has what it says by other names or in its events, under the names of the conventions, for the
views. What is stored by its text elsewhere, or made when somebody reads messages, is not in it."""


def with_conventions(document: bytes, added: Attributes) -> bytes:
    """A span's JSON with what was added to its attributes by `added_by_conventions`."""
    kept = {name: value for name, value in added.items() if name not in _SHARED}
    return b"".join((document[:-1], b',"', CONVENTIONS.encode(), b'":', _encode(kept), b"}")) if kept else document


class EncodedSpan(msgspec.Struct, gc=False, array_like=True):
    """A span taken apart."""

    trace_id: str
    columns: Row
    """The first of SPANS, as `span_columns` gives them."""
    shared: dict[str, Any]
    """Attributes that are stored once for many spans."""
    origin: str
    """Resource and scope as JSON; empty when there is neither."""
    document: bytes
    """The rest as JSON."""
    size: int
    """Bytes of the whole span as JSON."""
    digest: int
    """Of what the span says and of how it was written down: the same span delivered twice has the same one. That of
    `UniqueSpan`, by which trajectories have their revisions, is the same however an input was written down."""
    odd: bool
    """Whether it may belong to another trajectory than `columns` says: span_membership.py looks at its trace."""
    span: SpanRow | None
    """What `document` holds, of a span with events, links or feedback."""


EncodedRecord = EncodedSpan | PlainRecord


def encode_rows(records: Iterable[Record]) -> Iterator[EncodedRecord]:
    """Spans taken apart, other records as they are. Raises what the encoding of a value that JSON cannot hold raises.

    Spans of one request come one after the other and have the very same resource: it is encoded once.
    """
    last: SpanRow | None = None
    origin, encoded = "", b""
    for record in records:
        if not isinstance(record, SpanRow):
            yield record
            continue
        if (
            last is None
            or record.resource is not last.resource
            or record.scope_name != last.scope_name
            or record.scope_version != last.scope_version
            or record.origin is not last.origin
        ):
            shared = {name: value for name in _ORIGIN if (value := getattr(record, name))}
            encoded = _encode(shared) if shared else b""
            origin = encoded.decode()
        last = record
        yield _apart(record, origin, encoded)


def _apart(span: SpanRow, origin: str, origin_bytes: bytes) -> EncodedSpan:
    attributes, shared = span.attributes, {}
    for name in _SHARED:
        value = attributes.get(name)
        if value is not None and (isinstance(value, str) or name == semconv.INPUT_MESSAGES):
            shared[name] = value
    rest = attributes
    if shared:
        rest = attributes.copy()
        for name in shared:
            del rest[name]
    own = msgspec.structs.replace(
        span, attributes=rest, resource=_NOTHING, scope_name="", scope_version="", origin=None
    )
    document = _encode(own)
    size, pieces = len(document) + len(origin_bytes), [document, origin_bytes]
    for name, value in shared.items():
        written = value.encode() if isinstance(value, str) else _encode(value)
        size += len(written)
        pieces += (name.encode(), b"" if isinstance(value, str) else b"values", written)
    digest = hashlib.blake2b(b"\0".join(pieces), digest_size=8).digest()
    added = added_by_conventions(span)
    named = {**attributes, **added} if added else attributes
    columns = span_columns(span, named)
    return EncodedSpan(
        trace_id=span.trace_id,
        columns=columns,
        shared=shared,
        origin=origin,
        document=with_conventions(document, added),
        size=size,
        digest=int.from_bytes(digest, "little", signed=True),
        odd=may_belong_elsewhere(span, named, columns[TRAJECTORY_ID], columns[OPERATION] or ""),
        span=own if span.events or span.links or has_feedback(attributes) else None,
    )
