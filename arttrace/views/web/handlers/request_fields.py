"""What the handlers read from a request: the store that the application reads, and numbers of the address."""

from __future__ import annotations

from starlette.requests import Request

from arttrace.views.web.store_reader import StoreReader


def reader_of(request: Request) -> StoreReader:
    """The store, as this application reads it."""
    reader: StoreReader = request.app.state.reader
    return reader


def integer(request: Request, name: str) -> int:
    """A number of the address, 0 where it is none."""
    text = request.query_params.get(name, "")
    return int(text) if text.isdecimal() and len(text) < 10 else 0
