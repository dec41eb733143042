from __future__ import annotations

import statistics
from typing import Any

import pytest
from simulated_agent import Run, message, research_run

from arttrace.records.group import Group
from arttrace.records.reward import JUDGE, Reward
from arttrace.records.span import SpanRow
from arttrace.rewards.selection import equal_groups, good_runs, preferences
from arttrace.system.errors import TrainingError
from arttrace.trajectories import build_trajectories, sequences
from arttrace.trajectories.groups import group_trajectories
from trainer.grpo.batch import make_batch
from trainer.grpo.metrics import group_rewards, step_numbers
from trainer.grpo.trainer import require_trainable
from trainer.learner.config import LearnerConfig
from trainer.learner.interface import StepMetrics, teaches


def groups_of(runs: dict[str, list[SpanRow]], rewards: dict[str, float]) -> list[Group]:
    given = [Reward(id=f"r-{id}", trajectory_id=id, value=value) for id, value in rewards.items()]
    return group_trajectories(build_trajectories([span for spans in runs.values() for span in spans], given))


def test_every_trajectory_is_one_sample_and_shares_its_group_s_advantage() -> None:
    runs = {id: research_run(id, scenario="s") for id in ("a", "b", "c")}
    groups = groups_of(runs, {"a": 1.0, "b": 0.0, "c": 0.5})
    batch = make_batch(groups)
    by_id = {sample.sequences[0].trajectory_id: sample for sample in batch.samples}
    assert {id: sample.advantage for id, sample in by_id.items()} == {"a": 0.5, "b": -0.5, "c": 0.0}
    # Planner and both sub-agents: sequences never span two agents.
    assert {len({s.agent_id for s in sample.sequences}) for sample in batch.samples} == {3}
    assert {c.trajectory_id for c in batch.consumed} == {"a", "b", "c"}
    assert (
        batch.trained_tokens
        == batch.captured_tokens
        == sum(s.trained_tokens for x in batch.samples for s in x.sequences)
    )
    assert (batch.reward_mean, batch.reward_spread, batch.equal_groups) == (0.5, 1.0, 0)
    assert not batch.left_out
    assert not batch.quarantined


def test_sums_that_differ_by_their_rounding_teach_nothing() -> None:
    """Two runs got 0.3, one of them in two parts: no step is made of that."""
    groups = groups_of({id: research_run(id, scenario="s") for id in ("a", "b")}, {"a": 0.1 + 0.2, "b": 0.3})
    batch = make_batch(groups, scale="std")
    assert (batch.equal_groups, batch.floored_groups) == (1, 0)
    assert not teaches(batch.samples, LearnerConfig())
    assert [group.spread for group in group_rewards(groups)] == [0.0]
    assert (equal_groups(groups), good_runs(groups).runs) == (1, ())


def test_batch_scale_takes_every_reward_of_the_step_and_the_floor_is_counted() -> None:
    rewards = {"a": 1.0, "b": 0.0, "c": 0.50, "d": 0.52}
    runs = {id: research_run(id, scenario="s" if id in "ab" else "t") for id in rewards}
    groups = groups_of(runs, rewards)

    def advantages(**terms: Any) -> dict[str, float]:
        samples = make_batch(groups, **terms).samples
        return {sample.sequences[0].trajectory_id: sample.advantage for sample in samples}

    std = statistics.stdev(rewards.values())
    assert advantages(scale="batch") == pytest.approx(
        {"a": 0.5 / std, "b": -0.5 / std, "c": -0.01 / std, "d": 0.01 / std}
    )
    close = make_batch(groups, scale="std")
    assert close.floored_groups == 1
    assert step_numbers(close, StepMetrics())["groups_floored"] == 1
    assert advantages(scale="std")["d"] == pytest.approx(0.1)
    assert advantages(scale="std", std_floor=1e-6)["d"] == pytest.approx(0.01 / statistics.stdev([0.5, 0.52]))
    assert make_batch(groups, scale="std", std_floor=1e-6).floored_groups == 0


def judged_and_not(judged: str, unjudged: str) -> list[Group]:
    """One group, with a reward from code for each run and a judge's score for some."""
    spans = [span for id in judged + unjudged for span in research_run(id, scenario="s")]
    given = [Reward(id=f"code-{id}", trajectory_id=id, value=1.0) for id in judged + unjudged]
    scores = [Reward(id=f"ruler:{id}", trajectory_id=id, value=0.1, source=JUDGE) for id in judged]
    return group_trajectories(build_trajectories(spans, given + scores))


@pytest.mark.parametrize(
    ("judged", "unjudged", "counted", "otherwise", "alone"),
    [
        ("ab", "c", "ab", 1, 0),
        ("ab", "cd", "ab", 2, 0),
        ("a", "bc", "bc", 1, 0),
        ("a", "b", "", 1, 1),
        ("", "ab", "ab", 0, 0),
        ("abc", "", "abc", 0, 0),
    ],
)
def test_rewards_with_a_judge_s_score_are_not_compared_with_those_without(
    judged: str, unjudged: str, counted: str, otherwise: int, alone: int
) -> None:
    """Code alone gives 1.0 where the mean of the two is 0.55: no run is better by not being judged."""
    batch = make_batch(judged_and_not(judged, unjudged))
    assert "".join(sorted(one.trajectory_id for one in batch.consumed)) == counted
    assert {sample.advantage for sample in batch.samples} <= {0.0}
    left_out = {"rewarded otherwise than its group": otherwise, "alone in its group": alone}
    assert batch.left_out == {reason: count for reason, count in left_out.items() if count}


def test_runs_that_were_judged_apart_are_not_compared_with_each_other() -> None:
    """A judge scores runs against each other: the same run is worth 0.9 among bad ones, and 0.1 among good ones."""
    judged = {"a": (0.9, "bad ones"), "b": (0.7, "bad ones"), "c": (0.1, "good ones"), "d": (0.3, "good ones")}
    judged["e"] = (1.0, "one alone")
    spans = [span for id in judged for span in research_run(id, scenario="s")]
    scores = [
        Reward(id=f"ruler:{id}", trajectory_id=id, value=value, source=JUDGE, judgement_id=judgement)
        for id, (value, judgement) in judged.items()
    ]
    groups = group_trajectories(build_trajectories(spans, scores))
    batch = make_batch(groups)
    advantages = {sample.sequences[0].trajectory_id: sample.advantage for sample in batch.samples}
    assert advantages == pytest.approx({"a": 0.1, "b": -0.1, "c": -0.1, "d": 0.1})
    assert batch.left_out == {"rewarded otherwise than its group": 1}
    assert [group.spread for group in group_rewards(groups)] == pytest.approx([0.2])
    assert [run.id for run in good_runs(groups).runs] == ["a", "d"]
    pairs = preferences(groups)
    assert [(better.id, worse.id) for better, worse in pairs.pairs] == [("a", "b"), ("d", "c")]
    assert pairs.left_out == {"rewarded otherwise than its group": 1}


def test_of_runs_that_were_each_judged_alone_none_is_compared() -> None:
    spans = [span for id in "ab" for span in research_run(id, scenario="s")]
    scores = [Reward(f"ruler:{id}", id, float(id == "a"), source=JUDGE, judgement_id=f"of {id}") for id in "ab"]
    batch = make_batch(group_trajectories(build_trajectories(spans, scores)))
    assert (batch.samples, batch.consumed) == ((), ())
    assert batch.left_out == {"rewarded otherwise than its group": 1, "alone in its group": 1}


def test_what_is_left_out_is_counted_with_its_reason() -> None:
    runs = {
        "alone": research_run("alone", scenario="only once"),
        "x": research_run("x", scenario="s"),
        "y": research_run("y", scenario="s"),
        "unrewarded": research_run("unrewarded", scenario="s"),
        "cut": research_run("cut", scenario="s")[:-1],  # its root never arrived
    }
    batch = make_batch(groups_of(runs, {"alone": 1.0, "x": 0.0, "y": 0.0, "cut": 1.0}))
    assert batch.left_out == {"alone in its group": 1, "no reward": 1, "incomplete": 1}
    assert {c.trajectory_id for c in batch.consumed} == {"x", "y"}
    assert batch.equal_groups == 1
    assert [sample.advantage for sample in batch.samples] == [0.0, 0.0]


def test_a_run_without_token_ids_stays_in_the_baseline_and_is_no_sample() -> None:
    def bare(id: str) -> list[SpanRow]:
        run = Run(id, scenario="s")
        run.chat("m", [message("user", "hi")], message("assistant", "yo"), at=1, PROMPT_TOKEN_IDS=None, TOKEN_IDS=None)
        return run.end()

    groups = groups_of({"a": research_run("a", scenario="s"), "b": bare("b")}, {"a": 1.0, "b": 0.0})
    batch = make_batch(groups)
    assert [(s.sequences[0].trajectory_id, s.advantage) for s in batch.samples] == [("a", 0.5)]
    assert batch.left_out == {"no trainable tokens": 1}
    assert sum(batch.quarantined.values()) == 1

    assert make_batch(groups, policy="policy", step=5).staleness == (4,), "of what is trained on alone"

    only_bare = make_batch(groups_of({"a": bare("a"), "b": bare("b")}, {"a": 1.0, "b": 0.0}))
    with pytest.raises(TrainingError, match="no trainable token") as error:
        require_trainable(only_bare)
    assert "arttrace serve" in (error.value.hint or "")


def test_what_another_policy_or_an_unknown_one_sampled_is_context() -> None:
    def mixed(id: str) -> list[SpanRow]:
        run = Run(id, scenario="s")
        run.chat("own", [message("user", "a")], message("assistant", "mine"), at=1, policy="policy@3")
        run.chat("other", [message("user", "b")], message("assistant", "theirs"), at=10, policy="my-policy@3")
        run.chat("unknown", [message("user", "c")], message("assistant", "whose"), at=20, POLICY_VERSION=None)
        return run.end()

    batch = make_batch(groups_of({i: mixed(i) for i in "ab"}, {"a": 1.0, "b": 0.0}), policy="policy")
    assert {name for s in batch.samples for row in s.sequences for name in row.policy_versions} == {"policy@3"}
    assert batch.quarantined == {"sampled by another policy": 2, "policy version not known": 2}
    assert batch.trained_tokens == sum(row.trained_tokens for s in batch.samples for row in s.sequences)
    assert batch.captured_tokens > batch.trained_tokens


def test_the_reward_of_a_step_is_that_of_runs_which_the_policy_answered() -> None:
    """A rollout's group holds the recorded run of another model: the policy's are compared with it."""

    def run(id: str, policy: str) -> list[SpanRow]:
        made = Run(id, scenario="s")
        made.chat("m", [message("user", "a")], message("assistant", id), at=1, policy=f"{policy}@3")
        return made.end()

    runs = {"a": run("a", "policy"), "b": run("b", "policy"), "recorded": run("recorded", "teacher")}
    batch = make_batch(groups_of(runs, {"a": 0.0, "b": 0.5, "recorded": 1.0}), policy="policy")
    assert [sample.advantage for sample in batch.samples] == [-0.5, 0.0]
    numbers = step_numbers(batch, StepMetrics(trajectories=2))
    assert (numbers["reward_mean"], numbers["reward_spread"], numbers["reward_group_mean_max"]) == (0.25, 1.0, 0.5)


def test_what_to_do_about_runs_of_another_policy_alone() -> None:
    groups = groups_of({i: research_run(i, scenario="s") for i in "ab"}, {"a": 1.0, "b": 0.0})
    with pytest.raises(TrainingError, match="sampled by another policy") as shown:
        require_trainable(make_batch(groups, policy="mine"))
    assert "serve --policy" in str(shown.value.hint), "the tokens are there: `arttrace serve` alone is no remedy"


@pytest.mark.parametrize(
    ("rewards", "said"),
    [({}, "2 no reward"), ({"a": 1.0}, "1 alone in its group")],
)
def test_nothing_to_train_on_says_why(rewards: dict[str, float], said: str) -> None:
    runs = {"a": research_run("a", scenario="s")} if rewards else {i: research_run(i, scenario="s") for i in "ab"}
    with pytest.raises(TrainingError, match=said):
        require_trainable(make_batch(groups_of(runs, rewards)))


def test_sequences_of_a_batch_are_those_of_the_trajectories() -> None:
    groups = groups_of({i: research_run(i, scenario="s") for i in "ab"}, {"a": 1.0, "b": 0.0})
    expected = [sequences(trajectory)[0] for trajectory in groups[0].trajectories]
    assert [sample.sequences for sample in make_batch(groups).samples] == expected


def test_an_agent_rewarded_by_itself_is_compared_with_those_of_its_role() -> None:
    runs = {id: research_run(id, scenario="s") for id in ("a", "b", "c")}
    plain = groups_of(runs, {"a": 1.0, "b": 0.0, "c": 0.5})[0].trajectories
    planner = plain[0].agents[0].name
    subs = {one.id: [agent for agent in one.agents if agent.name != planner] for one in plain}
    role = subs["a"][0].name
    given = [
        Reward(id=f"own-{id}", trajectory_id=id, value=value, agent_id=next(x.id for x in subs[id] if x.name == role))
        for id, value in (("a", 0.2), ("b", 0.8))
    ]
    rewards = [Reward(id=f"r-{id}", trajectory_id=id, value=v) for id, v in {"a": 1.0, "b": 0.0, "c": 0.5}.items()]
    spans = [span for spans in runs.values() for span in spans]
    batch = make_batch(group_trajectories(build_trajectories(spans, [*rewards, *given])))
    (name,) = batch.agent_rewards
    assert step_numbers(batch, StepMetrics())[f"reward_mean/{name}"] == statistics.fmean(one.value for one in given)
    found = {
        sample.sequences[0].trajectory_id: {s.agent_id: sample.advantage_of(s) for s in sample.sequences}
        for sample in batch.samples
    }
    for reward, advantage in zip(given, (-0.3, 0.3), strict=True):
        others = {**found[reward.trajectory_id]}
        assert others.pop(reward.agent_id or "") == pytest.approx(advantage)
        assert set(others.values()) == {0.5 if reward.trajectory_id == "a" else -0.5}
    assert set(found["c"].values()) == {0.0}


def test_runs_that_were_sampled_too_long_ago_are_left_out_on_request() -> None:
    def sampled_by(id: str, *versions: int) -> list[SpanRow]:
        run = Run(id, scenario="s")
        for number, version in enumerate(versions):
            said = message("assistant", f"answer {number}")
            run.chat(f"m{number}", [message("user", str(number))], said, at=1 + number, policy=f"policy@{version}")
        return run.end()

    runs = {
        "new": sampled_by("new", 9),
        "mixed": sampled_by("mixed", 9, 5),
        "old": sampled_by("old", 7),
        "x": sampled_by("x", 8),
    }
    groups = groups_of(runs, {"new": 1.0, "mixed": 1.0, "old": 0.0, "x": 0.0})
    assert {c.trajectory_id for c in make_batch(groups, step=9).consumed} == {"new", "mixed", "old", "x"}
    batch = make_batch(groups, policy="policy", step=9, max_staleness=1)
    assert {c.trajectory_id for c in batch.consumed} == {"new", "x"}
    assert batch.left_out == {"too stale": 2}
    with pytest.raises(TrainingError, match="4 too stale"):
        require_trainable(make_batch(groups, policy="policy", step=20, max_staleness=1))
