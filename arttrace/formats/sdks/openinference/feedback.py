"""OpenInference's annotations and evaluations, the same under two names: rewards from a span's attributes. Pure.

What is of a span is that of its agent, or of the run where nothing stands above the span; what is of a trace is the
run's. A span that carries what was said afterwards links to the one that it is about, whatever stands above it. What
has no score is a note, and so is what is said of a session, which may be several runs. Source: OpenInference's
spec/annotations.md, semantic conventions 0.1.42.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from arttrace.formats.sdks.openinference.spans import KIND, numbered
from arttrace.records import semconv
from arttrace.records.message import canonical_json
from arttrace.records.reward import JUDGE, PERSON, Reward
from arttrace.records.span import SpanRow
from arttrace.records.values.lenient_json import json_object
from arttrace.trajectories.decoding.attribute_values import as_text, finite, text

Scope = Literal["span", "trace", "session"]

_PREFIXES: tuple[tuple[Scope, str], ...] = (("span", ""), ("trace", "trace."), ("session", "session."))
_FORMS = (("annotations", "annotation"), ("evaluations", "evaluation"))
_SOURCES = {"LLM": JUDGE, "HUMAN": PERSON, "CODE": "code"}
_EVALUATOR = "EVALUATOR"
NO_SCORE = "feedback without a score, kept as notes"
OF_A_SESSION = "feedback on sessions, kept as notes"
OF_NO_SPAN = "feedback that names no single span or trace, kept as notes"


class Target(NamedTuple):
    """What feedback is about: a run or trace, and of a span that is not known to be the uppermost one its id."""

    trajectory_id: str
    span_id: str | None


class _Feedback(NamedTuple):
    """What one object says; `words` are all but the score, `given` is the score in words."""

    name: str
    value: float | None
    given: str
    words: str
    source: str
    identifier: str


def has_feedback(attributes: Mapping[str, Any]) -> bool:
    """Whether there may be any among a span's attributes, which is asked of every span."""
    names = "\n".join(attributes)
    return any(f"{many}." in names for many, _ in _FORMS)


def rewards_in(span: SpanRow) -> Iterator[Reward]:
    """The rewards and notes that a span's attributes are, each once, however many spans or names it came under."""
    for reward, _ in _read(span):
        yield reward


def kept_as_notes(span: SpanRow) -> Iterator[str]:
    """Of each that is no reward why, in the plural."""
    for _, why in _read(span):
        if why:
            yield why


def told_of(span: SpanRow) -> Target | None:
    """What an evaluator's span is about that only carries what was found of one which had ended; None of any other."""
    return _linked(span) if span.attributes.get(KIND) == _EVALUATOR else None


def source_of(annotator_kind: Any) -> str:
    """The source of what an annotator of this kind says; of one that is not said, code."""
    kind = text(annotator_kind) or "CODE"
    return _SOURCES.get(kind, kind)


def _read(span: SpanRow) -> Iterator[tuple[Reward, str]]:
    if not has_feedback(span.attributes):
        return
    for scope, prefix in _PREFIXES:
        seen: set[str] = set()
        for many, one in _FORMS:
            again = Counter[_Feedback]()
            for item in numbered(span.attributes, prefix + many):
                said = _said(json_object(item.get(one)))
                if said is None:
                    continue
                again[said] += 1
                reward, why = _reward(span, scope, said, again[said])
                if reward.id not in seen:
                    seen.add(reward.id)
                    yield reward, why


def _said(item: dict[str, Any]) -> _Feedback | None:
    """None where it has no name, or nothing but that."""
    name, score = text(item.get("name")), item.get("score")
    value = None if isinstance(score, bool) else finite(score)
    given = as_text(score if value is None else value) or ""
    words = [text(item.get("label")), text(item.get("explanation"))]
    if name is None or not any((value is not None, given, *words)):
        return None
    source, identifier = source_of(item.get("annotator_kind")), text(item.get("identifier")) or ""
    return _Feedback(name, value, given, ": ".join(filter(None, words)), source, identifier)


def _reward(span: SpanRow, scope: Scope, said: _Feedback, number: int) -> tuple[Reward, str]:
    """What one object is, and why it is only a note. `number` distinguishes it among those of its span that say the
    same."""
    target = _target(span, scope)
    explanation, why = said.words, ""
    if scope == "session":
        session = text(span.attributes.get(semconv.SESSION_ID)) or ""
        explanation, why = f"of session {session}: {_whole(said)}", OF_A_SESSION
    elif target is None:
        explanation, why = f"of several spans: {_whole(said)}", OF_NO_SPAN
    elif said.value is None:
        explanation, why = _whole(said), NO_SCORE
    about = target or Target(span.trace_id, None)
    origin = [said.identifier] if said.identifier else [span.trace_id, span.span_id, *said, number]
    key = canonical_json([scope, *about, said.name, *origin])
    reward = Reward(
        id=hashlib.blake2b(key, digest_size=16).hexdigest(),
        trajectory_id=about.trajectory_id,
        value=0.0 if said.value is None or why else said.value,
        name=said.name,
        source=said.source,
        agent_id=about.span_id,
        explanation=explanation,
        time_ns=max(span.end_ns, span.start_ns),
        counts=not why,
        of_span=about.span_id is not None,
    )
    return reward, why


def _whole(said: _Feedback) -> str:
    """As a note has it, which shows nothing else."""
    return f"{said.name}: {', '.join(filter(None, (said.given, said.words)))}"


def _target(span: SpanRow, scope: Scope) -> Target | None:
    """What feedback of this scope is about; None where a span that only carries it does not say."""
    attributes = span.attributes
    kind = text(attributes.get(KIND))
    carries = kind == _EVALUATOR or not (kind or semconv.OPERATION_NAME in attributes)
    if carries and span.links:
        if scope == "span":
            return _linked(span)
        traces = {link.trace_id for link in span.links}
        return Target(traces.pop(), None) if len(traces) == 1 else None
    own = text(attributes.get(semconv.TRAJECTORY_ID)) or span.trace_id
    return Target(own, span.span_id if scope == "span" and span.parent_span_id else None)


def _linked(span: SpanRow) -> Target | None:
    """The span that this one links to; None where there are several, or none."""
    return Target(span.links[0].trace_id, span.links[0].span_id) if len(span.links) == 1 else None
