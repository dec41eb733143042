"""Texts that a chat template printed, taken apart into the messages that they were of, as far as that is certain. Pure.

A decoded text has lost the special tokens between turns: what is left are lines of a role's name, which anybody can
write. So a prompt is taken apart only where each role has one line, and an answer only at the results of tools, as the
templates of Qwen and Hermes print them. Any other text that looks like several turns, by a line that is a role's name,
stays one, and is not certain.
Source: the chat templates of Qwen 2.5 and 3, Gemma and Llama 3, and verl 0.9, tool_agent_loop.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from arttrace.formats.sdks.openai_messages import text_of
from arttrace.records.values.lenient_json import json_object, read_json
from arttrace.records.values.nesting import UNREADABLE

_ASKED = re.compile(r"(?:^|\n)(assistant|model)\n(<think>\n(?:\n</think>\n\n)?)?\Z")
"""How a prompt ends that a template printed: it asks for the answer, some with thoughts that are begun or empty."""
_ASKED_AS_LLAMA = "assistant\n\n"
_ROLES = ("system", "user", "tool")
"""Whose turns are not the model's."""
_RESULTS, _RESULTS_END = "user\n<tool_response>\n", "\n</tool_response>\nassistant\n"
_RESULT, _RESULT_END = "<tool_response>\n", "\n</tool_response>"
_CALL, _CALL_END = "<tool_call>\n", "\n</tool_call>"
_OFFERS = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
)
_OFFERS_END = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n'
    "</tool_call>"
)

Message = dict[str, Any]


class PrintedPrompt(NamedTuple):
    """What a call was given: its messages in OpenAI's form, and the tools where they are said. `asks` is the word by
    which the template asks for an answer, empty where nothing shows one, and `begun` is how it begins that answer."""

    messages: list[Message]
    tools: list[Any] | None = None
    asks: str = ""
    begun: str = ""
    are_certain: bool = True


class PrintedTurns(NamedTuple):
    """What followed a prompt: answers, with the results of tools between them."""

    messages: list[Message]
    are_certain: bool = True


def prompt_of(text: str) -> PrintedPrompt:
    """A prompt as a template printed it. A text that does not look like one is a user's; in one that is not certain,
    the roles of its turns are part of that text."""
    whole = PrintedPrompt([{"role": "user", "content": text}])
    asks = _ASKED.search(text)
    if asks is None:
        return whole._replace(are_certain=not text.endswith(_ASKED_AS_LLAMA))
    before, user, content = f"\n{text[: asks.start()]}\n".partition("\nuser\n")
    rules = before.removeprefix("\nsystem\n")
    roles = (*_ROLES, asks[1])
    if not user or (before and rules == before) or _has_line(rules, roles) or _has_line(content, roles):
        return whole._replace(asks=asks[1], are_certain=False)
    rules, tools = _offered(rules)
    messages = [{"role": "system", "content": rules}] if rules else []
    messages.append({"role": "user", "content": content.removesuffix("\n")})
    begun = asks[2] or ""
    return PrintedPrompt(messages, tools, asks[1], "" if "</think>" in begun else begun)


def _has_line(text: str, roles: Iterable[str]) -> bool:
    """Whether a line of the text is the name of one of these."""
    return any(f"\n{role}\n" in f"\n{text}\n" for role in roles)


def _offered(rules: str) -> tuple[str, list[Any] | None]:
    """A system message without the tools that the template printed into it, and these."""
    own, offers, rest = rules.partition(_OFFERS)
    if not offers or not rest.endswith(_OFFERS_END):
        return rules, None
    try:
        tools = [read_json(line) for line in rest.removesuffix(_OFFERS_END).split("\n")]
    except UNREADABLE:
        return rules, None
    return own.removesuffix("\n\n"), tools


def turns_of(text: str, prompt: PrintedPrompt) -> PrintedTurns:
    """What followed a prompt, taken apart at the results of tools. Calls are taken out of the answers where the prompt
    offers the tools, and each call has a result. Those that are not certain are one answer, which may hold more than
    the model said."""
    parts = list(_parts(text)) if prompt.asks else [text]
    roles = {*_ROLES, "assistant", prompt.asks} - {""}
    if any(_has_line(part, roles) for part in parts[::2]):
        return PrintedTurns([{"role": "assistant", "content": prompt.begun + text}], are_certain=False)
    parts[0] = prompt.begun + parts[0]
    messages: list[Message] = []
    for at in range(0, len(parts), 2):
        printed = parts[at + 1] if at + 1 < len(parts) else None
        results = _results(printed)
        called = _called(parts[at], f"call_{at // 2}") if prompt.tools else None
        ids = [call["id"] for call in called["tool_calls"]] if called else []
        if called and (printed is None or len(ids) == len(results)):
            messages.append(called)
            messages += [
                {"role": "tool", "tool_call_id": id, "content": result}
                for id, result in zip(ids, results, strict=False)
            ]
        else:
            messages.append({"role": "assistant", "content": parts[at]})
            messages += [] if printed is None else [{"role": "user", "content": printed}]
    return PrintedTurns(messages)


def _parts(text: str) -> Iterator[str]:
    """An answer, the results of its tools, the next answer and so on; results that were cut off are the last."""
    begin = 0
    while (at := text.find(_RESULTS, begin)) >= 0:
        yield text[begin:at].removesuffix("\n")
        end = text.find(_RESULTS_END, at)
        if end < 0:
            yield text[at + len("user\n") :]
            return
        begin = end + len(_RESULTS_END)
        yield text[at + len("user\n") : end + len(_RESULT_END)]
    yield text[begin:]


def _results(printed: str | None) -> list[str]:
    found = printed.split(f"{_RESULT_END}\n{_RESULT}") if printed else []
    return [one.removeprefix(_RESULT).removesuffix(_RESULT_END) for one in found]


def _called(answer: str, prefix: str) -> Message | None:
    """An answer with its tool calls apart, None where it ends with none, or one is no JSON."""
    said, *printed = answer.split(_CALL)
    calls = []
    for number, one in enumerate(printed):
        content, end, behind = one.partition(_CALL_END)
        if not end or behind.strip("\n"):
            return None
        try:
            given = json_object(read_json(content))
        except UNREADABLE:
            return None
        arguments = given.get("arguments", {})
        if not isinstance(given.get("name"), str) or not isinstance(arguments, dict):
            return None
        function = {"name": given["name"], "arguments": text_of(arguments) or "{}"}
        calls.append({"id": f"{prefix}_{number}", "type": "function", "function": function})
    return {"role": "assistant", "content": said.removesuffix("\n"), "tool_calls": calls} if calls else None
