"""For how many requests the files suffice that this process may open: a shell allows few, and more to who asks."""

from __future__ import annotations

import contextlib
import resource

_EACH = 3
"""The client's connection, one to an engine, and another of a client that keeps it for its next request."""
_OTHERS = 128


def requests_at_once(wanted: int) -> int:
    """How many of the requests wanted can be held at once, after this process has let itself open files for them."""
    needed = _OTHERS + _EACH * wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY not in (soft, hard):
        needed = min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < needed:
        with contextlib.suppress(ValueError, OSError):  # a system may have a bound beside
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
            soft = needed
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, (soft - _OTHERS) // _EACH))
