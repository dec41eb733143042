"""A judge that asks for time, is never asked, or is given half an emoji."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from arttrace.records.group import Group
from arttrace.rewards import ruler, ruler_score_group, score_groups
from arttrace.rewards.judge_errors import retry_after_s

MODEL = "openai/stand-in"


@pytest.mark.parametrize(
    ("said", "least", "most"),
    [
        ("7", 7, 7),
        ("900", 60, 60),
        ("Wed, 21 Oct 2415 07:28:00 GMT", 60, 60),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0),
        ("nan", 0, 0),
        ("soon", 0, 0),
    ],
)
def test_a_judge_is_left_alone_for_as_long_as_it_asks(said: str, least: float, most: float) -> None:
    error = RuntimeError("too many requests")
    error.response = httpx.Response(429, headers={"retry-after": said})  # type: ignore[attr-defined]
    assert least <= retry_after_s(error) <= most
    assert retry_after_s(RuntimeError()) == 0


def test_half_an_emoji_in_a_conversation_is_judged_as_what_it_is_stored_as(judge_server: Any) -> None:
    """A model that is cut within one answers it, and UTF-8 cannot hold it."""
    half = [{"role": "user", "content": "Wave"}, {"role": "assistant", "content": "\ud83d"}]
    tool = {"type": "function", "function": {"name": "wave", "description": "\ud83d"}}
    whole = [half[0], {"role": "assistant", "content": "no"}]
    scores = asyncio.run(ruler([half, whole], MODEL, {"api_base": judge_server.url}, tools=[tool]))
    assert [one.trajectory_id for one in scores] == ["1", "2"]
    assert "\ufffd" in judge_server.requests[0]["messages"][1]["content"]


def test_a_judge_that_answers_half_an_emoji_is_asked_again(judge_server: Any) -> None:
    judge_server.script = [judge_server.says("I wave: \ud83d"), judge_server.good]
    runs = [[{"role": "user", "content": "Wave"}, {"role": "assistant", "content": text}] for text in ("yes", "no")]
    scores = asyncio.run(ruler(runs, MODEL, {"api_base": judge_server.url}))
    assert [one.trajectory_id for one in scores] == ["1", "2"]
    assert "I wave: \ufffd" in judge_server.requests[1]["messages"][2]["content"]


@pytest.mark.parametrize("counts", [{"votes": 0}, {"max_concurrency": 0}, {"max_concurrency": -1}])
def test_a_judge_that_is_never_asked_is_an_error_at_once(
    counts: dict[str, int], judge_server: Any, group: Group
) -> None:
    async def scored() -> None:
        await asyncio.wait_for(score_groups([group], MODEL, {"api_base": judge_server.url}, **counts), 30)

    with pytest.raises(ValueError, match=r"is (0|-1), below 1"):
        asyncio.run(scored())
    if "votes" in counts:
        with pytest.raises(ValueError, match="votes is 0, below 1"):
            asyncio.run(ruler_score_group(group, MODEL, votes=0, swallow_exceptions=True))
    assert judge_server.requests == []


def listed(*scores: float) -> str:
    return json.dumps({"scores": [{"trajectory_id": str(n), "score": score} for n, score in enumerate(scores, 1)]})


DRAFT, MEANT = listed(0.1, 0.9), listed(0.9, 0.1)
CUT, FILTERED = "was cut off at its limit of tokens", "was cut off by its provider's filter"


@pytest.mark.parametrize(
    ("content", "end", "more", "said"),
    [
        (f"First: {DRAFT} On reflection: {MEANT[:-20]}", "length", {}, CUT),
        (f"First: {DRAFT} On reflection: {MEANT[:-20]}", "content_filter", {}, FILTERED),
        (MEANT[:-20], "length", {}, CUT),
        ("", "length", {"reasoning_content": DRAFT}, CUT),
        (None, "content_filter", {}, FILTERED),
        (None, "stop", {"refusal": "I do not rate people."}, "I do not rate people."),
    ],
)
def test_an_answer_that_was_cut_off_or_refused_is_named_so_and_no_draft_is_taken(
    content: str | None, end: str, more: dict[str, str], said: str, judge_server: Any
) -> None:
    judge_server.script = [judge_server.says(content, end, **more), judge_server.says(MEANT)]
    runs = [[{"role": "user", "content": "Wave"}, {"role": "assistant", "content": text}] for text in ("yes", "no")]
    scores = asyncio.run(ruler(runs, MODEL, {"api_base": judge_server.url}))
    assert sorted(one.score for one in scores) == [0.1, 0.9]
    assert len(judge_server.requests) == 2
    assert said in judge_server.requests[1]["messages"][-1]["content"]


@pytest.mark.parametrize("content", [MEANT + "\n" * 9, f"```json\n{MEANT}\n```", f"{MEANT} These are relative,"])
def test_an_answer_that_was_cut_off_behind_its_scores_has_them(content: str, judge_server: Any) -> None:
    """As of an engine whose grammar allows white space without end."""
    judge_server.script = [judge_server.says(content, "length")]
    runs = [[{"role": "user", "content": "Wave"}, {"role": "assistant", "content": text}] for text in ("yes", "no")]
    assert len(asyncio.run(ruler(runs, MODEL, {"api_base": judge_server.url}))) == 2
    assert len(judge_server.requests) == 1
