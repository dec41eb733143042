"""Spans and rewards for Langfuse one by one, as they come: what a shipper sends. Environment and release are the
process's own."""

from __future__ import annotations

import os

import msgspec

from arttrace.formats.sdks.conventions import normalise
from arttrace.formats.sdks.langfuse.api import NotNumeric, Scored, score
from arttrace.formats.sdks.langfuse.writing import as_it_says, observation
from arttrace.records.reward import Reward
from arttrace.records.span import SpanRow


def formed(span: SpanRow) -> SpanRow:
    """The span as Langfuse shows it best."""
    environ = os.environ
    run = as_it_says(span, environ.get("LANGFUSE_TRACING_ENVIRONMENT"), environ.get("LANGFUSE_RELEASE"))
    return observation(span, run, read=normalise(span))


def scored(reward: Reward) -> bytes | None:
    """The body of the request for a reward's score, as a push sends it; None where its trace is not known."""
    trace, _, root = reward.given_to.partition("/")
    if not trace:
        return None
    environment = os.environ.get("LANGFUSE_TRACING_ENVIRONMENT") or None
    try:
        body = score(reward, Scored(trace, root or None), environment=environment, time_ns=reward.time_ns)
    except NotNumeric:
        return None
    return msgspec.json.encode(body)
