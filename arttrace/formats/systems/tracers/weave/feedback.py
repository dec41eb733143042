"""Feedback and scores of Weave's as rewards and notes. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from arttrace.formats.evaluations import reward_span
from arttrace.formats.left_out import LeftOutItem
from arttrace.records.reward import Reward
from arttrace.records.span import SpanEvent
from arttrace.records.values.lenient_json import json_object, json_objects
from arttrace.records.values.times import time_ns
from arttrace.trajectories.decoding.attribute_values import finite

_REACTION, _NOTE = "wandb.reaction.1", "wandb.note.1"
_SCORER = "wandb.runnable."
_PREFIXES = ("wandb.annotation.", _SCORER)
_THUMBS = {"\N{THUMBS UP SIGN}": 1.0, "\N{THUMBS DOWN SIGN}": 0.0}
_VALUES = frozenset({"value", "output", "score"})
"""The keys that say no more than the name above them."""
_LEVELS = 4


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
            "time_ns": time_ns(one.get("created_at")) or time,
        }
        own = str(one.get("id") or f"{trajectory_id}:{agent_id}:{kind}")
        if kind == _NOTE:
            note = json_object(payload).get("note")
            if isinstance(note, str) and note:
                yield Reward(id=own, value=0.0, name="note", explanation=note, counts=False, **common)
            continue
        name = next((kind.removeprefix(prefix) for prefix in _PREFIXES if kind.startswith(prefix)), kind)
        if kind == _REACTION:
            emoji = json_object(payload).get("detoned", json_object(payload).get("emoji"))
            name, payload = "reaction", _THUMBS.get(emoji) if isinstance(emoji, str) else None
        values = list(numbers(payload, name))
        for number, (of, value) in enumerate(values):
            yield Reward(id=f"{own}:{of}" if number else own, value=value, name=of, **common)
        if not values:
            yield LeftOutItem("feedback without a number")


def numbers(value: Any, name: str, levels: int = _LEVELS) -> Iterator[tuple[str, float]]:
    """The numbers in a score, each with its name (`correct` of a scorer `judge` is `judge.correct`). True is 1."""
    found = float(value) if isinstance(value, bool) else finite(value)
    if found is not None:
        yield name, found
    elif isinstance(value, dict) and levels:
        for key, one in value.items():
            yield from numbers(one, name if key in _VALUES else f"{name}.{key}", levels - 1)


def scores(given: Any, trajectory_id: str, time: int) -> _Given:
    """What the scorers of an evaluation said of an example, each by its name."""
    for scorer, one in json_object(given).items():
        values = list(numbers(one, scorer))
        for of, value in values:
            yield Reward(id=f"{trajectory_id}:{of}", trajectory_id=trajectory_id, value=value, name=of, time_ns=time)
        if not values and one not in (None, {}):
            yield LeftOutItem("scores that are no numbers")


def as_events(rewards: _Given) -> Iterator[SpanEvent | LeftOutItem]:
    """Rewards as events of the span that they are of, whose run only the spans above it say."""
    for one in rewards:
        if isinstance(one, LeftOutItem):
            yield one
        elif one.counts:
            yield from reward_span(one).events
        else:
            yield LeftOutItem("notes on parts of evaluations")
