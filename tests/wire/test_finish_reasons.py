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


ASKED = {"max_tokens": 3}
CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}


def choice(ids: list[int] | None, stop_reason: Any = None, **more: Any) -> dict[str, Any]:
    """One as vLLM's answers have it."""
    message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    said = {"index": 0, "message": message, "finish_reason": "tool_calls", "stop_reason": stop_reason}
    return said | ({} if ids is None else {"token_ids": ids}) | more


def ends(*choices: dict[str, Any], end_token: int | None = None, asked: Any = ASKED, sampled: Any = None) -> Any:
    numbered = [{**one, "index": at} for at, one in enumerate(choices)]
    body = {"choices": numbered, "usage": {"completion_tokens": sampled}}
    headers = {} if end_token is None else {semconv.END_TOKEN_HEADER: str(end_token)}
    exchange = Exchange(json.dumps(asked).encode(), status=200, headers=headers, body=json.dumps(body).encode())
    attributes = decode(exchange).attributes
    reasons = attributes[semconv.RESPONSE_FINISH_REASONS]
    assert [one["finish_reason"] for one in json.loads(attributes[semconv.OUTPUT_MESSAGES])] == reasons
    return reasons


@pytest.mark.parametrize("asked", [ASKED, {"max_completion_tokens": 3, "max_tokens": 9}])
def test_an_answer_that_vllm_cut_behind_a_whole_tool_call_is_cut(asked: dict[str, int]) -> None:
    assert ends(choice([5, 6, 7]), asked=asked) == ["length"]
    assert ends(choice(None), asked=asked, sampled=3) == ["length"]
    assert ends(choice([5, 6]), choice([5, 6, 7]), asked=asked) == ["tool_calls", "length"]
    assert ends(choice([5, 6], "repetition_detected"), asked=asked) == ["repetition"]


def test_one_that_the_model_ended_is_whole() -> None:
    assert ends(choice([5, 6])) == ends(choice(None), sampled=2) == ["tool_calls"]
    assert ends(choice([5, 6, 7]), asked={}) == ["tool_calls"], "nobody knows"
    assert ends(choice(None), choice(None), sampled=6) == ["tool_calls", "tool_calls"], "nobody knows of which"
    for stop in (7, "</s>"):
        assert ends(choice([5, 6, 7], stop)) == ends(choice([5, 6, 7], stop), end_token=2) == ["tool_calls"]
    of_another = choice([5, 6, 7])
    del of_another["stop_reason"]
    assert ends(of_another) == ["tool_calls"], "the field is vLLM's"


def test_where_the_end_token_is_known_it_alone_ends_an_answer() -> None:
    assert ends(choice([5, 6, 2]), end_token=2) == ["tool_calls"]
    assert ends(choice([5, 6, 7]), end_token=2, asked={}) == ["length"], "cut by the context's end"
    assert ends(choice(None), end_token=2, sampled=3) == ["length"]


@pytest.mark.parametrize(("ids", "end"), [([5, 6, 7], "length"), ([5, 6, 2], "tool_calls")])
def test_so_it_is_in_anthropics_form(ids: list[int], end: str) -> None:
    tokens = {"prompt_token_ids": [1], "token_ids": ids, "logprobs": [-0.5] * 3, "stop_reason": None}
    said = [{"type": "tool_use", "id": "c", "name": "look", "input": {}}]
    body = {"type": "message", "content": said, "stop_reason": "tool_use", "arttrace": tokens}
    exchange = Exchange(
        json.dumps(ASKED).encode(),
        path="/v1/messages",
        status=200,
        headers={semconv.END_TOKEN_HEADER: "2"},
        body=json.dumps(body).encode(),
    )
    assert decode(exchange).attributes[semconv.RESPONSE_FINISH_REASONS] == [end]
