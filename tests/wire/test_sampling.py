"""A request as the policy samples by itself: what changes the sampling goes, all else stays byte for byte."""

from __future__ import annotations

import json
from typing import Any

import pytest

from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.trajectories import build_trajectories, sequences
from arttrace.wire import Exchange, decode
from arttrace.wire.sampling_fields import body_as_the_policy, changed


@pytest.mark.parametrize(
    ("asked", "left"),
    [
        ({"temperature": 0.2, "top_p": 0.9, "top_k": 40, "min_p": 0.1}, {}),
        ({"frequency_penalty": 1, "presence_penalty": -1, "repetition_penalty": 1.1, "logit_bias": {"5": -100}}, {}),
        ({"tool_choice": "required"}, {"tool_choice": "auto"}),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, {"tool_choice": "auto"}),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, {}),
        ({"text": {"format": {"type": "json_object"}, "verbosity": "low"}}, {"text": {"verbosity": "low"}}),
        ({"text": {"format": {"type": "json_object"}}}, {}),
        ({"structured_outputs": {"regex": "a+"}, "guided_json": "{}", "min_tokens": 4, "bad_words": ["x"]}, {}),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "strict": True}}, {"name": "g", "strict": True}]},
            {"tools": [{"type": "function", "function": {"name": "f"}}, {"name": "g"}]},
        ),
        ({"parallel_tool_calls": False}, {}),
        (
            {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
            {"tool_choice": {"type": "auto"}},
        ),
        ({"tool_choice": {"type": "none"}}, {"tool_choice": {"type": "none"}}),
        ({"best_of": 4, "use_beam_search": True, "allowed_token_ids": [1]}, {}),
        ({"thinking_token_budget": 64, "watermarking": True, "vllm_xargs": {"processor": 1}}, {}),
    ],
    ids=str,
)
def test_what_changes_the_sampling_goes(asked: dict[str, Any], left: dict[str, Any]) -> None:
    request = {"model": "m", "messages": [{"role": "user", "content": "\u00e9"}], **asked, "max_tokens": 7, "n": 2}
    made = json.loads(body_as_the_policy(json.dumps(request).encode()))
    assert made == {"model": "m", "messages": request["messages"], **left, "max_tokens": 7, "n": 2}
    assert changed(made) == []


def test_what_changes_nothing_stays_byte_for_byte() -> None:
    body = (
        b'{ "model":"m",  "temperature":1.0, "top_p": 1,"top_k":-1, "tool_choice":"none", "seed": 5, "stop":["x"],'
        b'"response_format":{"type":"text"}, "tools": [ {"strict":false, "x":{"strict":true}}],'
        b'"penalty":null, "presence_penalty":0.0, "x": 1.50}'
    )
    assert body_as_the_policy(body) is body


def test_a_limit_of_one_tool_call_changes_the_sampling_in_either_api() -> None:
    limited: list[dict[str, Any]] = [
        {"parallel_tool_calls": False},
        {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    ]
    free: list[dict[str, Any]] = [
        {"parallel_tool_calls": True},
        {"tool_choice": {"type": "auto", "disable_parallel_tool_use": False}},
    ]
    assert [changed(request) for request in limited] == [["parallel_tool_calls"], ["tool_choice"]]
    assert [changed(request) for request in free] == [[], []]


LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
ALTERED, NOT_AT_1 = "sampling was narrowed or shifted", "not sampled at temperature 1"


@pytest.mark.parametrize(
    ("asked", "processed", "raw"),
    [  # as docs/train/grpo.md has it: why not, where log-probabilities include the temperature and where not
        ({}, "", ""),
        ({"temperature": 1}, "", ""),
        ({"temperature": 0.1}, "", NOT_AT_1),
        ({"temperature": 2, "top_p": 1}, "", NOT_AT_1),
        ({"temperature": 0}, NOT_AT_1, NOT_AT_1),
        ({"temperature": 0.09}, NOT_AT_1, NOT_AT_1),
        ({"top_p": 0.99}, ALTERED, ALTERED),
        ({"temperature": 0.5, "top_p": 0.9}, ALTERED, NOT_AT_1),
        ({"top_k": 20}, ALTERED, ALTERED),
        ({"min_p": 0.1}, ALTERED, ALTERED),
        ({"presence_penalty": 0.1}, ALTERED, ALTERED),
        ({"frequency_penalty": 0.1}, ALTERED, ALTERED),
        ({"repetition_penalty": 1.1}, ALTERED, ALTERED),
        ({"logit_bias": {"5": 1}}, ALTERED, ALTERED),
        ({"bad_words": ["x"]}, ALTERED, ALTERED),
        ({"min_tokens": 2}, ALTERED, ALTERED),
        ({"thinking_token_budget": 64}, ALTERED, ALTERED),
        ({"thinking_token_budget": -1, "watermarking": False, "vllm_xargs": {}}, "", ""),
        ({"watermarking": True}, ALTERED, ALTERED),
        ({"top_p": "1", "presence_penalty": "0"}, "", ""),  # vLLM reads text as a number
        ({"temperature": "0"}, NOT_AT_1, NOT_AT_1),
        ({"top_p": " 0.8 "}, ALTERED, ALTERED),
        ({"top_k": True}, ALTERED, ALTERED),
        ({"temperature": "warm"}, ALTERED, ALTERED),
        ({"frequency_penalty": [1]}, ALTERED, ALTERED),
        ({"vllm_xargs": {"processor": 1}}, ALTERED, ALTERED),
        ({"response_format": {"type": "json_object"}}, ALTERED, ALTERED),
        ({"response_format": {"type": "text"}}, "", ""),
        ({"structured_outputs": {"regex": "a+"}}, ALTERED, ALTERED),
        ({"tools": [LOOK], "tool_choice": "required"}, ALTERED, ALTERED),
        ({"tools": [LOOK], "tool_choice": {"type": "function", "function": {"name": "look"}}}, ALTERED, ALTERED),
        ({"tools": [LOOK], "parallel_tool_calls": False}, ALTERED, ALTERED),
        ({"tools": [LOOK], "tool_choice": "auto"}, "", ""),
        ({"tools": [{**LOOK, "function": {**LOOK["function"], "strict": True}}]}, "", ""),
        ({"stop": ["x"], "max_tokens": 5, "n": 1, "seed": 7}, "", ""),
    ],
    ids=str,
)
@pytest.mark.parametrize("engine", ["processed", "raw", "policy"])
def test_what_a_request_asks_for_decides_whether_its_answer_is_trained_on(
    engine: str, asked: dict[str, Any], processed: str, raw: str
) -> None:
    request = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **asked}
    sampled = {"token_ids": [3, 4], "logprobs": {"content": [{"logprob": -0.5}, {"logprob": -0.25}]}}
    choice = {"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop", **sampled}
    answer = {"id": "c", "prompt_token_ids": [1, 2], "choices": [choice]}
    exchange = Exchange(
        request=json.dumps(request).encode(),
        status=200,
        headers={"content-type": "application/json", **({} if engine == "raw" else {semconv.SAMPLING_HEADER: engine})},
        body=json.dumps(answer).encode(),
    )
    span = SpanRow("1" * 32, "2" * 16, "chat m", 1, 2, attributes=decode(exchange).attributes)
    [trajectory] = build_trajectories([span])
    made, report = sequences(trajectory)
    why = {"processed": processed, "raw": raw, "policy": ""}[engine]  # the gateway left out whatever was asked for
    assert report.reasons == ({why: 1} if why else {})
    assert [one.trained_tokens for one in made] == ([] if why else [2])
    heat = asked.get("temperature", 1)
    if made:
        assert set(made[0].temperatures[2:]) == ({heat} if engine == "processed" and heat != 1 else set())
