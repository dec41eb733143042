"""Addresses that hold an id: whatever is in one stands escaped, so that a slash of its own begins no further part."""

from __future__ import annotations

from urllib.parse import quote, unquote

from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.types import Receive, Scope, Send

_WITH_IDS = ("/runs/", "/rows/")
_DOTS = (".", "..")
"""Parts that a browser takes out of an address, escaped or not."""


def escaped(id: str) -> str:
    """An id as one part of an address. Where it is dots alone, or these after tildes, a tilde comes before it."""
    return f"~{id}" if id.lstrip("~") in _DOTS else quote(id, safe="")


class _Id(Convertor[str]):
    """An id as `escaped` gave it; one that a person typed may have slashes."""

    regex = ".+"

    def convert(self, value: str) -> str:
        return unquote(value[1:] if value[0] == "~" and value.lstrip("~") in _DOTS else value)

    def to_string(self, value: str) -> str:
        return escaped(value)


class _OnePart(_Id):
    """An id that is one part."""

    regex = "[^/]+"


register_url_convertor("id", _Id())
register_url_convertor("part", _OnePart())


class WithIds(Starlette):
    """An application whose routes with ids, `{name:id}` and `{name:part}`, are found by addresses as they were sent."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(_WITH_IDS):
            sent = scope.get("raw_path")
            scope = {**scope, "path": sent.decode("latin-1") if sent else quote(scope["path"])}
        await super().__call__(scope, receive, send)
