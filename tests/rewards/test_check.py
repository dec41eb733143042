"""A judge checked against true rewards: the figures by hand, and a run over real HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from arttrace.records.group import Group
from arttrace.records.reward import Reward
from arttrace.rewards.judge import score_groups
from arttrace.rewards.judge_check import Ballot, check, check_judge, kendall_tau, true_rewards
from arttrace.system.errors import JudgeError

MODEL = "openai/stand-in"


def test_a_judge_that_orders_as_the_rewards_do() -> None:
    found = check([Ballot("g", (0.0, 0.5, 1.0), (0.1, 0.2, 0.9), (3, 1, 2))])
    assert (found.agreement, found.tau, found.equal_spread) == (1.0, 1.0, None)
    assert found.repeat_std is None
    assert found.first_minus_last is None, "one answer cannot tell place from worth"


def test_ties_count_half_and_equal_rewards_show_what_is_made_of_nothing() -> None:
    found = check(
        [Ballot("g", (0.0, 1.0, 1.0), (0.5, 0.5, 0.2), (1, 2, 3)), Ballot("equal", (1.0, 1.0), (0.9, 0.6), (1, 2))]
    )
    assert found.agreement == pytest.approx((0.5 + 0.0) / 2)
    assert found.equal_groups == 1
    assert found.equal_spread == pytest.approx(0.3)


def test_rewards_that_differ_by_the_rounding_of_their_sums_are_equal() -> None:
    found = check([Ballot("g", (0.1 + 0.2, 0.3, 1.0), (0.2, 0.5, 0.9), (1, 2, 3))])
    assert (found.agreement, found.tau) == (1.0, pytest.approx(2 / 6**0.5))


def test_a_judge_that_favours_the_first_place() -> None:
    ballots = [Ballot("g", (0.0, 1.0), (0.8, 0.4), (1, 2)), Ballot("g", (0.0, 1.0), (0.4, 0.8), (2, 1))]
    found = check(ballots)
    assert found.first_minus_last == pytest.approx(0.4)
    assert found.repeat_std == pytest.approx(2**0.5 * 0.2)
    assert found.agreement == 0.5
    assert found.tau is None, "its mean scores are all the same"


def test_kendall_tau_is_that_of_the_definition() -> None:
    assert kendall_tau([1, 2, 3], [3, 2, 1]) == -1.0
    assert kendall_tau([1, 1, 2], [1, 2, 3]) == pytest.approx(2 / 6**0.5)
    assert kendall_tau([1, 1], [1, 2]) is None


def labelled(make_run: Callable[..., Any], truth: dict[str, float]) -> Group:
    runs = tuple(
        make_run(f"run-{answer}", answer, rewards=(Reward(f"w-{answer}", f"run-{answer}", value),))
        for answer, value in truth.items()
    )
    return Group("pears", runs)


def test_true_rewards_that_no_number_holds_together_end_nothing(make_run: Callable[..., Any]) -> None:
    huge = (Reward("a", "run", 1e308), Reward("b", "run", 1e308, name="other"))
    assert true_rewards(Group("g", (make_run("run", rewards=huge),))) == (float("inf"),)


def test_asked_for_real_in_another_order_each_time(judge_server: Any, make_run: Callable[..., Any]) -> None:
    groups = [
        labelled(make_run, {"6": 1.0, "9": 0.0, "12": 0.0}),
        Group("bare", (make_run("x", rewards=()), make_run("y", "7", rewards=()))),
    ]
    seen: list[tuple[int, int]] = []
    found = asyncio.run(
        check_judge(groups, MODEL, {"api_base": judge_server.url}, repeats=6, on_ballot=lambda *each: seen.append(each))
    )
    assert (found.groups, found.runs, found.ballots, found.failed) == (1, 3, 6, 0)
    assert (found.agreement, found.repeat_std, found.first_minus_last) == (1.0, 0.0, pytest.approx(0.0))
    assert found.tau == 1.0
    assert seen[-1] == (6, 6)
    assert (found.input_tokens, found.output_tokens) == (600, 60)
    orders = {request["messages"][1]["content"] for request in judge_server.requests}
    assert len(orders) > 1


def test_answers_that_cannot_be_used_are_counted(judge_server: Any, make_run: Callable[..., Any]) -> None:
    judge_server.script = [judge_server.says("no")] * 4
    group = labelled(make_run, {"6": 1.0, "9": 0.0})
    found = asyncio.run(check_judge([group], MODEL, {"api_base": judge_server.url}, repeats=2, max_concurrency=1))
    assert (found.ballots, found.failed) == (1, 1)


def test_without_rewards_there_is_nothing_to_check_against(make_run: Callable[..., Any], group: Group) -> None:
    bare = Group("bare", (make_run("x", rewards=()), make_run("y", "7", rewards=())))
    with pytest.raises(JudgeError, match="nothing to check the judge against"):
        asyncio.run(check_judge([bare], MODEL))


def test_votes_are_asked_in_other_orders_and_their_mean_counts(judge_server: Any, make_run: Callable[..., Any]) -> None:
    def leaning(request: dict[str, Any]) -> tuple[int, Any]:
        """Scores by truth, and 0.2 more for what is shown first."""
        scores = judge_server.scores(request)
        for entry in scores:
            entry["score"] = 0.8 * entry["score"] + 0.2 * (entry["trajectory_id"] == "1")
        return judge_server.says(json.dumps({"scores": scores}))(request)

    judge_server.script = [leaning] * 8
    group = labelled(make_run, {"6": 1.0, "9": 0.0})
    (judgement,) = asyncio.run(score_groups([group], MODEL, {"api_base": judge_server.url}, votes=8))
    assert not isinstance(judgement, JudgeError)
    assert len(judge_server.requests) == 8
    assert 0.8 < judgement.scores["run-6"] < 1.0
    assert 0.0 < judgement.scores["run-9"] < 0.2
    assert sum(judgement.scores.values()) == pytest.approx(1.0)
    assert judgement.input_tokens == 800
