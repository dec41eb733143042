"""One request with traces or logs, from its bytes to the answer, whatever the transport."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

from arttrace.collector.otlp.request_bodies import Budget, undo
from arttrace.collector.otlp.responses import PROTOBUF, failure, success
from arttrace.collector.spool import Spool
from arttrace.formats.journal_entry import encode_otlp, encode_records
from arttrace.formats.otlp.check_protobuf import Checked, check_protobuf, check_protobuf_logs
from arttrace.formats.otlp.decode_json import parse_json
from arttrace.formats.otlp.request import MalformedRequest, TooManySpans
from arttrace.store.server.responses import JSON, HttpResponse, RequestRefused

_NOT_IN_TIME, _AGAIN = 408, 500
_INLINE_BYTES = 1 << 20  # a larger body is unpacked and checked in a thread, so that others are answered meanwhile


class TraceReceiver:
    """Checks bodies and hands what is good to the sink; the answer waits until it is on the disk."""

    def __init__(self, sink: Spool, budget: Budget, max_body_bytes: int) -> None:
        self._sink = sink
        self._budget = budget
        self._max_body_bytes = max_body_bytes

    async def take(self, body: bytes, kind: str, encoding: str, *, logs: bool = False) -> HttpResponse:
        """The answer to a body of content type `kind`, itself within the budget already."""
        taken = 0
        try:
            if len(body) > _INLINE_BYTES or (encoding and len(body) > _INLINE_BYTES >> 4):
                whole = await asyncio.to_thread(undo, body, encoding, self._max_body_bytes)
            else:
                whole = undo(body, encoding, self._max_body_bytes)
            if whole is not body:
                self._budget.take(len(whole))
                taken = len(whole)
            if len(whole) > _INLINE_BYTES:
                checked, payload = await asyncio.to_thread(_check, whole, kind, logs)
            else:
                checked, payload = _check(whole, kind, logs)
            if checked.refused:
                self._sink.refuse(checked.refused, checked.untraced, checked.reason)
            if payload:
                await asyncio.wrap_future(self._sink.take(payload, checked.spans))
            return success(kind, checked.refused, checked.reason, logs=logs)
        except Exception as error:  # noqa: BLE001 - whatever it is, the sender gets an answer, and the next request is served
            return self.refused(kind, error)
        finally:
            self._budget.give_back(taken)

    def take_now(self, body: bytes, *, logs: bool = False) -> tuple[Checked, Future[None] | None]:
        """For a transport that undid the encoding of a protobuf body itself: what is good of it, and a future that is
        done when that is on the disk. Raises what `_check` raises."""
        try:
            checked, payload = _check(body, PROTOBUF, logs)
        except (MalformedRequest, TooManySpans) as error:
            self._sink.unread.add(str(error))
            raise
        if checked.refused:
            self._sink.refuse(checked.refused, checked.untraced, checked.reason)
        return checked, self._sink.take(payload, checked.spans) if payload else None

    def too_large(self, limit: int) -> str:
        """Counts a request that a transport refuses for its size. Returns the reason."""
        reason = f"the body is over {limit} bytes: send smaller batches"
        self._sink.unread.add(reason)
        return reason

    def refused(self, kind: str, error: Exception) -> HttpResponse:
        """The answer that says what went wrong: 400 is for good, and counted; 408 and 503 ask to send it again."""
        answer = failed(kind, error)
        if answer.status < _AGAIN and answer.status != _NOT_IN_TIME:
            self._sink.unread.add(str(error))
        return answer


def failed(kind: str, error: Exception) -> HttpResponse:
    """The answer alone."""
    match error:
        case RequestRefused():
            return failure(kind, error.status, str(error), close=error.close)
        case MalformedRequest():
            return failure(kind, 400, str(error))
        case TooManySpans():
            return failure(kind, 413, str(error))
        case OSError():
            return failure(kind, 503, f"the journal cannot be written: {error.strerror or error}")
    return failure(kind, 503, f"the collector failed: {type(error).__name__}")


def _check(body: bytes, kind: str, logs: bool) -> tuple[Checked, bytes]:
    """What is good of a request, and the journal's payload of it; empty when there is none."""
    if kind == JSON:
        export = parse_json(body, logs=logs)
        kept = [*export.spans, *export.stand_ins]
        untraced = export.refused - len(export.stand_ins)
        return Checked(b"", len(export.spans), export.refused, export.reason, untraced), encode_records(kept)
    checked = (check_protobuf_logs if logs else check_protobuf)(body)
    return checked, encode_otlp(checked.body) if checked.body else b""
