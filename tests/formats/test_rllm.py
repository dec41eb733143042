"""Episodes of rLLM: what its evaluations store and its training logs (data/make_rllm.py)."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from reported_runs import shown
from system_files import lines, read, runs_of

from arttrace.formats.imported_files import read_file

EPISODES = Path(__file__).parent / "data" / "rllm_episodes.jsonl"
ASKED = ["system: Be brief.", "user: 6 x 7?"]
CALLED = 'assistant: (thinks I look.) [c1 times {"a": 6, "b": 7}]'


def episode(at: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(EPISODES.read_text().splitlines()[at])
    return found


def test_episodes_of_rllm() -> None:
    found, runs = shown(EPISODES.read_bytes())
    assert (found.kinds, found.left_out, found.unread, found.rewards) == ({"rllm episodes": 3}, {}, {}, 6)
    agents = [run["agents"][0][0] for run in runs]
    assert sorted(agents) == ["judge"] * 3 + ["solver"] * 3
    [run] = [run for run in runs if run["rewards"][0][1] == 1.0]
    assert [(call["asked"], call["answers"], call["tokens"]) for call in run["calls"]] == [
        (ASKED, [("tool_calls", CALLED)], {"input": 3, "output": 2}),
        ([*ASKED, CALLED, "tool: [c1 42]"], [("stop", "assistant: 42")], {"input": 6, "output": 1}),
    ]
    assert (run["result"], [one[:3] for one in run["rewards"]]) == ("42", [("reward", 1.0, "code")])
    about = run["metadata"]
    assert {name: about[name] for name in about if name != "episode"} == {
        "signals": {"exact": 1.0}, "step_rewards": [0.0, 1.0], "weight_versions": [3],
    }  # fmt: skip
    assert {name: about["episode"][name] for name in ("id", "is_correct", "termination_reason", "session_id")} == {
        "id": "task-1:0", "is_correct": True, "termination_reason": "env_done", "session_id": "s-0",
    }  # fmt: skip
    [judge] = [
        one for one in runs if one["metadata"]["episode"].get("id") == "task-1:0" and one["agents"][0][0] == "judge"
    ]
    assert [call["answers"] for call in judge["calls"]] == [[("length", "assistant: Fine.")]]


def test_the_tokens_of_a_step_are_those_that_were_read_and_sampled() -> None:
    _, runs = read(lines(episode()))
    [solver] = [run for run in runs if len(run.calls) == 2]
    assert [
        (list(call.prompt_token_ids or ()), list(choice.token_ids or ()), list(choice.logprobs or ()))
        for call in (placed.call for placed in solver.calls)
        for choice in call.choices
    ] == [([1, 2, 3], [4, 5], [-0.5, -0.625]), ([1, 2, 3, 4, 5, 6], [7], [-0.875])]


def test_attempts_of_one_agent_at_one_task_are_a_group_in_whichever_files() -> None:
    found = [shown(lines(episode(at)))[1] for at in (0, 1)]
    groups = [{run["agents"][0][0]: run["group"] for run in runs} for runs in found]
    assert groups[0] == groups[1]
    assert groups[0]["solver"] != groups[0]["judge"]
    _, others = shown(lines({**episode(), "task": {"id": "task-1", "instruction": "7 x 7?"}}))
    assert {run["group"] for run in others}.isdisjoint(groups[0].values())


def test_what_a_step_or_a_trajectory_does_not_say_is_left_out() -> None:
    """A prompt that is of other pieces than ids, a step of the program's own; a reward is then its last step's."""
    item = episode()
    solver, judge = item["trajectories"]
    solver |= {"reward": None, "name": "default_traj_name", "output": {"x": 1}, "input": {"q": 6}}
    solver["steps"][0] |= {"prompt_ids": [1, {"image": "x"}], "advantage": 0.5}
    judge["steps"] = [{"input": "q", "output": "a", "reward": 0.0}]
    found, [run, other] = shown(lines(item))
    run, other = (run, other) if "arguments" in run else (other, run)
    assert found.left_out == {"steps without messages": 1, "advantages, returns and routing of steps": 1}
    assert (run["result"], run["arguments"], run["agents"]) == ({"x": 1}, {"q": 6}, [("file", None)])
    assert [one[:2] for one in run["rewards"]] == [("reward", 1.0)]
    assert ("calls" in other, [one[:2] for one in other["rewards"]]) == (False, [("reward", 0.0)])
    _, runs = read(lines(item))
    first = next(placed.call for run in runs for placed in run.calls)
    assert (first.prompt_token_ids, first.choices[0].token_ids) == (None, None)


def test_attempts_that_are_rewarded_by_steps_alone_can_be_compared() -> None:
    """A failure is 0.0, as in rLLM, which takes the last step's reward whatever it is; without a step there is none."""
    attempts = [episode(0), episode(1), episode(1)]
    for attempt, reward in zip(attempts, (1.0, 0.0, None), strict=True):
        [solver] = attempt["trajectories"] = attempt["trajectories"][:1]
        solver["reward"] = None
        solver["steps"][1]["reward"] = reward
    attempts[2]["trajectories"][0] |= {"uid": "none", "steps": []}
    _, runs = shown(lines(*attempts))
    assert len({run["group"] for run in runs}) == 1
    found = [[one[:2] for one in run.get("rewards", ())] for run in runs]
    assert sorted(found) == [[], [("reward", 0.0)], [("reward", 1.0)]]


@pytest.mark.parametrize(
    ("reason", "ends", "error"),
    [("max_response_length_exceeded", ["tool_calls", "length"], None), ("error", ["tool_calls", None], "no box")],
)
def test_an_episode_that_did_not_end_by_itself_says_so(reason: str, ends: list[str | None], error: str | None) -> None:
    item = episode()
    item["trajectories"][0]["steps"][1]["model_output"]["finish_reason"] = None
    _, runs = shown(lines({**item, "termination_reason": reason, "metadata": {"error": "no box"}}))
    [run] = [run for run in runs if len(run["calls"]) == 2]
    assert ([call["answers"][0][0] for call in run["calls"]], run.get("error")) == (ends, error)


def test_a_trajectory_that_is_none_is_refused_by_its_cause() -> None:
    found, runs = read(lines(episode(), {**episode(1), "trajectories": [{"steps": 3}]}), refused=1)
    assert "trajectory 1 of an episode has no list of steps" in found.reasons[0]
    assert len(runs) == 2


@pytest.mark.parametrize("odd", [None, True, 2**70, "x", [[]], {"a": [1]}, float("nan")], ids=str)
def test_no_field_of_an_episode_costs_more_than_the_episode(odd: Any) -> None:
    """Each field at every level in turn: beside it another episode is read."""
    item = episode()
    for path in paths(item):
        bad = copy.deepcopy(item)
        at: Any = bad
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = odd
        found = read_file(lines(bad, episode(1)), "file")
        runs = runs_of(found.records)
        assert sum(run.metadata["episode"].get("id") == "task-1:1" for run in runs) == 2, (path, found.reasons)


def paths(value: Any, to: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path for key, inner in items for path in ((*to, key), *paths(inner, (*to, key)))]
