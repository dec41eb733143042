"""suppress_instrumentation: within it no OpenTelemetry instrumentation records what our own code sends.

OpenTelemetry's `opentelemetry-instrumentation` has the same, but is not a dependency; it reads these keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import context
from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY

_KEYS = (_SUPPRESS_INSTRUMENTATION_KEY, "suppress_instrumentation")
"""The second is what older instrumentations look for."""


@contextmanager
def suppress_instrumentation() -> Iterator[None]:
    """Nothing that happens in the block is recorded by an instrumentation."""
    within = context.get_current()
    for key in _KEYS:
        within = context.set_value(key, True, within)
    token = context.attach(within)
    try:
        yield
    finally:
        context.detach(token)
