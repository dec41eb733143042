"""What a file of somebody else's traces holds: OTLP (JSON, JSON lines, protobuf), a Langfuse export, conversations or
exchanges of OpenAI messages, or our own records. Pure: bytes in, records out."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from typing import Any

import msgspec

from arttrace.formats import langfuse
from arttrace.formats.conversations import Exchanges, conversation, messages_of
from arttrace.formats.otlp import MalformedRequest, parse_json, protobuf_spans
from arttrace.formats.otlp_check import TooManySpans, check_protobuf, one_by_one
from arttrace.records.record import Record, decode_record

_KEPT_REASONS = 5


class Unreadable(ValueError):
    """The file is of no form that is understood."""


class Imported(msgspec.Struct):
    """The records of a file, what it was taken for, and what of it was refused, with the first reasons."""

    records: list[Record] = []
    kinds: dict[str, int] = {}
    refused: int = 0
    reasons: list[str] = []

    def refuse(self, reason: str, count: int = 1) -> None:
        """Counts what cannot be read."""
        self.refused += count
        if len(self.reasons) < _KEPT_REASONS:
            self.reasons.append(reason)


def read_file(data: bytes, source: str) -> Imported:
    """Everything in a file; `source` names conversations that do not name themselves. An item that cannot be read is
    refused alone. Raises Unreadable when the file as a whole is of no known form."""
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise Unreadable(f"it is no whole gzip file: {error}") from error
    found = Imported()
    if data.lstrip()[:1] not in (b"{", b"["):
        _protobuf(data, found)
        return found
    exchanges = Exchanges(source)
    observations: dict[str, list[dict[str, Any]]] = {}
    for number, item in enumerate(_items(data), 1):
        try:
            _one(item, source, exchanges, observations, found)
        except (ValueError, TypeError, OverflowError, msgspec.MsgspecError) as error:
            found.refuse(f"item {number}: {error}")
    for trace_id, members in observations.items():
        _take(found, "langfuse", langfuse.records({"id": trace_id, "observations": members}))
    if not found.kinds:
        raise Unreadable(found.reasons[0] if found.reasons else "it is empty")
    return found


def _items(data: bytes) -> Iterator[Any]:
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        for line in data.splitlines():
            if line.strip():
                try:
                    yield msgspec.json.decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    yield error
        return
    if isinstance(document, dict) and isinstance(document.get("data"), list):
        document = document["data"]
    yield from document if isinstance(document, list) else [document]


def _one(
    item: Any, source: str, exchanges: Exchanges, observations: dict[str, list[dict[str, Any]]], found: Imported
) -> None:
    if not isinstance(item, dict):
        raise ValueError(str(item) if isinstance(item, Exception) else "no JSON object")
    if "resourceSpans" in item:
        try:
            export = parse_json(msgspec.json.encode(item))
        except MalformedRequest as error:
            raise ValueError(str(error)) from error
        _take(found, "otlp", iter(export.spans))
        if export.refused:
            found.refuse(export.reason, export.refused)
    elif isinstance(item.get("observations"), list):
        _take(found, "langfuse", langfuse.records(item))
    elif isinstance(item.get("traceId"), str) and "startTime" in item:
        observations.setdefault(item["traceId"], []).append(item)
    elif "request" in item and "response" in item:
        _take(found, "exchanges", iter([exchanges.span(item)]))
    elif item.get("type") in ("span", "reward", "judgement", "policy_step"):
        _take(found, "records", iter([decode_record(msgspec.json.encode(item))]))
    elif messages_of(item) is not None:
        _take(found, "conversations", conversation(item, source))
    else:
        raise ValueError(f"an object of no known form, with the keys {', '.join(map(str, list(item)[:8]))}")


def _take(found: Imported, kind: str, records: Iterator[Record]) -> None:
    taken = list(records)
    found.records += taken
    found.kinds[kind] = found.kinds.get(kind, 0) + 1


def _protobuf(data: bytes, found: Imported) -> None:
    try:
        checked = [check_protobuf(request) for request in one_by_one(data)]
    except (MalformedRequest, TooManySpans) as error:
        raise Unreadable(f"it is neither JSON nor an OTLP trace request in protobuf: {error}") from error
    for one in checked:
        if one.refused:
            found.refuse(one.reason, one.refused)
    if not any(one.spans for one in checked):
        raise Unreadable("it holds no spans")
    _take(found, "otlp", (span for one in checked for span in protobuf_spans(one.body)))
