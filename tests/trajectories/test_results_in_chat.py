"""What tools returned, as chat templates are given it: each result a message, its text as the model was shown it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from simulated_agent import JsonMessage, Run, message, result

from arttrace.trajectories import build_trajectories
from arttrace.trajectories.conversations import conversations

ASKED = message("assistant", calls=(("c1", "look", "{}"), ("c2", "look", "{}")))
ASKED_IN_CHAT: list[dict[str, Any]] = [
    {"role": "user", "content": "Look."},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"type": "function", "id": id, "function": {"name": "look", "arguments": {}}} for id in ("c1", "c2")
        ],
    },
]


def chat(*given: JsonMessage) -> list[dict[str, Any]]:
    """The messages of a run in which two tools were asked for, and these follow."""
    run = Run()
    asked = [message("user", "Look."), ASKED]
    run.chat("one", asked[:1], ASKED, at=1)
    run.chat("two", [*asked, *given], message("assistant", "Done."), at=10)
    [trajectory] = build_trajectories(run.end())
    assert [placed.relation for placed in trajectory.calls] == ["start", "extends"]
    assert [call.result for call in trajectory.tool_calls] == ["a", "b"]
    [whole] = conversations(trajectory)
    said = whole.chat()
    assert (said[:2], said[-1]) == (ASKED_IN_CHAT, {"role": "assistant", "content": "Done."})
    assert [said[at]["content"] for at in whole.targets] == ["", "Done."]
    return said[2:-1]


IN_CHAT = [
    {"role": "tool", "content": "a", "tool_call_id": "c1"},
    {"role": "tool", "content": "b", "tool_call_id": "c2"},
]
TEXT = {"type": "text", "content": "Go on."}
A, B = result("c1", "a")["parts"][0], result("c2", "b")["parts"][0]


@pytest.mark.parametrize("role", ["tool", "user"])
def test_results_that_came_in_one_message_are_as_many(role: str) -> None:
    assert chat({"role": role, "parts": [A, B]}) == IN_CHAT
    assert chat(result("c1", "a"), {"role": role, "parts": [B]}) == IN_CHAT
    assert chat({"role": role, "parts": [A, B, TEXT]}) == [*IN_CHAT, {"role": "user", "content": "Go on."}]
    assert chat({"role": "user", "parts": [TEXT, A, B]}) == [{"role": "user", "content": "Go on."}, *IN_CHAT]


def test_a_result_of_the_old_api_keeps_its_role() -> None:
    run = Run()
    given = {"role": "function", "name": "look", "parts": [{"type": "tool_call_response", "response": "a"}]}
    run.chat("one", [message("user", "Look."), given], message("assistant", "Done."), at=1)
    [trajectory] = build_trajectories(run.end())
    [whole] = conversations(trajectory)
    assert whole.chat()[1] == {"role": "function", "name": "look", "content": "a", "tool_call_id": ""}


@pytest.mark.parametrize(
    "parts",
    [
        [{"type": "text", "text": "a"}],
        [{"type": "input_text", "text": ""}, {"type": "input_text", "text": "a"}],
        [{"text": "a"}],
    ],
    ids=["chat completions", "responses", "Bedrock"],
)
def test_a_result_in_parts_is_their_text(parts: list[dict[str, str]]) -> None:
    assert chat(result("c1", parts), result("c2", "b")) == IN_CHAT


def test_arguments_that_came_as_an_object_keep_their_order() -> None:
    """As the model wrote them: a template shows them in it."""
    run = Run()
    part = {"type": "tool_call", "id": "c1", "name": "look", "arguments": {"town": "Rome", "at": {"hour": 9, "day": 1}}}
    run.chat("one", [message("user", "Look.")], {"role": "assistant", "parts": [part]}, at=1)
    [trajectory] = build_trajectories(run.end())
    [whole] = conversations(trajectory)
    [asked] = whole.chat()[-1]["tool_calls"]
    assert json.dumps(asked["function"]["arguments"]) == json.dumps(part["arguments"])
    assert [call.arguments for call in trajectory.tool_calls] == ['{"town":"Rome","at":{"hour":9,"day":1}}']


def test_a_result_that_is_an_object_keeps_its_order_and_its_letters() -> None:
    given = {"Straße": 1, "Ort": {"y": "München", "x": 2}}
    run = Run()
    asked = message("assistant", calls=(("c1", "look", "{}"),))
    run.chat("one", [message("user", "Look."), asked, result("c1", given)], message("assistant", "Done."), at=1)
    [trajectory] = build_trajectories(run.end())
    [whole] = conversations(trajectory)
    assert whole.chat()[2]["content"] == '{"Straße": 1, "Ort": {"y": "München", "x": 2}}'
