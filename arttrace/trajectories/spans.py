"""A heap of spans becomes one set per trajectory: duplicates dropped, each span given to the run it belongs to.

A span belongs to the trajectory it names; else to that of its nearest ancestor which names one; else to the trace of
its uppermost ancestor, of which different conversation ids make several trajectories.
Only the set of spans counts: any order, batching and duplication of them gives the same answer.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from arttrace import semconv
from arttrace.records.span import SpanRow
from arttrace.records.unreadable import UNREADABLE
from arttrace.trajectories.forest import nearest, tops, without_cycles
from arttrace.trajectories.shared import SharedTexts, SharedTokens
from arttrace.trajectories.values import is_shallow, text

SpanKey = tuple[str, str]
"""(trace id, span id): unique per span."""

_encoder = msgspec.json.Encoder(order="sorted")


class UniqueSpan(msgspec.Struct, frozen=True, gc=False):
    """A span with the hash of its content (32 hex digits) and its length in bytes. Its input is a MessageList,
    its prompt's token ids TokenIds; `conflicts` counts other spans that came under its id, ended like it and with
    different content."""

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
        shared: dict[str, Any] = {}
        hashed, length = b"", 0
        messages = self._texts.messages(row.attributes.get(semconv.INPUT_MESSAGES))
        if messages is not None:
            hashed, length = messages.digest, messages.size
            shared[semconv.INPUT_MESSAGES] = messages
        tokens = row.attributes.get(semconv.PROMPT_TOKEN_IDS)
        if isinstance(tokens, str) and tokens.isascii():
            digest_of_ids, ids = self._tokens.read(tokens)
            hashed += digest_of_ids
            length += len(tokens)
            shared[semconv.PROMPT_TOKEN_IDS] = tokens if ids is None else ids
        if shared:
            rest = {name: value for name, value in row.attributes.items() if name not in shared}
            row = msgspec.structs.replace(row, attributes=rest)
        try:
            document = _encoder.encode(row)
        except UNREADABLE:
            row = _writable(row)
            document = _encoder.encode(row)
        row.attributes.update(shared)
        digest = hashlib.blake2b(document, digest_size=16)
        digest.update(bytes((messages is not None, len(hashed))) + hashed)
        return UniqueSpan(row, digest.hexdigest(), len(document) + length)


def _writable(row: SpanRow) -> SpanRow:
    """A span without the values that are too deep to be written as JSON, and without the rarer things that may be."""
    attributes, resource = (
        {name: value for name, value in held.items() if is_shallow(value)} for held in (row.attributes, row.resource)
    )
    return msgspec.structs.replace(
        row, attributes=attributes, resource=resource, events=[], links=[], rest=None, origin=None
    )


def deduplicate(spans: Iterable[SpanRow]) -> dict[SpanKey, UniqueSpan]:
    """One span per (trace id, span id). Of several with different content the ended one wins, then the longer, then
    the one with the larger hash."""
    readers: dict[str, _Reader] = {}
    versions: dict[SpanKey, dict[str, UniqueSpan]] = {}
    for row in sorted(spans, key=_start):  # as histories grow
        reader = readers.get(row.trace_id)
        if reader is None:
            reader = readers[row.trace_id] = _Reader()
        candidate = reader.read(row)
        versions.setdefault(candidate.key, {})[candidate.content_hash] = candidate
    return {key: _winner(list(found.values())) for key, found in versions.items()}


def _start(row: SpanRow) -> int:
    return row.start_ns


def _winner(versions: Sequence[UniqueSpan]) -> UniqueSpan:
    if len(versions) == 1:
        return versions[0]
    best = max(versions, key=lambda span: (span.row.end_ns > 0, span.length, span.content_hash))
    conflicts = sum(span.row.end_ns > 0 for span in versions) - 1
    return msgspec.structs.replace(best, conflicts=max(0, conflicts))


def parents(spans: Mapping[SpanKey, UniqueSpan]) -> tuple[dict[SpanKey, SpanKey | None], set[SpanKey]]:
    """The key of every span's parent, present or not, None for a span without one; and the spans that lost theirs
    because it stood below them (see forest.py).

    An agent whose parent is not among the spans stands under the first one of them that it links to.
    """
    found: dict[SpanKey, SpanKey | None] = {}
    for key, span in spans.items():
        row = span.row
        parent = (row.trace_id, row.parent_span_id) if row.parent_span_id else None
        if row.links and parent not in spans and row.attributes.get(semconv.OPERATION_NAME) == _AGENT:
            linked = [link for one in row.links if (link := (one.trace_id, one.span_id)) in spans and link != key]
            parent = linked[0] if linked else parent
        found[key] = parent
    return without_cycles(found)


def distinct_ids(
    spans: Mapping[SpanKey, SpanRow], parents: Mapping[SpanKey, SpanKey | None]
) -> tuple[Mapping[SpanKey, SpanRow], Mapping[SpanKey, SpanKey | None]]:
    """The spans of one trajectory and their parents, a span id that several of its traces have with the trace before
    it: whatever is named by a span's id alone is one thing then."""
    named = {*spans, *(parent for key in spans if (parent := parents[key]) is not None)}
    twice = {id for id, count in Counter(id for _, id in named).items() if count > 1}
    if not twice:
        return spans, parents

    def renamed(key: SpanKey) -> SpanKey:
        return (key[0], ":".join(key)) if key[1] in twice else key

    rows = {new: msgspec.structs.replace(row, span_id=new[1]) for key, row in spans.items() for new in [renamed(key)]}
    above = {key: parents[key] for key in spans}
    return rows, {renamed(key): renamed(parent) if parent else None for key, parent in above.items()}


_AGENT = semconv.OPERATION_INVOKE_AGENT


def trajectory_ids(
    spans: Mapping[SpanKey, UniqueSpan], parents: Mapping[SpanKey, SpanKey | None]
) -> dict[SpanKey, tuple[str, str]]:
    """For every span the id that it was given under (the one named, else its trace's), and that of its trajectory:
    the same, unless different conversations split the trace."""
    named = _inherited(spans, parents, semconv.TRAJECTORY_ID)
    traces: dict[str, list[SpanKey]] = {}
    for key, top in tops(parents).items() if None in named.values() else ():
        if named[key] is None:
            traces.setdefault(top[0], []).append(key)
    ids = {key: (id, id) for key, id in named.items() if id is not None}
    conversations = _inherited(spans, parents, semconv.CONVERSATION_ID) if traces else {}
    for trace, members in traces.items():
        held = {conversations[key] for key in members} - {None}
        below = _only_below(members, parents, conversations) if len(held) > 1 else {}
        for key in members:
            conversation = conversations[key] or below.get(key)
            ids[key] = (trace, f"{trace}:{conversation}" if len(held) > 1 and conversation else trace)
    return ids


def _inherited(
    spans: Mapping[SpanKey, UniqueSpan], parents: Mapping[SpanKey, SpanKey | None], attribute: str
) -> dict[SpanKey, str | None]:
    """A text attribute of every span or of its nearest ancestor that has it."""
    own = {key: value for key, span in spans.items() if (value := text(span.row.attributes.get(attribute)))}
    return nearest(parents, own)


def _only_below(
    members: Iterable[SpanKey], parents: Mapping[SpanKey, SpanKey | None], conversations: Mapping[SpanKey, str | None]
) -> dict[SpanKey, str]:
    """The conversation of spans that stand above just one."""
    below: dict[SpanKey, set[str]] = {}
    for key in members:
        conversation, above = conversations[key], parents[key]
        while conversation and above is not None:
            if conversation in below.setdefault(above, set()):
                break
            below[above].add(conversation)
            above = parents.get(above)
    return {key: next(iter(found)) for key, found in below.items() if len(found) == 1}


def revision(spans: Iterable[UniqueSpan]) -> str:
    """16 hex digits over the content of a set of spans."""
    contents = sorted([(*span.key, span.content_hash) for span in spans])
    document = "".join([f"{trace}/{span}/{content};" for trace, span, content in contents])
    return hashlib.blake2b(document.encode(), digest_size=8).hexdigest()
