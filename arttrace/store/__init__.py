"""The store: schema, ingest and queries over one DuckDB file."""

from arttrace.store.access.any_store import AnyStore
from arttrace.store.access.local import Store
from arttrace.store.access.open_store import open_store
from arttrace.store.access.remote import RemoteStore
from arttrace.store.rows.summary import TrajectorySummary

__all__ = ["AnyStore", "RemoteStore", "Store", "TrajectorySummary", "open_store"]
