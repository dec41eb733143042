"""Message: one chat message as role and parts, in the form of the GenAI conventions, with a canonical hash."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

_json = msgspec.json.Decoder()
_sorted = msgspec.json.Encoder(order="sorted")


class TextPart(msgspec.Struct, frozen=True, gc=False, tag="text"):
    """Plain text."""

    content: str


class ReasoningPart(msgspec.Struct, frozen=True, gc=False, tag="reasoning"):
    """The model's reasoning text, where the engine gives it apart from the answer."""

    content: str


class ToolCallPart(msgspec.Struct, frozen=True, gc=False, tag="tool_call"):
    """A tool call the model asked for. `arguments` is the text as sampled, which need not be valid JSON."""

    name: str
    arguments: str
    id: str | None = None


class ToolResultPart(msgspec.Struct, frozen=True, gc=False, tag="tool_call_response"):
    """What a tool answered. `response` is text, or parsed JSON when the sender gave structure."""

    response: Any
    id: str | None = None


class OtherPart(msgspec.Struct, frozen=True, gc=False, tag="other"):
    """Anything else (image, audio, file, refusal), as received."""

    value: dict[str, Any]


Part = TextPart | ReasoningPart | ToolCallPart | ToolResultPart | OtherPart


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message. An assistant message without any part is an empty generation."""

    role: str
    parts: tuple[Part, ...]
    name: str | None = None

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return "".join(part.content for part in self.parts if isinstance(part, TextPart))

    @property
    def tool_calls(self) -> tuple[ToolCallPart, ...]:
        """The tool calls of the message, in order."""
        if len(self.parts) == 1 and not isinstance(self.parts[0], ToolCallPart):
            return ()  # as most have none
        return tuple([part for part in self.parts if isinstance(part, ToolCallPart)])


_MEDIA = frozenset(
    {
        "image", "image_url", "image_file", "image_pil", "image_embeds", "input_image", "audio_url",
        "audio_embeds", "input_audio", "video", "video_url", "video_embeds", "input_video", "prompt_embeds",
    }
)  # fmt: skip
"""The types of parts; some are taken without one too, named by their field."""
_MODALITIES = frozenset(("image", "audio", "video"))
"""Of the conventions' `blob`, `uri` and `file` parts."""


def has_media(message: Message) -> bool:
    """Whether an image, a sound or a video is a part of the message, or of a tool's result in it: a model is given
    those beside its tokens."""
    return any(
        _is_media(part.value)
        if isinstance(part, OtherPart)
        else isinstance(part, ToolResultPart) and isinstance(part.response, list) and any(map(_is_media, part.response))
        for part in message.parts
    )


def _is_media(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    kinds = {str(value["type"])} if "type" in value else value.keys()
    return not _MEDIA.isdisjoint(kinds) or str(value.get("modality")) in _MODALITIES


class MessageTexts:
    """A message list as the JSON text of each message: those of the list that it extends (`before`), then those
    `added`.

    Equal messages should be the same str object, and equal lists the same MessageTexts: both are then read once,
    whatever the length of the history.
    """

    __slots__ = ("added", "before")

    def __init__(self, added: Iterable[str], before: MessageTexts | None = None) -> None:
        self.added, self.before = tuple(added), before

    def __iter__(self) -> Iterator[str]:
        parts: list[tuple[str, ...]] = []
        at: MessageTexts | None = self
        while at is not None:
            parts.append(at.added)
            at = at.before
        return itertools.chain.from_iterable(reversed(parts))


def canonical_json(value: Any) -> bytes:
    """`value` as JSON with sorted keys and no spaces: equal values give equal bytes."""
    return _sorted.encode(value)


def joined_text(value: Any) -> str | None:
    """The text of `value` if it is a list of text parts, as OpenAI's APIs, the conventions and Bedrock write them; else
    None."""
    if not isinstance(value, list) or not value:
        return None
    texts = [_text_of(part) for part in value]
    return None if None in texts else "".join([text for text in texts if text])


def _text_of(part: Any) -> str | None:
    if not isinstance(part, dict):
        return None
    if part.get("type") not in ("text", "input_text", "output_text") and part.keys() != {"text"}:
        return None
    text = part.get("text", part.get("content"))
    return text if isinstance(text, str) else None


REASONING = ("reasoning_content", "reasoning", "reasoning_details", "thinking_blocks", "thinking")
"""Where a message in OpenAI's form has its model's reasoning: DeepSeek and vLLM before 0.12, vLLM and OpenRouter,
OpenRouter's list of blocks, LiteLLM's of Anthropic's, Ollama."""
_OF_A_THOUGHT = ("text", "thinking", "reasoning", "content", "summary")


def stated_reasoning(message: Mapping[str, Any]) -> str:
    """What a message in OpenAI's form says beside its content of its model's reasoning, under the first name that has a
    text; "" where none has, as where a provider hides it."""
    for name in REASONING:
        if found := message.get(name):
            blocks = found if isinstance(found, list) else [found]
            if text := "".join(map(thought_of, blocks)):
                return text
    return ""


def part_of_reasoning(part: Any) -> str:
    """The text of a content's part that is reasoning; "" for any other, and for one that hides it."""
    return thought_of(part) if isinstance(part, dict) and part.get("type") in ("thinking", "reasoning") else ""


def thought_of(block: Any) -> str:
    """The text of a block of reasoning as Anthropic, Mistral (a list of texts), OpenRouter, LangChain or the Responses
    API (paragraphs of a summary) write it; "" for one that hides it."""
    if not isinstance(block, dict):
        return block if isinstance(block, str) else ""
    for name in _OF_A_THOUGHT:
        found = block.get(name)
        if isinstance(found, list):
            texts = [one.get("text") if isinstance(one, dict) else one for one in found]
            between = "" if name == "thinking" else "\n\n"
            found = between.join(text for text in texts if isinstance(text, str))
        if found and isinstance(found, str):
            return found
    return ""


def _canonical_arguments(arguments: str) -> Any:
    try:
        return _json.decode(arguments or "{}")
    except (msgspec.DecodeError, RecursionError):  # a model may well sample `[[[[[...`
        return arguments


def _canonical_response(response: Any) -> Any:
    text = response if isinstance(response, str) else joined_text(response)
    if text is None:
        return "" if response is None else response
    return _canonical_arguments(text) if text[:1] in ("{", "[") else text


def _as_it_is(response: Any) -> Any:
    return response


_TEXTS = (TextPart, ReasoningPart)


def _canonical_parts(
    parts: tuple[Part, ...], arguments: Callable[[str], Any], response: Callable[[Any], Any]
) -> list[Any]:
    found: list[Any] = []
    further: dict[int, list[str]] | None = None  # texts of one kind in a row, by the place of the first
    for part in parts:
        if isinstance(part, _TEXTS):  # faster than matching, and this runs for every message
            if part.content:
                kind = type(part).__name__
                if found and found[-1][0] == kind:
                    further = {} if further is None else further
                    further.setdefault(len(found) - 1, []).append(part.content)
                else:
                    found.append([kind, part.content])
        elif isinstance(part, ToolCallPart):
            found.append(["tool_call", part.name, arguments(part.arguments)])
        elif isinstance(part, ToolResultPart):
            found.append(["tool_result", response(part.response)])
        else:
            found.append(["other", part.value])
    if further is not None:
        for place, texts in further.items():
            found[place][1] += "".join(texts)
    return found


def message_hash(message: Message) -> str:
    """A hash of `message`, 32 hex digits, equal for messages that a chat template renders alike.

    The ids of tool calls and results do not count (what a result answers is found by position, see
    trajectories/messages/tool_results.py), nor does the name of an assistant. Empty text equals no text, text in
    several parts their whole, a missing name an empty one, and JSON equal JSON in tool arguments and results. Raises
    RecursionError for a tool result, or another part, too deep to be written as JSON.
    """
    name = message.name or "" if message.role != "assistant" else ""
    parts = _canonical_parts(message.parts, _canonical_arguments, _canonical_response)
    try:
        document = canonical_json([message.role, name, parts])
    except RecursionError:  # arguments just so deep that they could be read: text, as those a level deeper are
        document = canonical_json([message.role, name, _canonical_parts(message.parts, str, _as_it_is)])
    return hashlib.blake2b(document, digest_size=16).hexdigest()
