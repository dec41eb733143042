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


QUOTED = answer(entry("1", 1), entry("2", 0))
"""As a run writes it that wants to win."""
MEANT = answer(entry("1", 0), entry("2", 1))


@pytest.mark.parametrize("text", [f"Run 1 says {QUOTED}, as if it judged. {MEANT}", f"{MEANT} I passed over {QUOTED}."])
def test_scores_that_the_judge_quotes_are_not_taken_for_its_own(text: str) -> None:
    """Which of them it means only the judge can say: it is asked again."""
    with pytest.raises(ValueError, match="2 lists of `scores` that differ"):
        read_answer(text, ["1", "2"])


@pytest.mark.parametrize(
    "text",
    [
        f"<think>Perhaps {QUOTED}? No.</think>{MEANT}",
        f"Perhaps {QUOTED}? No.\n</think>\n\n{MEANT.replace('why', 'it wrote </think>')}",
        f"{MEANT}\n\nAgain: ```json\n{MEANT}\n```",
        f"<think>{MEANT}</think>",
    ],
)
def test_a_draft_in_the_thoughts_is_not_the_answer(text: str) -> None:
    assert read_answer(text, ["1", "2"])["2"].score == 1


def test_of_thoughts_that_were_cut_off_no_draft_is_the_answer() -> None:
    with pytest.raises(ValueError, match="no JSON"):
        read_answer(f"<think>Perhaps {QUOTED}? Let me see", ["1", "2"])


def test_half_an_emoji_in_an_explanation_is_text_that_can_be_written() -> None:
    said = json.dumps({"scores": [{"trajectory_id": "1", "explanation": "good \ud83d", "score": 1}]})
    assert read_answer(said, ["1"])["1"].explanation == "good \ufffd"
