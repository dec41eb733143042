"""Token sequences as the learner sees them: what is trained and what is context, how likely each sampled token was,
why there are as many sequences as there are, and what is not trained on, in words."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from arttrace.records.sequence import NotTrained, TokenReport, TokenSequence
from arttrace.records.trajectory import AgentCall, Relation, Trajectory
from arttrace.records.values.equal_rewards import are_equal, exact_mean
from arttrace.trajectories.sequences import why_not_trained
from arttrace.views.web.models.tokens.learned import LearnedToken
from arttrace.views.web.models.tokens.token_pieces import Pieces

LEVELS = 10
"""Shades of probability, 0 the least likely."""
_UNLIKELY = 12
_MOST_CALLS = 5

WORDS: Mapping[NotTrained, tuple[str, str]] = {
    NotTrained.NO_TOKEN_IDS: (
        "The answer came without token ids, so that nobody knows which tokens were sampled.",
        "Send the agent's calls through `arttrace serve`, or ask vLLM with return_token_ids and logprobs.",
    ),
    NotTrained.NO_LOGPROBS: (
        "Tokens came without the log-probabilities under which they were sampled.",
        "Ask the engine for logprobs; `arttrace serve` does.",
    ),
    NotTrained.COLLIDED: (
        "Other content was found under the same span id: which of the two was said is not known.",
        "A program that seeds `random` gives the same ids twice; give OpenTelemetry an id generator of its own.",
    ),
    NotTrained.TRUNCATED: ("The content was cut to a bound, so that it is not what the model saw.", "Raise the bound."),
    NotTrained.MASKED: ("The content was redacted or masked, so that it is not what the model saw.", ""),
    NotTrained.ERROR: ("The call failed, or its answer could not be read.", "Its span has the error."),
    NotTrained.IN_PROGRESS: ("The call has not ended, or its end never arrived.", ""),
    NotTrained.COUNT_DIFFERS: ("There are not as many token ids as the engine counted in its usage.", ""),
    NotTrained.PROMPT_COUNT_DIFFERS: (
        "There are not as many prompt token ids as the engine counted in its usage.",
        "A limit on the length of attributes may have cut them.",
    ),
    NotTrained.RECORDED_TWICE: ("Two instrumentations recorded the same call; the other record counts.", ""),
    NotTrained.NOT_AT_TEMPERATURE_1: (
        "It was sampled at another temperature than 1, and the log-probabilities do not include that.",
        "Serve with processed log-probabilities, or sample at temperature 1.",
    ),
    NotTrained.ALTERED_SAMPLING: (
        "top_p, top_k or a penalty narrowed or shifted the sampling: these tokens came from another distribution than "
        "the policy's own.",
        "Leave top_p at 1 and top_k and penalties off in runs that train.",
    ),
    NotTrained.MEDIA: ("It answers to an image, a sound or a video, which the learner is not given.", ""),
    NotTrained.OTHER_POLICY: ("Another policy sampled it.", ""),
    NotTrained.NO_POLICY_VERSION: ("Which version of which policy answered is not recorded.", ""),
}
"""Why the sampled tokens of a call are not targets, and what can be done about it."""


class Token(msgspec.Struct, frozen=True):
    """A trained token, or a stretch of context: `count` tokens in one piece of text."""

    text: str
    trained: bool
    count: int
    place: int
    id: int
    logprob: float | None
    level: int
    version: str
    begins: bool
    """Whether an answer begins here."""
    learned: LearnedToken | None = None
    """What a step computed for it."""


class SequenceRow(msgspec.Struct, frozen=True):
    """A sequence in the list of them, with why it is one of its own."""

    number: int
    agent: str
    tokens: int
    trained: int
    versions: tuple[str, ...]
    calls: int
    why: str


class LeftOut(msgspec.Struct, frozen=True):
    """Calls whose tokens are not trained on: the reason, in words, what can be done, and the first of their spans."""

    reason: str
    calls: int
    words: str
    hint: str
    span_ids: tuple[str, ...]


class Unlikely(msgspec.Struct, frozen=True):
    """A trained token that was improbable."""

    place: int
    text: str
    probability: float


def sequence_rows(run: Trajectory, made: Sequence[TokenSequence]) -> tuple[SequenceRow, ...]:
    """Every sequence, and why the run became as many."""
    names = {agent.id: agent.name for agent in run.agents}
    placed = {one.call.span_id: one for one in run.calls}
    seen: dict[str, _Earlier] = {}
    rows: list[SequenceRow] = []
    for number, one in enumerate(made):
        earlier = seen.setdefault(one.agent_id, _Earlier([], set()))
        agent = names.get(one.agent_id, one.agent_id)
        why = _why(one, earlier, placed) if earlier.sequences else f"the first of agent {agent}"
        earlier.add(one)
        versions = one.policy_versions
        rows.append(
            SequenceRow(number, agent, len(one.token_ids), one.trained_tokens, versions, len(one.call_ids), why)
        )
    return tuple(rows)


class _Earlier(NamedTuple):
    """The sequences of one agent so far, in order of their tokens, and the calls in them."""

    sequences: list[tuple[int, ...]]
    calls: set[str]

    def add(self, one: TokenSequence) -> None:
        insort(self.sequences, one.token_ids)
        self.calls.update(one.call_ids)

    def shared(self, ids: tuple[int, ...]) -> int:
        """With how many tokens these begin as one of the sequences does: in order, the likest stand beside them."""
        at = bisect_left(self.sequences, ids)
        return max(_common(ids, other) for other in self.sequences[max(at - 1, 0) : at + 1])


def _why(one: TokenSequence, earlier: _Earlier, placed: Mapping[str, AgentCall]) -> str:
    shared = earlier.shared(one.token_ids)
    own = next((id for id in one.call_ids if id not in earlier.calls), "")
    call = placed.get(own)
    how = ""
    if call is not None and call.relation not in (Relation.START, Relation.EXTENDS):
        how = f": {call.relation.value}" + (f", {call.evidence}" if call.evidence else "")
    if not shared:
        return f"shares no token with the others{how}"
    return f"parts from an earlier one at token {shared}{how}"


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[:middle] == second[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def tokens(
    one: TokenSequence,
    pieces: Pieces,
    first: int,
    count: int,
    computed: Mapping[int, LearnedToken] = MappingProxyType({}),
) -> list[Token]:
    """`count` tokens from the place `first` on; context that hangs together is one item. `computed` is what a step
    computed, by place."""
    last = min(first + count, len(one.token_ids))
    found: list[Token] = []
    place = first
    while place < last:
        if one.trained[place]:
            began = not place or not one.trained[place - 1]
            found.append(_trained(one, pieces, place, began, computed.get(place)))
            place += 1
            continue
        until = place
        while until < last and not one.trained[until]:
            until += 1
        ids = one.token_ids[place:until]
        found.append(Token(text_of(ids, pieces), False, until - place, place, -1, None, LEVELS, "", False))
        place = until
    return found


def _trained(one: TokenSequence, pieces: Pieces, place: int, began: bool, learned: LearnedToken | None) -> Token:
    logprob = one.logprobs[place]
    level = LEVELS - 1 if logprob is None else min(int(math.exp(min(logprob, 0.0)) * LEVELS), LEVELS - 1)
    version = one.policy_versions[one.versions[place]] if one.versions[place] >= 0 else ""
    id = one.token_ids[place]
    return Token(text_of((id,), pieces), True, 1, place, id, logprob, level, version, began, learned)


def text_of(ids: Sequence[int], pieces: Pieces) -> str:
    """The text of ids; ids that no piece is known of stand as numbers."""
    if not pieces:
        return " ".join(map(str, ids)) + " "
    return b"".join(pieces.get(id, f"[{id}]".encode()) for id in ids).decode("utf-8", "replace")


def unlikely(one: TokenSequence, pieces: Pieces) -> tuple[Unlikely, ...]:
    """The trained tokens that were the least likely, the least first."""
    known = ((value, place) for place, value in enumerate(one.logprobs) if value is not None and one.trained[place])
    return tuple(
        Unlikely(place, text_of((one.token_ids[place],), pieces), math.exp(value))
        for value, place in heapq.nsmallest(_UNLIKELY, known)
    )


def left_out(run: Trajectory, report: TokenReport) -> tuple[LeftOut, ...]:
    """Why calls are not trained on, the most frequent reason first."""
    spans: dict[str, list[str]] = {}
    for placed in run.calls:
        if (reason := why_not_trained(placed.call)) is not None:
            spans.setdefault(str(reason), []).append(placed.call.span_id)
    rows = []
    for name, count in Counter(report.reasons).most_common():
        words, hint = WORDS.get(NotTrained(name), (name, ""))
        rows.append(LeftOut(name, count, words, hint, tuple(spans.get(name, ())[:_MOST_CALLS])))
    return tuple(rows)


class Advantage(msgspec.Struct, frozen=True):
    """A run's reward against those that it is compared with: how many these are, their mean, and the difference."""

    reward: float
    mean: float
    runs: int
    value: float


def advantages(parts: Iterable[Mapping[str, float]]) -> dict[str, Advantage]:
    """The advantage of each run of a group at scale "none", which is the default, by its id; none where there is nobody
    to be compared with. `parts` has the rewards of the runs that are compared, those with each other in one mapping."""
    found: dict[str, Advantage] = {}
    for part in parts:
        if len(part) > 1:
            values = tuple(part.values())
            mean, equal = exact_mean(values), are_equal(values)
            for id, reward in part.items():
                found[id] = Advantage(reward, mean, len(values), 0.0 if equal else reward - mean)
    return found
