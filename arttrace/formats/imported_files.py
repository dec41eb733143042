"""What a file of somebody else's traces holds: OTLP, exports of other tracers, trajectories and sessions of other
agents, conversations or exchanges of OpenAI messages, or our own records. Pure: a file in, records out.

One item after the other is read, and its records are given before the next one: what is in memory is an item, and of
the sessions of coding agents a session.
"""

from __future__ import annotations

import functools
import io
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, NamedTuple

import msgspec

from arttrace.formats.content_ids import ContentIds, ItemOrigin
from arttrace.formats.conversations import Conversations, messages_of
from arttrace.formats.evaluations import carried, is_reward_span, rewards_of
from arttrace.formats.files.item_records import ItemRecords, characters_of
from arttrace.formats.files.items import Item, ItemFile
from arttrace.formats.files.known_ids import KnownIds
from arttrace.formats.files.unpacked import Unreadable
from arttrace.formats.left_out import LeftOutItem, Read
from arttrace.formats.otlp.check_protobuf import check_protobuf, check_protobuf_logs, one_by_one
from arttrace.formats.otlp.decode_json import json_logs, json_spans
from arttrace.formats.otlp.decode_protobuf import protobuf_spans
from arttrace.formats.otlp.logs import is_log_request
from arttrace.formats.otlp.request import MalformedRequest, TooManySpans
from arttrace.formats.otlp.validate import checked
from arttrace.formats.sdks import langfuse, logfire
from arttrace.formats.sdks.openinference.feedback import kept_as_notes
from arttrace.formats.sdks.tolerant import normalised
from arttrace.formats.sdks.whole_traces.messages_elsewhere import with_messages
from arttrace.formats.systems import completions, exchanges, training_rows
from arttrace.formats.systems.forms import FORMS
from arttrace.formats.systems.refused_items import instead_of
from arttrace.formats.systems.rollouts import verl
from arttrace.formats.systems.sessions import claude_code, codex, gemini_cli
from arttrace.records import semconv
from arttrace.records.record import Record, decode_record, encode_record
from arttrace.records.reward import Reward
from arttrace.records.span import SpanRow
from arttrace.records.values.lenient_json import read_json
from arttrace.records.values.nesting import UNREADABLE
from arttrace.trajectories.decoding.attribute_values import DEPTH, too_deep
from arttrace.trajectories.decoding.unreadable_calls import unread_calls
from arttrace.trajectories.identity.stand_ins import is_stand_in

_KEPT_REASONS, _SHOWN = 5, 500
_REFUSED = (*UNREADABLE, TypeError, OverflowError, AttributeError, LookupError, struct.error)
_OWN_TYPES = ("span", "reward", "judgement", "policy_step", "grouping")
_OTLP = {"resourceSpans": json_spans, "resourceLogs": json_logs}
DEEP_METADATA = f"values of metadata nested deeper than {DEPTH} levels"
_RECORDS_AT_ONCE, _CHARACTERS_AT_ONCE = 4_000, 8 << 20

_Made = tuple[ItemRecords, bool]
"""What was made of one item, and whether its spans were made here of what another system wrote."""


class Batch(NamedTuple):
    """Some records of a file, in order. `translated` are the traces among them whose spans were made here of what
    another system wrote; in a file of spans the spans are the file's own. `position` is about how far in the file they
    reach, in bytes."""

    records: list[Record]
    translated: frozenset[str]
    position: int


class Imported(msgspec.Struct):
    """What of a file was read, what it was taken for, and what of it was refused, with the first reasons. `unread`
    counts calls that yield no message, by scope, operation and attributes; `other_records` are notes, rewards taken
    back, judgements, groupings and policy steps; `left_out` counts what no record holds, by its kind; `records` is
    filled by `read_file` alone."""

    records: list[Record] = []
    kinds: dict[str, int] = {}
    traces: int = 0
    spans: int = 0
    rewards: int = 0
    other_records: int = 0
    unread: dict[str, int] = {}
    left_out: dict[str, int] = {}
    refused: int = 0
    reasons: list[str] = []

    def refuse(self, reason: str, count: int = 1) -> None:
        """Counts what cannot be read."""
        self.refused += count
        if len(self.reasons) < _KEPT_REASONS:
            self.reasons.append(reason[:_SHOWN])


def read_file(data: bytes, source: str) -> Imported:
    """Everything in a file that is in memory."""
    found = Imported()
    for batch in read_records(io.BytesIO(data), len(data), source, found, ContentIds()):
        found.records += batch.records
    return found


def read_records(file: BinaryIO, size: int, source: str, found: Imported, ids: ContentIds) -> Iterator[Batch]:
    """The records of an open file of so many bytes, some at a time; `found` counts. `source` names conversations that
    do not name themselves, `ids` distinguishes equal runs of all files. An item that cannot be read is refused alone.
    Raises Unreadable when the file as a whole is of no known form."""
    items = ItemFile(file, size)
    if items.is_binary:
        made: Iterable[_Made] = ((_alone(record), False) for record in _protobuf(items.rest(), found))
        yield from _batches(made, found, items)
    else:
        yield from _batches(_Reader(source, found, ids).records(items), found, items)
        if items.replaced:
            found.left_out["bytes that are no UTF-8, read as U+FFFD"] = items.replaced
        if not found.kinds:
            raise Unreadable(items.cut or (found.reasons[0] if found.reasons else _nothing_in(found)))


def _nothing_in(found: Imported) -> str:
    """Why a file of which nothing was refused gave nothing."""
    return f"it holds no run, only {', '.join(found.left_out)}" if found.left_out else "it is empty"


def _batches(made: Iterable[_Made], found: Imported, items: ItemFile) -> Iterator[Batch]:
    """What was made of one item is parted only where it is more than a batch holds."""
    batch: list[Record] = []
    translated: set[str] = set()
    characters = 0
    traces = KnownIds()

    def ended() -> Batch:
        nonlocal batch, translated, characters
        done = Batch(_counted(batch, found, traces), frozenset(translated), items.position)
        batch, translated, characters = [], set(), 0
        return done

    for records, is_translated in made:
        too_large = characters + records.characters > _CHARACTERS_AT_ONCE
        if batch and (too_large or len(batch) + len(records) > _RECORDS_AT_ONCE):
            yield ended()
        for record in records:
            batch.append(record)
            characters += characters_of(record)
            if is_translated and isinstance(record, SpanRow):
                translated.add(record.trace_id)
            if len(batch) >= _RECORDS_AT_ONCE or characters >= _CHARACTERS_AT_ONCE:
                yield ended()
    if batch:
        yield ended()


def _alone(record: Record) -> ItemRecords:
    made = ItemRecords()
    made.append(record)
    return made


def _counted(records: list[Record], found: Imported, traces: KnownIds) -> list[Record]:
    as_spans = [record for record in records if isinstance(record, SpanRow)]
    spans = [span for span in as_spans if not (is_reward_span(span) or is_stand_in(span))]
    found.spans += len(spans)
    own_rewards = sum(isinstance(record, Reward) and record.counts for record in records)
    found.rewards += own_rewards + sum(one.counts for span in as_spans for one in rewards_of(span))
    for why in (why for span in as_spans for why in kept_as_notes(span)):
        found.left_out[why] = found.left_out.get(why, 0) + 1
    for what, count in (one for span in as_spans for one in logfire.lost(span)):
        found.left_out[what] = found.left_out.get(what, 0) + count
    found.other_records += len(records) - len(as_spans) - own_rewards
    traces.add(span.trace_id.encode() for span in spans)
    found.traces = traces.count
    read = list(map(normalised, with_messages(spans)))
    if deep := sum(too_deep(span.attributes.get(semconv.METADATA)) for span in read):
        found.left_out[DEEP_METADATA] = found.left_out.get(DEEP_METADATA, 0) + deep
    for what, count in unread_calls(read).items():
        found.unread[what] = found.unread.get(what, 0) + count
    return records


class _Reader:
    """The items of one file, each by the form that it has."""

    def __init__(self, source: str, found: Imported, ids: ContentIds) -> None:
        self._source = source
        self._found = found
        self._ids = ids
        self._exchanges = exchanges.Exchanges(source, ids)
        self._conversations = Conversations(source, ids)
        self._is_translated = True
        self._claude = claude_code.ClaudeSessions()
        self._codex = codex.CodexSessions()
        self._gemini = gemini_cli.GeminiSessions()
        self._verl = verl.VerlRollouts(source, ids)

    def records(self, items: Iterable[Item]) -> Iterator[_Made]:
        sessions_of = (
            (claude_code.KIND, self._claude),
            (codex.KIND, self._codex),
            (gemini_cli.KIND, self._gemini),
            (verl.KIND, self._verl),
        )
        for place, item in items:
            refused = self._found.refused
            self._is_translated = True
            made = self._checked(place, functools.partial(self._one, place, item), item)
            yield made, self._is_translated
            if self._found.refused > refused:
                for _, sessions in sessions_of:
                    sessions.miss()
        for kind, sessions in sessions_of:
            yield self._checked("the session", functools.partial(_as_stored, sessions.finish())), True
            if sessions.count:
                self._found.kinds[kind] = sessions.count

    def _checked(self, place: str, read: Callable[[], Iterable[Read]], item: Any = None) -> ItemRecords:
        """What was read of an item, where all of it can be kept; else it is refused, and what stands in for it."""
        records = ItemRecords()
        left_out: list[str] = []
        try:
            for one in read():
                if isinstance(one, LeftOutItem):
                    left_out.append(one.what)
                else:
                    records.append(checked(one))
        except _REFUSED as error:
            reason = str(error) if isinstance(error, (*UNREADABLE, OverflowError)) else f"of another form: {error!r}"
            self._found.refuse(f"{place}: {reason}")
            instead = instead_of(item, reason)
            return ItemRecords() if instead is None else _alone(instead)
        for what in left_out:
            self._found.left_out[what] = self._found.left_out.get(what, 0) + 1
        return records

    def _one(self, place: str, item: Any) -> Iterable[Read]:
        if isinstance(item, str):  # JSON within JSON
            item = read_json(item)
        if not isinstance(item, dict):
            raise ValueError(str(item) if isinstance(item, Exception) else "no JSON object")
        if "resourceSpans" in item or "resourceLogs" in item:
            return self._is("otlp", self._of_otlp(item))
        if isinstance(item.get("observations"), list):
            return self._is("langfuse", langfuse.records(item))
        if isinstance(item.get("traceId"), str) and "startTime" in item:
            return self._is("langfuse", langfuse.single(item))
        if langfuse.recognises(item):
            return self._is("langfuse", langfuse.row(item))
        if item.get("type") in _OWN_TYPES and "root_span_id" not in item:
            return self._is("records", [decode_record(msgspec.json.encode(item))])
        if claude_code.recognises(item):
            return self._claude.take(item)
        if codex.recognises(item):
            return _as_stored(self._codex.take(item))
        if gemini_cli.recognises(item):
            return self._gemini.take(item)
        if verl.recognises(item):
            return _as_stored(self._verl.take(item, place))
        origin = ItemOrigin(self._source, place, self._ids)
        for form in FORMS:
            if form.recognises(item):
                return self._is(form.KIND, form.records(item, origin))
        return self._of_messages(item, origin)

    def _of_messages(self, item: dict[str, Any], origin: ItemOrigin) -> Iterable[Read]:
        """Of messages of OpenAI's, as they were asked for and answered, or as a conversation."""
        if completions.recognises(item):
            return self._is(completions.KIND, self._exchanges.records(completions.exchange(item)))
        if exchanges.recognises(item):
            return self._is(exchanges.KIND, self._exchanges.records(item))
        has_messages = messages_of(item) is not None
        if training_rows.recognises(item, has_messages=has_messages):
            return self._is(training_rows.KIND, training_rows.records(item, origin))
        if has_messages:
            return self._is("conversations", self._conversations.records(item))
        if not item:
            raise ValueError("an object without any keys")
        raise ValueError(f"an object of no known form, with the keys {', '.join(map(str, list(item)[:8]))}")

    def _of_otlp(self, request: dict[str, Any]) -> Iterator[Record]:
        exports = [read(request) for key, read in _OTLP.items() if key in request]
        for export in exports:
            if export.refused:
                self._found.refuse(export.reason, export.refused)
            for span in (*export.spans, *export.stand_ins):
                yield from carried(span)

    def _is(self, kind: str, records: Iterable[Read]) -> Iterator[Read]:
        self._is_translated = kind not in ("otlp", "records")
        yield from _as_stored(records) if self._is_translated else records
        self._found.kinds[kind] = self._found.kinds.get(kind, 0) + 1


def _as_stored(records: Iterable[Read]) -> Iterator[Read]:
    """The records as the store will read them; one that it could not read raises ValueError."""
    return (one if isinstance(one, LeftOutItem) else decode_record(encode_record(one)) for one in records)


def _protobuf(data: bytes, found: Imported) -> Iterator[Record]:
    are_logs = is_log_request(data)
    check = check_protobuf_logs if are_logs else check_protobuf
    try:
        parts = one_by_one(data)
        requests = [check(part) for part in parts]
    except (MalformedRequest, TooManySpans) as error:
        raise Unreadable(f"it is neither JSON nor an OTLP trace request in protobuf: {error}") from error
    for one in requests:
        if one.refused:
            found.refuse(one.reason, one.refused)
    if not any(one.spans or one.body for one in requests):
        raise Unreadable("it holds no GenAI events" if are_logs else "it holds no spans")
    found.kinds["otlp"] = 1
    for one in requests:
        for span in protobuf_spans(one.body):
            yield from carried(span)
