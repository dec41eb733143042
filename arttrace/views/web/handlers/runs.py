"""`/runs`: the list, its further pages, and what has changed since it was drawn."""

from __future__ import annotations

import functools
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response

from arttrace.views.run_filter import STATUSES
from arttrace.views.web.handlers.request_fields import reader_of
from arttrace.views.web.models.run_list import PAGE, SINCE, RunList, RunQuery, facets, parse_query, run_list
from arttrace.views.web.rendering import page
from arttrace.views.web.store_reader import SoFar, StoreReader

MOST_LIVE = 1000
"""Rows beyond which a list is loaded anew."""
MOST_AGAIN = 1000
"""Rows that a page begins with at most where further ones had been loaded."""


def once_all_read(title: str) -> Callable[[Callable[[Request], Response]], Callable[[Request], Response]]:
    """For a handler of all runs, which is reached once they have been read; until then its page, of this title, says
    what is going on."""

    def opening(handler: Callable[[Request], Response]) -> Callable[[Request], Response]:
        @functools.wraps(handler)
        def opened(request: Request) -> Response:
            so_far = reader_of(request).so_far()
            if not so_far.unread:
                return handler(request)
            return page("runs_opening.html", section=title.lower(), title=title, so_far=so_far)

        return opened

    return opening


def ready(request: Request) -> Response:
    """Reads all runs, then lets the page ask for itself again."""
    reader_of(request).runs()
    return Response(headers={"hx-refresh": "true"})


def show(request: Request) -> Response:
    """The page; up to the row that `upto` names, as a page says of itself when it has loaded further rows."""
    reader = reader_of(request)
    query = parse_query(request.query_params.multi_items())
    so_far = reader.so_far()
    after, upto = (request.query_params.get(name, "") for name in ("after", "upto"))
    rows = len(_found(reader, so_far, query, after=after, upto=upto).rows) if upto else PAGE
    found = _found(reader, so_far, query, after=after, limit=min(max(rows, PAGE), MOST_AGAIN))
    return page(
        "runs.html",
        section="runs",
        query=query,
        after=after,
        list=found,
        upto=found.rows[PAGE - 1].cursor if len(found.rows) > PAGE else found.following,
        state=reader.state,
        facets=facets(so_far.runs),
        statuses=STATUSES,
        since=SINCE,
    )


def more(request: Request) -> Response:
    """The rows after a cursor."""
    query = parse_query(request.query_params.multi_items())
    reader = reader_of(request)
    found = _found(reader, reader.so_far(), query, after=request.query_params.get("after", ""))
    return page("_run_rows.html", query=query, list=found)


def live(request: Request) -> Response:
    """The first page again, if the store has changed since `state`; 204 if not."""
    reader = reader_of(request)
    so_far = reader.so_far()
    if request.query_params.get("state") == reader.state:
        return Response(status_code=204)
    query = parse_query(request.query_params.multi_items())
    after, upto = (request.query_params.get(name, "") for name in ("after", "upto"))
    found = _found(reader, so_far, query, after=after, upto=upto)
    if len(found.rows) > MOST_LIVE or (not upto and found.following):  # more than the page could put among its rows
        return Response(headers={"hx-refresh": "true"})
    return page("_runs_live.html", query=query, list=found, state=reader.state, statuses=STATUSES)


def _found(
    reader: StoreReader, so_far: SoFar, query: RunQuery, *, after: str = "", upto: str = "", limit: int = PAGE
) -> RunList:
    ids = reader.with_text(query.text) if query.text else None
    return run_list(so_far.runs, query, ids, after=after, upto=upto, limit=limit, unread=so_far.unread)
