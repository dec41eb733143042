"""A port that nobody else gets, for a server that is started later, or stopped and started again."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port of 127.0.0.1 at which nothing listens: whoever connects is refused.

    It stays bound in this block, so the kernel gives it to nobody who asks for any port; a server that sets
    SO_REUSEADDR (asyncio's, http.server's) can listen there.
    """
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]
