"""A heap of spans becomes one set per trajectory: duplicates dropped, each span given to the run it belongs to.

A span belongs to the trajectory it names; else to that of its nearest ancestor which names one; else to its trace.
Only the set of spans counts: any order, batching and duplication of them gives the same answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import msgspec

from arttrace import semconv
from arttrace.records.span import SpanRow

SpanKey = tuple[str, str]
"""(trace id, span id): unique per span."""

_encoder = msgspec.json.Encoder(order="sorted")


class UniqueSpan(msgspec.Struct, frozen=True):
    """A span with the hash of its content (32 hex digits) and the length of its JSON in bytes."""

    row: SpanRow
    content_hash: str
    length: int

    @property
    def key(self) -> SpanKey:
        return (self.row.trace_id, self.row.span_id)


def content_hash(span: SpanRow) -> tuple[str, int]:
    """The hash of a span's canonical JSON, and that JSON's length in bytes."""
    document = _encoder.encode(span)
    return hashlib.blake2b(document, digest_size=16).hexdigest(), len(document)


def deduplicate(spans: Iterable[SpanRow]) -> dict[SpanKey, UniqueSpan]:
    """One span per (trace id, span id). Of several with different content the ended one wins, then the longer, then
    the one with the larger hash."""
    unique: dict[SpanKey, UniqueSpan] = {}
    for row in spans:
        candidate = UniqueSpan(row, *content_hash(row))
        held = unique.get(candidate.key)
        if held is None or _rank(candidate) > _rank(held):
            unique[candidate.key] = candidate
    return unique


def _rank(span: UniqueSpan) -> tuple[bool, int, str]:
    return (span.row.end_ns > 0, span.length, span.content_hash)


def parent_key(span: SpanRow) -> SpanKey | None:
    """The key under which a span's parent is found, None for a span that has none."""
    return (span.trace_id, span.parent_span_id) if span.parent_span_id else None


def trajectory_ids(spans: Mapping[SpanKey, UniqueSpan]) -> dict[SpanKey, str]:
    """The trajectory id of every span."""
    ids: dict[SpanKey, str] = {}
    for start in spans:
        path: list[SpanKey] = []
        key: SpanKey | None = start
        found = start[0]
        while key is not None and key in spans and len(path) <= len(spans):  # longer only in a cycle of parents
            if key in ids:
                found = ids[key]
                break
            path.append(key)
            named = spans[key].row.attributes.get(semconv.TRAJECTORY_ID)
            if isinstance(named, str) and named:
                found = named
                break
            key = parent_key(spans[key].row)
        ids.update(dict.fromkeys(path, found))
    return ids


def revision(spans: Iterable[UniqueSpan]) -> str:
    """16 hex digits over the content of a set of spans."""
    digest = hashlib.blake2b(digest_size=8)
    for key, content in sorted((span.key, span.content_hash) for span in spans):
        digest.update(f"{key[0]}/{key[1]}/{content};".encode())
    return digest.hexdigest()
