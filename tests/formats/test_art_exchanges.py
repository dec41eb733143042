"""Trajectories of newer ART, which holds the exchanges that it captured in the place of messages and choices."""

from __future__ import annotations

from typing import Any

import pytest
from reported_runs import shown
from system_files import TIME, lines, read

from arttrace.records.values.tokens import TokenIds

ASKED = {"role": "user", "content": "Where is it warm?"}
CALLED = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q":"warm"}'}}
FIND = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}


def exchange(at: int, request: dict[str, Any], response: dict[str, Any]) -> dict[str, Any]:
    return {
        "request": {"model": "policy", **request}, "response": response, "model": "policy",
        "start_time": TIME.format(at)[:-1], "end_time": TIME.format(at + 1)[:-1],
    }  # fmt: skip


def chat(at: int, messages: list[Any], message: dict[str, Any], ids: list[int]) -> dict[str, Any]:
    """As a server writes tokens that is asked for their ids in the place of their texts."""
    tokens = [{"token": f"token_id:{id}", "logprob": -id / 8, "bytes": None, "top_logprobs": []} for id in ids]
    choice = {
        "index": 0, "finish_reason": "tool_calls" if message.get("tool_calls") else "stop",
        "message": {"role": "assistant", **message}, "logprobs": {"content": tokens, "refusal": None},
    }  # fmt: skip
    response = {
        "id": f"chatcmpl-{at}", "object": "chat.completion", "created": 1, "model": "policy", "choices": [choice],
        "prompt_token_ids": [1, 2, at], "usage": {"prompt_tokens": 3, "completion_tokens": len(ids)},
    }  # fmt: skip
    return exchange(at, {"messages": messages, "tools": [FIND], "temperature": 0.5}, response)


LOOP = [
    chat(0, [ASKED], {"content": None, "tool_calls": [CALLED]}, [7, 8]),
    chat(
        2,
        [
            ASKED,
            {"role": "assistant", "content": None, "tool_calls": [CALLED]},
            {"role": "tool", "tool_call_id": "c1", "content": "Rome"},
        ],
        {"content": "In Rome."},
        [9],
    ),
]
MESSAGE = exchange(
    4,
    {"messages": [{"role": "user", "content": "And cold?"}], "system": "Be brief.", "max_tokens": 9},
    {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "policy", "stop_reason": "end_turn",
        "content": [{"type": "text", "text": "Oslo."}], "usage": {"input_tokens": 3, "output_tokens": 2},
        "prompt_token_ids": [1, 2, 3], "token_ids": [5, 6], "logprobs": [-0.5, -0.25],
    },
)  # fmt: skip
RESPONSE = exchange(
    6,
    {"input": "And dry?", "instructions": "Be brief."},
    {
        "id": "resp_1", "object": "response", "status": "completed", "model": "policy", "created_at": 1.0,
        "output": [
            {
                "id": "m1", "type": "message", "role": "assistant", "status": "completed",
                "content": [{"type": "output_text", "text": "Cairo.", "annotations": []}],
            }
        ],
        "usage": {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5},
        "raw_output_tokens": [{"token_id": 3, "logprob": -1.5}, {"token": "token_id:4", "logprob": -0.5}],
    },
)  # fmt: skip
COMPLETION = exchange(
    8,
    {"prompt": "Once", "max_tokens": 2},
    {
        "id": "cmpl-1", "object": "text_completion", "created": 1, "model": "policy",
        "choices": [
            {
                "index": 0, "text": " upon a", "finish_reason": "length", "prompt_token_ids": [1],
                "logprobs": {"tokens": ["token_id:2", "token_id:3"], "token_logprobs": [-0.5, -1.0]},
            }
        ],
    },
)  # fmt: skip


def trajectory(reward: float = 1.0, **exchanges: list[Any]) -> dict[str, Any]:
    """As ART dumps it: empty lists of messages are left out."""
    whole = {"chat_completions": [], "completions": [], "responses": [], "messages": [], **exchanges}
    return {
        "exchanges": whole, "tools": None, "additional_histories": [], "reward": reward, "metrics": {"duration": 9.0},
        "initial_policy_version": None, "final_policy_version": None, "metadata": {"scenario": "s1"}, "logs": [],
    }  # fmt: skip


GROUP = {
    "trajectories": [
        trajectory(chat_completions=LOOP[::-1]),
        trajectory(0.5, messages=[MESSAGE], responses=[RESPONSE], completions=[COMPLETION]),
        {"reward": 0.0, "metadata": {"scenario": "s1"}},
    ],
    "exceptions": [], "metadata": {"scenario": "s1"}, "metrics": {}, "logs": [],
}  # fmt: skip


def test_each_exchange_is_a_call_in_the_order_of_time() -> None:
    found, [none, loop, several] = shown(lines(GROUP))  # it has no time
    assert (found.kinds, found.left_out, found.unread) == ({"art trajectories": 1}, {}, {})
    called = 'assistant: [c1 find {"q":"warm"}]'
    assert loop["time"] == (0.0, 3.0)
    assert [(call["time"], call["asked"], call["answers"], call["offered"]) for call in loop["calls"]] == [
        ((0.0, 1.0), ["user: Where is it warm?"], [("tool_calls", called)], ["find"]),
        (
            (2.0, 3.0),
            ["user: Where is it warm?", called, "tool: [c1 Rome]"],
            [("stop", "assistant: In Rome.")],
            ["find"],
        ),
    ]
    assert loop["tools"] == [("c1", "file", "find", '{"q":"warm"}', "Rome", None, None)]
    assert [(call["time"][0], call["asked"], call["answers"]) for call in several["calls"]] == [
        (4.0, ["system: Be brief.", "user: And cold?"], [("stop", "assistant: Oslo.")]),
        (6.0, ["system: Be brief.", "user: And dry?"], [("stop", "assistant: Cairo.")]),
        (8.0, ["user: Once"], [("length", "assistant:  upon a")]),
    ]
    assert "calls" not in none
    for run, reward in ((loop, 1.0), (several, 0.5), (none, 0.0)):
        assert "incomplete" not in run
        assert (run["group"], run["scenario"], run["rewards"][0][:2]) == ("s1", "s1", ("reward", reward))


def test_tokens_are_those_that_were_sampled_wherever_art_has_a_server_write_them() -> None:
    _, runs = read(lines(GROUP))
    tokens = {
        call.call.response_id: (call.call.prompt_token_ids, choice.token_ids, list(choice.logprobs or ()))
        for run in runs
        for call in run.calls
        for choice in call.call.choices
    }
    assert tokens == {
        "chatcmpl-0": (TokenIds.of([1, 2, 0]), TokenIds.of([7, 8]), [-0.875, -1.0]),
        "chatcmpl-2": (TokenIds.of([1, 2, 2]), TokenIds.of([9]), [-1.125]),
        "msg_1": (TokenIds.of([1, 2, 3]), TokenIds.of([5, 6]), [-0.5, -0.25]),
        "resp_1": (None, TokenIds.of([3, 4]), [-1.5, -0.5]),
        "cmpl-1": (TokenIds.of([1]), TokenIds.of([2, 3]), [-0.5, -1.0]),
    }


def compact(kind: str, data: Any) -> dict[str, Any]:
    """The compact form with some of its texts in the table; a key may be one, and a text may look like a reference."""
    strings = {"$0": "Where is it warm?", "$1": "messages", "$2": "$2"}
    back = {text: reference for reference, text in strings.items()}

    def packed(value: Any) -> Any:
        if isinstance(value, dict):
            return {back.get(name, name): packed(one) for name, one in value.items()}
        if isinstance(value, list):
            return [packed(one) for one in value]
        return back.get(value, value) if isinstance(value, str) else value

    return {"format": "art.trajectories", "version": 1, "kind": kind, "strings": strings, "data": packed(data)}


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("trajectory_group", GROUP),
        ("trajectory_groups", [GROUP]),
        ("tokenized_trajectory_group", {"trajectory_group": GROUP, "trajectories": [{"tokens": [1]}, {}, {}]}),
    ],
)
def test_the_compact_form_and_what_art_made_tokens_of_say_the_same(kind: str, data: Any) -> None:
    _, plain = shown(lines(GROUP))
    _, packed = shown(lines(compact(kind, data)))
    assert [{**run, "group": ""} for run in packed] == [{**run, "group": ""} for run in plain]


def test_one_trajectory_and_its_tokens() -> None:
    alone = trajectory(chat_completions=LOOP)
    _, [plain] = shown(lines(alone))
    for item in (
        compact("trajectory", alone),
        {"trajectory": alone, "history": {}, "tokens": [1], "logprobs": [0.0], "flags": [1], "model": "policy"},
        compact("tokenized_multi_history_trajectory", {"trajectory": alone, "histories": []}),
    ):
        _, [run] = shown(lines(item))
        assert run["calls"] == plain["calls"]


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (compact("tokenized_history", {"value": {}, "exchanges": []}), "'tokenized_history', which is no trajectory"),
        ({**compact("trajectory", GROUP), "version": 2}, "version 2 of ART's compact trajectories is not known"),
        (trajectory(chat_completions=[{"request": {}}]), "exchange 0 of chat_completions is no request with its"),
        ({**trajectory(), "exchanges": {"messages": MESSAGE}}, "its exchanges are no lists, one for each API"),
        (trajectory(messages=[{**MESSAGE, "request": {"model": "m"}}]), "a request has no list of messages"),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_cause(item: dict[str, Any], reason: str) -> None:
    found, [_] = read(lines(trajectory(chat_completions=LOOP), item), refused=1)
    assert reason in found.reasons[0]


LOST_IDS = "token ids of answers of which some are not known"


def without(at: int, name: str, tokens: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tokens, one of which lacks its id or its log-probability."""
    lacking = {"token": "warm"} if name == "token" else {name: None}
    return [{**one, **lacking} if place == at else one for place, one in enumerate(tokens)]


def sampled(item: dict[str, Any]) -> tuple[dict[str, int], list[tuple[list[int] | None, list[float | None] | None]]]:
    """What was left out, and of each answer the token ids and their log-probabilities."""
    found, runs = read(lines(item))
    choices = [choice for run in runs for placed in run.calls for choice in placed.call.choices]
    return found.left_out, [
        (one.token_ids and list(one.token_ids), one.logprobs and list(one.logprobs)) for one in choices
    ]


def with_choice(choice: dict[str, Any]) -> list[dict[str, Any]]:
    """A trajectory with this choice, as messages and choices and as an exchange."""
    exchanged = exchange(0, {"messages": [ASKED]}, {"object": "chat.completion", "choices": [choice]})
    return [{"messages_and_choices": [ASKED, choice], "reward": 1.0}, trajectory(chat_completions=[exchanged])]


def test_ids_stay_where_a_log_probability_is_missing() -> None:
    choice = LOOP[0]["response"]["choices"][0]
    content = choice["logprobs"]["content"]
    for lacking, logprobs in (
        (without(1, "logprob", content), [-0.875, None]),
        (without(0, "logprob", without(1, "logprob", content)), None),
    ):
        for item in with_choice({**choice, "logprobs": {"content": lacking}}):
            assert sampled(item) in [({}, [([7, 8], logprobs)]), ({}, [([7, 8], logprobs or [None, None])])]


def test_ids_of_which_one_is_missing_are_counted() -> None:
    choice = LOOP[0]["response"]["choices"][0]
    for item in with_choice({**choice, "logprobs": {"content": without(1, "token", choice["logprobs"]["content"])}}):
        assert sampled(item) == ({LOST_IDS: 1}, [(None, [-0.875, -1.0])])
    response = RESPONSE["response"]
    lacking = {**response, "raw_output_tokens": [*response["raw_output_tokens"], {"token": "x", "logprob": -1.0}]}
    odd = {**MESSAGE["response"], "token_ids": [5, None]}
    left_out, answers = sampled(
        trajectory(responses=[{**RESPONSE, "response": lacking}], messages=[{**MESSAGE, "response": odd}])
    )
    assert (left_out, [ids for ids, _ in answers]) == ({LOST_IDS: 2}, [None, None])


def test_texts_of_tokens_are_no_ids_that_are_lost() -> None:
    """As OpenAI's API answers."""
    choice = LOOP[0]["response"]["choices"][0]
    texts = [{"token": "Ro", "logprob": -0.5}, {"token": "me", "logprob": -0.25}]
    for item in with_choice({**choice, "logprobs": {"content": texts}}):
        assert sampled(item) == ({}, [(None, [-0.5, -0.25])])


def test_ids_beside_the_texts_of_tokens_are_read() -> None:
    choice = LOOP[0]["response"]["choices"][0]
    texts = [{"token": "Ro", "logprob": -0.5}, {"token": "me", "logprob": -0.25}]
    for ids, found in (
        ([7, 8], ({}, [([7, 8], [-0.5, -0.25])])),
        ([7, 2**40], ({LOST_IDS: 1}, [(None, [-0.5, -0.25])])),
    ):
        for item in with_choice({**choice, "token_ids": ids, "logprobs": {"content": texts}}):
            assert sampled(item) == found
