"""A heap of spans becomes a set: duplicates dropped, each span with a hash of its content.

Only the set of spans counts: any order, batching and duplication of them gives the same answer.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from arttrace.records import semconv
from arttrace.records.message import canonical_json
from arttrace.records.span import SpanRow
from arttrace.records.values.nesting import UNREADABLE
from arttrace.records.values.tokens import TokenText
from arttrace.trajectories.decoding.attribute_values import is_shallow, text
from arttrace.trajectories.decoding.shared_prefixes import MessageList, SharedTexts, SharedTokens
from arttrace.trajectories.identity.session_readings import goes_on, lasted_until

SpanKey = tuple[str, str]
"""(trace id, span id): unique per span."""


class UniqueSpan(msgspec.Struct, frozen=True, gc=False):
    """A span with the hash of its content (32 hex digits) and its length in bytes. Its input is a MessageList,
    its prompt's token ids TokenIds; `conflicts` counts other spans that came under its id, ended like it and with
    different content. Where these contradict each other, and so cannot be one span, `collided` are the trajectories
    that they name."""

    row: SpanRow
    content_hash: str
    length: int
    conflicts: int = 0
    collided: frozenset[str] | None = None

    @property
    def key(self) -> SpanKey:
        return (self.row.trace_id, self.row.span_id)


class _TraceReader:
    """Spans of one trace as UniqueSpans: the hash covers what a span says, not how its input was written down."""

    def __init__(self) -> None:
        self._texts, self._tokens = SharedTexts(), SharedTokens()

    def read(self, row: SpanRow) -> UniqueSpan:
        shared: dict[str, Any] = {}
        hashed, length = b"", 0
        messages = self._texts.messages(row.attributes.get(semconv.INPUT_MESSAGES))
        if messages is not None:
            hashed, length = messages.digest, messages.size
            shared[semconv.INPUT_MESSAGES] = messages
        tokens = row.attributes.get(semconv.PROMPT_TOKEN_IDS)
        if isinstance(tokens, TokenText) or (isinstance(tokens, str) and tokens.isascii()):
            digest_of_ids, ids = self._tokens.read(tokens)
            hashed += digest_of_ids
            length += len(tokens)
            shared[semconv.PROMPT_TOKEN_IDS] = str(tokens) if ids is None else ids
        if shared:
            rest = row.attributes.copy()
            for name in shared:
                del rest[name]
            row = msgspec.structs.replace(row, attributes=rest)
        try:
            document = canonical_json(row)
        except UNREADABLE:
            row = _writable(row)
            document = canonical_json(row)
        row.attributes.update(shared)
        digest = hashlib.blake2b(document, digest_size=16)
        digest.update(bytes((messages is not None, len(hashed))) + hashed)
        return UniqueSpan(row, digest.hexdigest(), len(document) + length)


def _writable(row: SpanRow) -> SpanRow:
    """A span without the values that are too deep to be written as JSON, and without the rarer things that may be."""
    attributes, resource = (
        {name: value for name, value in values.items() if is_shallow(value)}
        for values in (row.attributes, row.resource)
    )
    return msgspec.structs.replace(
        row, attributes=attributes, resource=resource, events=[], links=[], rest=None, origin=None
    )


def deduplicate(spans: Iterable[SpanRow]) -> dict[SpanKey, UniqueSpan]:
    """One span per (trace id, span id). Of several with different content the ended one wins, of readings of a session
    the later, then the longer, then the one with the larger hash."""
    readers: dict[str, _TraceReader] = {}
    versions: dict[SpanKey, dict[str, UniqueSpan]] = {}
    for row in sorted(spans, key=_start):  # as histories grow
        reader = readers.get(row.trace_id)
        if reader is None:
            reader = readers[row.trace_id] = _TraceReader()
        candidate = reader.read(row)
        versions.setdefault(candidate.key, {})[candidate.content_hash] = candidate
    return {key: _winner(list(found.values())) for key, found in versions.items()}


def _start(row: SpanRow) -> int:
    return row.start_ns


def _winner(versions: Sequence[UniqueSpan]) -> UniqueSpan:
    if len(versions) == 1:
        return versions[0]
    best = max(versions, key=lambda span: (span.row.end_ns > 0, lasted_until(span.row), span.length, span.content_hash))
    versions = [one for one in versions if not goes_on(best.row, one.row)]
    ended = [span.row for span in versions if span.row.end_ns > 0]
    named = frozenset(id for row in ended if (id := text(row.attributes.get(semconv.TRAJECTORY_ID))))
    return msgspec.structs.replace(
        best, conflicts=max(0, len(ended) - 1), collided=named if _contradict(ended) else None
    )


def _contradict(rows: Sequence[SpanRow]) -> bool:
    """Whether rows under one id cannot be one span, ended: its source says different things of it. That one says more
    than another, or another source says it otherwise, is no contradiction."""
    said: dict[tuple[str, str], Any] = {}
    for row in rows:
        facts = {"": (row.name, row.start_ns, row.end_ns, row.parent_span_id), **row.attributes}
        for name, value in facts.items():
            value = value.digest if isinstance(value, MessageList) else value
            if said.setdefault((row.scope_name, name), value) != value:
                return True
    return False


def distinct_ids(
    spans: Mapping[SpanKey, SpanRow], parents: Mapping[SpanKey, SpanKey | None]
) -> tuple[Mapping[SpanKey, SpanRow], Mapping[SpanKey, SpanKey | None]]:
    """The spans of one trajectory and their parents, a span id that several of its traces have with the trace before
    it: whatever is named by a span's id alone is one thing then."""
    named = {*spans, *[parent for key in spans if (parent := parents[key]) is not None]}
    if len({trace for trace, _ in named}) == 1:
        return spans, parents
    twice = {id for id, count in Counter(id for _, id in named).items() if count > 1}
    if not twice:
        return spans, parents

    def renamed(key: SpanKey) -> SpanKey:
        return (key[0], ":".join(key)) if key[1] in twice else key

    rows = {new: msgspec.structs.replace(row, span_id=new[1]) for key, row in spans.items() for new in [renamed(key)]}
    above = {key: parents[key] for key in spans}
    return rows, {renamed(key): renamed(parent) if parent else None for key, parent in above.items()}


def revision(spans: Iterable[UniqueSpan]) -> str:
    """16 hex digits over the content of a set of spans."""
    contents = sorted([(*span.key, span.content_hash) for span in spans])
    document = "".join([f"{trace}/{span}/{content};" for trace, span, content in contents])
    return hashlib.blake2b(document.encode(), digest_size=8).hexdigest()
