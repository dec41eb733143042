"""POST /v1/messages by way of chat completions, and POST /v1/messages/count_tokens by the engine's own tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from arttrace.records.values.nesting import UNREADABLE
from trainer.gateway.engines.connections import BrokenOff
from trainer.gateway.errors import Refusal, engine_down
from trainer.gateway.gate import MAX_BODY_BYTES
from trainer.gateway.generation.turn import TurnDependencies, engine_answer
from trainer.gateway.http.body import read_body, unless_left
from trainer.gateway.messages.answer import MessageStream, error_body, message_of
from trainer.gateway.messages.request import chat_request, tokenize_request
from trainer.gateway.policies import Version

_JSON = "application/json"


def is_messages_path(raw_path: bytes) -> bool:
    """Whether who asks there speaks Anthropic's API."""
    return raw_path.endswith((b"/v1/messages", b"/v1/messages/count_tokens"))


def messages_refusal(refusal: Refusal) -> Response:
    """A refusal in Anthropic's form."""
    answer = refusal.response()
    headers = {name: value for name, value in answer.headers.items() if name == "retry-after"}
    return Response(error_body(refusal.status, refusal.body()), refusal.status, headers, _JSON)


class MessagesTranslation:
    """One exchange of the Messages API. A whole answer is sent when it is whole, a stream as it comes."""

    path = "/v1/messages"

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: dict[str, Any] = {}
        self._parts: list[bytes] = []
        self._stream: MessageStream | None = None

    def request(self, body: bytes) -> bytes:
        """The chat completion that is asked for. Raises Refusal (400)."""
        return chat_request(body)

    async def send(self, message: Message) -> None:
        """Send what the engine answers, as a message."""
        if message["type"] == "http.response.start":
            # Of an answer that was compressed, though asked not to be, nothing can be read.
            headers = [(name, value) for name, value in message["headers"] if name != b"content-encoding"]
            self._start = {**message, "headers": headers}
            is_stream = any(
                name == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers
            )
            if is_stream and headers == message["headers"]:
                self._stream = MessageStream()
                await self._send(message)
        elif self._stream is not None:
            events, more = self._stream.feed(message.get("body", b"")), message.get("more_body", False)
            if not more:
                events += self._stream.finish()
            if events or not more:
                await self._send({**message, "body": events})
        else:
            self._parts.append(message.get("body", b""))
            if not message.get("more_body", False):
                await self._whole(b"".join(self._parts))

    async def _whole(self, body: bytes) -> None:
        status = self._start["status"]
        content = message_of(body) if status < 400 else error_body(status, body)
        if content is None:
            status, content = 502, error_body(502, b"the serving engine's answer is not a chat completion")
        headers = [(name, value) for name, value in self._start["headers"] if name != b"content-length"]
        headers.append((b"content-length", b"%d" % len(content)))
        await self._send({**self._start, "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": content})


class CountTokens:
    """How many tokens a request's prompt has, as the engine's chat template renders it."""

    def __init__(self, needs: TurnDependencies) -> None:
        self._needs = needs

    async def __call__(self, _names: Mapping[str, str], scope: Scope, receive: Receive, send: Send) -> None:
        """Answer `{"input_tokens": N}`."""
        try:
            with self._needs.gate.entered() as place:
                body = await read_body(scope, receive, MAX_BODY_BYTES, place.hold)
                counted = await unless_left(receive, self._counted(body))
        except Refusal as refusal:
            await messages_refusal(refusal)(scope, receive, send)
        else:
            if counted is not None:
                status, content = counted
                await Response(content, status, media_type=_JSON)(scope, receive, send)

    async def _counted(self, body: bytes) -> tuple[int, bytes]:
        request = tokenize_request(body)
        asked: dict[str, msgspec.Raw] = msgspec.json.decode(request, type=dict[str, msgspec.Raw])
        model = msgspec.json.decode(asked["model"])
        if not isinstance(model, str):
            raise Refusal(400, "invalid_request_error", "model: field required")

        def for_engine(version: Version) -> bytes:
            return msgspec.json.encode({**asked, "model": version.engine_model})

        parts: list[bytes] = []
        async with engine_answer(self._needs, model, "/tokenize", for_engine) as (answer, *_):
            try:
                while part := await answer.part():
                    parts.append(part)
            except BrokenOff as error:
                raise engine_down(str(error)) from error
        said = b"".join(parts)
        if answer.status != 200:
            return answer.status, error_body(answer.status, said)
        try:
            return 200, msgspec.json.encode({"input_tokens": msgspec.json.decode(said, type=_Tokenized).count})
        except UNREADABLE as error:
            raise engine_down(f"its tokenisation cannot be read: {error}") from error


class _Tokenized(msgspec.Struct):
    count: int
