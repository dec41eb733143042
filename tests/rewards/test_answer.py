from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arttrace.rewards.judge_answer import read_answer


def answer(*entries: Any) -> str:
    return json.dumps({"scores": list(entries)})


def entry(id: Any, score: Any) -> dict[str, Any]:
    return {"trajectory_id": id, "explanation": "why", "score": score}


@given(st.permutations(["1", "2", "3", "4"]))
def test_scores_are_matched_by_id_never_by_position(order: list[str]) -> None:
    scores = read_answer(answer(*(entry(id, int(id) / 10) for id in order)), ["1", "2", "3", "4"])
    assert {id: one.score for id, one in scores.items()} == {"1": 0.1, "2": 0.2, "3": 0.3, "4": 0.4}


@pytest.mark.parametrize(
    "text",
    [
        '```json\n{"scores": [{"trajectory_id": 1, "explanation": "e", "score": 1}]}\n```',
        'I think {so}: {"a": 1} then {"scores": [{"trajectory_id": "1", "explanation": "e", "score": 1.0}]} done.',
    ],
)
def test_text_around_the_json_is_passed_over(text: str) -> None:
    assert read_answer(text, ["1"])["1"].score == 1.0


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("no idea", "no JSON"),
        ("", "no JSON"),
        (answer(entry("1", 0.5)), "1 of 2"),
        (answer(entry("1", 0.5), entry("2", 0.5), entry("3", 0.5)), "'3', which was not asked for"),
        (answer(entry("1", 0.5), entry("1", 0.5)), "twice"),
        (answer(entry("1", 0.5), entry("2", 1.01)), "outside 0..1"),
        (answer(entry("1", 0.5), entry("2", -0.1)), "outside 0..1"),
        (answer(entry("1", 0.5), entry("2", 10**400)), "outside 0..1"),
        (answer(entry("1", 0.5), entry("2", True)), "no number"),
        (answer(entry("1", 0.5), entry("2", "0.5")), "no number"),
        (answer(entry("1", 0.5), entry("2", math.nan)), "no number"),
        (answer(entry("1", 0.5), {"score": 0.5}), "no trajectory_id"),
        (answer(entry("1", 0.5), 0.5), "no trajectory_id"),
        ('{"scores": ' + "[" * 5000, "no JSON"),
        ('{"a":' * 3000, "no JSON"),
    ],
)
def test_an_answer_that_does_not_fit_is_refused_with_the_reason(text: str, cause: str) -> None:
    with pytest.raises(ValueError, match=cause):
        read_answer(text, ["1", "2"])


def test_half_an_emoji_in_an_explanation_is_text_that_can_be_written() -> None:
    said = json.dumps({"scores": [{"trajectory_id": "1", "explanation": "good \ud83d", "score": 1}]})
    assert read_answer(said, ["1"])["1"].explanation == "good \ufffd"
