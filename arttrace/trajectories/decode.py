"""One `chat` span becomes one Call: attributes to messages, choices, tools and token truth, without ever raising.

What cannot be read is left out (None or empty), so that a malformed attribute costs that attribute and nothing else.
The newest GenAI names are read; message lists may be JSON text, structured values or MessageTexts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec

from arttrace import semconv
from arttrace.records.call import Call, Choice
from arttrace.records.message import (
    Message,
    OtherPart,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    message_hash,
)
from arttrace.records.span import SpanRow
from arttrace.records.tokens import TokenIds, decode_logprobs, decode_token_ids
from arttrace.trajectories.shared import UNREADABLE, MessageList, SharedTexts, message_texts

_T = TypeVar("_T")
_Messages = tuple[Message, ...]
_message: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


# Sampling settings with their values that leave the policy's own distribution as it is; vLLM takes 0 and -1 for all.
_NEUTRAL: dict[str, tuple[int, ...]] = {
    semconv.REQUEST_TOP_P: (1,),
    semconv.REQUEST_TOP_K: (-1, 0),
    semconv.REQUEST_FREQUENCY_PENALTY: (0,),
    semconv.REQUEST_PRESENCE_PENALTY: (0,),
}


_SAMPLING = frozenset((*_NEUTRAL, semconv.SAMPLING_SETTINGS))


_OF_TEXT = frozenset((TextPart, ReasoningPart, ToolCallPart))


class _Answer(msgspec.Struct, gc=False):
    role: str
    parts: tuple[Part, ...]
    name: str | None = None
    finish_reason: str | None = None


class _FinishReason(msgspec.Struct):
    finish_reason: str | None = None


_answers: msgspec.json.Decoder[list[_Answer]] = msgspec.json.Decoder(list[_Answer])
_finish_reason: msgspec.json.Decoder[_FinishReason] = msgspec.json.Decoder(_FinishReason)


class MessageReader:
    """Reads what the calls of one trajectory hold, each distinct message, tool list and prompt prefix once.

    `hash` gives a message's canonical hash by identity of the cached object (`id`); the reader keeps them alive.
    """

    def __init__(self) -> None:
        self._texts = SharedTexts()
        self._seen = _Seen()
        self._read: dict[MessageList, _Messages] = {}
        self._before: dict[int, tuple[_Messages, _Messages]] = {}  # a tuple by identity, a shorter one
        self._instructions: dict[str, Message | None] = {}
        self._instructed: dict[tuple[int, int], tuple[_Messages, _Messages]] = {}  # with instructions, and without
        self._tools: dict[str, tuple[dict[str, Any], ...]] = {}

    def read(self, value: Any) -> _Messages:
        """The messages of an attribute. An unreadable list is an empty one."""
        found = value if isinstance(value, MessageList) else self._texts.messages(value)
        return () if found is None else self._read.get(found) or self._of(found)

    def choices(self, value: Any) -> list[tuple[Message, str | None]]:
        """The messages of an answer, each with its reason to finish."""
        answers = _or_none(_answers.decode, value) if isinstance(value, str) else None
        if answers is not None:
            return [(self._seen.held(Message(a.role, a.parts, a.name)), a.finish_reason) for a in answers]
        return [self._choice(text) for text in _or_none(message_texts, value) or ()]

    def tools(self, value: Any) -> tuple[dict[str, Any], ...]:
        """Tool definitions: one and the same object for one text."""
        if isinstance(value, str) and value in self._tools:
            return self._tools[value]
        tools = from_json(value)
        found = tuple(tool for tool in tools if isinstance(tool, dict)) if isinstance(tools, (list, tuple)) else ()
        if isinstance(value, str):
            self._tools[value] = found
        return found

    def hash(self, message: Message) -> str:
        """The canonical hash of a message (records.message.message_hash), computed once per distinct message."""
        known = self._seen.hashes.get(id(message))
        return message_hash(message) if known is None else known

    def _choice(self, text: str) -> tuple[Message, str | None]:
        found = _or_none(_finish_reason.decode, text)
        return self._seen[text], found.finish_reason if found else None

    def instructions(self, value: Any) -> Message | None:
        """System instructions as a message; None when there are none."""
        if value is None:
            return None
        if isinstance(value, str) and value in self._instructions:
            return self._instructions[value]
        parts = from_json(value)
        found = self.read([{"role": "system", "parts": parts}]) if isinstance(parts, list) and parts else ()
        message = found[0] if found else None
        if isinstance(value, str):
            self._instructions[value] = message
        return message

    def extended(self, messages: _Messages, further: _Messages) -> _Messages:
        """Messages that this reader gave, and further ones."""
        longer = messages + further
        if messages and further:
            self._before[id(longer)] = (longer, messages)
        return longer

    def instructed(self, message: Message, messages: _Messages) -> _Messages:
        """Messages that this reader gave, after a message of instructions."""
        whole, _ = self._instructed.get((id(message), id(messages)), ((), ()))
        if not whole:
            whole = (message, *messages)
            _, shorter = self._before.get(id(messages), ((), ()))
            before, _ = self._instructed.get((id(message), id(shorter)), ((), ()))
            if before:
                self._before[id(whole)] = (whole, before)
            self._instructed[id(message), id(messages)] = (whole, messages)
        return whole

    def befores(self, messages: _Messages) -> Iterator[_Messages]:
        """The messages of a call, and those given before that they are known to go on from, nearest first."""
        while messages:
            yield messages
            _, messages = self._before.get(id(messages), ((), ()))

    def _of(self, found: MessageList) -> _Messages:
        missing = [found]
        while (before := missing[-1].before) is not None and before not in self._read:
            missing.append(before)
        messages = self._read[before] if before else ()
        for one in reversed(missing):
            messages = self._read[one] = self.extended(messages, tuple([self._seen[text] for text in one.added]))
        return messages


class _Seen(dict[str, Message]):
    """Messages by their JSON text, equal ones as one object, and their hashes by identity."""

    def __init__(self) -> None:
        self.hashes: dict[int, str] = {}
        self._held: dict[Message | int, Message] = {}

    def __missing__(self, text: str) -> Message:
        try:
            message = _message.decode(text)
        except UNREADABLE:
            message = _lenient_message(from_json(text))
        held = self[text] = self.held(message)
        return held

    def held(self, message: Message) -> Message:
        """The first message seen that equals this one. What a part holds but text is not compared: 1 equals true."""
        exact = _OF_TEXT.issuperset(map(type, message.parts))
        message = self._held.setdefault(message if exact else id(message), message)
        if id(message) not in self.hashes:
            self.hashes[id(message)] = message_hash(message)
        return message


def _lenient_message(value: Any) -> Message:
    if not isinstance(value, dict):
        return Message(role="", parts=(OtherPart({"value": value}),))
    parts = value.get("parts")
    name = value.get("name")
    return Message(
        role=str(value.get("role", "")),
        parts=tuple(_lenient_part(part) for part in parts) if isinstance(parts, list) else (),
        name=name if isinstance(name, str) else None,
    )


def _lenient_part(part: Any) -> Part:
    if not isinstance(part, dict):
        return OtherPart({"value": part})
    content, id = part.get("content"), part.get("id")
    id = id if isinstance(id, str) else None
    match part.get("type"):
        case "text" if isinstance(content, str) or content is None:
            return TextPart(content or "")
        case "reasoning" if isinstance(content, str) or content is None:
            return ReasoningPart(content or "")
        case "tool_call":
            return ToolCallPart(name=str(part.get("name", "")), arguments=as_text(part.get("arguments")) or "", id=id)
        case "tool_call_response":
            return ToolResultPart(response=part.get("response", part.get("result")), id=id)
    return OtherPart(part)


def as_text(value: Any) -> str | None:
    """Text as it is, None as None, anything else as JSON with sorted keys."""
    if value is None or isinstance(value, str):
        return value
    return msgspec.json.encode(value, order="sorted").decode()


def from_json(value: Any) -> Any:
    """What a JSON text holds; the value itself when it is no text or no JSON."""
    if not isinstance(value, (str, bytes)):
        return value
    try:
        return msgspec.json.decode(value)
    except UNREADABLE:
        return value


def text(value: Any) -> str | None:
    """The value when it is a text that is not empty."""
    return value if isinstance(value, str) and value else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _or_none(decode: Callable[[Any], _T | None], value: Any) -> _T | None:
    try:
        return None if value is None else decode(value)
    except UNREADABLE:
        return None


def span_error(span: SpanRow) -> str | None:
    """Why a span failed, its `error.type` before its status message; None when it did not fail."""
    if span.status_code != 2:
        return None
    kind, message = text(span.attributes.get(semconv.ERROR_TYPE)), span.status_message
    if kind and message and not message.startswith(kind):
        return f"{kind}: {message}"
    return message or kind or "error"


def decode_call(span: SpanRow, reader: MessageReader) -> Call:
    """The call that a `chat` span recorded."""
    attributes, get = span.attributes, span.attributes.get
    messages = reader.read(get(semconv.INPUT_MESSAGES))
    instructions = reader.instructions(get(semconv.SYSTEM_INSTRUCTIONS))
    if instructions is not None:
        messages = reader.instructed(instructions, messages)
    temperature = get(semconv.REQUEST_TEMPERATURE)
    return Call(
        span_id=span.span_id,
        trace_id=span.trace_id,
        parent_span_id=span.parent_span_id,
        start_ns=span.start_ns,
        end_ns=span.end_ns,
        request_model=text(get(semconv.REQUEST_MODEL)) or "",
        response_model=text(get(semconv.RESPONSE_MODEL)) or "",
        policy_version=text(get(semconv.POLICY_VERSION)),
        messages=messages,
        tools=reader.tools(get(semconv.TOOL_DEFINITIONS)),
        choices=_choices(attributes, reader),
        prompt_token_ids=_or_none(_prompt_token_ids, get(semconv.PROMPT_TOKEN_IDS)),
        temperature=float(temperature) if isinstance(temperature, (int, float)) else None,
        altered_sampling=_altered_sampling(attributes),
        response_id=text(get(semconv.RESPONSE_ID)),
        previous_response_id=text(get(semconv.PREVIOUS_RESPONSE_ID)),
        compacted=get(semconv.CONVERSATION_COMPACTED) is True,
        input_tokens=_whole(get(semconv.USAGE_INPUT_TOKENS)),
        output_tokens=_whole(get(semconv.USAGE_OUTPUT_TOKENS)),
        error=span_error(span),
        interrupted=text(get(semconv.INTERRUPTED)),
        truncated=bool(get(semconv.TRUNCATED) or get(semconv.MASKED)),
        execution_id=text(get(semconv.EXECUTION_ID)),
        execution_parent_id=text(get(semconv.EXECUTION_PARENT_ID)),
    )


def _prompt_token_ids(value: Any) -> TokenIds | None:
    ids = value if isinstance(value, TokenIds) else decode_token_ids(value)
    return None if ids is None else TokenIds.of(ids)


def _altered_sampling(attributes: dict[str, Any]) -> tuple[str, ...]:
    if attributes.keys().isdisjoint(_SAMPLING):
        return ()
    further = attributes.get(semconv.SAMPLING_SETTINGS)
    return (
        *(name for name, neutral in _NEUTRAL.items() if attributes.get(name) not in (None, *neutral)),
        *(str(name) for name in (further if isinstance(further, (list, tuple)) else ())),
    )


def _choices(attributes: dict[str, Any], reader: MessageReader) -> tuple[Choice, ...]:
    answers = reader.choices(attributes.get(semconv.OUTPUT_MESSAGES))
    choices: list[Choice] = []
    while True:
        index = len(choices)
        suffix = f".{index}" if index else ""
        ids = attributes.get(semconv.TOKEN_IDS + suffix)
        if index >= len(answers) and ids is None:
            return tuple(choices)
        message, finish_reason = answers[index] if index < len(answers) else (Message("assistant", ()), None)
        choices.append(
            Choice(
                index=index,
                message=message,
                finish_reason=finish_reason,
                token_ids=_or_none(decode_token_ids, ids),
                logprobs=_or_none(decode_logprobs, attributes.get(semconv.LOGPROBS + suffix)),
                prompt_token_ids=_or_none(decode_token_ids, attributes.get(semconv.PROMPT_TOKEN_IDS + suffix))
                if index
                else None,
            )
        )
