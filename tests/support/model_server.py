"""A stand-in for a model server with the chat, responses, completions, embeddings and messages APIs, that keeps what
was on the wire both ways.

What it does is named by the request's model, words joined by "-": `two` choices, `tools`, `ids`, `refuse`, `cut`;
`400`, `500`; `flaky` (429 once, then well); `hang` (no answer) and `stall` (a stream that stops after its third event)
until `release()`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TEXT = '{"text": "well, hello"}'
PIECES = ['{"text": ', '"well, ', 'hello"}']
TOOLS = [("call_a", "look", '{"q": "x"}'), ("call_b", "add", '{"a":1,"b":2}')]
IDS = [11, 12, 13]
LOGPROBS = [-0.5, -0.25, -0.125]


@dataclass
class Sent:
    """One exchange as the server saw it."""

    path: str
    headers: dict[str, str]
    request: bytes
    status: int = 0
    content_type: str = ""
    response: bytes = b""


@dataclass
class ModelServer:
    """The server's side of a test."""

    url: str
    sent: list[Sent] = field(default_factory=list)
    holding: threading.Event = field(default_factory=threading.Event)
    _go_on: threading.Event = field(default_factory=threading.Event)
    _flaked: bool = False

    def reset(self) -> None:
        """Forget what was, and hold anew."""
        self.sent.clear()
        self.holding.clear()
        self._go_on = threading.Event()
        self._flaked = False

    def release(self) -> None:
        """Let those go on that hang."""
        self._go_on.set()


def chat(request: dict[str, Any], words: list[str]) -> dict[str, Any]:
    choices = []
    for index in range(2 if "two" in words else 1):
        message: dict[str, Any] = {"role": "assistant", "content": TEXT, "refusal": None}
        if "refuse" in words:
            message |= {"content": None, "refusal": "no"}
        if "tools" in words:
            message["tool_calls"] = [
                {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
                for id, name, arguments in TOOLS
            ]
        choice = {"index": index, "message": message, "finish_reason": "stop", "logprobs": None}
        if "ids" in words:
            choice |= {"token_ids": IDS, "logprobs": {"content": [_logprob(value) for value in LOGPROBS]}}
        choices.append(choice)
    body = {"id": "c1", "object": "chat.completion", "created": 1, "model": "m-1", "choices": choices}
    body["usage"] = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    return body | ({"prompt_token_ids": [1, 2]} if "ids" in words else {})


def chat_events(request: dict[str, Any], words: list[str]) -> list[dict[str, Any]]:
    deltas: list[tuple[int, dict[str, Any], dict[str, Any]]] = []
    indices = range(2 if "two" in words else 1)
    for position, piece in enumerate(PIECES):
        for index in indices:
            tokens: dict[str, Any] = {}
            if "ids" in words:
                tokens = {"token_ids": [IDS[position]], "logprobs": {"content": [_logprob(LOGPROBS[position])]}}
            deltas.append(
                (index, {"role": "assistant", "content": piece} if not position else {"content": piece}, tokens)
            )
    if "tools" in words:
        for number, (id, name, _) in enumerate(TOOLS):
            call = {"index": number, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}
            deltas.append((0, {"tool_calls": [call]}, {}))
        for half in (slice(0, 5), slice(5, None)):  # the two calls' arguments by turns
            for number, (_, _, arguments) in enumerate(TOOLS):
                call = {"index": number, "function": {"arguments": arguments[half]}}
                deltas.append((0, {"tool_calls": [call]}, {}))
    frame = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m-1"}
    events = [
        {**frame, "choices": [{"index": index, "delta": delta, "finish_reason": None, **tokens}]}
        for index, delta, tokens in deltas
    ]
    if "ids" in words:
        events[0]["prompt_token_ids"] = [1, 2]
    events += [{**frame, "choices": [{"index": index, "delta": {}, "finish_reason": "stop"}]} for index in indices]
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    return [*events, {**frame, "choices": [], "usage": usage}]


def _logprob(value: float) -> dict[str, Any]:
    return {"token": "t", "logprob": value, "bytes": None, "top_logprobs": []}


def response(request: dict[str, Any], words: list[str]) -> dict[str, Any]:
    part: dict[str, Any] = {"type": "output_text", "text": TEXT, "annotations": []}
    if "refuse" in words:
        part = {"type": "refusal", "refusal": "no"}
    if "ids" in words:
        part["logprobs"] = [_logprob(value) for value in LOGPROBS]
    output: list[dict[str, Any]] = [
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "thinking"}]},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]},
    ]
    if "tools" in words:
        output += [
            {"type": "function_call", "id": f"fc_{id}", "call_id": id, "name": name, "arguments": arguments,
             "status": "completed"}
            for id, name, arguments in TOOLS
        ]  # fmt: skip
        output.append({"type": "web_search_call", "id": "ws_1", "status": "completed",
                       "action": {"type": "search", "query": "x"}})  # fmt: skip
    body: dict[str, Any] = {
        "id": "resp_1", "object": "response", "created_at": 1, "model": "m-1", "status": "completed", "output": output,
        "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "error": None, "incomplete_details": None,
        "previous_response_id": request.get("previous_response_id"), "instructions": None, "metadata": {},
        "temperature": 1.0, "top_p": 1.0,
    }  # fmt: skip
    if "cut" in words:
        body |= {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    body["usage"] = {
        "input_tokens": 7, "input_tokens_details": {"cached_tokens": 4},
        "output_tokens": 3, "output_tokens_details": {"reasoning_tokens": 1}, "total_tokens": 10,
    }  # fmt: skip
    return body


def response_events(request: dict[str, Any], words: list[str]) -> list[dict[str, Any]]:
    whole = response(request, words)
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    events: list[dict[str, Any]] = [{"type": "response.created", "response": begun}]
    for number, item in enumerate(whole["output"]):
        place = {"output_index": number, "item_id": item["id"]}
        empty = {"content": [], "summary": [], "arguments": ""}
        opened = {key: empty.get(key, value) for key, value in item.items()}
        events.append({"type": "response.output_item.added", "output_index": number, "item": opened})
        if item["type"] == "message":
            part = item["content"][0]
            kind = "output_text" if "text" in part else "refusal"
            place |= {"content_index": 0}
            events.append({"type": "response.content_part.added", **place, "part": {**part, "text": "", "refusal": ""}})
            pieces = PIECES if kind == "output_text" else ["n", "o"]
            for position, piece in enumerate(pieces):
                logprobs = [_logprob(LOGPROBS[position])] if "ids" in words else []
                events.append({"type": f"response.{kind}.delta", **place, "delta": piece, "logprobs": logprobs})
            done = {"text": TEXT, "logprobs": []} if kind == "output_text" else {"refusal": "no"}
            events.append({"type": f"response.{kind}.done", **place, **done})
            events.append({"type": "response.content_part.done", **place, "part": part})
        elif item["type"] == "function_call":
            events += [
                {"type": "response.function_call_arguments.delta", **place, "delta": half}
                for half in (item["arguments"][:5], item["arguments"][5:])
            ]
            events.append(
                {"type": "response.function_call_arguments.done", **place, "name": item["name"],
                 "arguments": item["arguments"]}
            )  # fmt: skip
        events.append({"type": "response.output_item.done", "output_index": number, "item": item})
    last = "response.incomplete" if "cut" in words else "response.completed"
    events.append({"type": last, "response": whole})
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def completion(request: dict[str, Any], words: list[str]) -> dict[str, Any]:
    prompts = request["prompt"] if isinstance(request["prompt"], list) else [request["prompt"]]
    choices: list[dict[str, Any]] = []
    for number, prompt in enumerate(prompts):
        for _ in range(2 if "two" in words else 1):
            choice: dict[str, Any] = {"index": len(choices), "text": TEXT, "finish_reason": "stop", "logprobs": None}
            if request.get("echo"):
                choice["text"] = prompt + TEXT
            if "ids" in words:  # as vLLM: with echo the log-probabilities begin with the prompt's
                head = [None, -9.0] if request.get("echo") else []
                choice["logprobs"] = {"tokens": [], "token_logprobs": head + LOGPROBS}
                choice |= {"token_ids": IDS, "prompt_token_ids": [number, 2]}
            choices.append(choice)
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    return {"id": "t1", "object": "text_completion", "created": 1, "model": "m-1", "choices": choices, "usage": usage}


def completion_events(request: dict[str, Any], words: list[str]) -> list[dict[str, Any]]:
    whole = completion(request, words)
    events = []
    for choice in whole["choices"]:
        for position, piece in enumerate(PIECES):
            event = {**choice, "text": piece, "finish_reason": None if position < 2 else "stop"}
            if "ids" in words:
                event |= {"token_ids": [IDS[position]], "logprobs": {"token_logprobs": [LOGPROBS[position]]}}
                event["prompt_token_ids"] = choice["prompt_token_ids"] if not position else None
            events.append({**whole, "choices": [event], "usage": None})
    return events


def embedding(request: dict[str, Any], words: list[str]) -> dict[str, Any]:
    data = [{"object": "embedding", "index": 0, "embedding": [0.25, 0.5]}]
    return {"object": "list", "model": "e-1", "data": data, "usage": {"prompt_tokens": 5, "total_tokens": 5}}


def message(request: dict[str, Any], words: list[str]) -> dict[str, Any]:
    content: list[dict[str, Any]] = [
        {"type": "thinking", "thinking": "thinking", "signature": "s"},
        {"type": "text", "text": TEXT},
    ]
    if "tools" in words:
        content += [
            {"type": "tool_use", "id": id, "name": name, "input": json.loads(given)} for id, name, given in TOOLS
        ]
    stop = "refusal" if "refuse" in words else "tool_use" if "tools" in words else "end_turn"
    body = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m-1", "content": content}
    body |= {"stop_reason": stop, "stop_sequence": None, "usage": {"input_tokens": 7, "output_tokens": 3}}
    tokens = {"prompt_token_ids": [1, 2], "token_ids": IDS, "logprobs": LOGPROBS}
    return body | ({"arttrace": tokens} if "ids" in words else {})


def message_events(request: dict[str, Any], words: list[str]) -> list[dict[str, Any]]:
    whole = message(request, words)
    begun = {**whole, "content": [], "stop_reason": None, "usage": {"input_tokens": 7, "output_tokens": 1}}
    begun.pop("arttrace", None)
    events: list[dict[str, Any]] = [{"type": "message_start", "message": begun}]
    for index, block in enumerate(whole["content"]):
        empty = {"text": "", "thinking": "", "signature": "", "input": {}}
        opened = {name: empty.get(name, value) for name, value in block.items()}
        events.append({"type": "content_block_start", "index": index, "content_block": opened})
        if block["type"] == "text":
            deltas = [{"type": "text_delta", "text": piece} for piece in PIECES]
        elif block["type"] == "thinking":
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in ("think", "ing")]
            deltas.append({"type": "signature_delta", "signature": "s"})
        else:
            text = json.dumps(block["input"])
            deltas = [{"type": "input_json_delta", "partial_json": half} for half in (text[:5], text[5:])]
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    tokens = {"arttrace": whole["arttrace"]} if "arttrace" in whole else {}
    events.append({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 3}, **tokens})
    return [*events, {"type": "message_stop"}]


APIS: dict[str, tuple[Any, Any]] = {
    "/messages": (message, message_events),
    "/chat/completions": (chat, chat_events),
    "/responses": (response, response_events),
    "/completions": (completion, completion_events),
    "/embeddings": (embedding, None),
    "/moderations": (embedding, None),
}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    state: ModelServer

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        if self.headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers["content-length"]))
        sent = Sent(self.path.partition("?")[0], {k.lower(): v for k, v in self.headers.items()}, body)
        self.state.sent.append(sent)
        request = json.loads(body)
        words = str(request["model"]).split("-")
        if "flaky" in words and not self.state._flaked:
            self.state._flaked = True
            return self._answer(sent, 429, {"error": {"message": "slow down"}})
        if "400" in words or "500" in words:
            return self._answer(sent, int(words[0]), {"error": {"message": f"failed: {words[0]}", "code": "x"}})
        go_on = self.state._go_on
        if "hang" in words:
            self.state.holding.set()
            go_on.wait(300)
        whole, events = next(api for path, api in APIS.items() if sent.path.endswith(path))
        if not request.get("stream"):
            return self._answer(sent, 200, whole(request, words))
        self.send_response(200)
        sent.status, sent.content_type = 200, "text/event-stream"
        self.send_header("content-type", sent.content_type)
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            for number, event in enumerate(events(request, words)):
                if "stall" in words and number == 3:
                    self.state.holding.set()
                    go_on.wait(300)
                    return None
                name = f"event: {event['type']}\n" if "type" in event else ""
                self._write(sent, f"{name}data: {json.dumps(event)}\n\n".encode())
            if "/responses" not in sent.path and "/messages" not in sent.path:
                self._write(sent, b"data: [DONE]\n\n")
        except OSError:
            return None

    def _write(self, sent: Sent, data: bytes) -> None:
        sent.response += data
        self.wfile.write(data)
        self.wfile.flush()

    def _answer(self, sent: Sent, status: int, body: dict[str, Any]) -> None:
        sent.status, sent.content_type, sent.response = status, "application/json", json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", sent.content_type)
        self.send_header("content-length", str(len(sent.response)))
        self.send_header("retry-after-ms", "1")
        self.end_headers()
        self.wfile.write(sent.response)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is what some tests are about."""


@contextmanager
def serve_model() -> Iterator[ModelServer]:
    """A running stand-in on a free port, for the length of a `with` block."""
    server = _Server(("127.0.0.1", 0), _Handler)
    state = ModelServer(f"http://127.0.0.1:{server.server_address[1]}/v1")
    server.RequestHandlerClass = type("Handler", (_Handler,), {"state": state})
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield state
    finally:
        state.release()
        server.shutdown()
        server.server_close()
