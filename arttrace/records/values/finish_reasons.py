"""Why an answer ended: the words of every API and SDK for it, in those of chat completions; and which are no end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from arttrace.records.values.lenient_json import json_object

_WORDS: Final = {
    "stop": "eos eos_token end_turn stop_sequence stop_token complete completed",
    "length": "max_tokens max_output_tokens max_new_tokens max_length model_length token_limit max_tokens_reached"
    " model_context_window_exceeded max_len max_context error_limit continuation compaction",
    "tool_calls": "tool_call tool_use",
    "function_call": "",
    "content_filter": "content_filtered refusal safety recitation blocklist prohibited_content spii language"
    " image_safety image_prohibited_content image_recitation model_armor guardrail_intervened escalation sensitive"
    " error_toxic",
    "cancelled": "canceled abort aborted user_cancel",
    "error": "failed network_error insufficient_system_resource malformed_function_call malformed_tool_use"
    " malformed_model_output malformed_response unexpected_tool_call too_many_tool_calls missing_thought_signature",
    "time_limit": "timeout",
    "repetition": "",
    "other": "image_other",
    "incomplete": "",
    "pause_turn": "",
    "not_finished": "",
}
_IN_CHAT: Final = {
    word.replace("_", ""): reason for reason, words in _WORDS.items() for word in (reason, *words.split())
}
_PREFIXES: Final = ("finishreason", "reason")

CUT_SHORT: Final = frozenset(
    ("length", "content_filter", "incomplete", "pause_turn", "not_finished", "time_limit", "repetition", "other")
)
"""Something else than the model ended the answer, so that it stops where it would have gone on; or may have: Google's
SDK says of `OTHER` "all other reasons that stopped the token generation" (google-genai, `types.FinishReason`), and of
`STOP` that it is the natural end."""

BROKEN: Final = frozenset(("cancelled", "error"))
"""What came of the answer was given up, or failed."""


def finish_reason(value: Any) -> str | None:
    """`value` in the words of chat completions, one that is not known as it came; None for what is no text.

    Spellings do not count: `MAX_TOKENS` of Gemini, `FinishReason.MAX_TOKENS` of its SDK, `content-filter` of Vercel's,
    `maxTokens` of MCP, `REASON_MAX_LEN` of xAI.
    """
    if not isinstance(value, str) or not value:
        return None
    if value in _WORDS:
        return value
    word = value.rpartition(".")[2].partition(":")[0].lower().replace("-", "").replace("_", "")
    for prefix in _PREFIXES:
        word = word.removeprefix(prefix)
    return _IN_CHAT.get(word, value)


_FIELDS: Final = ("finish_reason", "stop_reason", "finishReason", "stopReason", "done_reason")


def stated_reason(answer: Mapping[str, Any]) -> str | None:
    """Why an answer ended, as it says itself in one of the fields that APIs have for it."""
    details = json_object(answer.get("incomplete_details"))
    stated = [*(answer.get(name) for name in _FIELDS), details.get("reason")]
    return next((reason for reason in stated if isinstance(reason, str) and reason), None)
