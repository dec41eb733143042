"""A heap of spans becomes one set per trajectory: duplicates dropped, each span given to the run it belongs to.

A span belongs to the trajectory it names; else to that of its nearest ancestor which names one; else to its trace.
Only the set of spans counts: any order, batching and duplication of them gives the same answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from arttrace import semconv
from arttrace.records.span import SpanRow
from arttrace.trajectories.shared import SharedTexts, SharedTokens

SpanKey = tuple[str, str]
"""(trace id, span id): unique per span."""

_encoder = msgspec.json.Encoder(order="sorted")


class UniqueSpan(msgspec.Struct, frozen=True):
    """A span with the hash of its content (32 hex digits) and its length in bytes. Its input messages are MessageTexts;
    `conflicts` counts other spans that came under its id, ended like it and with different content."""

    row: SpanRow
    content_hash: str
    length: int
    conflicts: int = 0

    @property
    def key(self) -> SpanKey:
        return (self.row.trace_id, self.row.span_id)


class _Reader:
    """Spans of one trace as UniqueSpans: the hash covers what a span says, not how its input was written down."""

    def __init__(self) -> None:
        self._texts, self._tokens = SharedTexts(), SharedTokens()

    def read(self, row: SpanRow) -> UniqueSpan:
        rest = dict(row.attributes)
        hashed, length = b"", 0
        texts = self._texts.messages(rest.get(semconv.INPUT_MESSAGES))
        if texts is not None:
            del rest[semconv.INPUT_MESSAGES]
            hashed, length = self._texts.digest(texts)
            row = msgspec.structs.replace(row, attributes={**rest, semconv.INPUT_MESSAGES: texts})
        tokens = rest.get(semconv.PROMPT_TOKEN_IDS)
        if isinstance(tokens, str) and tokens.isascii():
            del rest[semconv.PROMPT_TOKEN_IDS]
            hashed += self._tokens.digest(tokens)
            length += len(tokens)
        document = _encoder.encode(msgspec.structs.replace(row, attributes=rest))
        digest = hashlib.blake2b(document, digest_size=16)
        digest.update(bytes((texts is not None, len(hashed))) + hashed)
        return UniqueSpan(row, digest.hexdigest(), len(document) + length)


def deduplicate(spans: Iterable[SpanRow]) -> dict[SpanKey, UniqueSpan]:
    """One span per (trace id, span id). Of several with different content the ended one wins, then the longer, then
    the one with the larger hash."""
    readers: dict[str, _Reader] = {}
    versions: dict[SpanKey, dict[str, UniqueSpan]] = {}
    for row in spans:
        reader = readers.get(row.trace_id)
        if reader is None:
            reader = readers[row.trace_id] = _Reader()
        candidate = reader.read(row)
        versions.setdefault(candidate.key, {})[candidate.content_hash] = candidate
    return {key: _winner(list(found.values())) for key, found in versions.items()}


def _winner(versions: Sequence[UniqueSpan]) -> UniqueSpan:
    if len(versions) == 1:
        return versions[0]
    best = max(versions, key=lambda span: (span.row.end_ns > 0, span.length, span.content_hash))
    conflicts = sum(span.row.end_ns > 0 for span in versions) - 1
    return msgspec.structs.replace(best, conflicts=max(0, conflicts))


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
