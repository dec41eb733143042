"""Evaluation results on spans, of whatever SDK, become rewards; and back. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from arttrace.records import semconv
from arttrace.records.reward import Reward
from arttrace.records.span import SpanEvent, SpanRow
from arttrace.records.values.integers import INT64
from arttrace.trajectories.decoding.attribute_values import finite

_SPAN_PREFIX = "evaluate "


def is_reward_span(span: SpanRow) -> bool:
    """Whether a span only carries a reward of ours over OTLP, and is no part of the run."""
    return span.name.startswith(_SPAN_PREFIX) and any(semconv.REWARD_ID in event.attributes for event in span.events)


def reward_span(reward: Reward) -> SpanRow:
    """A reward as a span without length, whose ids follow from the reward's: sent twice it is one."""
    digest = hashlib.blake2b(reward.id.encode(), digest_size=24).hexdigest()
    time_ns = max(reward.time_ns, 1)
    event: dict[str, Any] = {
        semconv.EVALUATION_NAME: reward.name,
        semconv.EVALUATION_SCORE: reward.value,
        semconv.REWARD_ID: reward.id,
        semconv.REWARD_SOURCE: reward.source,
    }
    if reward.explanation:
        event[semconv.EVALUATION_EXPLANATION] = reward.explanation
    if reward.agent_id is not None:
        event[semconv.REWARD_AGENT_ID] = reward.agent_id
    return SpanRow(
        trace_id=digest[:32],
        span_id=digest[32:],
        name=f"{_SPAN_PREFIX}{reward.name}",
        start_ns=time_ns,
        end_ns=time_ns,
        attributes={semconv.TRAJECTORY_ID: reward.trajectory_id},
        events=[SpanEvent(semconv.EVALUATION_EVENT, time_ns, event)],
        scope_name="arttrace",
    )


def rewards_of(span: SpanRow) -> Iterator[Reward]:
    """The rewards in a span's `gen_ai.evaluation.result` events. One without a number is none.

    Its id is the one given, else a hash of the span's ids and the event's place, so that a span delivered twice is
    rewarded once.
    """
    for index, event in enumerate(span.events):
        score = event.attributes.get(semconv.EVALUATION_SCORE)
        if event.name != semconv.EVALUATION_EVENT or isinstance(score, bool):
            continue
        value = finite(score)
        if value is not None:
            yield _reward(span, event, index, value)


def _reward(span: SpanRow, event: SpanEvent, index: int, value: float) -> Reward:
    place = f"{span.trace_id}/{span.span_id}/{index}".encode()
    label, explanation = (
        _text(event.attributes.get(name)) for name in (semconv.EVALUATION_LABEL, semconv.EVALUATION_EXPLANATION)
    )
    return Reward(
        id=_text(event.attributes.get(semconv.REWARD_ID)) or hashlib.blake2b(place, digest_size=16).hexdigest(),
        trajectory_id=_text(span.attributes.get(semconv.TRAJECTORY_ID)) or span.trace_id,
        value=value,
        name=_text(event.attributes.get(semconv.EVALUATION_NAME)) or "reward",
        source=_text(event.attributes.get(semconv.REWARD_SOURCE)) or "code",
        agent_id=_text(event.attributes.get(semconv.REWARD_AGENT_ID)) or None,
        explanation=explanation or label,
        time_ns=event.time_ns if event.time_ns in INT64 else INT64.stop - 1,
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
