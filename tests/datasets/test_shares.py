"""Shares and gaps that are none are refused where `arttrace.dataset` is given them."""

from __future__ import annotations

from pathlib import Path

import pytest

import arttrace


@pytest.mark.parametrize(
    ("given", "said"), [({"held_out": 20}, "held_out is 20, outside 0..1"), ({"min_gap": -0.1}, "min_gap is -0.1")]
)
def test_shares_and_gaps_that_are_none_are_named(tmp_path: Path, given: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        arttrace.dataset("trl-preference", dir=tmp_path, **given)


def test_a_bound_that_is_no_number_is_named(tmp_path: Path) -> None:
    """No reward is at least that: every answer would be one that is not wanted."""
    with pytest.raises(ValueError, match="min_reward is nan"):
        arttrace.dataset("trl-unpaired", dir=tmp_path, min_reward=float("nan"))
