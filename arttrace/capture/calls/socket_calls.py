"""The model calls of one WebSocket to the Responses API: what is sent begins one, what is received answers it.

The events are those of the API's streams over HTTP. A connection has lanes, named by `stream_id`; in each one response
is made after the other. Source: https://developers.openai.com/api/docs/guides/websocket-mode
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping
from contextvars import Context, copy_context
from functools import partial
from typing import Any

import msgspec

from arttrace.capture.base.guard import Guard
from arttrace.capture.calls import routing
from arttrace.capture.calls.attempt import Attempt
from arttrace.capture.calls.model_call import ModelCall, begin_call
from arttrace.records.values.lenient_json import json_object
from arttrace.wire import Ending
from arttrace.wire.span_attributes import json_or_none

_ENDS = ("response.completed", "response.incomplete", "response.failed", "response.cancelled", "error")
_STREAM, _JSON = {"content-type": "text/event-stream"}, {"content-type": "application/json"}
_KEPT_STEERED = 100
_KEPT_LANES = 100
following = Guard("following a WebSocket")


class AskedCall:
    """A response that was asked for: its request, the context of who asked, and the call that records it, None where
    nothing is recorded."""

    def __init__(self, request: dict[str, Any], call: ModelCall | None, attempt: Attempt) -> None:
        self.request = request
        self.context = copy_context()
        self.call = call
        self.attempt = attempt
        self.has_begun = False

    def fail(self, error: BaseException) -> None:
        """It was not answered."""
        if self.call is not None:
            self.call.not_answered(error)
            self.call.raised(error)


class _Lane:
    def __init__(self) -> None:
        self.asked: deque[AskedCall] = deque()
        self.settings: dict[str, Any] = {}
        """The request of the last response that has ended, without what was said."""
        self.context: Context | None = None
        """That of who asked for it."""
        self.response: Any = None
        """Its id."""


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
        self.is_cancelled = False
        """Whether who waited for the next message was cancelled."""

    def __del__(self) -> None:
        if not sys.is_finalizing():  # then what was open has been closed
            with following:
                self.ended(None)

    def sent(self, message: str | bytes) -> AskedCall | None:
        """A message goes out. Returns the call that it begins."""
        event = _event(message)
        match event.pop("type", None):
            case "response.create":
                lane = self._lane(event.pop("stream_id", None))
                before = event.get("previous_response_id")
                if isinstance(before, str) and before in self._steered:
                    event["input"] = [*self._take_steered(before), *_items(event.get("input"))]
                asked = self._ask(event)
                lane.asked.append(asked)
                return asked
            case "response.steer":
                self._steered.setdefault(str(event.get("previous_response_id")), []).append(event.get("input"))
                if len(self._steered) > _KEPT_STEERED:
                    del self._steered[next(iter(self._steered))]
            case "response.inject":  # in the midst of an answer, which no request says
                for asked in [asked for lane in [*self._lanes.values()] for asked in lane.asked if asked.has_begun]:
                    asked.attempt.request, asked.attempt.request_unread = b"", True
        return None

    def not_sent(self, asked: AskedCall, error: BaseException) -> None:
        """The message that began a call did not go out, as far as is known: where the sender was cancelled, an answer
        may come."""
        if isinstance(error, Exception):
            for lane in [*self._lanes.values()]:
                if asked in lane.asked:
                    lane.asked.remove(asked)
        asked.fail(error)
        asked.call = None

    def received(self, message: str | bytes) -> None:
        """A message came in."""
        self.is_cancelled = False
        event = _event(message)
        kind, lane = event.get("type"), self._lane_of(event)
        if not isinstance(kind, str) or kind.startswith("response.steer."):
            if kind == "response.steer.failed":
                self._forget_steered(event)
            return
        response = json_object(event.get("response"))
        if kind == "response.created":
            self._note_unasked(lane, response)
        asked = _answered_by(lane, event)
        if asked is None:
            return
        asked.has_begun = True
        if asked.call is not None:
            _answer(asked, asked.call, event, message)
        if kind in _ENDS:
            lane.asked.remove(asked)
            lane.settings = {name: value for name, value in asked.request.items() if name != "input"}
            lane.context, lane.response = asked.context, response.get("id")

    def ended(self, error: BaseException | None) -> None:
        """Nothing comes any more: the connection broke by this error, or was closed by the user."""
        closed: Ending = "cancelled" if self.is_cancelled else "closed"
        for lane in [*self._lanes.values()]:
            while lane.asked:
                asked = lane.asked.popleft()
                if asked.call is not None and asked.attempt.streaming:
                    asked.call.stream_ended(asked.attempt, closed if error is None else "error", error)
                elif error is not None:
                    asked.fail(error)
                elif asked.call is not None:
                    asked.call.finish(closed)

    def _lane(self, name: Any) -> _Lane:
        lane = self._lanes.pop(str(name)) if str(name) in self._lanes else _Lane()
        self._lanes[str(name)] = lane
        if len(self._lanes) > _KEPT_LANES:
            idle = next((name for name, other in [*self._lanes.items()] if not other.asked and other is not lane), None)
            self._lanes.pop(idle or "", None)
        return lane

    def _lane_of(self, event: dict[str, Any]) -> _Lane:
        """The lane of an event; an error may not name it."""
        if event.get("type") == "error" and "stream_id" not in event:
            waiting = [lane for lane in [*self._lanes.values()] if lane.asked]
            if len(waiting) == 1:
                return waiting[0]
        return self._lane(event.get("stream_id"))

    def _ask(self, request: dict[str, Any], *, unread: bool = False) -> AskedCall:
        call = begin_call(None, path=self._path, provider=self._provider)
        if not isinstance(call, ModelCall):
            return AskedCall(request, None, Attempt())
        routing.say_not_by_socket(self._url, request.get("model"))
        body = msgspec.json.encode({**request, "stream": True})  # here nothing is answered otherwise
        return AskedCall(request, call, call.sending(None if unread else body, self._url, self._headers))

    def _note_unasked(self, lane: _Lane, response: dict[str, Any]) -> None:
        """The server begins a response: by itself for what the user put in, with the settings of the one before and in
        front of what waits, or for a request that was not seen."""
        before = response.get("previous_response_id") or (None if lane.asked else lane.response)
        if isinstance(before, str) and before in self._steered:
            said = {"previous_response_id": before, "input": self._take_steered(before)}
            lane.asked.appendleft(self._ask_for(lane, {**lane.settings, **said}))
        elif not lane.asked:
            lane.asked.append(self._ask_for(lane, {}, unread=True))

    def _ask_for(self, lane: _Lane, request: dict[str, Any], *, unread: bool = False) -> AskedCall:
        """Whoever reads here need not be who asked before."""
        context = copy_context() if lane.context is None else lane.context.copy()
        return context.run(partial(self._ask, request, unread=unread))

    def _take_steered(self, response: str) -> list[Any]:
        return [item for put_in in self._steered.pop(response) for item in _items(put_in)]

    def _forget_steered(self, event: dict[str, Any]) -> None:
        steer = json_object(event.get("steer"))
        queued = self._steered.get(str(steer.get("previous_response_id")), [])
        same = [put_in for put_in in queued if _items(put_in) == _items(steer.get("input"))]
        if queued:
            queued.remove(same[0] if same else queued[-1])
        if not queued:
            self._steered.pop(str(steer.get("previous_response_id")), None)


def _answered_by(lane: _Lane, event: dict[str, Any]) -> AskedCall | None:
    """The call that an event is of. A request that is refused is not the one that is being answered meanwhile."""
    refuses = event.get("type") == "error" and event.get("sequence_number") is None
    waiting = [asked for asked in [*lane.asked] if not asked.has_begun] if refuses else []
    return waiting[0] if waiting else lane.asked[0] if lane.asked else None


def _answer(asked: AskedCall, call: ModelCall, event: dict[str, Any], message: str | bytes) -> None:
    status, attempt = event.get("status"), asked.attempt
    if not attempt.streaming and event.get("type") == "error" and type(status) is int and status >= 400:
        call.answered(status, _JSON, msgspec.json.encode({"error": event.get("error")}))
        call.returned()
        return
    if not attempt.streaming:
        call.answered(200, _STREAM)
        attempt.body_undone = True
        call.returned()
    text = message.encode(errors="replace") if isinstance(message, str) else message
    attempt.chunk(b"data: %b\n\n" % (msgspec.json.encode(event) if b"\n" in text else text))
    if event.get("type") in _ENDS:
        call.stream_ended(attempt, "complete")


def _event(message: str | bytes) -> dict[str, Any]:
    return json_object(json_or_none(message.encode(errors="replace") if isinstance(message, str) else message))


def _items(given: Any) -> list[Any]:
    """An `input` as a list of items: a text is what the user says."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    return given if isinstance(given, list) else []
