"""The response: a whole completion, chat or legacy, or one assembled from the chunks of a stream.

A stream is accumulated here and not by the client, whose own accumulator keeps only the first chunk's extra fields.
Chunks may have null choices, null deltas and null fields; choices and tool calls are distinguished by their index.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby, pairwise
from typing import Any

from msgspec import UNSET

from arttrace.records.message import thought_of
from arttrace.records.values.lenient_json import json_object, json_objects
from arttrace.wire.apis.openai.completion_json import (
    ChunkChoice,
    CompletionChunk,
    Delta,
    TokenLogprob,
    read_chunk,
    read_chunks,
)
from arttrace.wire.messages import CALLED, arguments_text
from arttrace.wire.span_attributes import error_of, json_or_none

_CALLED = {form: ("name", given) for form, given in CALLED.items()}
"""The texts of a tool call that come in pieces."""
_NO_REASON = ("", "null")
"""What some servers send in place of null until the last chunk."""


@dataclass(slots=True)
class ChoiceAnswer:
    """One choice. Token ids and log-probabilities have shape (T,); None where the engine sent none.

    `prompt_token_ids` is set where the engine gives them per choice, as it does for legacy completions; `stop_reason`,
    null or not, where it has that field.
    """

    index: int
    message: dict[str, Any] = field(default_factory=dict)
    finish_reason: str | None = None
    stop_reason: Any = UNSET
    token_ids: list[int] | None = None
    logprobs: list[float | None] | None = None
    prompt_token_ids: list[int] | None = None


@dataclass(slots=True)
class Completion:
    """A response as far as it came. `done` is False for a stream that was cut."""

    choices: list[ChoiceAnswer]
    id: str | None = None
    model: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    prompt_token_ids: list[int] | None = None
    error: str | None = None
    done: bool = True
    unreadable_chunks: int = 0

    def is_whole(self, answers: int) -> bool:
        """Whether all answers that were asked for, at least one, have come to their end."""
        ended = [choice.finish_reason is not None for choice in self.choices]
        return len(ended) >= max(answers, 1) and all(ended)

    @property
    def ends_are_missing(self) -> bool:
        """Whether some answers have come to their end and others, that had begun, have not."""
        return len({choice.finish_reason is None for choice in self.choices}) > 1


def read_completion(body: bytes) -> Completion | None:
    """A response that came whole, or None when it is no object."""
    frame = read_chunk(body)
    if frame is None:
        return None
    completion = Completion(choices=[])
    _read_frame(completion, frame)
    for position, choice in enumerate(frame.choices or ()):
        answer = ChoiceAnswer(_index(choice.index, position))
        answer.message = choice.message if isinstance(choice.message, dict) else {}
        if isinstance(choice.text, str):
            answer.message = {"content": choice.text}
        _read_choice_end(answer, choice)
        completion.choices.append(answer)
    completion.choices.sort(key=lambda answer: answer.index)
    return completion


def read_stream(events: Iterable[bytes]) -> Completion:
    """A response put together from the data of its events."""
    whole = Completion(choices=[], done=False)
    choices: dict[int, _ChoiceStream] = {}
    chunks: list[bytes] = []
    for data in events:
        if data.startswith(b"[DONE]"):
            whole.done = True
            break
        chunks.append(data)
    for chunk in read_chunks(chunks):
        if chunk is None:
            whole.unreadable_chunks += 1
            continue
        _read_frame(whole, chunk)
        for choice in chunk.choices or ():
            index = _index(choice.index, 0)
            stream = choices.get(index)
            if stream is None:
                stream = choices[index] = _ChoiceStream(index)
            stream.add(choice, tokens=not whole.unreadable_chunks)  # behind a hole they would stand in wrong places
    whole.choices = [choices[index].answer() for index in sorted(choices)]
    return whole


class _ChoiceStream:
    def __init__(self, index: int) -> None:
        self._answer = ChoiceAnswer(index)
        self._role: str | None = None
        self._texts: dict[str, list[str]] = {}
        self._parts: list[Any] = []
        self._tool_calls: list[tuple[int, _ToolCallStream]] = []
        self._at_index: dict[int, _ToolCallStream] = {}
        self._function_call: _ToolCallStream | None = None
        self._audio: dict[str, Any] = {}
        self._details: list[str] = []

    def add(self, choice: ChunkChoice, *, tokens: bool) -> None:
        _read_choice_end(self._answer, choice, tokens=tokens)
        if isinstance(choice.text, str):
            self._text("content", choice.text)
        delta = choice.delta
        if delta is None:
            return
        if isinstance(delta.content, str):
            self._text("content", delta.content)
        elif isinstance(delta.content, list):
            self._parts += [*self._texts.pop("content", ()), *delta.content]
        if isinstance(delta.role, str):
            self._role = delta.role
        if delta.refusal is not None or delta.reasoning_content is not None or delta.reasoning is not None:
            for key in ("refusal", "reasoning_content", "reasoning"):
                if isinstance(text := getattr(delta, key), str):
                    self._text(key, text)
        if delta.reasoning_details is not None:
            self._details += filter(None, map(thought_of, json_objects(delta.reasoning_details)))
        if delta.tool_calls is not None or delta.function_call is not None or delta.audio is not None:
            self._add_more(delta)

    def _text(self, key: str, text: str) -> None:
        pieces = self._texts.get(key)
        if pieces is None:
            self._texts[key] = [text]
        else:
            pieces.append(text)

    def _add_more(self, delta: Delta) -> None:
        for position, call in enumerate(json_objects(delta.tool_calls)):
            index = _index(call.get("index"), position)
            known = self._at_index.get(index)
            if known is None or known.is_followed_by(call):
                known = self._at_index[index] = _ToolCallStream()
                self._tool_calls.append((index, known))
            known.add(call)
        if isinstance(delta.function_call, dict):
            self._function_call = self._function_call or _ToolCallStream()
            self._function_call.add({"function": delta.function_call})
        if isinstance(delta.audio, dict):
            for key, value in delta.audio.items():
                both_text = isinstance(value, str) and isinstance(self._audio.get(key), str) and key != "id"
                self._audio[key] = self._audio[key] + value if both_text else value

    def answer(self) -> ChoiceAnswer:
        message: dict[str, Any] = {"role": self._role or "assistant"}
        message.update({key: "".join(pieces) for key, pieces in self._texts.items()})
        if self._parts:
            message["content"] = _joined([*self._parts, *self._texts.get("content", ())])
        if self._details and not {"reasoning", "reasoning_content"} & message.keys():
            message["reasoning"] = _thought(self._details)
        if self._tool_calls:
            in_order = sorted(self._tool_calls, key=lambda indexed: indexed[0])
            message["tool_calls"] = [stream.call() for _, stream in in_order]
        if self._function_call is not None:
            message["function_call"] = self._function_call.call()["function"]
        if self._audio:
            message["audio"] = self._audio
        self._answer.message = message
        return self._answer


def _thought(pieces: Sequence[str]) -> str:
    """What pieces of reasoning say; some servers send with each what they sent before, as MiniMax's."""
    grows = len(pieces) > 1 and all(len(one) < len(next) and next.startswith(one) for one, next in pairwise(pieces))
    return pieces[-1] if grows else "".join(pieces)


def _joined(pieces: Iterable[Any], *, nested: bool = True) -> list[Any]:
    """The parts of a content of which each came in several pieces; text among them is a part of its own. What holds a
    list of parts, as Mistral's thinking does, is put together in the same way, one level deep."""
    parts: list[Any] = []
    as_parts = ({"type": "text", "text": piece} if isinstance(piece, str) else piece for piece in pieces)
    for (name, form), group in groupby(as_parts, _form):
        members: list[Any] = list(group)
        if form is str or (form is list and nested):
            values = [member[name] for member in members]
            whole = "".join(values) if form is str else _joined(chain.from_iterable(values), nested=False)
            parts.append({key: value for member in members for key, value in member.items()} | {name: whole})
        else:
            parts += members
    return parts


def _form(part: Any) -> tuple[str, type]:
    """What a part holds what it says under, and whether that is text, a list, or something else."""
    name = part.get("type") if isinstance(part, dict) else None
    if not isinstance(name, str):
        return "", object
    value = part.get(name)
    return name, str if isinstance(value, str) else list if isinstance(value, list) else object


class _ToolCallStream:
    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._texts: dict[str, dict[str, list[str]]] = {}

    def is_followed_by(self, delta: dict[str, Any]) -> bool:
        """Whether this begins another call though it has the same index: some servers give all of them one, and some
        of these no ids."""
        for form, texts in self._texts.items():
            said = json_object(delta.get(form))
            if not texts["name"] or not said.get("name"):
                continue
            if delta.get("id") and delta["id"] != self._fields.get("id"):
                return True
            says_more = said.get(CALLED[form]) or said["name"] != "".join(texts["name"])
            if says_more and isinstance(json_or_none("".join(texts[CALLED[form]]).encode()), dict):
                return True
        return False

    def add(self, delta: dict[str, Any]) -> None:
        for key, value in delta.items():
            if key in _CALLED and isinstance(value, dict):
                texts = self._texts.setdefault(key, {name: [] for name in _CALLED[key]})
                for name, pieces in texts.items():
                    text = value.get(name)
                    if isinstance(text, dict):
                        text = arguments_text(text)
                    if isinstance(text, str):
                        pieces.append(text)
            elif key not in (*_CALLED, "index") and value is not None:
                self._fields[key] = value

    def call(self) -> dict[str, Any]:
        texts = self._texts or {"function": {name: [] for name in _CALLED["function"]}}
        return {**self._fields, **{form: {name: "".join(of[name]) for name in of} for form, of in texts.items()}}


def _read_frame(whole: Completion, frame: CompletionChunk) -> None:
    """Add what a response or a chunk says beside its choices: the first id, model and error, the last usage."""
    if whole.id is None and isinstance(frame.id, str):
        whole.id = frame.id
    if whole.model is None and isinstance(frame.model, str):
        whole.model = frame.model
    usage = frame.usage or json_object(frame.x_groq).get("usage")  # where Groq's streams have it
    if usage and isinstance(usage, dict):
        whole.usage = usage
    if whole.prompt_token_ids is None and frame.prompt_token_ids is not None:
        whole.prompt_token_ids = integers(frame.prompt_token_ids)
    if whole.error is None and frame.error is not None:
        whole.error = error_of({"error": frame.error})


def _read_choice_end(answer: ChoiceAnswer, choice: ChunkChoice, *, tokens: bool = True) -> None:
    """Finish reason, token ids and log-probabilities: what lies beside message, delta or text, added up."""
    if isinstance(choice.finish_reason, str) and choice.finish_reason not in _NO_REASON:
        answer.finish_reason, answer.stop_reason = choice.finish_reason, choice.stop_reason
    elif choice.finish_reason is None and isinstance(choice.stop_reason, str):  # Mistral's chat at Bedrock
        answer.finish_reason = choice.stop_reason
    if not tokens:
        return
    if choice.token_ids is not None and (ids := integers(choice.token_ids)) is not None:
        answer.token_ids = answer.token_ids or []
        answer.token_ids += ids
    if answer.prompt_token_ids is None and choice.prompt_token_ids is not None:
        answer.prompt_token_ids = integers(choice.prompt_token_ids)
    logprobs = choice.logprobs
    if logprobs is None:
        return
    if logprobs.content is not None:
        answer.logprobs = answer.logprobs or []
        answer.logprobs += _logprobs_of_entries(logprobs.content)
    elif isinstance(logprobs.token_logprobs, list):
        answer.logprobs = answer.logprobs or []
        answer.logprobs += numbers(logprobs.token_logprobs)


def _logprobs_of_entries(entries: list[TokenLogprob | None]) -> list[float | None]:
    return numbers([None if entry is None else entry.logprob for entry in entries])


def logprobs_of(entries: list[Any]) -> list[float | None]:
    """The log-probability of each sampled token of a list of objects."""
    return numbers([entry.get("logprob") if isinstance(entry, dict) else None for entry in entries])


def numbers(values: list[Any]) -> list[float | None]:
    """A list of log-probabilities; None where one is no number."""
    return values if set(map(type, values)) == {float} else list(map(_number, values))


def _index(index: Any, otherwise: int) -> int:
    return index if isinstance(index, int) and not isinstance(index, bool) else otherwise


def integers(value: Any) -> list[int] | None:
    """A list of token ids, or None when it is none."""
    if not isinstance(value, list):
        return None
    if value and (set(map(type, value)) != {int} or min(value) < -0x80000000 or max(value) >= 0x80000000):
        return None
    return value


def _number(value: Any) -> float | None:
    try:
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    except OverflowError:
        return None
