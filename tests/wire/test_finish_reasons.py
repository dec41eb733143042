"""Why an answer ended, in one set of words, whichever API and SDK said it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from arttrace.records import semconv
from arttrace.records.values.finish_reasons import BROKEN, CUT_SHORT, finish_reason
from arttrace.wire import Exchange, decode

ENDS = {
    "stop": "stop STOP end_turn stop_sequence EOS_TOKEN COMPLETE FinishReason.STOP endTurn stopSequence REASON_STOP",
    "length": "length MAX_TOKENS max_tokens max_output_tokens model_context_window_exceeded model_length"
    " FinishReason.MAX_TOKENS maxTokens REASON_MAX_LEN REASON_MAX_CONTEXT ERROR_LIMIT CONTINUATION compaction",
    "tool_calls": "tool_calls tool_use tool-calls tool_call TOOL_CALL toolUse REASON_TOOL_CALLS",
    "content_filter": "content_filter content-filter content_filtered refusal SAFETY RECITATION guardrail_intervened"
    " LANGUAGE IMAGE_PROHIBITED_CONTENT",
    "time_limit": "time_limit TIMEOUT REASON_TIME_LIMIT",
    "repetition": "repetition",
    "other": "other OTHER FinishReason.OTHER IMAGE_OTHER",
    "cancelled": "cancelled canceled abort",
    "error": "error ERROR failed insufficient_system_resource network_error malformed_tool_use MALFORMED_FUNCTION_CALL",
}


@pytest.mark.parametrize(("end", "word"), [(end, word) for end, words in ENDS.items() for word in words.split()])
def test_one_end_has_one_word(end: str, word: str) -> None:
    assert finish_reason(word) == end
    assert (end in CUT_SHORT) is (end in ("length", "content_filter", "time_limit", "repetition", "other"))
    assert (end in BROKEN) is (end in ("cancelled", "error"))


@pytest.mark.parametrize("value", ["unknown", "FINISH_REASON_UNSPECIFIED", "of its. own"])
def test_a_word_that_is_not_known_stays(value: str) -> None:
    assert finish_reason(value) == value


@pytest.mark.parametrize("value", [None, "", 2, ["length"], {}])
def test_what_is_no_word_is_none(value: Any) -> None:
    assert finish_reason(value) is None


CHAT = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Lis"}, "finish_reason": "length"}]}
COMPLETION = {"choices": [{"index": 0, "text": "Lis", "finish_reason": "length"}]}
MESSAGE = {"type": "message", "content": [{"type": "text", "text": "Lis"}], "stop_reason": "max_tokens"}
RESPONSE = {
    "status": "incomplete",
    "incomplete_details": {"reason": "max_output_tokens"},
    "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Lis"}]}],
}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", COMPLETION),
        ("/v1/messages", MESSAGE),
        ("/v1/responses", RESPONSE),
    ],
)
@pytest.mark.parametrize("filtered", [False, True])
def test_every_api_tells_of_an_answer_that_was_cut_short(path: str, body: dict[str, Any], filtered: bool) -> None:
    sent = json.dumps(body)
    if filtered:
        for limit, reason in (
            ('"length"', '"content_filter"'),
            ('"max_tokens"', '"refusal"'),
            ('"max_output_tokens"', '"content_filter"'),
        ):
            sent = sent.replace(limit, reason)
    attributes = decode(Exchange(b"{}", path=path, status=200, body=sent.encode())).attributes
    end = "content_filter" if filtered else "length"
    assert attributes[semconv.RESPONSE_FINISH_REASONS] == [end]
    assert [one["finish_reason"] for one in json.loads(attributes[semconv.OUTPUT_MESSAGES])] == [end]
