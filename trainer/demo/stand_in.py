"""A chat-completions server for the demo's stand-ins, in a thread of this process: for what a script can answer."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from arttrace.system.errors import ServingError

Script = Callable[[dict[str, Any]], dict[str, Any]]
"""From the body of a chat completion request to the assistant message. A ValueError refuses the request."""

_MAX_BODY_BYTES = 16 << 20
_START_TIMEOUT_S = 20.0


@contextmanager
def serve(script: Script, model: str, port: int = 0) -> Iterator[str]:
    """Serve `script` under the name `model` on 127.0.0.1, on a free port unless one is named; gives the base URL.

    The URL ends with /v1. Raises ServingError when the port is taken or the server does not start.
    """
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", port))
        except OSError as error:
            cause = f"{model} cannot listen on 127.0.0.1:{port}: {error.strerror}."
            raise ServingError(cause, "Choose another with --port.") from None
        config = uvicorn.Config(
            application(script, model), log_level="error", access_log=False, lifespan="off", timeout_keep_alive=75
        )
        server = uvicorn.Server(config)
        # uvicorn leaves signal handlers alone outside the main thread.
        thread = threading.Thread(target=server.run, args=([listening],), name=model, daemon=True)
        thread.start()
        try:
            _wait_for_start(server, thread, model)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        finally:
            server.should_exit = True
            thread.join()


def application(script: Script, model: str) -> Starlette:
    """The server's application: POST /v1/chat/completions, without streaming."""

    async def chat_completions(request: Request) -> JSONResponse:
        raw = await request.body()
        if len(raw) > _MAX_BODY_BYTES:
            return _refusal(413, f"the request is larger than {_MAX_BODY_BYTES} bytes")
        try:
            body = json.loads(raw)
            if body.get("stream"):
                return _refusal(400, f"{model} does not stream")
            message = script(body)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return _refusal(400, f"{model} cannot answer this request: {error}")
        return JSONResponse(_completion(message, model))

    return Starlette(routes=[Route("/v1/chat/completions", chat_completions, methods=["POST"])])


def _completion(message: dict[str, Any], model: str) -> dict[str, Any]:
    finish_reason = "tool_calls" if message.get("tool_calls") else "stop"
    return {
        "id": f"chatcmpl-{time.time_ns()}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason, "logprobs": None}],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }


def _refusal(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "type": "invalid_request_error"}}, status_code=status)


def _wait_for_start(server: uvicorn.Server, thread: threading.Thread, model: str) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not server.started:
        if not thread.is_alive() or time.monotonic() > deadline:
            raise ServingError(f"{model} did not start on 127.0.0.1.")
        time.sleep(0.01)
