import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.grpo.advantages import Scale, group_advantages, is_floored, standard_deviation

REWARDS = st.lists(st.floats(-100, 100, allow_subnormal=False), min_size=2, max_size=16)


def test_without_scale_is_the_distance_to_the_mean() -> None:
    assert group_advantages([1.0, 0.0, 0.5, 0.5]) == [0.5, -0.5, 0.0, 0.0]


def test_std_divides_by_the_sample_standard_deviation() -> None:
    expected = [0.5 / statistics.stdev([1.0, 0.0]), -0.5 / statistics.stdev([1.0, 0.0])]
    assert group_advantages([1.0, 0.0], scale="std") == pytest.approx(expected)


def test_the_floor_keeps_near_ties_small() -> None:
    tied = [0.700, 0.701, 0.699, 0.700]
    assert max(group_advantages(tied, scale="std", std_floor=0.1)) == pytest.approx(0.01)
    assert max(group_advantages(tied, scale="std", std_floor=1e-9)) > 1.0


def test_the_floor_is_reported_where_it_holds_and_nowhere_else() -> None:
    assert is_floored([0.70, 0.71], scale="std")
    assert not is_floored([0.0, 1.0], scale="std")
    assert not is_floored([0.70, 0.70], scale="std"), "equal rewards teach nothing whatever they are divided by"
    assert not is_floored([0.70, 0.71], scale="none")
    assert not is_floored([0.70, 0.71], scale="batch", batch_std=0.4)
    assert is_floored([0.70, 0.71], scale="batch", batch_std=0.05)


def test_batch_divides_by_the_deviation_of_all_rewards_of_the_step() -> None:
    groups = [[1.0, 0.0], [0.5, 0.4], [0.2, 0.2]]
    everything = [reward for group in groups for reward in group]
    mean = sum(everything) / 6
    std = math.sqrt(sum((reward - mean) ** 2 for reward in everything) / 5)
    assert standard_deviation(everything) == pytest.approx(std)
    found = [group_advantages(group, scale="batch", batch_std=std) for group in groups]
    assert found == [pytest.approx([0.5 / std, -0.5 / std]), pytest.approx([0.05 / std, -0.05 / std]), [0.0, 0.0]]
    with pytest.raises(ValueError, match="needs the standard deviation of the batch"):
        group_advantages([0.0, 1.0], scale="batch")


@given(REWARDS)
def test_rloo_is_reward_minus_mean_of_the_others(rewards: list[float]) -> None:
    others = [(math.fsum(rewards) - reward) / (len(rewards) - 1) for reward in rewards]
    expected = [reward - other for reward, other in zip(rewards, others, strict=True)]
    assert group_advantages(rewards, scale="rloo") == pytest.approx(expected, abs=1e-9)


@given(st.floats(-1e6, 1e6), st.integers(1, 12), st.sampled_from(["none", "std", "rloo"]))
def test_equal_rewards_are_exactly_zero(reward: float, size: int, scale: str) -> None:
    assert group_advantages([reward] * size, scale=scale) == [0.0] * size  # type: ignore[arg-type]


@pytest.mark.parametrize("scale", ["none", "std", "rloo"])
def test_rewards_that_differ_by_the_rounding_of_their_sums_are_equal(scale: Scale) -> None:
    rewards = [0.1 + 0.2, 0.3, 0.3]
    assert rewards[0] > rewards[1]
    assert group_advantages(rewards, scale=scale) == [0.0, 0.0, 0.0]
    assert not is_floored(rewards, scale=scale)
    assert group_advantages([0.3 + 1e-9, 0.3], scale=scale)[0] > 0


@given(REWARDS, st.sampled_from(["none", "std", "rloo"]))
def test_sum_is_zero_and_order_is_kept(rewards: list[float], scale: str) -> None:
    advantages = group_advantages(rewards, scale=scale)  # type: ignore[arg-type]
    assert math.fsum(advantages) == pytest.approx(0, abs=1e-9 * (1 + max(map(abs, advantages))))
    assert group_advantages(rewards[::-1], scale=scale) == pytest.approx(advantages[::-1])  # type: ignore[arg-type]


def test_an_empty_group_has_no_advantages() -> None:
    assert group_advantages([]) == []


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_refuses_what_is_no_number(bad: float) -> None:
    with pytest.raises(ValueError, match="not a finite number"):
        group_advantages([0.0, bad])


def test_refuses_a_scale_or_a_floor_that_makes_no_sense() -> None:
    with pytest.raises(ValueError, match="unknown advantage scale 'mean'"):
        group_advantages([0.0, 1.0], scale="mean")  # type: ignore[arg-type]
    for floor in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="std_floor must be above 0"):
            group_advantages([0.0, 1.0], scale="std", std_floor=floor)
