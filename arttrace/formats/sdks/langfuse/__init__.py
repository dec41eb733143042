"""Langfuse: spans as it shows them best, scores, and what its API and its exports give back. Pure."""

from arttrace.formats.sdks.langfuse.export import records, single
from arttrace.formats.sdks.langfuse.names import TYPE
from arttrace.formats.sdks.langfuse.reading import attributes

__all__ = ["TYPE", "attributes", "records", "single"]
