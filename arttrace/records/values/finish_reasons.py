"""Why an answer ended: the words of every API and SDK for it, in those of chat completions; and which are no end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_WORDS: Final = {
    "stop": "eos eos_token end_turn stop_sequence stop_token complete completed",
    "length": "max_tokens max_output_tokens max_new_tokens max_length model_length token_limit max_tokens_reached"
    " model_context_window_exceeded",
    "tool_calls": "tool_call tool_use",
    "content_filter": "content_filtered refusal safety recitation blocklist prohibited_content spii image_safety"
    " model_armor guardrail_intervened sensitive error_toxic",
    "cancelled": "canceled abort aborted user_cancel",
}
_IN_CHAT: Final = {word: reason for reason, words in _WORDS.items() for word in words.split()}
_OF_CHAT: Final = frozenset((*_WORDS, "function_call", "error", "incomplete"))

CUT_SHORT: Final = frozenset(("length", "content_filter", "incomplete", "pause_turn", "not_finished", "time_limit"))
"""Something else than the model ended the answer, so that it stops where it would have gone on."""

BROKEN: Final = frozenset(("cancelled", "error"))
"""What came of the answer was given up, or failed."""


def finish_reason(value: Any) -> str | None:
    """`value` in the words of chat completions, one that is not known as it came; None for what is no text.

    Spellings do not count: `MAX_TOKENS` of Gemini, `FinishReason.MAX_TOKENS` of its SDK, `content-filter` of Vercel's.
    """
    if not isinstance(value, str) or not value:
        return None
    if value in _OF_CHAT:
        return value
    word = value.rpartition(".")[2].lower().replace("-", "_")
    return word if word in _OF_CHAT or word in CUT_SHORT else _IN_CHAT.get(word, value)


_FIELDS: Final = ("finish_reason", "stop_reason", "finishReason", "stopReason", "done_reason")


def told_reason(answer: Mapping[str, Any]) -> str | None:
    """Why an answer ended, as it says itself in one of the fields that APIs have for it."""
    details = answer.get("incomplete_details")
    told = [*(answer.get(name) for name in _FIELDS), details.get("reason") if isinstance(details, dict) else None]
    return next((reason for reason in told if isinstance(reason, str) and reason), None)
