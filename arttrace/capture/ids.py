"""Ids from the operating system: the user's seeded `random` is neither consumed nor able to repeat them."""

from __future__ import annotations

import os

from opentelemetry.sdk.trace.id_generator import IdGenerator


def random_hex(digits: int) -> str:
    """That many random hex digits (an even number)."""
    return os.urandom(digits // 2).hex()


class SystemIds(IdGenerator):
    """Trace and span ids. The SDK's own generator draws from the global `random`, which user code seeds."""

    def generate_span_id(self) -> int:
        """A random id of 64 bits, not 0."""
        return int.from_bytes(os.urandom(8), "big") or 1

    def generate_trace_id(self) -> int:
        """A random id of 128 bits, not 0."""
        return int.from_bytes(os.urandom(16), "big") or 1
