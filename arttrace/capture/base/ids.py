"""Ids from a generator of our own, seeded by the system: the user's seeded `random` is neither consumed nor able to
repeat them. Asking the system for each id would cost a call more than all else that starts a span."""

from __future__ import annotations

import os
import random

_random = random.Random()  # ids are no secrets


def _after_fork_in_child() -> None:
    _random.seed()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def random_hex(digits: int) -> str:
    """That many random hex digits."""
    return f"{_random.getrandbits(4 * digits):0{digits}x}"


def new_span_id() -> int:
    """A random id of 64 bits, not 0."""
    return _random.getrandbits(64) or 1


def new_trace_id() -> int:
    """A random id of 128 bits, not 0."""
    return _random.getrandbits(128) or 1
