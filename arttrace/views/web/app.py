"""The application: its addresses, its static files, and errors as pages."""

from __future__ import annotations

from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from arttrace.store import AnyStore
from arttrace.system.errors import StoreError
from arttrace.views.web.addresses import WithIds
from arttrace.views.web.guard import AccessGuard
from arttrace.views.web.handlers import annotate, groups, run, runs, tokens, training
from arttrace.views.web.rendering import STATIC, page
from arttrace.views.web.store_reader import NotHere, StoreReader


def create_app(store: AnyStore, key: str, *, anywhere: bool = False) -> ASGIApp:
    """The viewer of a store, behind its guard: see `AccessGuard` for `key` and `anywhere`."""
    app = WithIds(
        routes=[
            Route("/", _home),
            Route("/runs", runs.show),
            Route("/groups", groups.show),
            Route("/groups/one", groups.one),
            Route("/training", training.show),
            Route("/training/step", training.step),
            Route("/rows/runs", runs.more),
            Route("/rows/live", runs.live),
            Route("/rows/ready", runs.ready),
            Route("/rows/tokens/{id:id}", tokens.rows),
            Route("/rows/transcript/{id:id}", run.transcript_rows),
            Route("/rows/timeline/{id:id}", run.timeline_rows),
            Route("/rows/graph/{id:id}", run.graph_rows),
            Route("/rows/spans/{id:id}", run.span_rows),
            Route("/runs/{id:id}/tokens", tokens.show),
            Route("/runs/{id:id}/timeline", run.timeline),
            Route("/runs/{id:id}/graph", run.graph),
            Route("/runs/{id:id}/spans", run.spans),
            Route("/runs/{id:id}/spans/{span_id:part}", run.span),
            Route("/runs/{id:id}/spans/{span_id:part}/span.json", run.span_json),
            Route("/runs/{id:id}/run.json", run.whole_json),
            Route("/runs/{id:id}/run.md", run.whole_markdown),
            Route("/runs/{id:id}/rewards", annotate.give, methods=["POST"]),
            Route("/runs/{id:id}/ready", run.ready),
            Route("/runs/{id:id}/changed", run.changed),
            Route("/runs/{id:id}", run.show),
            Mount("/static", _Kept(StaticFiles(directory=STATIC))),
        ],
        exception_handlers={NotHere: _not_here, StoreError: _store_error, HTTPException: _http_error},
    )
    app.state.reader = StoreReader(store)
    return AccessGuard(app, key, anywhere=anywhere)


class _Kept:
    """Static files, which a browser may keep: their addresses change with their content."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def kept(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == HTTPStatus.OK:
                message["headers"] = [*message["headers"], (b"cache-control", b"private, max-age=31536000, immutable")]
            await send(message)

        await self._app(scope, receive, kept)


def _home(_request: Request) -> Response:
    return RedirectResponse("/runs")


def _store_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, StoreError)
    return page("message.html", 409, title="The store cannot answer", text=error.message, hint=error.hint)


def _not_here(_request: Request, error: Exception) -> Response:
    assert isinstance(error, NotHere)
    title = f"There is no such {error.what}"
    return page("message.html", HTTPStatus.NOT_FOUND, title=title, text=error.message, hint=error.hint)


def _http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = "There is no such page." if error.status_code == HTTPStatus.NOT_FOUND else error.detail
    return page("message.html", error.status_code, title=HTTPStatus(error.status_code).phrase, text=text)
