"""Rollouts that other training frameworks saved, with what they were rewarded with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from reported_runs import shown
from system_files import lines, read

from arttrace.formats.imported_files import read_file
from arttrace.records.reward import Reward
from arttrace.records.sequence import NotTrained
from arttrace.records.span import SpanRow
from arttrace.records.values.tokens import TokenIds
from arttrace.rewards.combine import trajectory_reward
from arttrace.rewards.selection import good_runs, never_trained_on
from arttrace.trajectories import build_trajectories
from arttrace.trajectories.advice import on_incomplete
from arttrace.trajectories.groups import group_trajectories

ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}]
CALCULATED = [
    {
        "role": "assistant", "content": "", "reasoning_content": "I add.",
        "tool_calls": [json.dumps({"id": "c1", "name": "add", "arguments": '{"a": 2}'})],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "4"},
    {"role": "assistant", "content": "4"},
]  # fmt: skip


def result(reward: float, **more: Any) -> dict[str, Any]:
    """As verifiers saves it: metrics stand once more beside, and each tool call is JSON text."""
    return {
        "example_id": 7, "prompt": ASKED, "completion": CALCULATED, "answer": "4", "reward": reward, "error": None,
        "timing": {"total_ms": 2.0}, "is_completed": True, "is_truncated": False, "stop_condition": "no_tools_called",
        "metrics": {"exact": reward}, "exact": reward, "tool_defs": [{"name": "add", "parameters": {"type": "object"}}],
        **more,
    }  # fmt: skip


def test_results_of_verifiers() -> None:
    found, runs = shown(lines(result(1.0), result(0.0)))
    assert (found.kinds, found.left_out, found.unread) == ({"verifiers results": 2}, {}, {})
    called = 'assistant: (thinks I add.) [c1 add {"a": 2}]'
    asked = ["system: Be brief.", "user: 2 + 2?"]
    for run in runs:
        assert [(call["asked"], call["answers"], call["offered"]) for call in run["calls"]] == [
            (asked, [(None, called)], ["add"]),
            ([*asked, called, "tool: [c1 4]"], [(None, "assistant: 4")], ["add"]),
        ]
        assert (run["scenario"], run["result"]) == ("file/7", "4")
        assert run["metadata"]["metrics"] == {"exact": run["rewards"][0][1]}
        assert "exact" not in run["metadata"]
    assert sorted(run["rewards"][0][:2] for run in runs) == [("reward", 0.0), ("reward", 1.0)]


def test_examples_of_several_tasks_are_groups_apart() -> None:
    old = {"id": 7, "prompt": "2 + 2?", "completion": "4", "reward": 1.0}
    _, runs = shown(lines({**old, "task": "math"}, {**old, "task": "logic"}))
    assert sorted(run["scenario"] for run in runs) == ["file/logic/7", "file/math/7"]
    assert {(*call["asked"], *call["answers"]) for run in runs for call in run["calls"]} == {
        ("user: 2 + 2?", (None, "assistant: 4"))
    }


def test_a_rollout_that_was_cut_short_or_failed_says_so() -> None:
    error = {"error": "ModelError", "error_chain_repr": "ModelError()", "error_chain_str": "ModelError -> 503"}
    _, runs = shown(lines(result(1.0, is_truncated=True), result(0.0, error=error, completion=None)))
    cut, failed = sorted(runs, key=lambda run: "error" in run)
    assert [call["answers"][0][0] for call in cut["calls"]] == [None, "length"]
    assert (failed["error"], "calls" in failed) == ("ModelError -> 503", False)


@pytest.mark.parametrize(
    "item",
    [
        {"prompt": ASKED, "completion": [{"role": "assistant", "content": "4"}], "reward": 0.5},
        {"conversations": [{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": "4"}], "reward": 0.5},
    ],
)
def test_a_reward_beside_a_training_row_is_the_runs(item: dict[str, Any]) -> None:
    found, [run] = shown(lines({**item, "score": "good"}))
    assert found.kinds == {"training rows": 1}
    assert ([reward[:2] for reward in run["rewards"]], run["metadata"]) == ([("reward", 0.5)], {"score": "good"})


IN_ROME = '{"in":"Rome"}'


def tokens(*ids: int) -> dict[str, Any]:
    return {
        "prompt_token_ids": list(range(ids[0])), "generation_token_ids": list(ids),
        "generation_log_probs": [-id / 8 for id in ids],
    }  # fmt: skip


def rollout(**more: Any) -> dict[str, Any]:
    """As NeMo Gym has it: one response with all that the agent did."""
    output = [
        {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "I look."}]},
        {"type": "function_call", "id": "f", "call_id": "c1", "name": "weather", "arguments": IN_ROME, **tokens(3, 4)},
        {"type": "function_call_output", "call_id": "c1", "output": "sun"},
        {
            "type": "message", "id": "m", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": "Sun.", "annotations": []}], **tokens(9),
        },
    ]  # fmt: skip
    tool = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": None}
    return {
        "responses_create_params": {"input": [{"role": "user", "content": "Rome?"}], "tools": [tool]},
        "response": {
            "id": "r", "object": "response", "created_at": 1772359200.0, "model": "policy", "status": "completed",
            "output": output, "usage": {"input_tokens": 9, "output_tokens": 4, "total_tokens": 13},
        },
        "reward": 1.0, "_ng_task_index": 4, "_ng_rollout_index": 1, **more,
    }  # fmt: skip


def test_rollouts_of_nemo_gym() -> None:
    found, [run] = shown(lines(rollout()))
    assert (found.kinds, found.left_out, found.unread) == ({"nemo gym rollouts": 1}, {}, {})
    called = 'assistant: (thinks I look.) [c1 weather {"in":"Rome"}]'
    assert [(call["asked"], call["answers"], call["offered"]) for call in run["calls"]] == [
        (["user: Rome?"], [("tool_calls", called)], ["weather"]),
        (["user: Rome?", called, "tool: [c1 sun]"], [("stop", "assistant: Sun.")], ["weather"]),
    ]
    assert (run["scenario"], run["rewards"][0][:2], run["time"][0]) == ("file/4", ("reward", 1.0), 0.0)
    assert run["metadata"] == {"_ng_task_index": 4, "_ng_rollout_index": 1}
    _, [recorded] = read(lines(rollout()))
    first, last = (call.call for call in recorded.calls)
    [looked], [said] = first.choices, last.choices
    assert (first.prompt_token_ids, looked.token_ids, list(looked.logprobs or ())) == (
        TokenIds.of([0, 1, 2]), TokenIds.of([3, 4]), [-0.375, -0.5]
    )  # fmt: skip
    assert (said.token_ids, list(said.logprobs or ())) == (TokenIds.of([9]), [-1.125])
    assert first.tools == ({"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}},)


def test_answers_without_a_result_between_them_are_parted_by_their_tokens() -> None:
    said = [
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}], **tokens(at)}
        for at, text in ((3, "One."), (7, "Two."))
    ]
    item = rollout()
    item["response"]["output"] = said
    _, [run] = shown(lines(item))
    assert [call["answers"][0][1] for call in run["calls"]] == ["assistant: One.", "assistant: Two."]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"mask_sample": True}, "masked by NeMo Gym"),
        (
            {"mask_sample": True, "_ng_token_capture": {"n_calls": 0, "error": "nothing recorded"}},
            "masked by NeMo Gym (nothing recorded)",
        ),
        ({"instance_config": {"mask_sample": True}}, "masked by NeMo Gym"),
        ({"_ng_failure_class": "judge_failed"}, "NeMo Gym counts it as failed (judge_failed)"),
    ],
)
def test_a_masked_or_failed_rollout_of_nemo_gym_is_never_trained_on(said: dict[str, Any], reason: str) -> None:
    """The best rewarded one of its group, too, which a data set would take."""
    others = [rollout(reward=0.5, mask_sample=False, instance_config={"mask_sample": False}), rollout(reward=0.0)]
    found = read_file(lines(rollout(**said), *others), "file")
    spans, rewards = ([one for one in found.records if isinstance(one, kind)] for kind in (SpanRow, Reward))
    runs = build_trajectories(spans, rewards)
    assert sorted(run.incomplete for run in runs) == ["", "", f"interrupted: {reason}"]
    assert "Collect it again" in " ".join(on_incomplete(f"interrupted: {reason}"))
    [group] = group_trajectories(runs)
    best = good_runs([group])
    assert ([trajectory_reward(run) for run in best.runs], best.left_out[NotTrained.INCOMPLETE]) == ([0.5], 1)


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (rollout(response={"output": "x"}), "the output of its response is no list of items"),
        (rollout(response={"output": []}), "a rollout without an answer"),
        (result(1.0, completion=[{"content": "x"}]), "no list of messages with roles"),
        (result(1.0, completion=[]), "a rollout without an answer"),
    ],
)
def test_what_is_no_rollout_is_refused_by_its_cause(item: dict[str, Any], reason: str) -> None:
    found, _ = read(lines(result(1.0), item), refused=1)
    assert reason in found.reasons[0]


def turn(role: str, at: int, content: str | None, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, "timestamp": f"2026-03-01T10:00:{at:02d}", "turn_idx": at, **more}


def sampled(at: int, content: str | None, reason: str, *calls: dict[str, Any]) -> dict[str, Any]:
    """An answer of a model, with the response that tau2 had for it."""
    message = {"role": "assistant", "content": content, "reasoning_content": "Hm."}
    response = {"id": "r", "model": "m-1", "choices": [{"finish_reason": reason, "index": 0, "message": message}]}
    usage = {"prompt_tokens": 9, "completion_tokens": 3}
    return turn("assistant", at, content, tool_calls=list(calls) or None, usage=usage, raw_data=response, cost=0.1)


def simulation(**more: Any) -> dict[str, Any]:
    """Of tau2, whose user has tools, too."""
    look, reset = ({"id": id, "name": name, "arguments": {"n": 1}} for id, name in (("c1", "look"), ("u1", "reset")))
    return {
        "id": "sim-1", "task_id": "mobile_data", "trial": 0, "seed": 3, "termination_reason": "user_stop",
        "start_time": "2026-03-01T10:00:00", "end_time": "2026-03-01T10:00:09", "duration": 9.0,
        "reward_info": {"reward": 1.0, "reward_breakdown": {"DB": 1.0}}, "agent_cost": 0.2,
        "messages": [
            turn("assistant", 0, "Hi! How can I help you today?", cost=0.0),
            turn("user", 1, "No data."),
            sampled(2, None, "tool_calls", {**look, "requestor": "assistant"}),
            {**turn("tool", 3, "Error: no line", requestor="assistant", error=True), "id": "c1"},
            sampled(4, "Please restart it.", "stop"),
            turn("user", 5, None, tool_calls=[{**reset, "requestor": "user"}]),
            {**turn("tool", 6, "restarted", requestor="user", error=False), "id": "u1"},
            turn("user", 7, "Done."),
            sampled(8, "Does it", "length"),
        ],
        **more,
    }  # fmt: skip


WHOLE = {
    "timestamp": "x", "tasks": [{"id": "mobile_data"}],
    "info": {"environment_info": {"domain_name": "telecom", "policy": "Help."}, "agent_info": {"llm": "gpt-x"}},
    "simulations": [simulation(), simulation(id="sim-2", trial=1, reward_info=None, termination_reason="agent_error")],
}  # fmt: skip


def test_simulations_of_tau2() -> None:
    """The agent is told nothing of what its user does with tools of its own, and says nothing before it is asked."""
    found, runs = shown(json.dumps(WHOLE, indent=2).encode())
    first, second = sorted(runs, key=lambda run: run["metadata"]["trial"])
    assert (found.kinds, found.left_out, found.unread, found.rewards) == ({"tau2 results": 1}, {}, {}, 1)
    called = 'assistant: (thinks Hm.) [c1 look {"n":1}]'
    begun = ["assistant: Hi! How can I help you today?", "user: No data."]
    told = [*begun, called.replace("(thinks Hm.) ", ""), "tool: [c1 Error: no line]"]
    assert [(call["asked"], call["answers"]) for call in first["calls"]] == [
        (begun, [("tool_calls", called)]),
        (told, [("stop", "assistant: (thinks Hm.) Please restart it.")]),
        ([*told, "assistant: Please restart it.", "user: Done."], [("length", "assistant: (thinks Hm.) Does it")]),
    ]
    assert first["scenario"] == second["scenario"] == "file/mobile_data"
    assert [reward[:2] for reward in first["rewards"]] == [("reward", 1.0)]
    assert (first["metadata"]["domain"], first["metadata"]["trial"]) == ("telecom", 0)
    assert first["metadata"]["reward_info"] == {"reward_breakdown": {"DB": 1.0}}
    assert (second["error"], "rewards" in second) == ("agent_error", False)


def test_a_simulation_of_tau2_in_a_file_of_its_own() -> None:
    found, runs = read(lines(simulation()))
    assert (found.kinds, len(runs[0].calls)) == ({"tau2 results": 1}, 3)
    [tool] = runs[0].tool_calls
    assert (tool.name, tool.id, tool.result, bool(tool.error)) == ("look", "c1", "Error: no line", True)
    assert [placed.call.end_ns - placed.call.start_ns for placed in runs[0].calls] == [10**9] * 3
    assert [placed.call.input_tokens for placed in runs[0].calls] == [9, 9, 9]
    spoken, _ = read(lines(simulation(messages=None, ticks=[{}]), simulation()))
    assert spoken.left_out == {"simulations of speech": 1}


def test_a_simulation_that_tau2_leaves_out_of_its_metrics_is_never_trained_on() -> None:
    """Its reward of 0 is none of the agent's doing. What the agent or the user did wrong is."""
    no_grade = {"reward": 0.0}
    broken = simulation(termination_reason="infrastructure_error", reward_info=no_grade)
    agents = simulation(id="sim-2", termination_reason="agent_error", reward_info=no_grade)
    assert sorted(failure_of(broken, agents)) == ["", "interrupted: tau2 counts it as failed (infrastructure_error)"]


def test_a_reward_of_tau2_that_stands_for_an_evaluation_that_raised_is_counted() -> None:
    """It is 0 so that the other simulations are evaluated."""
    raised = {"reward": 0.0, "reward_basis": ["DB"], "info": {"error": "KeyError: 'x'", "note": "It raised."}}
    noted = {"reward": 0.0, "info": {"note": "Simulation terminated prematurely."}}
    found, runs = shown(lines(simulation(reward_info=raised), simulation(id="sim-2", reward_info=noted)))
    assert (found.rewards, found.left_out) == (1, {"rewards of 0 for evaluations that raised": 1})
    assert sorted("rewards" in run for run in runs) == [False, True]


TRACES = Path(__file__).parent / "data" / "verifiers_traces.jsonl"
"""Two episodes that verifiers 0.3.0 wrote (`verifiers.v1.cli.output.write_episode`), the second without a trace."""


def test_traces_of_verifiers() -> None:
    found, [run] = shown(TRACES.read_bytes())
    assert (found.kinds, found.unread) == ({"verifiers traces": 2}, {})
    assert found.left_out == {"calls that failed, of which no message is kept": 1, "episodes without a trace": 1}
    called = 'assistant: (thinks I add.) [c1 add {"a": 2}]'
    asked = ["system: Be brief.", "user: 2 + 2?"]
    assert [(call["asked"], call["answers"], call["offered"]) for call in run["calls"]] == [
        (asked, [("tool_calls", called)], ["add"]),
        ([*asked, called, "tool: [c1 4]"], [("stop", "assistant: 4")], ["add"]),
        ([asked[0], "assistant: shown"], [("length", "assistant: cut")], ["add"]),
    ]
    assert (run["scenario"], run["metadata"]["metrics"]) == ("file/calc/solver/7", {"turns": 3.0})
    assert "error" not in run
    assert sorted(reward[:2] for reward in run["rewards"]) == [("exact", 2.0), ("style", -0.5)]


def test_the_tokens_of_a_trace_of_verifiers_are_those_that_were_read_and_sampled() -> None:
    _, [run] = read(TRACES.read_bytes(), refused=0)
    first, second, third = (placed.call for placed in run.calls)
    for call, *ids in ((first, [1, 2, 3, 4, 5, 6], [7, 8]), (second, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [11])):
        assert [list(call.prompt_token_ids or ()), list(call.choices[0].token_ids or ())] == ids
    assert [list(one.choices[0].logprobs or ()) for one in (first, second)] == [[-0.5, -0.25], [-0.125]]
    assert (third.prompt_token_ids, third.choices[0].token_ids) == (None, None)
    assert (first.input_tokens, first.temperature, first.request_model) == (6, 0.5, "m")
    assert (first.end_ns - first.start_ns, run.incomplete) == (10**9, "")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "version 2 of the traces of verifiers is not known"),
        ({"nodes": [{"parent": 0, "message": {"role": "user", "content": "q"}}]}, "node 0 follows 0"),
        ({"nodes": [{"message": "q"}]}, "node 0 has no message"),
    ],
)
def test_a_trace_of_verifiers_that_cannot_be_read_is_refused(change: dict[str, Any], said: str) -> None:
    episode = json.loads(TRACES.read_text().splitlines()[0])
    bad = {**episode, "traces": [{**episode["traces"][0], **change}]}
    found, _ = read(lines(episode, bad), refused=1)
    assert said in found.reasons[0]


def test_traces_of_several_agents_are_runs_of_their_own() -> None:
    episode = json.loads(TRACES.read_text().splitlines()[0])
    [trace] = episode["traces"]
    judge = {**trace, "id": "judge", "agent": {**trace["agent"], "name": "judge"}, "ok": False,
             "errors": [{"type": "ProviderError", "message": "gone"}]}  # fmt: skip
    _, runs = shown(lines({**episode, "group": {"id": "g1"}, "traces": [trace, judge]}))
    assert sorted((run["scenario"], run["group"], run.get("error")) for run in runs) == [
        ("file/calc/judge/7", "g1/judge", "ProviderError: gone"),
        ("file/calc/solver/7", "g1/solver", None),
    ]
    _, [alone] = shown(lines(trace))
    assert alone["scenario"] == "file/solver/7"


EPISODES = Path(__file__).parent / "data" / "verifiers_episodes.jsonl"
"""Of a proposer, solvers of what it proposes, and a user that is played (data/make_episodes.py)."""


def test_runs_of_one_agent_and_task_alone_are_compared_in_a_group_of_episodes() -> None:
    """prime-rl names the group of an episode. A solver is given what the proposer of its episode made of the task."""
    found, runs = shown(EPISODES.read_bytes())
    assert (found.kinds, found.left_out, found.unread) == ({"verifiers traces": 3}, {}, {})
    compared: dict[str, list[tuple[str, str]]] = {}
    for run in runs:
        compared.setdefault(run["group"], []).append((run["metadata"]["agent"]["name"], run["calls"][0]["asked"][0]))
    assert sorted((group.partition("/")[0], members) for group, members in compared.items()) == [
        ("evaluated", [("proposer", "user: Make a sum.")]),
        ("evaluated", [("solver", "user: 3 + 3?")] * 2),
        ("evaluated", [("user", "user: Be a user.")]),
        ("g1", [("proposer", "user: Make a sum.")] * 2),
        ("g1", [("solver", "user: 1 + 1?")] * 2),
        ("g1", [("solver", "user: 2 + 2?")] * 2),
        ("g1", [("user", "user: Be a user.")] * 2),
    ]
    assert "g1/proposer" in compared


def test_evaluations_and_agents_that_are_not_to_be_trained_are_never_trained_on() -> None:
    """In a training run of prime-rl, which trains on neither."""
    found = read_file(EPISODES.read_bytes(), "file")
    runs = build_trajectories(one for one in found.records if isinstance(one, SpanRow))
    why = {(run.metadata["run"]["work"]["type"], run.metadata["agent"]["name"]): never_trained_on(run) for run in runs}
    held_out, not_trainable = NotTrained.HELD_OUT, NotTrained.NOT_TRAINABLE
    assert why == {
        ("train", "proposer"): None, ("train", "solver"): None, ("train", "user"): not_trainable,
        ("eval", "proposer"): held_out, ("eval", "solver"): held_out, ("eval", "user"): held_out,
    }  # fmt: skip
    assert {run.tags for run in runs if run.metadata["agent"]["name"] == "user"} == {
        ("not-trainable",), ("held-out", "not-trainable"),
    }  # fmt: skip


def answered_trace(*nodes: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A trace with a question of two tokens and the given nodes behind it."""
    asked = {"message": {"role": "user", "content": "2 + 2?"}, "token_ids": [1, 2], "mask": [False, False]}
    return {"id": "t", "agent": {"name": "a"}, "task": {}, "ok": True, "nodes": [asked, *nodes], **more}


def answer_node(text: str, **more: Any) -> dict[str, Any]:
    tokens = {"token_ids": [3, 4, 5], "mask": [False, True, True], "logprobs": [-0.5, -0.25]}
    return {"parent": 0, "message": {"role": "assistant", "content": text}, "sampled": True, **tokens, **more}


@pytest.mark.parametrize(
    "beside",
    [
        {"advantages": [0.0, 0.0]},
        {"reference_logprobs": [-1.0, -1.0]},
        {"trainer_logprobs": [-1.0, -1.0]},
        {"entropies": [0.1, 0.1]},
        {"loss_weights": {"ce": [0.0, 1.0, 1.0]}},
        {"advantages": [1.0, 1.0], "loss_weights": {"ce": [0.0, 1.0, 1.0]}},
    ],
)
def test_what_a_trainer_computed_for_each_token_of_a_trace_is_counted(beside: dict[str, Any]) -> None:
    """prime-rl writes it to the nodes, and no record holds it."""
    item = answered_trace(answer_node("4", **beside), answer_node("5", advantages=None, loss_weights=None))
    found, [run] = read(lines(item))
    assert found.left_out == {"advantages, loss weights and other numbers for each token of a message": 1}
    assert [list(placed.call.choices[0].token_ids or ()) for placed in run.calls] == [[4, 5]] * 2


@pytest.mark.parametrize("mask", [[False, True, False], [False] * 3, [False, True]])
def test_tokens_that_the_mask_of_a_trace_does_not_set_apart_are_counted(mask: list[bool]) -> None:
    found, [run] = read(lines(answered_trace(answer_node("4", mask=mask))))
    assert found.left_out == {"token ids of answers whose mask does not say which were sampled": 1}
    assert run.calls[0].call.choices[0].token_ids is None


def test_the_tokens_of_a_trace_are_kept_without_their_log_probabilities() -> None:
    found, [run] = read(lines(answered_trace(answer_node("4", logprobs=[]))))
    [choice] = run.calls[0].call.choices
    assert (found.left_out, list(choice.token_ids or ()), choice.logprobs) == ({}, [4, 5], None)


def test_attempts_to_compact_that_were_not_taken_up_are_never_trained_on() -> None:
    """verifiers marks their branches as not trainable. The one that the harness went on from is trained on."""
    attempt = {"semantic_parents": [{"node": 1, "type": "compaction_attempt"}]}
    went_on = {"parent": None, "semantic_parents": [{"node": 3, "type": "compaction"}]}
    nodes = [
        answer_node("4"), answer_node("in vain", **attempt), answer_node("taken", **attempt),
        answer_node("on", **went_on),
    ]  # fmt: skip
    found, [run] = read(lines(answered_trace(*nodes)))
    assert found.left_out == {"attempts to compact a context that were not taken up": 1}
    answers = [placed.call.choices[0].message.text for placed in run.calls]
    assert answers == ["4", "taken", "on"]


def test_each_call_of_a_trace_is_offered_the_tools_of_its_own_branch() -> None:
    """Those of sub-agents differ; verifiers has them on the first message from version 0.4 on."""
    add, look = ({"name": name, "description": "", "parameters": {"type": "object"}} for name in ("add", "look"))
    first = answered_trace(answer_node("4"))["nodes"][0]
    other = {**first, "tools": [look]}
    item = answered_trace(answer_node("4"), other, answer_node("5", parent=2), tools=[add, look])
    item["nodes"][0] = {**first, "tools": [add]}
    _, [run] = shown(lines(item))
    assert [call["offered"] for call in run["calls"]] == [["add"], ["look"]]


def failure_of(*items: dict[str, Any]) -> list[str]:
    """Why runs are not trained on that are the best of their groups, "" of those that are."""
    found = read_file(lines(*items), "file")
    spans, rewards = ([one for one in found.records if isinstance(one, kind)] for kind in (SpanRow, Reward))
    runs = build_trajectories(spans, rewards)
    assert all((never_trained_on(run) is NotTrained.INCOMPLETE) == bool(run.incomplete) for run in runs)
    return [run.incomplete for run in sorted(runs, key=lambda run: run.start_ns)]


def test_what_verifiers_counts_as_failed_is_never_trained_on() -> None:
    """Whatever its reward: prime-rl leaves it out, and a whole trace in an episode that failed. One that failed once
    and was tried again did not fail."""
    episode = json.loads(EPISODES.read_text().splitlines()[0])
    gone = {"type": "ProviderError", "message": "gone"}
    proposer, *others = episode["traces"]
    failed = "interrupted: verifiers counts it as failed"
    errors = {"ok": False, "errors": [gone]}
    assert failure_of({**episode, "traces": [{**proposer, **errors}]}) == [f"{failed} (ProviderError)"]
    assert failure_of({**episode, "traces": [{**proposer, "ok": False}]}) == [failed]
    assert failure_of({**proposer, "ok": False}) == [failed]
    assert failure_of({**episode, "traces": [{**proposer, "errors": [gone]}]}) == [""]
    old = {name: value for name, value in proposer.items() if name != "ok"}  # as it was until 0.2
    assert failure_of({**old, "errors": [gone]}, {**old, "id": "other"}) == [f"{failed} (ProviderError)", ""]
    of_episode = "interrupted: verifiers counts its episode as failed"
    broken = {**episode, **errors, "traces": [{**proposer, **errors}, others[0]]}
    assert failure_of(broken) == [f"{failed} (ProviderError)", f"{of_episode} (ProviderError)"]
    assert failure_of({**episode, "ok": False}) == [of_episode] * 4
    assert "Collect it again" in " ".join(on_incomplete(failed) + on_incomplete(of_episode))


def test_a_result_of_verifiers_with_an_error_is_never_trained_on() -> None:
    """As prime-rl trained on none of its tokens."""
    asked = [{"role": "user", "content": "2 + 2?"}]
    item = {"example_id": 1, "prompt": asked, "completion": [{"role": "assistant", "content": "4"}], "reward": 1.0}
    assert failure_of(item) == [""]
    chain = {"error": "ToolError", "error_chain_str": "ToolError -> OSError"}
    assert failure_of({**item, "error": chain}) == ["interrupted: verifiers counts it as failed (ToolError -> OSError)"]


def test_an_agent_of_an_episode_that_broke_off_is_compared_with_the_same_agent() -> None:
    """A solver that never came leaves a proposer alone in its episode."""
    whole, broken, *_ = (json.loads(line) for line in EPISODES.read_text().splitlines())
    for episode in (whole, broken):
        del episode["group"]
    _, runs = shown(lines(whole, {**broken, "traces": broken["traces"][:1]}))
    scenarios = [run["scenario"] for run in runs if run["metadata"]["agent"]["name"] == "proposer"]
    assert scenarios == [f"file/sums/proposer/{whole['task']['key']}"] * 2


def test_what_an_episode_says_of_its_training_run_is_metadata() -> None:
    _, runs = shown(EPISODES.read_bytes())
    run = next(run for run in runs if run["group"] == "g1/proposer")
    work = {"type": "train", "step": 3, "policy": {"start": 2, "end": 3}}
    assert run["metadata"]["run"] == {"type": "train", "id": "run-1", "name": "first", "work": work}
    assert (run["metadata"]["group"], run["metadata"]["agent"]["trainable"]) == ({"id": "g1"}, True)
