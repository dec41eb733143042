"""The owner of the data: schema, ingest, queries over one DuckDB file."""

from arttrace.store.store import Store
from arttrace.store.summary import TrajectorySummary

__all__ = ["Store", "TrajectorySummary"]
