"""Spans of frameworks for agents under the names of the conventions: what they write by names of their own."""
