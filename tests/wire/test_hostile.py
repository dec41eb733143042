"""No answer of a hostile or broken server, and no request of a broken client, makes `decode` raise."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hostile import HUGE, closed, damaged
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from arttrace.records import semconv
from arttrace.records.values.tokens import decode_logprobs
from arttrace.wire import Decoded, Exchange, decode

CALL = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}
CHAT_REQUEST = {
    "model": "m",
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a"}], "name": "n"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "3"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
    "temperature": 1, "n": 1, "stop": ["x"], "seed": 1, "logit_bias": {}, "response_format": {"type": "text"},
    "art": {"trajectory_id": "t"}, "prompt": ["a", "b"], "suffix": "x", "echo": True,
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "summary": [{"text": "a"}]},
        {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"},
        {"type": "function_call_output", "call_id": "c", "output": "3"},
    ],
    "instructions": "be brief", "conversation": {"id": "c"}, "previous_response_id": "r",
}  # fmt: skip
LOGPROBS = {"content": [{"token": "a", "logprob": -0.5}], "token_logprobs": [-0.5]}
SAID = {"role": "assistant", "content": "a", "reasoning": "b", "tool_calls": [CALL], "audio": {"id": "a", "data": "b"}}
CHAT = {
    "id": "r", "model": "m", "usage": {"prompt_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}},
    "prompt_token_ids": [1, 2], "error": None,
    "choices": [{"index": 0, "message": SAID, "delta": SAID, "text": "a", "finish_reason": "stop", "token_ids": [3],
                 "logprobs": LOGPROBS, "prompt_token_ids": [1, 2]}],
}  # fmt: skip
RESPONSE = {
    "id": "r", "model": "m", "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"},
    "usage": {"input_tokens": 1}, "error": {"message": "e", "code": "c"}, "input_messages": [{"tokens": [1]}],
    "output_messages": [{"tokens": [2]}],
    "output": [
        {"type": "reasoning", "summary": [{"text": "a"}]},
        {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"},
        {"type": "message", "role": "assistant",
         "content": [{"type": "output_text", "text": "a", "logprobs": LOGPROBS["content"]}]},
    ],
}  # fmt: skip
EVENTS = [
    {"type": "response.created", "response": {**RESPONSE, "output": []}},
    {"type": "response.output_item.added", "output_index": 0, "item": {"type": "message"}},
    {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "a",
     "logprobs": LOGPROBS["content"]},
    {"type": "response.output_item.done", "output_index": 1, "item": RESPONSE["output"][1]},
    {"type": "error", "message": "m", "code": "c"},
]  # fmt: skip


def exchange(path: str, request: str, *answers: str, status: int = 200) -> Exchange:
    """One answer is a whole one, several are a stream."""
    body = answers[0] if len(answers) == 1 else "".join(f"data: {answer}\n\n" for answer in answers)
    return Exchange(request=request.encode(), status=status, body=body.encode(), path=path)


def survives(path: str, request: str, *answers: str) -> Decoded:
    for status in (200, 500):
        for limit in (8 << 20, 60):
            decoded = decode(exchange(path, request, *answers, status=status), limit=limit)
            json.dumps(decoded.attributes)
    return decode(exchange(path, request, *answers))


@pytest.mark.parametrize("value", ["1e300", "-1e300", "1" + "0" * 400, "3.4028235e38", "3.4028236e38"])
@pytest.mark.parametrize("path", ["/chat/completions", "/completions", "/responses"])
def test_a_log_probability_beyond_float32_is_missing(path: str, value: str) -> None:
    answer = json.dumps(RESPONSE if path == "/responses" else CHAT).replace("-0.5", value)
    found = decode_logprobs(survives(path, json.dumps(CHAT_REQUEST), answer).attributes[semconv.LOGPROBS])
    assert found is not None
    assert all((one is None) == (value != "3.4028235e38") for one in found)


@pytest.mark.parametrize(
    "answer",
    [
        RESPONSE | {"status": "completed", "output": [{"type": ["function_call"]}]},
        RESPONSE | {"output": [{"type": {"function_call": 1}, "name": "f"}]},
        RESPONSE | {"incomplete_details": {"reason": HUGE}},
        RESPONSE | {"error": {"message": HUGE}},
    ],
)
def test_what_stands_in_the_place_of_a_text_costs_itself(answer: dict[str, Any]) -> None:
    assert survives("/responses", json.dumps(CHAT_REQUEST), json.dumps(answer)).attributes[semconv.RESPONSE_ID] == "r"


@pytest.mark.parametrize(
    ("path", "request_template"),
    [
        ("/responses", '{"model": "m", "input": @}'),
        ("/responses", '{"model": "m", "input": [@]}'),
        ("/responses", '{"model": "m", "instructions": [@]}'),
        ("/responses", '{"model": "m", "input": [{"type": "function_call", "name": "f", "arguments": @}]}'),
        ("/responses", '{"model": "m", "tools": [@]}'),
        ("/responses", '{"model": "m", "tools": [{"type": "mcp", "headers": @}]}'),
        ("/chat/completions", '{"model": "m", "messages": [{"role": "user", "content": @}]}'),
        ("/chat/completions", '{"model": "m", "messages": [{"role": "tool", "content": @}]}'),
        (
            "/chat/completions",
            '{"model": "m", "messages": [{"tool_calls": [{"function": {"name": "f", "arguments": @}}]}]}',
        ),
        ("/completions", '{"model": "m", "prompt": @}'),
    ],
)
def test_what_can_just_be_read_need_not_be_written(path: str, request_template: str) -> None:
    """Its content is left out as truncated, what else the exchange says stands."""
    cut = 0
    for depth in range(880, 1000):
        decoded = decode(exchange(path, request_template.replace("@", closed(depth)), json.dumps(CHAT)))
        assert decoded.attributes[semconv.RESPONSE_ID] == "r"
        cut += bool(decoded.attributes.get(semconv.TRUNCATED))
        if semconv.REQUEST_MODEL not in decoded.attributes:  # too deep to be read
            assert depth > 900
    assert cut < 60


@pytest.mark.parametrize("template", ['{"error": {"message": @}}', '{"type": "error", "message": @}', '{"error": @}'])
@pytest.mark.parametrize("path", ["/chat/completions", "/responses", "/completions"])
def test_an_error_too_deep_to_be_shown(path: str, template: str) -> None:
    for depth in (200, 400, 600, 900, 3000):
        answer = template.replace("@", closed(depth))
        survives(path, "{}", answer)
        survives(path, "{}", answer, "[DONE]")


# --- anything in any place -----------------------------------------------------------------------------------

_ANSWERS = st.one_of(
    damaged([CHAT]).map(lambda text: [text[1:-1]]),
    damaged([CHAT, CHAT, CHAT]).map(lambda text: [json.dumps(one) for one in _items(text)]),
    damaged([RESPONSE]).map(lambda text: [text[1:-1]]),
    damaged(EVENTS).map(lambda text: [json.dumps(one) for one in _items(text)]),
)


def _items(text: str) -> list[Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return [text]
    return found if isinstance(found, list) else [found]


_PATHS = st.sampled_from(["/chat/completions", "/completions", "/responses", "/embeddings"])
_quiet = settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@_quiet
@given(_PATHS, damaged(CHAT_REQUEST), _ANSWERS)
def test_no_exchange_makes_decode_raise(path: str, request: str, answers: list[str]) -> None:
    survives(path, request, *answers)


@pytest.mark.full
@settings(_quiet, max_examples=5_000, derandomize=False)
@given(_PATHS, damaged(CHAT_REQUEST), _ANSWERS)
def test_none_of_thousands_of_exchanges_makes_decode_raise(path: str, request: str, answers: list[str]) -> None:
    survives(path, request, *answers)
