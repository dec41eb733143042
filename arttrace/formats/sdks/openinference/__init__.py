"""OpenInference: what its spans say, and what is said of them by its annotations and evaluations. Pure."""

from arttrace.formats.sdks.openinference.spans import KIND, attributes, flat, numbered

__all__ = ["KIND", "attributes", "flat", "numbered"]
