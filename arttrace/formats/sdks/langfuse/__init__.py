"""Langfuse: spans as it shows them best, scores, and what its API and its exports give back. Pure."""

from arttrace.formats.sdks.langfuse.export import records
from arttrace.formats.sdks.langfuse.names import TYPE
from arttrace.formats.sdks.langfuse.reading import attributes
from arttrace.formats.sdks.langfuse.rows import recognises, row, single

__all__ = ["TYPE", "attributes", "recognises", "records", "row", "single"]
