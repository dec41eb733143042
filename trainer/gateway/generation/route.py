"""POST of a generation: wait at the gate, resolve the model, ask an engine for token truth too, pass its answer on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from starlette.types import Message, Receive, Scope, Send

from arttrace.records.semconv import END_TOKEN_HEADER, POLICY_VERSION_HEADER, SAMPLING_HEADER
from arttrace.wire import Api, Ending
from trainer.gateway.engines.connections import BrokenOff, EngineResponse
from trainer.gateway.errors import Refusal, engine_down
from trainer.gateway.gate import MAX_BODY_BYTES, AdmittedRequest
from trainer.gateway.generation.request import read_request
from trainer.gateway.generation.turn import TurnDependencies, engine_answer
from trainer.gateway.http.body import read_body, unless_left
from trainer.gateway.policies import Version
from trainer.gateway.recording.identity import TRAJECTORY_HEADER, CallOwner, owner_in_body, owner_of
from trainer.gateway.recording.recorder import GatewayRecorder, RecordedCall

_PASSED_HEADERS = frozenset({b"content-type", b"content-encoding", b"retry-after", b"x-request-id"})
_VERSION_HEADER, _SAMPLING_HEADER = POLICY_VERSION_HEADER.encode(), SAMPLING_HEADER.encode()
_END_TOKEN_HEADER = END_TOKEN_HEADER.encode()


class GenerationDependencies(TurnDependencies, Protocol):
    """What a generation needs. It is read at each request, since a recorder and the settings may change."""

    recorder: GatewayRecorder | None
    joins_traceparents: bool
    reads_run_names: bool
    policy_sampling: bool
    end_token: int | None


class Translation(Protocol):
    """One exchange in the form of another API than the engine's, at whose `path` its clients ask."""

    path: str

    def request(self, body: bytes) -> bytes:
        """The engine's request for the client's. Raises Refusal (400)."""
        ...

    async def send(self, message: Message) -> None:
        """Send the client, in its form, what answers it in the engine's."""
        ...


class Generation:
    """One generating route of the engine: `names` are the trajectory and the sub-agent that its URL named.

    With a `translation` its clients speak another API; what is recorded is the engine's exchange.
    """

    def __init__(
        self,
        needs: GenerationDependencies,
        api: Api,
        path: str,
        translation: Callable[[Send], Translation] | None = None,
    ) -> None:
        self._needs = needs
        self._api = api
        self._path = path
        self._translation = translation

    async def __call__(self, names: Mapping[str, str], scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        needs = self._needs
        call: RecordedCall | None = None
        ending: Ending = "cancelled"
        translation = None
        if self._translation is not None:
            translation = self._translation(send)
            send = translation.send
        try:
            owner = owner_of(names, scope["headers"], traceparent=needs.joins_traceparents)
            with needs.gate.entered() as place:
                body = await read_body(scope, receive, MAX_BODY_BYTES, place.hold)
                path, refused = self._path, None
                if translation is not None:
                    try:
                        body = translation.request(body)
                    except Refusal as refusal:
                        path, refused = translation.path, refusal  # recorded as the client sent it
                if owner is None and needs.reads_run_names:
                    owner = owner_in_body(body, scope["headers"])
                if owner is not None and needs.recorder is not None:
                    call = needs.recorder.begin(owner, path, scope["headers"], body)
                    send = call.tap(_tagged(send, owner) if needs.reads_run_names else send, place.takes)
                if refused is not None:
                    raise refused
                # A client that has gone away frees the engine: closing our connection aborts its generation.
                ending = await unless_left(receive, self._answer(body, owner, place, send)) or "closed"
        except Refusal as refusal:
            await refusal.response()(scope, receive, send)
            ending = "complete"
        finally:
            if call is not None:
                call.end(ending)

    async def _answer(self, body: bytes, owner: CallOwner | None, place: AdmittedRequest, send: Send) -> Ending:
        needs = self._needs
        trajectory = None if owner is None else owner.trajectory or owner.trace_id
        request = read_request(body, self._api)

        def for_engine(version: Version) -> bytes:
            return request.for_engine(version, as_the_policy_samples=needs.policy_sampling)

        async with engine_answer(needs, request.model, self._path, for_engine, trajectory) as (
            answer,
            version,
            replica,
        ):
            sampling = b"policy" if needs.policy_sampling else b"processed" if replica.processed else None
            stamps = [(_VERSION_HEADER, version.name.encode())]
            stamps += [] if sampling is None else [(_SAMPLING_HEADER, sampling)]
            stamps += [] if needs.end_token is None else [(_END_TOKEN_HEADER, b"%d" % needs.end_token)]
            return await _pass_on(answer, stamps, place, send)


def _tagged(send: Send, owner: CallOwner) -> Send:
    """`send`, with the name of the run in the answer's head."""
    named = (owner.trajectory or owner.trace_id).encode()

    async def tagged(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], (TRAJECTORY_HEADER.encode(), named)]}
        await send(message)

    return tagged


async def _pass_on(
    answer: EngineResponse, stamps: list[tuple[bytes, bytes]], place: AdmittedRequest, send: Send
) -> Ending:
    # Hop-by-hop headers and the length are the server's business.
    headers = [*(header for header in answer.headers if header[0] in _PASSED_HEADERS), *stamps]
    start = {"type": "http.response.start", "status": answer.status, "headers": headers}
    if any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers):
        await send(start)
        return await _stream_on(answer, send)
    # Whole before its first byte is passed on: an engine that dies in the middle is a clear refusal.
    parts: list[bytes] = []
    try:
        while part := await answer.part():
            place.hold(len(part))
            parts.append(part)
    except BrokenOff as error:
        raise engine_down(f"it died while answering ({error})") from error
    content = parts[0] if len(parts) == 1 else b"".join(parts)
    headers.append((b"content-length", b"%d" % len(content)))
    await send(start)
    await send({"type": "http.response.body", "body": content})
    return "complete"


async def _stream_on(answer: EngineResponse, send: Send) -> Ending:
    try:
        while part := await answer.part():
            await send({"type": "http.response.body", "body": part, "more_body": True})
    except BrokenOff as error:
        # The stream may have broken off inside a line.
        event = b"\n\ndata: " + engine_down(f"it died while answering ({error})").body() + b"\n\n"
        await send({"type": "http.response.body", "body": event})
        return "error"
    await send({"type": "http.response.body", "body": b""})
    return "complete"
