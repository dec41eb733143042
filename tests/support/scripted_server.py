"""A stand-in for OpenAI's server on 127.0.0.1 that plays a model by a script: chat completions and the Responses API,
plain and streamed. The same script answers whichever of the two a framework asks, and keeps what it was sent."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Asked:
    """What a request says, whichever API it came by: texts in order, `results` being those of tools."""

    system: str
    users: list[str]
    results: list[str]
    tools: list[str]
    request: dict[str, Any]


@dataclass(frozen=True)
class Call:
    """One tool call of an answer. A text for `arguments` is what the model sampled, whatever it is."""

    name: str
    arguments: dict[str, Any] | str
    id: str = "call_1"

    @property
    def arguments_text(self) -> str:
        """The arguments as they are sent."""
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)


@dataclass(frozen=True)
class Reply:
    """An answer of the scripted model."""

    text: str = ""
    calls: tuple[Call, ...] = ()


Script = Callable[[Asked], Reply]


@dataclass
class Sent:
    """One request as it came."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(self.body)
        return parsed


@dataclass
class ScriptedServer:
    """The server's side of a test: `url` for clients, `sent` in order of arrival."""

    url: str
    script: Script
    sent: list[Sent] = field(default_factory=list)
    failures: list[int] = field(default_factory=list)
    """Status codes for the next requests, before the script is asked again."""
    headers: dict[str, str] = field(default_factory=dict)
    """Further headers of every answer."""


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")


def asked_of(request: dict[str, Any]) -> Asked:
    """A request of either API in the words of the script."""
    system, users, results = [str(request.get("instructions") or "")], [], []
    items = request.get("messages") or request.get("input") or []
    for item in [{"role": "user", "content": items}] if isinstance(items, str) else items:
        if item.get("type") == "function_call_output":
            results.append(_text(item["output"]))
        elif item.get("role") in ("system", "developer"):
            system.append(_text(item.get("content")))
        elif item.get("role") == "user":
            users.append(_text(item.get("content")))
        elif item.get("role") == "tool":
            results.append(_text(item.get("content")))
    tools = [str(tool.get("name") or tool.get("function", {}).get("name")) for tool in request.get("tools") or []]
    return Asked(" ".join(system).strip(), users, results, tools, request)


def _completion(request: dict[str, Any], reply: Reply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None, "refusal": None}
    if reply.calls:
        message["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments_text}}
            for c in reply.calls
        ]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if reply.calls else "stop"}
    if request.get("return_token_ids"):
        choice["token_ids"] = [7, 8]
    if request.get("logprobs"):
        tokens = [{"token": t, "logprob": -0.5, "bytes": None, "top_logprobs": []} for t in "ab"]
        choice["logprobs"] = {"content": tokens, "refusal": None}
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    body = {"id": "c1", "object": "chat.completion", "created": 1, "model": request["model"], "choices": [choice]}
    if request.get("return_token_ids"):
        body["prompt_token_ids"] = [1, 2, 3]
    return {**body, "usage": usage}


def _chunks(request: dict[str, Any], reply: Reply) -> Iterator[dict[str, Any]]:
    whole = _completion(request, reply)
    choice = whole["choices"][0]
    frame = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": request["model"]}

    def chunk(delta: dict[str, Any], finish: str | None = None, **extra: Any) -> dict[str, Any]:
        return {**frame, "choices": [{"index": 0, "delta": delta, "finish_reason": finish, **extra}]}

    yield {**chunk({"role": "assistant", "content": ""}), **{k: whole[k] for k in ("prompt_token_ids",) if k in whole}}
    for word in reply.text.split(" ") if reply.text else []:
        yield chunk({"content": word + " "})
    for index, call in enumerate(choice["message"].get("tool_calls", ())):
        yield chunk({"tool_calls": [{"index": index, **call}]})
    yield chunk({}, choice["finish_reason"], **{k: choice[k] for k in ("token_ids", "logprobs") if k in choice})
    if (request.get("stream_options") or {}).get("include_usage"):
        yield {**frame, "choices": [], "usage": whole["usage"]}


def _response(request: dict[str, Any], reply: Reply, status: str = "completed", id: str = "resp_1") -> dict[str, Any]:
    output: list[dict[str, Any]] = [
        {
            "type": "function_call",
            "id": f"fc_{call.id}",
            "call_id": call.id,
            "name": call.name,
            "arguments": call.arguments_text,
            "status": "completed",
        }
        for call in reply.calls
    ]
    if reply.text:
        part = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
        output.insert(
            0, {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}
        )
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    return {
        "id": id,
        "object": "response",
        "created_at": 1,
        "model": request["model"],
        "status": status,
        "output": output if status == "completed" else [],
        "tools": request.get("tools") or [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "usage": {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5, **details},
    }


def response_events(request: dict[str, Any], reply: Reply, id: str = "resp_1") -> Iterator[dict[str, Any]]:
    """The events of a response as it streams."""
    whole = _response(request, reply, id=id)
    yield {"type": "response.created", "response": _response(request, reply, "in_progress", id)}
    for index, item in enumerate(whole["output"]):
        at = {"output_index": index, "item_id": item["id"]}
        if item["type"] == "function_call":
            yield {
                "type": "response.output_item.added",
                "output_index": index,
                "item": {**item, "arguments": "", "status": "in_progress"},
            }
            yield {"type": "response.function_call_arguments.delta", **at, "delta": item["arguments"]}
            yield {
                "type": "response.function_call_arguments.done",
                **at,
                "name": item["name"],
                "arguments": item["arguments"],
            }
        else:
            part = item["content"][0]
            empty = {**item, "content": [], "status": "in_progress"}
            yield {"type": "response.output_item.added", "output_index": index, "item": empty}
            at["content_index"] = 0
            yield {"type": "response.content_part.added", **at, "part": {**part, "text": ""}}
            yield {"type": "response.output_text.delta", **at, "delta": part["text"], "logprobs": []}
            yield {"type": "response.output_text.done", **at, "text": part["text"], "logprobs": []}
            yield {"type": "response.content_part.done", **at, "part": part}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": "response.completed", "response": whole}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or each answer waits 40 ms for an acknowledgement
    state: ScriptedServer

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.state.sent.append(Sent(self.path, {k.lower(): v for k, v in self.headers.items()}, body))
        if self.state.failures:
            return self._send(self.state.failures.pop(0), b'{"error": {"message": "scripted"}}')
        request = json.loads(body)
        reply = self.state.script(asked_of(request))
        path = self.path.split("?")[0]
        if path.endswith("/responses"):
            if request.get("stream"):
                events = ({**e, "sequence_number": n} for n, e in enumerate(response_events(request, reply)))
                return self._stream(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events)
            return self._send(200, json.dumps(_response(request, reply)).encode())
        if request.get("stream"):
            lines = (f"data: {json.dumps(chunk)}\n\n" for chunk in _chunks(request, reply))
            return self._stream(line for part in (lines, ["data: [DONE]\n\n"]) for line in part)
        return self._send(200, json.dumps(_completion(request, reply)).encode())

    def _send(self, status: int, data: bytes) -> None:
        self._head(
            status, {"content-type": "application/json", "content-length": str(len(data)), "retry-after-ms": "1"}
        )
        self.wfile.write(data)

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, **self.state.headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def _stream(self, lines: Iterator[str]) -> None:
        self._head(200, {"content-type": "text/event-stream; charset=utf-8", "connection": "close"})
        for line in lines:
            self.wfile.write(line.encode())
            self.wfile.flush()
        self.close_connection = True


@contextmanager
def serve_script(script: Script) -> Iterator[ScriptedServer]:
    """A running stand-in on a free port, for the length of a `with` block."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    state = ScriptedServer(f"http://127.0.0.1:{server.server_address[1]}/v1", script)
    server.RequestHandlerClass = type("Handler", (_Handler,), {"state": state})
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
