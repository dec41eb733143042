"""Rollouts that a server of Agent Lightning 1.0 stored, as the programs of docs/formats/rollouts.md write them
(data/make_agent_lightning.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from reported_runs import shown
from system_files import lines, read

from arttrace.records.values.tokens import TokenIds
from arttrace.rewards.selection import never_trained_on
from arttrace.trajectories.groups import group_trajectories

DATA = Path(__file__).parent / "data"
STORED, BY_HOOK = (DATA / f"agent_lightning{name}.jsonl" for name in ("", "_hook"))


def items() -> list[dict[str, Any]]:
    return [json.loads(line) for line in STORED.read_text().splitlines()]


def test_rollouts_of_agent_lightning() -> None:
    found, runs = shown(STORED.read_bytes())
    assert (found.kinds, found.refused, found.unread) == ({"agent lightning rollouts": 5}, 0, {})
    assert found.left_out == {"rewards that a later one took the place of": 3}
    done = [run for run in runs if "error" not in run]
    called = 'assistant: [c1 times {"a": 6, "b": 7}]'
    for run in done:
        assert [(call["asked"], call["answers"], call["offered"], call["tokens"]) for call in run["calls"]] == [
            (["user: 6 x 7?"], [("tool_calls", called)], ["times"], {"input": 3, "output": 2}),
            (
                ["user: 6 x 7?", called, "tool: [c1 42]"], [("stop", "assistant: 42")], ["times"],
                {"input": 6, "output": 1},
            ),
        ]  # fmt: skip
        assert (run["arguments"], run["result"]) == ({"question": "6 x 7?", "answer": "42"}, "42")
        assert run["metadata"]["reward_said"] == {"source": "agent"}
        [noted] = run["metadata"]["events"]
        assert noted["event_type"] == "note"
    assert sorted((run["rewards"][0][:2], run.get("tags", ())) for run in done) == [
        (("reward", 0.0), ()), (("reward", 1.0), ()), (("reward", 1.0), ("held-out",))
    ]  # fmt: skip
    assert [run["calls"][0]["temperature"] for run in done if "tags" in run] == [0.7]


def test_its_tokens_are_those_of_the_engine() -> None:
    _, runs = read(STORED.read_bytes())
    run = next(run for run in runs if not run.error and not run.tags)
    first, last = (placed.call for placed in run.calls)
    assert (first.prompt_token_ids, first.choices[0].token_ids) == (TokenIds.of([1, 2, 3]), TokenIds.of([4, 5]))
    assert list(first.choices[0].logprobs or ()) == [-0.5, -0.625]
    assert (last.prompt_token_ids, last.choices[0].token_ids) == (TokenIds.of([1, 2, 3, 4, 5, 6]), TokenIds.of([7]))


def test_rollouts_of_an_input_are_a_group() -> None:
    _, runs = read(STORED.read_bytes())
    assert sorted(len(group.trajectories) for group in group_trajectories(runs)) == [2, 3]
    assert sum(never_trained_on(run) is not None for run in runs) == 1
    named = [
        {**item, "rollout": {**item["rollout"], "input": {"data_id": "d1", "n": n}}} for n, item in enumerate(items())
    ]
    _, runs = read(lines(*named))
    assert {run.scenario for run in runs} == {"file/d1"}


def test_a_failed_rollout_and_its_failed_call_say_why() -> None:
    _, runs = shown(STORED.read_bytes())
    failed = [run for run in runs if "error" in run]
    assert [run["error"] for run in failed] == ["exit 1", "exit 1"]
    assert [[call["error"] for call in run["calls"]] for run in failed] == [["BadRequestError: too long"]] * 2


def test_the_hook_and_the_api_give_the_same_runs() -> None:
    succeeded = [run for run in read(STORED.read_bytes())[1] if not run.error]
    assert read(BY_HOOK.read_bytes())[1] == succeeded


@pytest.mark.parametrize("value", [True, False])
def test_a_reward_that_is_true_or_false_is_none(value: bool) -> None:
    """As its trainer takes it."""
    item = items()[0]
    said = {**next(one for one in item["events"] if one["event_type"] == "reward"), "data": {"value": value}}
    events = [one for one in item["events"] if one["event_type"] != "reward"]
    found, [run] = shown(lines({**item, "events": [*events, said]}))
    assert "rewards" not in run
    assert found.left_out == {"rewards that are no numbers": 1}


def test_the_events_of_a_rollout_may_be_by_attempt() -> None:
    item = items()[0]
    earlier = [{**one, "attempt_id": "9"} for one in item["events"][:1]]
    found, [run] = shown(lines({**item, "events": {"9": earlier, "0": item["events"]}}))
    assert len(run["calls"]) == 2
    assert found.left_out["events of earlier attempts"] == 1


@pytest.mark.parametrize("state", ["queuing", "running"])
def test_a_rollout_that_had_not_ended_is_incomplete(state: str) -> None:
    item = items()[0]
    status = {**item["rollout"]["status"], "state": state}
    _, [run] = shown(lines({**item, "rollout": {**item["rollout"], "status": status}}))
    assert run["incomplete"] == f"interrupted: it was {state} when it was written"


@pytest.mark.parametrize("response", [{}, {"object": "error", "message": "overloaded"}])
def test_a_call_that_failed_without_openais_error_is_one(response: dict[str, Any]) -> None:
    item = items()[0]
    event = item["events"][0]
    data = {**event["data"], "response": response, "http_status": 503, "status": "error"}
    _, [run] = shown(lines({**item, "events": [{**event, "data": data}]}))
    assert run["calls"][0]["error"] == f"503: {response.get('message', 'no answer')}"


def test_a_call_of_the_completions_api_is_one() -> None:
    item = items()[0]
    event = item["events"][0]
    answer = {"index": 0, "text": " 42", "finish_reason": "stop", "token_ids": [7], "prompt_token_ids": [1, 2]}
    data = {**event["data"], "request": {"model": "m", "prompt": "6 x 7 ="}, "response": {"choices": [answer]}}
    _, [run] = shown(lines({**item, "events": [{**event, "data": data}]}))
    [call] = run["calls"]
    assert (call["asked"], call["answers"], run["result"]) == (["user: 6 x 7 ="], [("stop", "assistant:  42")], " 42")


@pytest.mark.parametrize("part", ["rollout", "events"])
def test_a_part_of_a_rollout_is_refused_with_what_lacks(part: str) -> None:
    item, good = items()[:2]
    given = item["events"][0] if part == "events" else item["rollout"]
    found, runs = shown(lines(given, good))
    assert (found.refused, len(runs)) == (1, 1)
    assert "docs/formats/rollouts.md" in found.reasons[0]


@pytest.mark.parametrize(
    "events", [[1], {"0": 1}, [{"event_type": "model_request", "rollout_id": "r", "data": {"request": {}}}]]
)
def test_events_that_are_none_cost_their_rollout(events: Any) -> None:
    item, good = items()[:2]
    found, runs = shown(lines({**item, "events": events}, good))
    assert (found.refused, len(runs)) == (1, 1)


def test_routings_of_experts_are_counted() -> None:
    item = items()[0]
    event = item["events"][0]
    found, _ = shown(lines({**item, "events": [{**event, "data": {**event["data"], "routed_experts": [[1]]}}]}))
    assert found.left_out == {"routings of experts": 1}
