"""The collector's HTTP side: OTLP in, an answer only when the spans are durable in the spool."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from arttrace.collector.sink import Sink
from arttrace.formats.otlp import Export, MalformedRequest, parse_json, protobuf_spans
from arttrace.formats.otlp_check import check_protobuf

PROTOBUF, JSON = "application/x-protobuf", "application/json"
MAX_BODY_BYTES = 64 << 20
"""Bound on one request's body after decompression; the specification counts decompressed bytes."""
_RETRY_AFTER_S = 2  # the stock exporter gives up on a batch when it does not fit its 10 s


def parse_protobuf(body: bytes) -> Export:
    """Reads a protobuf request. Raises MalformedRequest when it is none."""
    checked = check_protobuf(body)
    return Export(protobuf_spans(checked.body), checked.refused, checked.reason)


_PARSERS: dict[str, Callable[[bytes], Export]] = {PROTOBUF: parse_protobuf, JSON: parse_json}


class _Refused(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def create_app(sink: Sink, *, max_body_bytes: int = MAX_BODY_BYTES) -> Starlette:
    """The application: `POST /v1/traces` and `GET /health`."""

    async def traces(request: Request) -> Response:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        try:
            parse = _PARSERS.get(kind)
            if parse is None:
                raise _Refused(415, f"send {PROTOBUF} or {JSON}, not {kind or 'a body without a content type'}")
            body = await _body(request, max_body_bytes)
            export = await run_in_threadpool(_take, parse, body, sink)
        except _Refused as refused:
            return _error(kind, refused.status, str(refused))
        except MalformedRequest as error:
            return _error(kind, 400, str(error))
        except OSError as error:
            return _error(kind, 503, f"the spool cannot be written: {error.strerror or error}")
        return _success(kind, export)

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok", "directory": str(sink.data.root), "acknowledged_spans": sink.acknowledged})

    return Starlette(routes=[Route("/v1/traces", traces, methods=["POST"]), Route("/health", health, methods=["GET"])])


def _take(parse: Callable[[bytes], Export], body: bytes, sink: Sink) -> Export:
    export = parse(body)
    sink.take(export.spans)
    return export


async def _body(request: Request, limit: int) -> bytes:
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "", "gzip"):
        raise _Refused(415, f"content encoding {encoding!r} is not understood: send gzip or none")
    unpack = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS) if encoding == "gzip" else None
    body = bytearray()
    async for chunk in request.stream():
        if unpack is None:
            body += chunk
        else:
            try:
                body += unpack.decompress(chunk, limit + 1 - len(body))
            except zlib.error as error:
                raise _Refused(400, f"the body is no gzip: {error}") from error
        if len(body) > limit:
            raise _Refused(413, f"the body is over {limit} bytes after decompression: send smaller batches")
    if unpack is not None and not unpack.eof:
        raise _Refused(400, "the gzip body ends too early")
    return bytes(body)


def _success(kind: str, export: Export) -> Response:
    if kind == JSON:
        partial = {"rejectedSpans": str(export.refused), "errorMessage": export.reason} if export.refused else None
        return JSONResponse({"partialSuccess": partial} if partial else {})
    answer = ExportTraceServiceResponse()
    if export.refused:
        answer.partial_success.rejected_spans = export.refused
        answer.partial_success.error_message = export.reason
    return Response(answer.SerializeToString(), media_type=PROTOBUF)


def _error(kind: str, status: int, message: str) -> Response:
    """An error with a google.rpc.Status body, as the specification asks (only its field 2, `message`, is set)."""
    headers = {"retry-after": str(_RETRY_AFTER_S)} if status == 503 else {}
    if kind == PROTOBUF:
        text = message.encode()[:1000]
        return Response(b"\x12" + _varint(len(text)) + text, status, headers, media_type=PROTOBUF)
    return Response(msgspec.json.encode({"message": message}), status, headers, media_type=JSON)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])
