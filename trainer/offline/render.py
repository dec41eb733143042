"""Render: a conversation through the model's own chat template into token ids, and which of them are to be learned.

Where an assistant message begins and ends is not asked of the template (few mark it, some mark it wrongly): it is what
the template adds to the messages before. That is then proven: the learned tokens, decoded, must be that very text, and
the text must hold what the message says. Of an answer that the model did not end, what the template adds behind it is
not learned. What cannot be proven is left out, with the reason. Reasoning that the template does not print is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from arttrace.records.message import Message, ReasoningPart
from arttrace.records.sequence import NotTrained
from arttrace.records.values.users_text import first_line
from arttrace.trajectories.conversations import ChatMessage, Conversation, said, unsupported


@dataclass(frozen=True, slots=True)
class TrainingExample:
    """Token ids of shape (T,), and `learned` of shape (T,): whether each is part of an answer to be learned.
    `reasoning_dropped` is the number of its answers whose reasoning is not among them."""

    token_ids: tuple[int, ...]
    learned: tuple[bool, ...]
    reasoning_dropped: int = 0


class Unprovable(Exception):
    """The tokens of an answer cannot be determined for certain; the message says why."""


def render(conversation: Conversation, tokenizer: Any) -> list[TrainingExample]:
    """One example for the whole conversation; or, where the template renders earlier messages differently once more
    follow (as those that drop old reasoning do), one for each answer behind what the model saw then.

    Raises Unprovable.
    """
    if (reason := unsupported(conversation)) is not None:
        raise Unprovable(reason)
    chat, tools = conversation.chat(), list(conversation.tools) or None
    try:
        ends = [_text(tokenizer, chat[: at + 1], tools) for at in conversation.targets]
        starts = [_text(tokenizer, chat[:at], tools, asked=True) for at in conversation.targets]
    except Exception as error:  # templates raise what they like
        raise Unprovable(f"the chat template refuses it: {first_line(error)[:120]}") from error
    spans, dropped = [], []
    for at, start, end in zip(conversation.targets, starts, ends, strict=True):
        if not end.startswith(start):
            raise Unprovable(NotTrained.PROMPT_DIFFERS)
        answer = end[len(start) :].rstrip()
        if missing := _missing(conversation.messages[at], answer):
            raise Unprovable(f"the chat template drops or changes {missing}")
        stop = len(start) + len(answer)
        if at in conversation.unended:
            stop = max(_stop(tokenizer, chat[: at + 1], tools, end), len(start))
        spans.append((len(start), stop))
        dropped.append(_drops_reasoning(conversation.messages[at], answer))
    if all(ends[-1].startswith(text[: span[1]]) for text, span in zip(ends, spans, strict=True)):
        shown = [span for span in spans if span[1] > span[0]]
        return [_example(tokenizer, ends[-1][: spans[-1][1]], shown, sum(dropped))]
    return [
        _example(tokenizer, text[: span[1]], [span], int(drops))
        for text, span, drops in zip(ends, spans, dropped, strict=True)
        if span[1] > span[0]
    ]


def shared_context(left: TrainingExample, right: TrainingExample) -> int:
    """How many tokens two examples have in common before the first that either learns."""
    bound = min(left.learned.index(True), right.learned.index(True))
    return next((at for at in range(bound) if left.token_ids[at] != right.token_ids[at]), bound)


def _text(tokenizer: Any, chat: Sequence[ChatMessage], tools: Any, *, asked: bool = False) -> str:
    text: str = tokenizer.apply_chat_template(list(chat), tools=tools, tokenize=False, add_generation_prompt=asked)
    return text


_MARK = "\ue000"


def _stop(tokenizer: Any, chat: Sequence[ChatMessage], tools: Any, text: str) -> int:
    """Where in `text`, which is `chat` rendered, ends what the model said last: there a mark appears that is set behind
    it. 0 where it said nothing, or a thought that the template drops. Raises Unprovable where the mark changes anything
    else."""
    last = chat[-1]
    field = "content" if last["content"].strip() else "reasoning_content"
    said = last.get(field, "").rstrip()
    if not said:
        return 0
    marked = {**last, field: f"{said}{_MARK}{last[field][len(said) :]}"}
    try:
        shown = _text(tokenizer, [*chat[:-1], marked], tools)
    except Exception as error:  # as above
        raise Unprovable(NotTrained.NO_STOP) from error
    stop = shown.rfind(_MARK)
    if shown == text and field == "reasoning_content":
        return 0
    if stop < 0 or shown[:stop] + shown[stop + len(_MARK) :] != text:
        raise Unprovable(NotTrained.NO_STOP)
    return stop


def _missing(message: Message, answer: str) -> str:
    """What `answer`, as the template prints it, lacks of a message, in words; "" where it has all. Calls of one tool
    are each there if its name stands there once more for each."""
    for piece in said(message):
        if piece not in answer:
            return repr(piece[:40])
    thoughts = "" if _drops_reasoning(message, answer) else _thoughts(message)
    for name, times in Counter(call.name for call in message.tool_calls).items():
        if answer.count(name) < times + message.text.count(name) + thoughts.count(name):
            return f"one of {times} calls of {name[:40]!r}"
    return ""


def _thoughts(message: Message) -> str:
    return "\n".join(part.content.strip() for part in message.parts if isinstance(part, ReasoningPart))


def _drops_reasoning(message: Message, answer: str) -> bool:
    """Whether `answer`, as the template prints it, lacks what the message's model thought before it. What stands in the
    message's text too is only there if it is there once more."""
    thoughts = (part.content.strip() for part in message.parts if isinstance(part, ReasoningPart))
    return any(thought and answer.count(thought) <= message.text.count(thought) for thought in thoughts)


def _example(tokenizer: Any, text: str, spans: Sequence[tuple[int, int]], reasoning_dropped: int) -> TrainingExample:
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids, offsets = encoded["input_ids"], encoded["offset_mapping"]
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    for at, (first, last) in enumerate(offsets):
        if last > first:
            starts.setdefault(first, at)
            ends[last] = at
    learned = [False] * len(ids)
    for begin, end in spans:
        if begin not in starts or end not in ends:
            raise Unprovable(NotTrained.TOKEN_ACROSS_BORDER)
        first, last = starts[begin], ends[end]
        if first == 0:
            raise Unprovable(NotTrained.NO_PROMPT)
        if tokenizer.decode(ids[first : last + 1], clean_up_tokenization_spaces=False) != text[begin:end]:
            raise Unprovable(NotTrained.TOKENS_DIFFER)
        learned[first : last + 1] = [True] * (last + 1 - first)
    return TrainingExample(tuple(ids), tuple(learned), reasoning_dropped)
