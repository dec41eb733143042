"""The owner of the data: schema, ingest, queries over one DuckDB file."""

from arttrace.store.opening import open_store
from arttrace.store.remote import AnyStore, RemoteStore
from arttrace.store.store import Store
from arttrace.store.summary import TrajectorySummary

__all__ = ["AnyStore", "RemoteStore", "Store", "TrajectorySummary", "open_store"]
