"""What a step computed for the trained tokens of a sequence, beside what the engine said when it sampled them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from arttrace.records.sequence import TokenSequence
from arttrace.records.values.learned_tokens import (
    CLIPPED,
    LEARNED_TOKENS,
    LEFT_OUT,
    LearnedSequence,
    decode_learned,
    sequence_key,
)

_FARTHEST = 12

STEPS_OF_RUN = """SELECT c.policy, c.step, (p.metrics->>'logprob_difference_mean')::DOUBLE,
    (p.metrics->>'logprob_difference_max')::DOUBLE, coalesce(p.adapter, '')
    FROM consumption c LEFT JOIN policy_steps p ON p.policy = c.policy AND p.step = c.step
    WHERE c.trajectory_id = '{}' ORDER BY 1, 2 LIMIT 20"""


class LearnedToken(msgspec.Struct, frozen=True):
    """One trained token, as a step's loss used it: the learner's log-probability, the importance ratio, the advantage,
    whether the ratio was clipped or masked, and whether the token had no weight."""

    logprob: float
    ratio: float
    advantage: float
    clipped: bool
    left_out: bool


class Learned(msgspec.Struct, frozen=True):
    """What one step, `version` by the name of what came out of it, computed for the tokens of a sequence, by place."""

    version: str
    tokens: dict[int, LearnedToken]


class LearnedColumns(msgspec.Struct, frozen=True):
    """The same as arrays, one entry per trained token."""

    version: str
    advantage: float
    places: tuple[int, ...]
    logprobs: tuple[float, ...]
    ratios: tuple[float, ...]
    clipped: tuple[bool, ...]
    left_out: tuple[bool, ...]


class Farthest(msgspec.Struct, frozen=True):
    """A token about which the learner and the engine differ: its place and both log-probabilities."""

    place: int
    engine: float
    learner: float


def is_kept(directory: str) -> bool:
    """Whether the version in a directory has its file here."""
    try:
        return bool(directory) and (Path(directory) / LEARNED_TOKENS).is_file()
    except (OSError, ValueError):
        return False


def learned(steps: Iterable[tuple[str, str]], sequence: TokenSequence) -> Learned | None:
    """Of the steps, as version and directory, what the last one that kept numbers of the sequence computed; None where
    none did, or its file is not on this machine."""
    key = sequence_key(sequence)
    for version, directory in reversed(list(steps)):
        if not is_kept(directory):
            continue
        try:
            with (Path(directory) / LEARNED_TOKENS).open("rb") as file:
                found = decode_learned(file, (key,)).get(key)
        except (OSError, ValueError):
            continue
        if found is not None:
            return Learned(version, _by_place(found))
    return None


def steps_of(rows: Iterable[Sequence[Any]]) -> tuple[tuple[str, str], ...]:
    """The rows of STEPS_OF_RUN as versions with their directories."""
    return tuple((f"{policy}@{step}", directory) for policy, step, _, _, directory in rows)


def in_columns(one: Learned) -> LearnedColumns:
    """As arrays, for programs."""
    tokens = one.tokens.values()
    return LearnedColumns(
        one.version,
        next((token.advantage for token in tokens), 0.0),
        tuple(one.tokens),
        tuple(token.logprob for token in tokens),
        tuple(token.ratio for token in tokens),
        tuple(token.clipped for token in tokens),
        tuple(token.left_out for token in tokens),
    )


def _by_place(one: LearnedSequence) -> dict[int, LearnedToken]:
    return {
        place: LearnedToken(logprob, ratio, one.advantage, bool(flags & CLIPPED), bool(flags & LEFT_OUT))
        for place, logprob, ratio, flags in zip(one.places, one.logprobs, one.ratios, one.flags, strict=True)
    }


def farthest(sequence: TokenSequence, tokens: Mapping[int, LearnedToken]) -> Sequence[Farthest]:
    """The tokens about which learner and engine differ the most, the farthest apart first."""
    found = [
        Farthest(place, engine, token.logprob)
        for place, token in tokens.items()
        if place < len(sequence.logprobs) and (engine := sequence.logprobs[place]) is not None
    ]
    return sorted(found, key=_apart, reverse=True)[:_FARTHEST]


def _apart(one: Farthest) -> float:
    gap = abs(one.learner - one.engine)
    return math.inf if math.isnan(gap) else gap
