"""Answers that were cut short though they say "tool_calls": vLLM's, where the cut came behind a whole tool call.

It says so of whole answers (0.32, `OpenAIServingChat.chat_completion_full_generator`: the tool call counts more than
"length"), and did so of streams. Its own field `stop_reason` gives them away: it is null where the answer was cut, or
ended with the tokenizer's end token; else it is what ended the answer. Where that token is not known, an answer as long
as was asked for is taken to be cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from arttrace.records import semconv
from arttrace.wire.apis.openai.completion_response import ChoiceAnswer, Completion


def name_cuts(completion: Completion, headers: Mapping[str, str], bound: Any) -> None:
    """Give the choices that were cut the reason for it. `bound` is how many tokens the request asks for at most."""
    sampled = completion.usage.get("completion_tokens") if len(completion.choices) == 1 else None
    for choice in completion.choices:
        if choice.finish_reason == "tool_calls":
            choice.finish_reason = _reason(choice, headers.get(semconv.END_TOKEN_HEADER), sampled, bound)


def _reason(choice: ChoiceAnswer, end_token: str | None, sampled: Any, bound: Any) -> str | None:
    if choice.stop_reason == "repetition_detected":
        return "repetition"
    if choice.stop_reason is not None:
        return choice.finish_reason
    if end_token is not None and choice.token_ids:
        return choice.finish_reason if str(choice.token_ids[-1]) == end_token else "length"
    count = sampled if choice.token_ids is None else len(choice.token_ids)
    return "length" if type(count) is type(bound) is int and count >= bound else choice.finish_reason
