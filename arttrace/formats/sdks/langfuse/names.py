"""The attribute names that Langfuse's OpenTelemetry endpoint reads, as its server 4 has them.

Source: `LangfuseOtelSpanAttributes` of the server (packages/shared/src/server/otel/attributes.ts), which the `langfuse`
SDK exports under the same name; tests/views/langfuse/test_round_trip.py compares the two.
"""

from __future__ import annotations

from typing import Final

from arttrace.records import semconv

TYPE: Final = "langfuse.observation.type"
INPUT: Final = "langfuse.observation.input"
OUTPUT: Final = "langfuse.observation.output"
METADATA: Final = "langfuse.observation.metadata"
LEVEL: Final = "langfuse.observation.level"
STATUS_MESSAGE: Final = "langfuse.observation.status_message"
MODEL: Final = "langfuse.observation.model.name"
MODEL_PARAMETERS: Final = "langfuse.observation.model.parameters"
USAGE_DETAILS: Final = "langfuse.observation.usage_details"  # JSON of integers in buckets that exclude each other
COST_DETAILS: Final = semconv.STATED_COSTS_IN_JSON
COMPLETION_START_TIME: Final = "langfuse.observation.completion_start_time"  # ISO 8601 with offset

TRACE_NAME: Final = semconv.LANGFUSE_TRACE_NAME
TRACE_TAGS: Final = semconv.LANGFUSE_TRACE_TAGS
TRACE_METADATA: Final = "langfuse.trace.metadata"
SESSION_ID: Final = semconv.SESSION_ID
USER_ID: Final = semconv.USER_ID
ENVIRONMENT: Final = "langfuse.environment"
RELEASE: Final = "langfuse.release"
IS_APP_ROOT: Final = "langfuse.internal.is_app_root"

EXPERIMENT_ID: Final = "langfuse.experiment.id"
EXPERIMENT_NAME: Final = "langfuse.experiment.name"
EXPERIMENT_ITEM_ID: Final = "langfuse.experiment.item.id"
EXPERIMENT_ITEM_ROOT: Final = "langfuse.experiment.item.root_observation_id"

SPAN_KEY: Final = "arttrace_span"
"""The key of an observation's metadata under which the span stands as it was captured, without what Langfuse shows."""
