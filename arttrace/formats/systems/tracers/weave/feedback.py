"""Feedback and scores of Weave's as rewards and notes. Pure.

A reward is what a scorer gave: a number or a verdict, or of an object the one field that by its name is the score.
What else it holds (thresholds, counts of categories) may be larger for the worse answer, and is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from arttrace.formats.evaluations import reward_span
from arttrace.formats.left_out import LeftOutItem
from arttrace.formats.sdks.openai_messages import text_of
from arttrace.records.reward import Reward
from arttrace.records.span import SpanEvent
from arttrace.records.values.lenient_json import json_object, json_objects
from arttrace.records.values.times import time_ns
from arttrace.trajectories.decoding.attribute_values import finite

_REACTION, _NOTE = "wandb.reaction.1", "wandb.note.1"
_SCORER, _ANNOTATION = "wandb.runnable.", "wandb.annotation."
_WRAPPED = {_SCORER: "output", _ANNOTATION: "value"}
"""Where a payload has what was given."""
_THUMBS = {"\N{THUMBS UP SIGN}": 1.0, "\N{THUMBS DOWN SIGN}": 0.0}
_SCORES = ("passed", "correct", "success", "score", "reward", "value")
"""The fields that are the score of an object, the first that it has. The verdict comes first: a score beside it may be
of what is bad."""
_ENDING = "_score"
_LESS_IS_BETTER = frozenset({"levenshtein_distance", "has_hallucination"})
"""What Weave's own scorers count or find that is better absent."""


_Given = Iterator[Reward | LeftOutItem]


def given(summary: dict[str, Any], trajectory_id: str, agent_id: str | None, time: int, *, is_scored: bool) -> _Given:
    """The feedback in the summary of a call, where it was exported with it. `is_scored` says that another call, the
    example of an evaluation, says what the scorers gave."""
    for one in json_objects(json_object(summary.get("weave")).get("feedback")):
        kind, payload = str(one.get("feedback_type") or "feedback"), one.get("payload")
        if is_scored and kind.startswith(_SCORER):
            continue
        common: dict[str, Any] = {
            "trajectory_id": trajectory_id,
            "agent_id": agent_id,
            "of_span": agent_id is not None,
            "time_ns": time_ns(one.get("created_at")) or time,
        }
        own = str(one.get("id") or f"{trajectory_id}:{agent_id}:{kind}")
        if kind == _NOTE:
            note = json_object(payload).get("note")
            if isinstance(note, str) and note:
                yield Reward(id=own, value=0.0, name="note", explanation=note, counts=False, **common)
            continue
        prefix = next((one for one in _WRAPPED if kind.startswith(one)), "")
        name = kind.removeprefix(prefix)
        if prefix:
            payload = json_object(payload).get(_WRAPPED[prefix])
        if kind == _REACTION:
            emoji = json_object(payload).get("detoned", json_object(payload).get("emoji"))
            name, payload = "reaction", _THUMBS.get(emoji) if isinstance(emoji, str) else None
        if (score := _score(payload, name)) is None:
            yield LeftOutItem("feedback without a clear number")
        else:
            yield Reward(id=own, value=score[1], name=score[0], explanation=_beside(payload), **common)


def _score(given: Any, name: str) -> tuple[str, float] | None:
    """What was given as one number, with its name (`exact` of a scorer `judge`, where it has no other number, is
    `judge.exact`); None where there is none, or it is not clear which. True is 1."""
    if (number := _number(given)) is not None:
        return name, number
    fields = {key: number for key, one in json_object(given).items() if (number := _number(one)) is not None}
    for key in _SCORES:
        if key in fields:
            return name, fields[key]
    keys = [key for key in fields if key.endswith(_ENDING)] or list(fields)
    return (f"{name}.{keys[0]}", fields[keys[0]]) if len(keys) == 1 and keys[0] not in _LESS_IS_BETTER else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, bool) else finite(value)


def _beside(given: Any) -> str:
    """All that was given, where it is more than one field."""
    return (text_of(given) or "") if isinstance(given, dict) and len(given) > 1 else ""


def scores(given: Any, trajectory_id: str, time: int) -> _Given:
    """What the scorers of an evaluation said of an example, each by its name."""
    for scorer, one in json_object(given).items():
        if (score := _score(one, scorer)) is not None:
            name, value = score
            yield Reward(f"{trajectory_id}:{name}", trajectory_id, value, name, time_ns=time)
        elif one not in (None, {}):
            yield LeftOutItem("scores without a clear number")


def as_events(rewards: _Given) -> Iterator[SpanEvent | LeftOutItem]:
    """Rewards as events of the span that they are of, whose run only the spans above it say."""
    for one in rewards:
        if isinstance(one, LeftOutItem):
            yield one
        elif one.counts:
            yield from reward_span(one).events
        else:
            yield LeftOutItem("notes on parts of evaluations")
