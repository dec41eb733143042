"""The model calls of one WebSocket to the Responses API: what is sent begins one, what is received answers it.

The events are those of the API's streams over HTTP. A connection has lanes, named by `stream_id`; in each one response
is made after the other. Source: https://developers.openai.com/api/docs/guides/websocket-mode
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping
from typing import Any

import msgspec

from arttrace.capture.base.guard import Guard
from arttrace.capture.calls import routing
from arttrace.capture.calls.attempt import Attempt
from arttrace.capture.calls.model_call import ModelCall, begin_call
from arttrace.records.values.lenient_json import json_object
from arttrace.wire.span_attributes import json_or_none

_ENDS = ("response.completed", "response.incomplete", "response.failed", "response.cancelled", "error")
_STREAM, _JSON = {"content-type": "text/event-stream"}, {"content-type": "application/json"}
_KEPT_STEERED = 100
following = Guard("following a WebSocket")


class AskedCall:
    """A response that was asked for: its request, and the call that records it, None where nothing is recorded."""

    def __init__(self, call: ModelCall | None, request: dict[str, Any]) -> None:
        self.call = call
        self.request = request
        self.attempt: Attempt | None = None
        self.has_begun = False


class _Lane:
    def __init__(self) -> None:
        self.asked: deque[AskedCall] = deque()
        self.before: tuple[dict[str, Any], Any] = {}, None
        """The request of the last response that has ended, and the id of that."""


class SocketCalls:
    """What of one connection is not answered yet.

    `url` is the connection's address, `path` that in it, `provider` whose `gen_ai.provider.name` its calls have, and
    `headers` those of its handshake.
    """

    def __init__(self, url: str, path: str, provider: str, headers: Mapping[str, str]) -> None:
        self._url, self._path, self._provider, self._headers = url, path, provider, headers
        self._lanes: dict[str, _Lane] = {}
        self._steered: dict[str, list[Any]] = {}
        """What the user put in while a response was made, by the id of that: input of the one that follows."""

    def __del__(self) -> None:
        if not sys.is_finalizing():  # then what was open has been closed
            with following:
                self.ended(None)

    def sent(self, message: str | bytes) -> AskedCall | None:
        """A message goes out. Returns the call that it begins."""
        event = _event(message)
        match event.pop("type", None):
            case "response.create":
                lane = self._lanes.setdefault(str(event.pop("stream_id", None)), _Lane())
                before = event.get("previous_response_id")
                if isinstance(before, str) and before in self._steered:
                    event["input"] = [*self._take_steered(before), *_items(event.get("input"))]
                return self._ask(lane, event)
            case "response.steer":
                self._steered.setdefault(str(event.get("previous_response_id")), []).append(event.get("input"))
                while len(self._steered) > _KEPT_STEERED:
                    del self._steered[next(iter(self._steered))]
        return None

    def not_sent(self, asked: AskedCall, error: BaseException) -> None:
        """The message that began a call did not go out."""
        for lane in self._lanes.values():
            if asked in lane.asked:
                lane.asked.remove(asked)
        if asked.call is not None:
            asked.call.not_answered(error)
            asked.call.raised(error)

    def received(self, message: str | bytes) -> None:
        """A message came in."""
        event = _event(message)
        kind, lane = event.get("type"), self._lanes.get(str(event.get("stream_id")))
        if lane is None or not isinstance(kind, str):
            return
        if kind.startswith("response.steer."):
            if kind == "response.steer.failed":
                self._forget_steered(event)
            return
        response = json_object(event.get("response"))
        if kind == "response.created" and not lane.asked:
            self._ask_after(lane)
        asked = _answered_by(lane, event)
        if asked is None:
            return
        asked.has_begun = True
        if asked.call is not None:
            _answer(asked, asked.call, event, message)
        if kind in _ENDS:
            lane.asked.remove(asked)
            lane.before = asked.request, response.get("id")

    def ended(self, error: BaseException | None) -> None:
        """Nothing comes any more: the connection broke by this error, or was closed by the user."""
        for lane in self._lanes.values():
            while lane.asked:
                asked = lane.asked.popleft()
                if asked.call is None:
                    continue
                if asked.attempt is not None:
                    asked.call.stream_ended(asked.attempt, "closed" if error is None else "error", error)
                elif error is None:
                    asked.call.finish("closed")
                else:
                    asked.call.not_answered(error)
                    asked.call.raised(error)

    def _ask(self, lane: _Lane, request: dict[str, Any]) -> AskedCall:
        routing.say_not_by_socket(self._url, request.get("model"))
        call = begin_call(None, path=self._path, provider=self._provider)
        asked = AskedCall(call if isinstance(call, ModelCall) else None, request)
        lane.asked.append(asked)
        if asked.call is not None:
            body = msgspec.json.encode({**request, "stream": True})  # here nothing is answered otherwise
            asked.call.sending(body, self._url, self._headers)
        return asked

    def _ask_after(self, lane: _Lane) -> None:
        """The server begins a response by itself, with the settings of the one before, for what the user put in."""
        request, before = lane.before
        if isinstance(before, str) and before in self._steered:
            self._ask(lane, {**request, "previous_response_id": before, "input": self._take_steered(before)})

    def _take_steered(self, response: str) -> list[Any]:
        return [item for put_in in self._steered.pop(response) for item in _items(put_in)]

    def _forget_steered(self, event: dict[str, Any]) -> None:
        response = json_object(event.get("steer")).get("previous_response_id")
        queued = self._steered.get(str(response), [])
        if queued and (given_back := _items(json_object(event.get("steer")).get("input"))) is not None:
            same = [put_in for put_in in queued if _items(put_in) == given_back]
            queued.remove(same[0] if same else queued[-1])


def _answered_by(lane: _Lane, event: dict[str, Any]) -> AskedCall | None:
    """The call that an event is of. A request that is refused is not the one that is being answered meanwhile."""
    refuses = event.get("type") == "error" and event.get("sequence_number") is None
    waiting = [asked for asked in lane.asked if not asked.has_begun] if refuses else []
    return waiting[0] if waiting else next(iter(lane.asked), None)


def _answer(asked: AskedCall, call: ModelCall, event: dict[str, Any], message: str | bytes) -> None:
    status = event.get("status")
    if asked.attempt is None and event.get("type") == "error" and type(status) is int and status >= 400:
        call.answered(status, _JSON, msgspec.json.encode({"error": event.get("error")}))
        call.returned()
        return
    if asked.attempt is None:
        asked.attempt = call.answered(200, _STREAM)
        asked.attempt.body_undone = True
        call.returned()
    text = message.encode(errors="replace") if isinstance(message, str) else message
    asked.attempt.chunk(b"data: %b\n\n" % (msgspec.json.encode(event) if b"\n" in text else text))
    if event.get("type") in _ENDS:
        call.stream_ended(asked.attempt, "complete")


def _event(message: str | bytes) -> dict[str, Any]:
    return json_object(json_or_none(message.encode(errors="replace") if isinstance(message, str) else message))


def _items(given: Any) -> list[Any]:
    """An `input` as a list of items: a text is what the user says."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    return given if isinstance(given, list) else []
