"""What the decoders of all APIs share: the span being filled, the common request fields, and the response's outside.

Names and their sources: semconv.py. Nothing here raises for what the bytes hold: what cannot be read is left out and
said in `failure`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from arttrace.records import semconv
from arttrace.records.values.costs import cost_of_usage
from arttrace.records.values.lenient_json import read_json
from arttrace.records.values.nesting import UNREADABLE
from arttrace.wire.compression import decompress
from arttrace.wire.content.secrets import without_logins
from arttrace.wire.exchange import Exchange
from arttrace.wire.messages import encode_bounded
from arttrace.wire.sampling_fields import as_number, changed

MAX_ERROR_TEXT = 4000
MAX_TRAJECTORY_ID = 256
Failure = tuple[str, str]
"""(error type, message)."""

_DEPLOYMENT = re.compile(r"/deployments/([^/]+)/")
_NUMBERS = {
    "temperature": semconv.REQUEST_TEMPERATURE,
    "top_p": semconv.REQUEST_TOP_P,
    "top_k": semconv.REQUEST_TOP_K,
    "max_tokens": semconv.REQUEST_MAX_TOKENS,
    "max_completion_tokens": semconv.REQUEST_MAX_TOKENS,
    "max_output_tokens": semconv.REQUEST_MAX_TOKENS,
    "seed": semconv.REQUEST_SEED,
    "random_seed": semconv.REQUEST_SEED,  # Mistral's
    "frequency_penalty": semconv.REQUEST_FREQUENCY_PENALTY,
    "presence_penalty": semconv.REQUEST_PRESENCE_PENALTY,
}
# Where the content of a request is kept, and by which attribute a field is given back where that has its very value.
_ELSEWHERE = (
    "messages", "input", "prompt", "instructions", "tools", "previous_response_id", "encoding_format", "dimensions",
    "system",
)  # fmt: skip
_SAID_BY = {
    "model": semconv.REQUEST_MODEL,
    **{name: attribute for name, attribute in _NUMBERS.items() if name not in ("max_completion_tokens", "random_seed")},
    "stop": semconv.REQUEST_STOP_SEQUENCES,
    "n": semconv.REQUEST_CHOICE_COUNT,
    "stream": semconv.REQUEST_STREAM,
}
MAX_FIELDS_BYTES = 64 << 10
_MAX_NAMED = 20
_MAX_NAME = 200
_USAGE = {
    "prompt_tokens": semconv.USAGE_INPUT_TOKENS,
    "input_tokens": semconv.USAGE_INPUT_TOKENS,
    "completion_tokens": semconv.USAGE_OUTPUT_TOKENS,
    "output_tokens": semconv.USAGE_OUTPUT_TOKENS,
}
_INPUT_DETAILS = {
    "cached_tokens": semconv.USAGE_CACHE_READ_INPUT_TOKENS,
    "cache_write_tokens": semconv.USAGE_CACHE_WRITE_INPUT_TOKENS,
}
_OUTPUT_DETAILS = {"reasoning_tokens": semconv.USAGE_REASONING_OUTPUT_TOKENS}
_USAGE_DETAILS = {
    "prompt_tokens_details": _INPUT_DETAILS,
    "input_tokens_details": _INPUT_DETAILS,
    "completion_tokens_details": _OUTPUT_DETAILS,
    "output_tokens_details": _OUTPUT_DETAILS,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Decoded:
    """A call's span: name, attributes, and what failed when the exchange itself shows a failure. `is_done` says that a
    stream was read up to its own end mark: nothing that came later concerns the answer."""

    name: str
    attributes: dict[str, Any]
    failure: Failure | None = None
    is_done: bool = dataclasses.field(default=False, compare=False)


class SpanDraft:
    """The attributes of one span while a decoder fills them."""

    def __init__(
        self, exchange: Exchange, *, operation: str, api: str | None = None, content: bool, limit: int
    ) -> None:
        self.attributes: dict[str, Any] = {semconv.OPERATION_NAME: operation}
        if api is not None:  # one of OpenAI's
            self.attributes[semconv.OPENAI_API_TYPE] = api
        self.cut: list[str] = []
        self.content = content
        self.limit = limit
        self._is_done = False
        self._operation = operation
        self._exchange = exchange

    def put(self, name: str, value: Any) -> None:
        """Set an attribute; None is none."""
        if value is not None:
            self.attributes[name] = value

    def put_text(self, name: str, value: Any) -> None:
        """Set an attribute where the value is a text."""
        self.put(name, value if isinstance(value, str) else None)

    def put_stops(self, stops: Any) -> None:
        """Set the texts at which the answer is to end."""
        if isinstance(stops, list) and stops and all(isinstance(stop, str) for stop in stops):
            self.put(semconv.REQUEST_STOP_SEQUENCES, stops)

    def put_messages(self, name: str, messages: Any) -> None:
        """Set messages, cut to the bound where they are longer, to none where they are too deep to be written."""
        if not self.content or messages is None:
            return
        try:
            text, cut = encode_bounded(messages, self.limit)
        except RecursionError:
            text, cut = "[]", True
        self.put(name, text)
        if cut:
            self.cut.append(name)

    def put_json(self, name: str, value: Any) -> None:
        """Set JSON text that is of no use when cut: whole or not there."""
        if not self.content:
            return
        try:
            self._put_whole(name, msgspec.json.encode(value))
        except RecursionError:
            self.cut.append(name)

    def put_tokens(self, name: str, text: str) -> None:
        """Token data is whole or not there: half of it would train wrongly."""
        if self.content:
            self._put_whole(name, text.encode())

    def _put_whole(self, name: str, text: bytes) -> None:
        if len(text) <= self.limit:
            self.put(name, text.decode())
        else:
            self.cut.append(name)

    def document(self) -> dict[str, Any]:
        """The request's JSON object; empty when it is none."""
        document = json_or_none(self._exchange.request)
        if isinstance(document, dict):
            return document
        if self._exchange.request or self._exchange.request_unread:  # what was said to the model is not known
            self.cut.append(semconv.INPUT_MESSAGES)
        return {}

    def request(self) -> dict[str, Any]:
        """The same of OpenAI's and Anthropic's APIs, with the fields set that they have in common."""
        request = self.document()
        deployment = _DEPLOYMENT.search(self._exchange.path)
        model = request.get("model")
        self.put(semconv.REQUEST_MODEL, model if isinstance(model, str) else deployment and deployment[1])
        for field, name in _NUMBERS.items():
            if field in request:
                self.put(name, as_number(request[field]))
        self.put(semconv.SAMPLING_SETTINGS, changed(request) or None)
        stop = request.get("stop")
        self.put_stops([stop] if isinstance(stop, str) else stop)
        n = request.get("n")
        if type(n) is int and n != 1:
            self.put(semconv.REQUEST_CHOICE_COUNT, n)
        if request.get("stream") is True:
            self.put(semconv.REQUEST_STREAM, True)
        self.put(semconv.TRAJECTORY_ID, named_trajectory(request))
        tools = request.get("tools")
        if isinstance(tools, list) and tools:
            self.put_json(semconv.TOOL_DEFINITIONS, [t if _is_of_the_user(t) else without_logins(t) for t in tools])
        said = self.attributes
        self.put_fields(
            {
                name: value
                for name, value in request.items()
                # A named prompt is one of the Responses API, which the server keeps.
                if (name not in _ELSEWHERE or (name == "prompt" and isinstance(value, dict)))
                and not (name in _SAID_BY and said.get(_SAID_BY[name]) == value)
            }
        )
        return request

    def put_fields(self, asked: Mapping[str, Any]) -> None:
        """Keep what is asked for beside, so that a request can be made again as it was; a field too large is named."""
        if not self.content:
            return
        fields: dict[str, msgspec.Raw] = {}
        left_out: list[str] = []
        room = min(self.limit, MAX_FIELDS_BYTES)
        for name, value in asked.items():
            try:
                text = msgspec.json.encode(value)
            except RecursionError:
                text = b""
            if text and len(text) + len(name) <= room:
                room -= len(text) + len(name)
                fields[name] = msgspec.Raw(text)
            elif len(left_out) < _MAX_NAMED:
                left_out.append(name[:_MAX_NAME])
        if fields:
            self.put(semconv.REQUEST_FIELDS, msgspec.json.encode(fields).decode())
        self.put(semconv.REQUEST_FIELDS_LEFT_OUT, left_out or None)

    def usage(self, usage: Mapping[str, Any]) -> None:
        """Set the counts of a `usage` object, with its details."""
        self.attributes |= usage_attributes(usage)

    def body(self, *, streams: bool = False) -> bytes | Failure | None:
        """The body of an answer that is worth decoding, else what failed, or None when there is nothing to say.

        `streams` says that it comes in pieces though it may be no stream of events.
        """
        exchange = self._exchange
        self.put(semconv.POLICY_VERSION, exchange.headers.get(semconv.POLICY_VERSION_HEADER))
        self.put(semconv.SAMPLING, exchange.headers.get(semconv.SAMPLING_HEADER))
        if exchange.status is None:
            if exchange.ending in ("closed", "cancelled"):
                self.put(semconv.INTERRUPTED, exchange.ending)
            return None
        self.put(semconv.HTTP_STATUS_CODE, exchange.status)
        try:
            body = decompress(exchange.body, exchange.headers.get("content-encoding", ""))
        except ValueError as error:
            return ("invalid_response", str(error))
        if exchange.status >= 400:
            if exchange.ending == "cancelled":  # while the client waited to try again
                self.put(semconv.INTERRUPTED, exchange.ending)
            return (str(exchange.status), error_text(body))
        if not (streams or self.is_stream(body)) and exchange.ending != "complete":
            self.put(semconv.INTERRUPTED, exchange.ending)
            if exchange.ending != "error":
                return None
        return body

    def is_stream(self, body: bytes) -> bool:
        """Whether the answer is a stream of events."""
        content_type = self._exchange.headers.get("content-type", "")
        return "text/event-stream" in content_type.lower() or body[:64].lstrip().startswith((b"data:", b"event:", b":"))

    def stream_ended(self, *, done: bool, whole: bool) -> None:
        """Say that a stream was cut: `done` is its own end mark, `whole` that everything before it had come."""
        self._is_done = done
        if not done and self._exchange.ending != "complete":
            self.put(semconv.INTERRUPTED, self._exchange.ending)
        elif not done and not whole:
            self.put(semconv.INTERRUPTED, "error")  # the server ended the stream before the answer was whole

    def decoded(self, failure: Failure | None) -> Decoded:
        """The span as it is now."""
        if self._exchange.body_cut:
            self.cut.append(semconv.OUTPUT_MESSAGES)
        if self.cut:
            self.put(semconv.TRUNCATED, self.cut)
        model = self.attributes.get(semconv.REQUEST_MODEL, "")
        return Decoded(f"{self._operation} {model}".strip(), self.attributes, failure, self._is_done)


def usage_attributes(usage: Mapping[str, Any]) -> dict[str, Any]:
    """The counts of a `usage` object of OpenAI's APIs, with its details, and the cost that it states."""
    found: dict[str, Any] = {name: usage[field] for field, name in _USAGE.items() if type(usage.get(field)) is int}
    for field, names in _USAGE_DETAILS.items():
        if isinstance(details := usage.get(field), dict):
            found |= {name: details[field] for field, name in names.items() if type(details.get(field)) is int}
    if (cost := cost_of_usage(usage)) is not None:
        found[semconv.USAGE_COST] = cost
    return found


def _is_of_the_user(tool: Any) -> bool:
    """Whether it is defined by a schema, in which the names that secrets have are those of parameters."""
    return isinstance(tool, dict) and tool.get("type") in (None, "function", "custom", "namespace")


def named_trajectory(request: Any) -> str | None:
    """The trajectory that a request names itself, as programs written for ART do: {"art": {"trajectory_id": ...}}."""
    art = request.get("art") if isinstance(request, dict) else None
    named = art.get("trajectory_id") if isinstance(art, dict) else None
    return named if isinstance(named, str) and 0 < len(named) <= MAX_TRAJECTORY_ID else None


def json_or_none(body: bytes) -> Any:
    """A JSON document, or None when it is none."""
    try:
        return read_json(body)
    except UNREADABLE:
        return None


def error_of(document: Any) -> str | None:
    """The message of a document's `error`, or of one that is alone in a list, bounded; None without any."""
    if isinstance(document, list) and len(document) == 1:  # as Google's servers write it in place of a stream
        document = document[0]
    error = document.get("error") if isinstance(document, dict) else None
    if not error:
        return None
    message = error.get("message") if isinstance(error, dict) else error
    try:
        return str(message or error)[:MAX_ERROR_TEXT]
    except RecursionError:
        return "an error nested too deep to be shown"


def error_text(body: bytes) -> str:
    """What the body of a failed request says: AWS writes the message alone."""
    document = json_or_none(body)
    message = document.get("message") if isinstance(document, dict) else None
    alone = message[:MAX_ERROR_TEXT] if isinstance(message, str) else None
    return error_of(document) or alone or body[:MAX_ERROR_TEXT].decode(errors="replace")
