"""The `openai.AsyncOpenAI` that a model hands out."""

from __future__ import annotations

import functools
import ssl
from typing import Any

import httpx


def client_of(base_url: str | None, key: str | None) -> Any:
    """An `openai.AsyncOpenAI` of a server.

    Args:
        base_url: The server's base URL; None stands for what the environment names.
        key: Its key; None as well.
    """
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient

    return AsyncOpenAI(base_url=base_url, api_key=key, http_client=DefaultAsyncHttpxClient(verify=trusted()))


@functools.cache
def trusted() -> ssl.SSLContext:
    """Whom clients trust, read once: it takes twenty milliseconds, and each rollout may have a client of its own. Whom
    httpx does, as the model may be a provider's, and this machine, as what trains by the same server (`verified`)."""
    context = httpx.create_ssl_context()
    context.load_default_certs()
    return context
