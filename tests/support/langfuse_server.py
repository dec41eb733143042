"""A stand-in for a Langfuse 4 server on 127.0.0.1, made after its published OpenAPI document and its OTLP mapping.

It takes spans at `/api/public/otel/v1/traces` and scores at `/api/public/scores`, and lists them at
`/api/public/v2/observations` and `/api/public/v3/scores`, with its cursors, filters, field groups and cut metadata.
What it does with a span is what the server's OtelIngestionProcessor does with the attributes that arttrace sends.
"""

from __future__ import annotations

import base64
import datetime
import gzip
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from arttrace.formats.otlp.decode_protobuf import protobuf_spans
from arttrace.records.span import SpanRow

PUBLIC, SECRET = "pk-lf-stand-in", "sk-lf-stand-in-of-a-secret"
_AUTHORIZATION = "Basic " + base64.b64encode(f"{PUBLIC}:{SECRET}".encode()).decode()
_TYPES = {"chat": "GENERATION", "text_completion": "GENERATION", "generate_content": "GENERATION",
          "embeddings": "EMBEDDING", "invoke_agent": "AGENT", "execute_tool": "TOOL"}  # fmt: skip
_NOT_METADATA = ("langfuse.observation.input", "langfuse.observation.output", "gen_ai.input.messages",
                 "gen_ai.output.messages", "gen_ai.tool.call.arguments", "gen_ai.tool.call.result")  # fmt: skip
_GROUPS = {
    "core": ("id", "traceId", "startTime", "endTime", "projectId", "parentObservationId", "type"),
    "basic": ("name", "level", "statusMessage", "version", "environment", "bookmarked", "public", "userId",
              "sessionId", "isRootObservation"),
    "time": ("completionStartTime", "createdAt", "updatedAt"),
    "io": ("input", "output"),
    "metadata": ("metadata",),
    "model": ("model", "internalModelId", "modelParameters"),
    "usage": ("usageDetails", "costDetails", "totalCost"),
    "trace_context": ("tags", "release", "traceName"),
}  # fmt: skip

Answer = tuple[int, dict[str, str], bytes]
Script = Callable[[str, bytes], Answer | None]


@dataclass
class LangfuseServer:
    """What it holds, and how it behaves: `script` answers the next requests in its place (a script that returns None
    cuts the connection), `refuses` says of a span whether the whole request is refused for it."""

    url: str = ""
    observations: dict[tuple[str, str, str], dict[str, Any]] = field(default_factory=dict)
    scores: dict[tuple[str, str, str], dict[str, Any]] = field(default_factory=dict)
    script: list[Script] = field(default_factory=list)
    refuses: Callable[[SpanRow], bool] = lambda _: False
    takes_lists: bool = True
    project: str = "cmproject1"
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    queries: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    pages: list[dict[str, Any]] = field(default_factory=list)

    def environ(self) -> dict[str, str]:
        """The environment of a program that talks to it."""
        return {"LANGFUSE_PUBLIC_KEY": PUBLIC, "LANGFUSE_SECRET_KEY": SECRET, "LANGFUSE_BASE_URL": self.url}

    def count(self, path: str) -> int:
        """How many requests came to a path."""
        return sum(1 for _, asked, _ in self.requests if asked == path)

    # --- in ----------------------------------------------------------------------------------------------------

    def take_spans(self, body: bytes) -> Answer:
        spans = protobuf_spans(body)
        if any(map(self.refuses, spans)):
            return _json(400, {"message": "Invalid span", "error": "BadRequest"})
        for span in spans:
            item = _observation(span)
            self.observations[item["traceId"], item["id"], item["startTime"]] = item
        return _json(200, {})

    def take_scores(self, body: bytes) -> Answer:
        given = json.loads(body)
        if isinstance(given, list) and not self.takes_lists:
            return _json(400, {"message": "Invalid request data", "error": "InvalidRequestError"})
        if isinstance(given, dict) and self.takes_lists:
            return _json(400, {"message": "Expected array, received object", "error": "InvalidRequestError"})
        if isinstance(given, dict):
            self._score(given)
            return _json(200, {"id": given["id"]})
        errors = [{"message": f"score {one['name']}: invalid"} for one in given if one["name"] == "refused"]
        for one in given:
            if one["name"] != "refused":
                self._score(one)
        if errors:
            return _json(207, {"accepted": len(given) - len(errors), "rejected": len(errors), "errors": errors})
        return _json(202, {"message": "Accepted"})

    def _score(self, one: dict[str, Any]) -> None:
        self.scores[one["id"], one["name"], one["timestamp"]] = one

    # --- out ---------------------------------------------------------------------------------------------------

    def list_observations(self, query: dict[str, str]) -> Answer:
        items = sorted(
            self.observations.values(), key=lambda one: (one["startTime"], one["traceId"], one["id"]), reverse=True
        )
        for condition in json.loads(query.get("filter", "[]")):
            items = [one for one in items if _holds(condition, one)]
        shown = {name for group in query.get("fields", "core,basic").split(",") for name in _GROUPS[group]}
        expanded = query.get("expandMetadata", "").split(",")

        def of(item: dict[str, Any]) -> dict[str, Any]:
            found = {name: item[name] for name in sorted({*shown, *_GROUPS["core"]}) if name in item}
            if "metadata" in found:
                found["metadata"] = {
                    key: value if key in expanded else value[:200] if isinstance(value, str) else value
                    for key, value in found["metadata"].items()
                }
            return {**found, "modelId": None, "inputPrice": None, "outputPrice": None, "totalPrice": None}

        return self._page([of(item) for item in items], query, most=1000, usual=50)

    def count_observations(self, query: dict[str, Any]) -> Answer:
        if query.get("view") != "observations" or query.get("metrics") != [
            {"measure": "count", "aggregation": "count"}
        ]:
            return _json(400, {"message": "Invalid query"})
        start, end = query["fromTimestamp"], query["toTimestamp"]
        found = sum(start <= one["startTime"] < end for one in self.observations.values())
        return _json(200, {"data": [{"count_count": str(found)}]})  # the database's counts are text

    def list_scores(self, query: dict[str, str]) -> Answer:
        traces = query.get("traceId")
        items = [
            {
                "id": one["id"], "projectId": "stand-in", "name": one["name"], "value": one["value"],
                "dataType": one["dataType"], "source": one.get("source", "API"), "timestamp": one["timestamp"],
                "environment": one.get("environment", "default"), "createdAt": one["timestamp"],
                "updatedAt": one["timestamp"], "comment": one.get("comment"), "metadata": one.get("metadata"),
                "subject": {"kind": "observation", "id": one["observationId"], "traceId": one["traceId"]}
                if one.get("observationId") else {"kind": "trace", "id": one["traceId"]},
            }
            for one in sorted(self.scores.values(), key=lambda one: (one["timestamp"], one["id"]), reverse=True)
            if traces is None or one["traceId"] in traces.split(",")
            if query.get("fromTimestamp", "") <= one["timestamp"] < query.get("toTimestamp", "9999")
        ]  # fmt: skip
        return self._page(items, query, most=100, usual=50)

    def _page(self, items: list[dict[str, Any]], query: dict[str, str], *, most: int, usual: int) -> Answer:
        limit = int(query.get("limit", usual))
        if limit > most:
            return _json(400, {"message": f"limit is at most {most}"})
        start = int(base64.b64decode(query["cursor"])) if "cursor" in query else 0
        meta: dict[str, Any] = {"limit": limit}
        if start + limit < len(items):
            meta["cursor"] = base64.b64encode(str(start + limit).encode()).decode()
        page = {"data": items[start : start + limit], "meta": meta}
        self.pages.append(page)
        return _json(200, page)


def _holds(condition: dict[str, Any], item: dict[str, Any]) -> bool:
    value, wanted = item.get(condition["column"]), condition["value"]
    match condition["type"], condition["operator"]:
        case "datetime", "<":
            return bool(value < wanted)
        case "datetime", ">=":
            return bool(value >= wanted)
        case "string", "=":
            return bool(value == wanted)
        case "stringOptions", "any of":
            return value in wanted
        case "arrayOptions", "all of":
            return set(wanted) <= set(value or ())
    raise AssertionError(condition)


def _observation(span: SpanRow) -> dict[str, Any]:
    """As `processToEvent` of the server makes it of a span."""
    got = span.attributes

    def parsed(name: str) -> Any:
        return json.loads(got[name]) if name in got else {}

    metadata: dict[str, Any] = {
        "attributes": {name: value for name, value in got.items() if name not in _NOT_METADATA},
        "resourceAttributes": span.resource,
        "scope": {"name": span.scope_name, "version": span.scope_version},
        **{
            name.removeprefix("langfuse.observation.metadata."): value
            for name, value in got.items()
            if name.startswith("langfuse.observation.metadata.")
        },
        **parsed("langfuse.trace.metadata"),
    }
    return {
        "id": span.span_id,
        "traceId": span.trace_id,
        "projectId": "stand-in",
        "parentObservationId": span.parent_span_id,
        "isRootObservation": span.parent_span_id is None or bool(got.get("langfuse.internal.is_app_root")),
        "type": _TYPES.get(got.get("gen_ai.operation.name", ""), "SPAN"),
        "name": span.name,
        "startTime": _iso(span.start_ns),
        "endTime": _iso(span.end_ns),
        "completionStartTime": got.get("langfuse.observation.completion_start_time"),
        "createdAt": _iso(span.start_ns),
        "updatedAt": _iso(span.start_ns),
        "level": got.get("langfuse.observation.level") or ("ERROR" if span.status_code == 2 else "DEFAULT"),
        "statusMessage": got.get("langfuse.observation.status_message") or span.status_message or None,
        "version": None,
        "environment": span.resource.get("langfuse.environment", "default"),
        "release": span.resource.get("langfuse.release"),
        "bookmarked": False,
        "public": False,
        "userId": got.get("user.id"),
        "sessionId": got.get("session.id") or got.get("gen_ai.conversation.id"),
        "traceName": got.get("langfuse.trace.name"),
        "tags": got.get("langfuse.trace.tags", []),
        "input": got.get("langfuse.observation.input"),
        "output": got.get("langfuse.observation.output"),
        "metadata": dict(_flat(metadata)),
        "model": got.get("gen_ai.response.model") or got.get("gen_ai.request.model"),
        "internalModelId": None,
        "modelParameters": parsed("langfuse.observation.model.parameters"),
        "usageDetails": parsed("langfuse.observation.usage_details"),
        "costDetails": {},
        "totalCost": None,
    }


def _flat(value: dict[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """As `flattenJsonToPathArrays` of the server: paths with dots, and text."""
    for key, item in value.items():
        path = f"{above}.{key}" if above else key
        if isinstance(item, dict):
            yield from _flat(item, path)
        else:
            yield path, item if isinstance(item, str) else json.dumps(item)


def _iso(time_ns: int) -> str:
    """Milliseconds, as a Date of JavaScript has them."""
    at = datetime.datetime.fromtimestamp(time_ns // 1_000_000 / 1000, tz=datetime.UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _json(status: int, document: Any) -> Answer:
    return status, {"content-type": "application/json"}, json.dumps(document).encode()


@contextmanager
def langfuse_server(**given: Any) -> Iterator[LangfuseServer]:
    """A running stand-in, for the length of a `with` block."""
    server = LangfuseServer(**given)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # or each answer waits 40 ms for an acknowledgement

        def do_GET(self) -> None:
            self._answer(b"")

        def do_POST(self) -> None:
            self._answer(self.rfile.read(int(self.headers["content-length"])))

        def _answer(self, body: bytes) -> None:
            url = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            server.requests.append((self.command, url.path, {k.lower(): v for k, v in self.headers.items()}))
            if self.command == "GET":
                server.queries.append((url.path, query))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            reply: Answer | None
            if server.script:
                reply = server.script.pop(0)(url.path, body)
            elif self.headers.get("authorization") != _AUTHORIZATION:
                reply = _json(401, {"message": "Invalid credentials. Confirm that you've configured the correct host."})
            else:
                reply = self._routed(url.path, query, body)
            if reply is None:
                self.close_connection = True
                return
            status, headers, content = reply
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def _routed(self, path: str, query: dict[str, str], body: bytes) -> Answer:
            match self.command, path:
                case "POST", "/api/public/otel/v1/traces":
                    return server.take_spans(body)
                case "POST", "/api/public/scores":
                    return server.take_scores(body)
                case "GET", "/api/public/v2/observations":
                    return server.list_observations(query)
                case "GET", "/api/public/v2/metrics":
                    return server.count_observations(json.loads(query["query"]))
                case "GET", "/api/public/projects":
                    return _json(200, {"data": [{"id": server.project, "name": "tests", "metadata": {}}]})
                case "GET", "/api/public/v3/scores":
                    return server.list_scores(query)
            return _json(404, {"message": "not found"})

        def log_message(self, *args: Any) -> None: ...

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
