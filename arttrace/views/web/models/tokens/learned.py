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
    FAR,
    LEARNED_TOKENS,
    LEFT_OUT,
    MASKED,
    LearnedSequence,
    decode_learned,
    sequence_key,
)
from arttrace.store.rows.columns import MADE_BY

_FARTHEST = 12

FATES = {
    "clipped": "clipped",
    "masked": "left out by the importance mask",
    "left_out": "left out: engine and learner too far apart",
    "far": "engine and learner too far apart, trained all the same (trl)",
}
"""What became of a token that did not simply count, in words."""
SHORT = {"clipped": "clipped", "masked": "masked", "left_out": "left out", "far": "far apart"}
"""The same in a count."""
NO_ROOM = "no numbers of this sequence: its advantage was 0, or it is among the {:,} tokens without room in the file"

METHODS = {"grpo": "GRPO", "distill": "distillation", "sft": "SFT", "dpo": "DPO", "fork": "a fork"}
NO_NUMBERS = {
    "grpo": "The learner's own log-probability of each token of this sequence is not on this machine: the step did not "
    "compute it (the advantage was 0), or the version was pruned or made before they were kept.",
    "distill": "The learner's own log-probability of each token of this sequence is not on this machine: the version "
    "was pruned.",
    "sft": "SFT trained on the text of every answer in the run, tokenised anew, whoever sampled it, and keeps no "
    "numbers of single tokens. What is marked here is what GRPO trains.",
    "dpo": "DPO compared the text of the answers in this run's last history with those of another run, tokenised anew, "
    "and keeps no numbers of single tokens. What is marked here is what GRPO trains.",
    "fork": "A fork is a copy: its steps of before it have the numbers, where they were kept.",
}
"""Why there is nothing of single tokens, by the method of the step."""

STEPS_OF_RUN = f"""SELECT c.policy, c.step, (p.metrics->>'logprob_difference_mean')::DOUBLE,
    (p.metrics->>'logprob_difference_max')::DOUBLE, coalesce(p.adapter, ''),
    coalesce((SELECT arg_max({MADE_BY}, time_ns) FROM policy_step_records s
        WHERE s.policy = c.policy AND s.step = c.step), 'grpo')
    FROM trained_on c LEFT JOIN policy_steps p ON p.policy = c.policy AND p.step = c.step
    WHERE c.trajectory_id = {{}} ORDER BY 1, 2 LIMIT 20"""  # noqa: S608


class LearnedToken(msgspec.Struct, frozen=True):
    """One trained token, as a step's loss used it: the learner's log-probability, the importance ratio, the advantage,
    and what became of it; see the flags of the file."""

    logprob: float
    ratio: float
    advantage: float
    clipped: bool
    left_out: bool
    masked: bool
    far: bool

    @property
    def marked(self) -> bool:
        """Whether it counted for less than the others, or is doubtful."""
        return self.clipped or self.left_out or self.masked or self.far

    @property
    def words(self) -> str:
        """What became of it; nothing for one that counted whole."""
        said = [words for name, words in FATES.items() if getattr(self, name)]
        return ", ".join(said)


class Learned(msgspec.Struct, frozen=True):
    """What one step, `version` by the name of what came out of it, computed for the tokens of a sequence, by place;
    none, where its file had no room: `without_room` counts such tokens of the whole step."""

    version: str
    tokens: dict[int, LearnedToken]
    without_room: int = 0

    @property
    def fates(self) -> str:
        """How many tokens were clipped, masked, left out and far, in words."""
        counts = {name: sum(getattr(token, name) for token in self.tokens.values()) for name in FATES}
        return ", ".join(f"{count:,} {SHORT[name]}" for name, count in counts.items() if count) or "all counted whole"


class LearnedColumns(msgspec.Struct, frozen=True, omit_defaults=True):
    """The same as arrays, one entry per trained token that the file has; `advantages` are there where each token has
    its own, and `advantage` is null."""

    version: str
    advantage: float | None
    places: tuple[int, ...]
    logprobs: tuple[float, ...]
    ratios: tuple[float, ...]
    clipped: tuple[bool, ...]
    left_out: tuple[bool, ...]
    masked: tuple[bool, ...]
    far: tuple[bool, ...]
    without_room: int
    advantages: tuple[float, ...] = ()


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


def learned(steps: Iterable[tuple[str, str]], sequences: Iterable[TokenSequence]) -> list[Learned | None]:
    """Of the steps, as version and directory, what the last one that kept numbers of each sequence computed, or that no
    file had room for it; None where none did, or its file is not on this machine."""
    keys = [sequence_key(one) for one in sequences]
    known: dict[str, Learned] = {}
    full: Learned | None = None
    for version, directory in reversed(list(steps)):
        if not (missing := set(keys).difference(known)):
            break
        if not is_kept(directory):
            continue
        try:
            with (Path(directory) / LEARNED_TOKENS).open("rb") as file:
                found = decode_learned(file, missing)
        except (OSError, ValueError):
            continue
        known.update(
            (key, Learned(version, _by_place(one), found.without_room)) for key, one in found.sequences.items()
        )
        if found.without_room and full is None:
            full = Learned(version, {}, found.without_room)
    return [known.get(key, full) for key in keys]


def steps_of(rows: Iterable[Sequence[Any]]) -> tuple[tuple[str, str], ...]:
    """The rows of STEPS_OF_RUN as versions with their directories."""
    return tuple((f"{policy}@{step}", directory) for policy, step, _, _, directory, _ in rows)


def why_no_numbers(rows: Iterable[Sequence[Any]]) -> tuple[str, ...]:
    """Why nothing of single tokens is there, for each method of the rows of STEPS_OF_RUN."""
    return tuple(NO_NUMBERS[method] for method in dict.fromkeys(row[5] for row in rows) if method in NO_NUMBERS)


def in_columns(one: Learned) -> LearnedColumns:
    """As arrays, for programs."""
    tokens = one.tokens.values()
    advantages = tuple(token.advantage for token in tokens)
    same = len(set(advantages)) < 2
    return LearnedColumns(
        one.version,
        next(iter(advantages), 0.0) if same else None,
        tuple(one.tokens),
        tuple(token.logprob for token in tokens),
        tuple(token.ratio for token in tokens),
        tuple(token.clipped for token in tokens),
        tuple(token.left_out for token in tokens),
        tuple(token.masked for token in tokens),
        tuple(token.far for token in tokens),
        one.without_room,
        () if same else advantages,
    )


def _by_place(one: LearnedSequence) -> dict[int, LearnedToken]:
    return {
        place: LearnedToken(
            logprob, ratio, advantage, *(bool(flags & flag) for flag in (CLIPPED, LEFT_OUT, MASKED, FAR))
        )
        for place, logprob, ratio, advantage, flags in zip(
            one.places, one.logprobs, one.ratios, one.advantages, one.flags, strict=True
        )
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
