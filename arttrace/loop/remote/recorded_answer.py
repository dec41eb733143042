"""One request to a server that records, and its answer: both belong to one trajectory.

A parsed answer is read from its object, a stream from its events, a raw response from its bytes.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from arttrace.capture.base.guard import Guard
from arttrace.capture.context.flow import calling_flow
from arttrace.capture.handle import handle_of
from arttrace.loop.remote.byte_tap import tapped
from arttrace.loop.remote.streams import as_json, collecting
from arttrace.loop.trajectory import History, Trajectory
from arttrace.records.message import Message
from arttrace.records.values.lenient_json import json_objects
from arttrace.wire import Api, api_of
from arttrace.wire.apis.openai.completion_response import ChoiceAnswer, read_completion, read_stream
from arttrace.wire.apis.openai.completions import prompt_messages
from arttrace.wire.apis.openai.response_events import read_events
from arttrace.wire.apis.openai.response_items import parse_input, parse_instructions, parse_output
from arttrace.wire.apis.openai.responses import status_reason
from arttrace.wire.compression import decompress
from arttrace.wire.messages import openai_message
from arttrace.wire.span_attributes import json_or_none
from arttrace.wire.sse import event_data

_SAMPLING: tuple[Api, ...] = ("chat_completions", "responses", "completions")
_reading = Guard("reading a server's answer")


class RecordedAnswer:
    """A request that was begun. `request` are the arguments of the client's `post` that name the trajectory."""

    def __init__(self, api: Api, trajectory: Trajectory, prompts: list[list[Any]], asked: Mapping[str, Any]) -> None:
        self.trajectory = trajectory
        self._api = api
        self._prompts = prompts
        self._kept = False
        options = dict(asked.get("options") or {})
        self._parse: Callable[[Any], Any] | None = parse if callable(parse := options.get("post_parser")) else None
        options["post_parser"] = self._parsed  # by it the client makes its object of each answer, raw ones too
        self.request = {**asked, "options": options}

    def name(self, extra: Mapping[str, Any], art: Mapping[str, Any]) -> None:
        """Name the trajectory in the request."""
        named = {**art, "trajectory_id": self.trajectory.id}
        self.request["options"]["extra_json"] = {**extra, "art": named}

    def keep(self, answer: Any) -> None:
        """Set the answer's `trajectory`, and keep its content, now or once it has been read to its end."""
        if _is_stream(answer):
            return  # `_parsed` has made it
        _attach(answer, self.trajectory)
        with _reading:
            http = getattr(answer, "http_response", None)
            if http is None:
                self._add(_choices_of_object(self._api, answer))
            elif http.is_stream_consumed:
                self._read(http.content, http.headers)
            else:
                http.stream = tapped(http.stream, lambda body: self._unpack(body, http.headers))

    def _parsed(self, answer: Any) -> Any:
        made = answer if self._parse is None else self._parse(answer)
        _attach(made, self.trajectory)
        return collecting(made, self._read_events) if _is_stream(made) else made

    def _unpack(self, body: bytes, headers: Mapping[str, str]) -> None:
        with _reading:
            self._read(decompress(body, headers.get("content-encoding", "")), headers)

    def _read(self, body: bytes, headers: Mapping[str, str]) -> None:
        if "event-stream" in headers.get("content-type", ""):
            self._read_events(list(event_data(body)))
        else:
            self._add(_choices_of_body(self._api, body))

    def _read_events(self, events: list[bytes]) -> None:
        with _reading:
            self._add(_choices_of_events(self._api, events))

    def _add(self, choices: list[Any]) -> None:
        """The first choice goes on in the trajectory's messages, each further one is a history of its own."""
        if self._kept:
            return  # of a raw response both the bytes and what they are parsed into may be read
        self._kept = bool(choices)
        each = max(1, len(choices) // len(self._prompts))
        for number, choice in enumerate(choices):
            if number == 0:
                self.trajectory.messages_and_choices.append(choice)
                continue
            prompt = self._prompts[min(number // each, len(self._prompts) - 1)]
            self.trajectory.additional_histories.append(History([*prompt, choice], self.trajectory.tools))


def recorded_answer(path: str, asked: Mapping[str, Any]) -> RecordedAnswer | None:
    """What is recorded of a request; None for one that samples nothing.

    Args:
        path: The request's.
        asked: The further arguments of the client's `post`.

    Returns:
        The recorded request, with a trajectory that still lacks the answer.
    """
    api, body = api_of(path), asked.get("body")
    if api not in _SAMPLING or not isinstance(body, Mapping):
        return None
    prompts = _prompts(api, body)
    made = Trajectory(list(prompts[0]), tools=_tools(body))
    recorded = RecordedAnswer(api, made, prompts, asked)
    extra = dict((asked.get("options") or {}).get("extra_json") or {})
    art = dict(extra.get("art") or {})
    scope = calling_flow().scope  # not the program's own run, which is over only with the program
    if (named := art.get("trajectory_id")) is not None:
        made.id = str(named)
    elif scope is not None and (run := handle_of(scope.root)).id:
        made.id, made.recorded_in = run.id, scope.root.recorder.settings.data  # not to be recorded there
    else:
        made.id = secrets.token_hex(16)
        recorded.name(extra, art)
    return recorded


def _is_stream(answer: Any) -> bool:
    return hasattr(answer, "__next__") or hasattr(answer, "__anext__")


def _attach(answer: Any, trajectory: Trajectory) -> None:
    try:
        object.__setattr__(answer, "trajectory", trajectory)  # beside the fields of the client's object
    except (AttributeError, TypeError):
        return  # what the user has an answer parsed into may be a dict or a text


def _prompts(api: Api, body: Mapping[str, Any]) -> list[list[Any]]:
    """The messages before each answer: several lists for several prompts of the completions API."""
    if api == "chat_completions":
        return [list(body.get("messages") or ())]
    if api == "completions":
        return [[openai_message(one)] for one in prompt_messages(dict(body)) or ()] or [[]]
    system = parse_instructions(body.get("instructions"))
    given = parse_input(body.get("input")) or ()
    messages = (Message("system", tuple(system)), *given) if system else given
    return [[openai_message(one) for one in messages]]


def _tools(body: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The tools in the form of chat completions."""
    return [
        {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}
        if tool.get("type") == "function" and "function" not in tool
        else tool
        for tool in json_objects(body.get("tools"))
    ] or None


def _choices_of_object(api: Api, answer: Any) -> list[Any]:
    if api == "chat_completions":
        return _with_messages(getattr(answer, "choices", None))
    if not hasattr(answer, "model_dump_json"):
        return []
    return _choices_of_body(api, as_json(answer))


def _with_messages(choices: Any) -> list[Any]:
    return [one for one in choices if hasattr(one, "message")] if isinstance(choices, list) else []


def _choices_of_body(api: Api, body: bytes) -> list[Any]:
    answer = json_or_none(body)
    if not isinstance(answer, dict):
        return []
    if api == "responses":
        return _choices_of_response(answer)
    if api == "chat_completions":
        from openai.types.chat import ChatCompletion

        return _with_messages(ChatCompletion.construct(**answer).choices)
    whole = read_completion(body)
    return [] if whole is None else [_choice(one) for one in whole.choices]


def _choices_of_events(api: Api, events: list[bytes]) -> list[Any]:
    """Those of a stream that came whole; none of one that was cut."""
    if api == "responses":
        stream = read_events(events)
        return _choices_of_response(stream.response) if stream.done and stream.error is None else []
    whole = read_stream(events)
    if whole.error is not None or not whole.is_whole(1):
        return []
    entries = _logprob_entries(events)
    return [_choice(one, entries.get(one.index)) for one in whole.choices]


def _choices_of_response(response: dict[str, Any]) -> list[Any]:
    items = json_objects(response.get("output"))
    reason = status_reason(response, items)
    if reason is None or reason in ("error", "cancelled"):
        return []
    said = openai_message(Message("assistant", parse_output(items)))
    return [_choice(ChoiceAnswer(0, said, reason))]


def _choice(answer: ChoiceAnswer, logprobs: list[Any] | None = None) -> Any:
    from openai.types.chat.chat_completion import Choice

    fields: dict[str, Any] = {"index": answer.index, "finish_reason": answer.finish_reason}
    fields["message"] = {"role": "assistant", **answer.message}
    fields["logprobs"] = None if logprobs is None else {"content": logprobs}
    if answer.token_ids is not None:
        fields["token_ids"] = answer.token_ids
    return Choice.construct(**fields)


def _logprob_entries(events: list[bytes]) -> dict[int, list[Any]]:
    """The log-probabilities of a stream's choices, with their tokens, as a whole answer has them."""
    entries: dict[int, list[Any]] = {}
    for data in events:
        chunk = json_or_none(data) if b'"logprobs"' in data else None
        for choice in json_objects(chunk.get("choices")) if isinstance(chunk, dict) else ():
            logprobs, index = choice.get("logprobs"), choice.get("index")
            if isinstance(logprobs, dict) and isinstance(index, int):
                entries.setdefault(index, []).extend(json_objects(logprobs.get("content")))
    return {index: found for index, found in entries.items() if found}
