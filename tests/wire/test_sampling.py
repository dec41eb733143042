"""A request as the policy samples by itself: what changes the sampling goes, all else stays byte for byte."""

from __future__ import annotations

import json
from typing import Any

import pytest

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
