"""Evaluation results on spans, of whatever SDK, become rewards; and back. Pure.

A record that is no evaluation result (a note, a reward taken back, a judgement, a grouping, a policy step) is carried
by a span as its JSON, which files alone are read for: nobody gives a collector one by sending spans.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from typing import Any

import msgspec

from arttrace.formats.sdks.openinference.feedback import rewards_in, told_of
from arttrace.records import semconv
from arttrace.records.record import PlainRecord, Record, decode_plain_record, encode_record
from arttrace.records.reward import Reward
from arttrace.records.span import SpanEvent, SpanRow
from arttrace.records.values.integers import INT64
from arttrace.trajectories.decoding.attribute_values import finite

_SPAN_PREFIX = "evaluate "
_SCOPE = "arttrace"
_SAID = {
    "name": semconv.EVALUATION_NAME,
    "source": semconv.REWARD_SOURCE,
    "agent_id": semconv.REWARD_AGENT_ID,
    "judgement_id": semconv.REWARD_JUDGEMENT_ID,
    "version": semconv.REWARD_VERSION,
    "given_to": semconv.REWARD_GIVEN_TO,
}
_USUAL = msgspec.structs.asdict(Reward("", "", 0.0))
"""What a record of a reward leaves out: the same reward is the same record however it came."""


def is_reward_span(span: SpanRow) -> bool:
    """Whether a span only carries a reward of ours over OTLP, and is no part of the run. It stands alone and does
    nothing: a part of another system's run may have such a name, and the rewards that it was given."""
    if span.parent_span_id or semconv.OPERATION_NAME in span.attributes or not span.name.startswith(_SPAN_PREFIX):
        return False
    return any(semconv.REWARD_ID in event.attributes for event in span.events)


def reward_span(reward: Reward) -> SpanRow:
    """A reward as a span without length, whose ids follow from the reward's: sent twice it is one."""
    event: dict[str, Any] = {semconv.EVALUATION_SCORE: reward.value, semconv.REWARD_ID: reward.id}
    if reward.explanation:
        event[semconv.EVALUATION_EXPLANATION] = reward.explanation
    event |= {name: text for field, name in _SAID.items() if (text := getattr(reward, field))}
    events = [SpanEvent(semconv.EVALUATION_EVENT, max(reward.time_ns, 0), event)]
    attributes = {semconv.TRAJECTORY_ID: reward.trajectory_id}
    return _carrier(reward.id.encode(), f"{_SPAN_PREFIX}{reward.name}", reward.time_ns, attributes, events)


def record_span(record: PlainRecord) -> SpanRow:
    """A span without length that carries a record; a reward that counts as an evaluation result, where that says all
    of it (a name that is empty would become the usual one, a time before 1970 that moment)."""
    if isinstance(record, Reward) and record.counts and carried(said := reward_span(record)) == [record]:
        return said
    text = encode_record(record)
    name = f"arttrace {type(record).__name__.lower()}"
    return _carrier(text, name, record.time_ns, {semconv.RECORD: text.decode()}, [])


def _carrier(identity: bytes, name: str, time_ns: int, attributes: dict[str, Any], events: list[SpanEvent]) -> SpanRow:
    """A span without length whose ids follow from `identity`."""
    digest = hashlib.blake2b(identity, digest_size=24).hexdigest()
    begin_ns = max(time_ns, 1)
    return SpanRow(
        trace_id=digest[:32],
        span_id=digest[32:],
        name=name,
        start_ns=begin_ns,
        end_ns=begin_ns,
        attributes=attributes,
        events=events,
        scope_name=_SCOPE,
    )


def carried(span: SpanRow) -> list[Record]:
    """The records that a span of a file stands for: its own, unless it only carries others."""
    if is_reward_span(span):
        return list(rewards_of(span)) or [span]
    text = span.attributes.get(semconv.RECORD)
    if span.scope_name == _SCOPE and isinstance(text, str):
        with contextlib.suppress(msgspec.MsgspecError):
            return [decode_plain_record(text)]
    return [span]


def rewards_of(span: SpanRow) -> Iterator[Reward]:
    """The rewards in a span's `gen_ai.evaluation.result` events, of which one without a number is none, and in
    OpenInference's attributes, of which some are notes.

    The id of an event's is the one given, else a hash of the span's ids and the event's place, so that a span delivered
    twice is rewarded once.
    """
    yield from rewards_in(span)
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
    said: dict[str, Any] = {field: _text(event.attributes.get(name)) for field, name in _SAID.items()}
    given_to = _text(span.attributes.get(semconv.TRAJECTORY_ID)) or span.trace_id
    if (about := told_of(span)) is not None and not said["agent_id"]:
        given_to, said["agent_id"], said["of_span"] = about.trajectory_id, about.span_id, True
    return Reward(
        id=_text(event.attributes.get(semconv.REWARD_ID)) or hashlib.blake2b(place, digest_size=16).hexdigest(),
        trajectory_id=given_to,
        value=value,
        explanation=explanation or label,
        time_ns=event.time_ns if event.time_ns in INT64 else INT64.stop - 1,
        **{field: text for field, text in said.items() if text not in ("", _USUAL[field])},
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
