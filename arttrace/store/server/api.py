"""The query and write API of the store's owner: MessagePack for programs, JSON for people, Arrow for bulk.

`GET /api/NAME?argument=value`, or `POST /api/NAME` with the arguments as JSON or MessagePack, for each name in
access/operations.py; `GET /api/trajectories/ID`; `POST /api/records` with records as JSON lines; `GET /api/owner`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from arttrace.formats.otlp.validate import checked
from arttrace.records.record import Record
from arttrace.records.values.nesting import UNREADABLE
from arttrace.records.values.tokens import plain_or_text
from arttrace.store import Store
from arttrace.store.access.client import JSON_LINES, MSGPACK, Failure
from arttrace.store.access.operations import OPERATIONS, Operation
from arttrace.store.access.sql import named_rows
from arttrace.store.server.limits import RequestLimits
from arttrace.store.server.responses import JSON, RequestRefused
from arttrace.store.server.timeouts import BodyReader
from arttrace.system.errors import StoreError
from arttrace.system.paths import DataDir

ARROW = "application/vnd.apache.arrow.stream"
MAX_BODY_BYTES = 64 << 20

_VERSION = version("arttrace")  # of the code that runs: what is installed may be another one by the time it is asked

_records: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)

OwnedStore = Callable[[], Store | None]


class _NotOwned(Exception):
    """This process does not own the store now."""


def create_api(data: DataDir, owned: OwnedStore, ending: asyncio.Event) -> Starlette:
    """The application; `owned` gives the store while this process owns it. What reads the store is stopped when
    `ending` is set."""

    def store() -> Store:
        found = owned()
        if found is None:
            raise _NotOwned
        return found

    turns = RequestLimits(ending)

    async def answered(request: Request, operation: Operation, arguments: msgspec.Struct) -> Response:
        accept, own = request.headers.get("accept", ""), store()
        is_query = operation.name == "sql"
        return await turns.answer(request, lambda: _run(accept, operation, arguments, own), is_query=is_query)

    async def owner(request: Request) -> Response:
        store()
        return _plain(request, {"directory": str(data.root), "pid": os.getpid(), "version": _VERSION})

    async def records(request: Request) -> Response:
        _expect(request, JSON_LINES)
        return _plain(request, await run_in_threadpool(_append, await _body(request), store()))

    def endpoint(operation: Operation) -> Callable[[Request], Any]:
        async def run(request: Request) -> Response:
            arguments = await _arguments(request, operation)
            return await answered(request, operation, arguments)

        return run

    async def one(request: Request) -> Response:
        operation = OPERATIONS["trajectory"]
        arguments = operation.arguments(id_or_prefix=request.path_params["id"])
        return await answered(request, operation, arguments)

    return Starlette(
        routes=[
            Route("/api/owner", owner),
            Route("/api/records", records, methods=["POST"]),
            Route("/api/trajectories/{id:path}", one),
            *(Route(f"/api/{name}", endpoint(found), methods=["GET", "POST"]) for name, found in OPERATIONS.items()),
        ],
        exception_handlers={
            RequestRefused: lambda _, error: _failure(error.status, Failure(str(error)), close=error.close),
            StoreError: lambda _, error: _failure(409, Failure(error.message, error.hint)),
            _NotOwned: lambda *_: _failure(503, Failure("this process does not own the store now")),
            404: lambda *_: _failure(404, Failure("there is no such address here")),
            405: lambda *_: _failure(405, Failure("the method is not allowed here")),
            Exception: lambda _, error: _failure(503, Failure(f"the store could not answer: {error}")),
        },
    )


def _append(body: bytes, store: Store) -> dict[str, int]:
    try:
        given = [checked(one) for one in _records.decode_lines(body)]
    except UNREADABLE as error:
        raise RequestRefused(400, f"a line is not a record: {error}") from error
    return {"records": len(given), "new": store.append(given)}


def _run(accept: str, operation: Operation, arguments: msgspec.Struct, store: Store) -> Response:
    result = operation.run(store, arguments)
    if MSGPACK in accept:
        return Response(operation.encode(result), media_type=MSGPACK)
    if operation.name == "sql":
        columns, rows = result
        if ARROW in accept:
            return Response(_arrow(columns, rows), media_type=ARROW)
        result = named_rows(columns, rows)
    return Response(msgspec.json.encode(result, enc_hook=plain_or_text), media_type=JSON)


def _arrow(columns: list[str], rows: list[tuple[Any, ...]]) -> bytes:
    try:
        pyarrow = import_module("pyarrow")
    except ImportError:
        raise RequestRefused(
            406, "Arrow needs the package pyarrow beside the collector; JSON and MessagePack do not"
        ) from None
    arrays = []
    for at, column in enumerate(columns):
        try:
            arrays.append(pyarrow.array([row[at] for row in rows]))
        except (pyarrow.ArrowException, OverflowError) as error:
            message = (
                f"{column} cannot be given as Arrow ({error}): cast it in the query, or ask for JSON or MessagePack"
            )
            raise RequestRefused(406, message) from error
    table = pyarrow.Table.from_arrays(arrays, names=columns)
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


async def _arguments(request: Request, operation: Operation) -> msgspec.Struct:
    try:
        if request.method == "GET":
            return _from_query(request, operation)
        kind = _expect(request, MSGPACK, JSON)
        body = await _body(request)
        if kind == MSGPACK:
            return msgspec.msgpack.decode(body, type=operation.arguments)
        return msgspec.json.decode(body or b"{}", type=operation.arguments)
    except (*UNREADABLE, TypeError) as error:
        raise RequestRefused(400, f"{operation.name}: {error}") from error


def _from_query(request: Request, operation: Operation) -> msgspec.Struct:
    """Arguments of a GET. One that may be a list is given once per item."""
    given: dict[str, Any] = {}
    fields = {field.name: field.type for field in msgspec.structs.fields(operation.arguments)}
    for name in request.query_params:
        values = request.query_params.getlist(name)
        several = "Sequence" in str(fields.get(name))
        given[name] = values if several else values[-1]
    return msgspec.convert(given, operation.arguments, strict=False)


async def _body(request: Request) -> bytes:
    body = bytearray()
    coming = BodyReader(request.receive)
    more = True
    while more:
        message = await coming.next()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > MAX_BODY_BYTES:
            raise RequestRefused(413, f"the body is over {MAX_BODY_BYTES} bytes: send it in parts")
    return bytes(body)


def _expect(request: Request, *kinds: str) -> str:
    """The content type. What a web page may send without asking (a form, plain text) is none of these."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in kinds:
        raise RequestRefused(415, f"send {' or '.join(kinds)}, not {kind or 'a body without a content type'}")
    return kind


def _plain(request: Request, value: dict[str, Any]) -> Response:
    if MSGPACK in request.headers.get("accept", ""):
        return Response(msgspec.msgpack.encode(value), media_type=MSGPACK)
    return Response(msgspec.json.encode(value), media_type=JSON)


def _failure(status: int, failure: Failure, *, close: bool = False) -> Response:
    headers = {"connection": "close"} if close else None
    return Response(msgspec.json.encode(failure), status, headers, media_type=JSON)
