"""A judge's answer: its form, and how it is read, strict about ids, count and range."""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from arttrace.records.values.lenient_json import well_formed
from arttrace.records.values.nesting import UNREADABLE

_THOUGHTS, _END_OF_THOUGHTS = "<think>", "</think>"
ANSWER_FORMAT: dict[str, Any] = {
    "type": "json_schema",
    "json_schema": {
        "name": "scores",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {
                "scores": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            "trajectory_id": {"type": "string"},
                            "explanation": {"type": "string"},
                            "score": {"type": "number"},
                        },
                        "required": ["trajectory_id", "explanation", "score"],
                        "additionalProperties": False,
                    },
                }
            },
            "required": ["scores"],
            "additionalProperties": False,
        },
    },
}
"""`response_format` of a chat completion request, in OpenAI's form for structured output."""


class TrajectoryScore(msgspec.Struct, frozen=True):
    """A judge's score of one trajectory, in 0..1, and why."""

    trajectory_id: str
    explanation: str
    score: float


CUT_OFF: Mapping[str, str] = {
    "length": "it was cut off at its limit of tokens",
    "content_filter": "it was cut off by its provider's filter",
}
"""What to say of an answer by its finish reason."""


def read_answer(text: str, ids: Collection[str], cut_off: str = "") -> dict[str, TrajectoryScore]:
    """The scores in a judge's answer by id: one for each of `ids`, whatever their order.

    Text around the JSON (a code fence, reasoning) is passed over; `cut_off` is as `listed` has it. Raises ValueError
    saying what is wrong when there is no such JSON, an id is missing, unknown or scored twice, or a score is no number
    in 0..1.
    """
    scores: dict[str, TrajectoryScore] = {}
    for entry in listed(text, "scores", cut_off):
        if not isinstance(entry, dict) or "trajectory_id" not in entry:
            raise ValueError("an entry of `scores` has no trajectory_id")
        id, score = str(entry["trajectory_id"]), entry.get("score")
        if id not in ids:
            raise ValueError(f"it scored trajectory {id[:40]!r}, which was not asked for")
        if id in scores:
            raise ValueError(f"it scored trajectory {id!r} twice")
        is_nan = isinstance(score, float) and math.isnan(score)
        if isinstance(score, bool) or not isinstance(score, int | float) or is_nan:
            raise ValueError(f"the score of trajectory {id!r} is no number")
        if not 0 <= score <= 1:
            raise ValueError(f"the score of trajectory {id!r} is {reprlib.repr(score)}, outside 0..1")
        scores[id] = TrajectoryScore(id, str(entry.get("explanation") or ""), float(score))
    if len(scores) != len(ids):
        missing = ", ".join(id for id in ids if id not in scores)
        raise ValueError(f"it scored {len(scores)} of {len(ids)} trajectories (missing: {missing})")
    return scores


def listed(text: str, name: str, cut_off: str = "") -> list[Any]:
    """The list under `name` in the JSON object of a text that has one, as text that UTF-8 can hold. Of several, those
    in the model's thoughts, which `</think>` ends, are drafts. `cut_off` says what ended the text before its model did,
    "" where nothing did.

    Raises ValueError when there is none, when there are several that differ (one of them may be what the text quotes,
    as a run's own words about its worth), and when the text was cut off within what may be another one.
    """
    is_cut = text.lstrip().startswith(_THOUGHTS) and _END_OF_THOUGHTS not in text
    found = [] if is_cut else _each_listed(text, name)
    if cut_off and (not found or "{" in text[found[-1][1] :]):
        raise ValueError(cut_off)
    if any(one != found[0][0] for one, _ in found):
        found = [(one, end) for one, end in found if _END_OF_THOUGHTS not in text[end:]] or found
    if not found:
        raise ValueError(f"it holds no JSON with `{name}`: {text[:120]!r}")
    entries = found[0][0]
    if any(one != entries for one, _ in found):
        raise ValueError(
            f"it holds {len(found)} lists of `{name}` that differ: write the one that is meant, and no other"
        )
    return entries


def _each_listed(text: str, name: str) -> list[tuple[list[Any], int]]:
    """Each list under `name`, with the place in the text behind its object."""
    decoder = json.JSONDecoder()
    found: list[tuple[list[Any], int]] = []
    start = text.find("{")
    while start >= 0:
        try:
            value, end = decoder.raw_decode(text, start)
        except UNREADABLE:
            end = start + 1
        else:
            if isinstance(value, dict) and isinstance(value.get(name), list):
                found.append((well_formed(value[name]), end))
        start = text.find("{", end)
    return found
