"""The summaries of many runs, a page of them in memory at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from arttrace.store.access.any_store import AnyStore
from arttrace.store.access.queries import OF_RUNS
from arttrace.store.bounded_parts import batched
from arttrace.store.file.reading import InParts
from arttrace.store.rows.span_membership import BEGAN
from arttrace.store.rows.summary import SUMMARY_VERSION, TrajectorySummary
from arttrace.system.errors import StoreError

_IDS_OF_PAGE = 50_000
_RUNS_OF_PAGE = 2_000  # of 2 to 6 KB each; every page costs a look through the table of spans

KNOWN = f"SELECT trajectory_id FROM summaries WHERE version = '{SUMMARY_VERSION}'"  # noqa: S608
"""The ids, as recorded, of runs that have a summary."""

_UNREAD = f"""FROM span_records WHERE trajectory_id IS NOT NULL AND {OF_RUNS}
    AND trajectory_id NOT IN ({KNOWN})"""

UNREAD = f"SELECT count(DISTINCT trajectory_id) {_UNREAD}"
"""How many runs have no summary yet."""

NEWEST_UNREAD = f"""SELECT trajectory_id, count(*) {_UNREAD} GROUP BY 1 ORDER BY {BEGAN} DESC, 1 LIMIT {{}}"""
"""The ids of some of them and the number of spans of each, newest first."""


def summary_pages(
    store: AnyStore, ids: Iterable[str] | None = None, *, since_ns: int | None = None
) -> Iterator[list[TrajectorySummary]]:
    """The summaries of all runs, a page at a time, roughly newest first: of `ids` alone (the runs' own or those that
    they were recorded under), or of runs with a span since `since_ns`. A run of a trace with several may come twice.
    Raises StoreError."""
    [(unread,)] = store.sql(UNREAD)[1]
    parts = InParts(unread)
    for page in batched(_recorded(store, since_ns) if ids is None else ids, _RUNS_OF_PAGE):
        with parts.next():
            found = store.summaries(ids=page)
        yield found


def _recorded(store: AnyStore, since_ns: int | None) -> Iterator[str]:
    before: tuple[int, str] | None = None
    while page := _page(store, before, since_ns):
        before = page[-1]
        for _, id in page:
            yield id


def _page(store: AnyStore, before: tuple[int, str] | None, since_ns: int | None) -> list[tuple[int, str]]:
    if since_ns is not None:
        try:
            return store.recorded_ids(limit=_IDS_OF_PAGE, before=before, since_ns=since_ns)
        except StoreError as error:
            if "unknown field `since_ns`" not in error.message:  # an owner of an earlier version
                raise
    return store.recorded_ids(limit=_IDS_OF_PAGE, before=before)
