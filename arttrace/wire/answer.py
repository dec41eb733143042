"""What came back: a whole completion, chat or legacy, or one put together from the chunks of a stream.

A stream is accumulated here and not by the client, whose own accumulator keeps only the first chunk's extra fields.
Chunks may have null choices, null deltas and null fields; choices and tool calls are told apart by their index.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from arttrace.wire.span import error_of, read_json


@dataclass(slots=True)
class ChoiceAnswer:
    """One choice. Token ids and log-probabilities have shape (T,); None where the engine sent none.

    `prompt_token_ids` is set where the engine gives them per choice, as it does for legacy completions.
    """

    index: int
    message: dict[str, Any] = field(default_factory=dict)
    finish_reason: str | None = None
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

    @property
    def whole(self) -> bool:
        """Whether every choice has come to its end."""
        return bool(self.choices) and all(choice.finish_reason is not None for choice in self.choices)


def read_completion(document: Any) -> Completion | None:
    """A response that came whole, or None when it is no object."""
    if not isinstance(document, dict):
        return None
    completion = Completion(choices=[])
    _read_frame(completion, document)
    for position, choice in enumerate(dicts(document.get("choices"))):
        answer = ChoiceAnswer(_index(choice, position))
        message = choice.get("message")
        answer.message = message if isinstance(message, dict) else {}
        if isinstance(choice.get("text"), str):
            answer.message = {"content": choice["text"]}
        _read_choice_end(answer, choice)
        completion.choices.append(answer)
    completion.choices.sort(key=lambda answer: answer.index)
    return completion


def read_stream(events: Iterable[bytes]) -> Completion:
    """A response put together from the data of its events."""
    whole = Completion(choices=[], done=False)
    choices: dict[int, _ChoiceStream] = {}
    for data in events:
        if data.startswith(b"[DONE]"):
            whole.done = True
            break
        chunk = read_json(data)
        if not isinstance(chunk, dict):
            whole.unreadable_chunks += 1
            continue
        _read_frame(whole, chunk)
        for choice in dicts(chunk.get("choices")):
            index = _index(choice, 0)
            stream = choices.setdefault(index, _ChoiceStream(index))
            stream.add(choice, tokens=not whole.unreadable_chunks)  # behind a hole they would stand in wrong places
    whole.choices = [choices[index].answer() for index in sorted(choices)]
    return whole


class _ChoiceStream:
    def __init__(self, index: int) -> None:
        self._answer = ChoiceAnswer(index)
        self._role: str | None = None
        self._texts: dict[str, list[str]] = {}
        self._tool_calls: dict[int, _ToolCallStream] = {}
        self._function_call: _ToolCallStream | None = None
        self._audio: dict[str, Any] = {}

    def add(self, choice: dict[str, Any], *, tokens: bool) -> None:
        _read_choice_end(self._answer, choice, tokens=tokens)
        if isinstance(choice.get("text"), str):
            self._texts.setdefault("content", []).append(choice["text"])
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            return
        if isinstance(delta.get("role"), str):
            self._role = delta["role"]
        for key in ("content", "refusal", "reasoning_content", "reasoning"):
            if isinstance(delta.get(key), str):
                self._texts.setdefault(key, []).append(delta[key])
        for position, call in enumerate(dicts(delta.get("tool_calls"))):
            index = _index(call, position)
            self._tool_calls.setdefault(index, _ToolCallStream()).add(call)
        if isinstance(delta.get("function_call"), dict):
            self._function_call = self._function_call or _ToolCallStream()
            self._function_call.add({"function": delta["function_call"]})
        if isinstance(delta.get("audio"), dict):
            for key, value in delta["audio"].items():
                both_text = isinstance(value, str) and isinstance(self._audio.get(key), str) and key != "id"
                self._audio[key] = self._audio[key] + value if both_text else value

    def answer(self) -> ChoiceAnswer:
        message: dict[str, Any] = {"role": self._role or "assistant"}
        message.update({key: "".join(pieces) for key, pieces in self._texts.items()})
        if self._tool_calls:
            message["tool_calls"] = [self._tool_calls[index].call() for index in sorted(self._tool_calls)]
        if self._function_call is not None:
            message["function_call"] = self._function_call.call()["function"]
        if self._audio:
            message["audio"] = self._audio
        self._answer.message = message
        return self._answer


class _ToolCallStream:
    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._name: list[str] = []
        self._arguments: list[str] = []

    def add(self, delta: dict[str, Any]) -> None:
        for key, value in delta.items():
            if key not in ("function", "index") and value is not None:
                self._fields[key] = value
        function = delta.get("function")
        if isinstance(function, dict):
            if isinstance(function.get("name"), str):
                self._name.append(function["name"])
            if isinstance(function.get("arguments"), str):
                self._arguments.append(function["arguments"])

    def call(self) -> dict[str, Any]:
        return {**self._fields, "function": {"name": "".join(self._name), "arguments": "".join(self._arguments)}}


def _read_frame(whole: Completion, document: dict[str, Any]) -> None:
    """Add what a response or a chunk says beside its choices: the first id, model and error, the last usage."""
    if whole.id is None and isinstance(document.get("id"), str):
        whole.id = document["id"]
    if whole.model is None and isinstance(document.get("model"), str):
        whole.model = document["model"]
    if document.get("usage") and isinstance(document["usage"], dict):
        whole.usage = document["usage"]
    if whole.prompt_token_ids is None:
        whole.prompt_token_ids = integers(document.get("prompt_token_ids"))
    if whole.error is None and "error" in document:
        whole.error = error_of(document)


def _read_choice_end(answer: ChoiceAnswer, choice: dict[str, Any], *, tokens: bool = True) -> None:
    """Finish reason, token ids and log-probabilities: what lies beside message, delta or text, added up."""
    if isinstance(choice.get("finish_reason"), str):
        answer.finish_reason = choice["finish_reason"]
    if not tokens:
        return
    ids = integers(choice.get("token_ids"))
    if ids is not None:
        answer.token_ids = answer.token_ids or []
        answer.token_ids += ids
    if answer.prompt_token_ids is None:
        answer.prompt_token_ids = integers(choice.get("prompt_token_ids"))
    logprobs = choice.get("logprobs")
    if not isinstance(logprobs, dict):
        return
    if isinstance(logprobs.get("content"), list):
        answer.logprobs = answer.logprobs or []
        answer.logprobs += logprobs_of(logprobs["content"])
    elif isinstance(logprobs.get("token_logprobs"), list):
        answer.logprobs = answer.logprobs or []
        answer.logprobs += map(_number, logprobs["token_logprobs"])


def logprobs_of(entries: list[Any]) -> list[float | None]:
    """The log-probability of each sampled token of a list of objects."""
    return [_number(entry.get("logprob")) if isinstance(entry, dict) else None for entry in entries]


def dicts(value: Any) -> list[dict[str, Any]]:
    """The objects of a list; none where it is no list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _index(value: dict[str, Any], otherwise: int) -> int:
    index = value.get("index")
    return index if isinstance(index, int) and not isinstance(index, bool) else otherwise


def integers(value: Any) -> list[int] | None:
    """A list of token ids, or None when it is none."""
    if not isinstance(value, list):
        return None
    for item in value:
        if type(item) is not int or not -0x80000000 <= item < 0x80000000:
            return None
    return value


def _number(value: Any) -> float | None:
    try:
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    except OverflowError:
        return None
