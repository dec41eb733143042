"""Rows of TRL, OpenAI's fine-tuning and ShareGPT, from conversations and pairs of them. Pure.

What a form cannot hold raises Unsuitable with the reason, for whoever counts; nothing is cut or left out in silence.
Sources: TRL's dataset formats (conversational: language modelling, prompt-completion, preference, unpaired preference,
with `tools`); OpenAI's fine-tuning API (chat with `weight`, preferences); ShareGPT as LLaMA-Factory reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile

import msgspec

from arttrace.formats.datasets.forms import Form, Row, Unsuitable
from arttrace.records.message import Message, OtherPart, ReasoningPart, ToolResultPart, joined_text
from arttrace.records.sequence import NotTrained
from arttrace.trajectories.conversations import ChatMessage, Conversation, chat_message, unsupported
from arttrace.trajectories.messages.tool_results import with_call_ids
from arttrace.wire.messages import openai_message


def rows(form: Form, conversation: Conversation, *, good: bool = True) -> Iterator[Row]:
    """The rows of one conversation; `good` is the label of unpaired preference."""
    if (why := unsupported(conversation, text_only=form is not Form.OPENAI_SFT)) is not None:
        raise Unsuitable(why)
    conversation = with_ids(conversation)
    match form:
        case Form.TRL_SFT:
            without_context_answers(form, conversation)
            yield _with_tools({"messages": conversation.chat()}, conversation)
        case Form.TRL_PROMPT_COMPLETION | Form.TRL_UNPAIRED:
            chat = conversation.chat()
            for at in conversation.targets:
                row: Row = {"prompt": chat[:at], "completion": [chat[at]]}
                yield _with_tools(row if form is Form.TRL_PROMPT_COMPLETION else {**row, "label": good}, conversation)
        case Form.OPENAI_SFT:
            yield _with_tools({"messages": _openai(conversation.messages, conversation.targets)}, conversation)
        case Form.SHAREGPT:
            yield _sharegpt(conversation)
        case _:
            raise ValueError(f"{form} is not a form of single conversations")


def pair_row(form: Form, better: Conversation, worse: Conversation) -> Row:
    """The row of a pair: what both begin with, and how each goes on."""
    for one in (better, worse):
        if (why := unsupported(one, text_only=form is not Form.OPENAI_DPO)) is not None:
            raise Unsuitable(why)
    first, second = with_call_ids(better.messages), with_call_ids(worse.messages)
    both = enumerate(zip(first, second, strict=False))
    shared = next((at for at, (one, other) in both if one != other), min(len(first), len(second)))
    if not shared:
        raise Unsuitable("a pair without a common beginning")
    if shared in (len(first), len(second)):
        raise Unsuitable("a pair of which one is the beginning of the other")
    if any(at >= shared for one in (better, worse) for at in one.unended):
        raise Unsuitable(NotTrained.CUT_SHORT)
    if better.tools != worse.tools:
        raise Unsuitable("a pair with different tools")
    if form is Form.TRL_PREFERENCE:
        ways = {
            "prompt": [chat_message(message) for message in first[:shared]],
            "chosen": [chat_message(message) for message in first[shared:]],
            "rejected": [chat_message(message) for message in second[shared:]],
        }
        return _with_tools(ways, better)
    if (len(first), len(second)) != (shared + 1, shared + 1):
        raise Unsuitable("a pair that differs in more than one message, which openai-dpo does not hold")
    given = _with_tools({"messages": _openai(first[:shared], None)}, better)
    return {
        "input": given,
        "preferred_output": [_openai_message(first[shared])],
        "non_preferred_output": [_openai_message(second[shared])],
    }


def with_ids(conversation: Conversation) -> Conversation:
    """The conversation with an id for each tool call."""
    return replace(conversation, messages=with_call_ids(conversation.messages))


def without_context_answers(form: Form, conversation: Conversation) -> None:
    """Raises Unsuitable where an answer is context: the form's reader trains on every answer."""
    own = {at for at, message in enumerate(conversation.messages) if message.role == "assistant"}
    if own != set(conversation.targets):
        raise Unsuitable(f"answers that are context, which {form} would train on (openai-sft holds them)")


def _with_tools(row: Row, conversation: Conversation) -> Row:
    return {**row, "tools": list(conversation.tools)} if conversation.tools else row


# --- OpenAI ------------------------------------------------------------------------------------------------

_UNANSWERED = "tool calls without a result before the next message"
_ROLES = ("system", "developer", "user", "assistant", "tool")


def _openai(messages: Sequence[Message], targets: Sequence[int] | None) -> list[ChatMessage]:
    """Messages by the rules of the fine-tuning API: known roles, tool results after the calls that they answer, each
    call answered before anything else is said, and an assistant at the end; `weight` 0 on answers that are context.
    None for `targets`: the input of a preference."""
    found = []
    asked: set[str] = set()
    waiting: set[str] = set()
    for at, message in enumerate(messages):
        if message.role not in _ROLES:
            raise Unsuitable(f"messages of the role {message.role[:40]!r}")
        chat = _openai_message(message)
        if message.role == "tool":
            if chat.get("tool_call_id") not in asked:
                raise Unsuitable("tool results that answer no call")
            waiting.discard(chat["tool_call_id"])
        elif waiting:
            raise Unsuitable(_UNANSWERED)
        elif message.role == "assistant" and targets is not None and at not in targets:
            chat["weight"] = 0
        waiting.update(call.id for call in message.tool_calls if call.id)
        asked |= waiting
        found.append(chat)
    if waiting and targets is None:
        raise Unsuitable(_UNANSWERED)
    if targets is not None and (not found or found[-1]["role"] != "assistant"):
        raise Unsuitable("conversations that end without an answer")
    return found


def openai_form(message: Message) -> ChatMessage:
    """The message in OpenAI's form, in which a tool's result is text."""
    chat = openai_message(message)
    match message.parts:
        case (ToolResultPart(response),) if response is not None and joined_text(response) is None:
            chat["content"] = chat_message(message)["content"]
    return chat


def _openai_message(message: Message) -> ChatMessage:
    if any(isinstance(part, ReasoningPart) for part in message.parts):
        raise Unsuitable("reasoning, which OpenAI's form does not hold")
    if any(isinstance(part, OtherPart) and not _is_image(part, message) for part in message.parts):
        raise Unsuitable("parts that are neither text nor an image of the user's")
    chat = openai_form(message)
    if message.role == "tool":
        chat.pop("name", None)  # the call that it answers has it
    if chat.get("content") is None and not chat.get("tool_calls"):
        raise Unsuitable("messages without content")
    return chat


def _is_image(part: OtherPart, message: Message) -> bool:
    return message.role == "user" and part.value.get("type") == "image_url"


# --- ShareGPT ----------------------------------------------------------------------------------------------

_SYSTEM = ("system", "developer")
_FROM = {"user": "human", "assistant": "gpt", "tool": "observation"}


def _sharegpt(conversation: Conversation) -> Row:
    """LLaMA-Factory skips, and says so in its log alone, what does not alternate between what is asked (human,
    observation) and what is answered (gpt, function_call), or does not end with an answer."""
    without_context_answers(Form.SHAREGPT, conversation)
    system = list(takewhile(lambda message: message.role in _SYSTEM, conversation.messages))
    turns: list[Row] = []
    for message in conversation.messages[len(system) :]:
        if message.role in _SYSTEM:
            raise Unsuitable("system messages after the first, which sharegpt does not hold")
        if message.role not in _FROM:
            raise Unsuitable(f"messages of the role {message.role[:40]!r}")
        if (message.role == "assistant") is not bool(len(turns) % 2):
            raise Unsuitable("turns that do not alternate between question and answer, as sharegpt wants")
        if any(isinstance(part, ReasoningPart) for part in message.parts):
            raise Unsuitable("reasoning, which sharegpt does not hold")
        if len(message.tool_calls) > 1 or (message.tool_calls and message.text):
            raise Unsuitable("several tool calls in one answer, or text beside one, which sharegpt does not hold")
        if message.tool_calls:
            call = chat_message(message)["tool_calls"][0]["function"]
            turns.append({"from": "function_call", "value": msgspec.json.encode(call).decode()})
        else:
            turns.append({"from": _FROM[message.role], "value": chat_message(message)["content"]})
    if len(turns) % 2:
        raise Unsuitable("conversations that end without an answer")
    row: Row = {"conversations": turns}
    if system:
        row["system"] = "\n\n".join(message.text for message in system)
    if conversation.tools:
        row["tools"] = msgspec.json.encode(conversation.tools).decode()
    return row
