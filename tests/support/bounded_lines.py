"""A walk that does not end fails by itself, with the shape that it did not end on, and holds up nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

_PACKAGES = tuple(f"{Path(__file__).parents[2] / package}/" for package in ("arttrace", "trainer"))


@contextmanager
def bounded_lines(shape: object, bound: int) -> Iterator[None]:
    """Fails once this thread has run more than `bound` lines of the two packages: a number that the machine's speed
    does not change."""
    left = bound

    def line(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        left -= event == "line"
        if left < 0:
            code = frame.f_code
            raise AssertionError(f"{code.co_qualname} had run the {bound}th line and more, and did not end, on {shape}")
        return line

    def called(frame: FrameType, event: str, argument: Any) -> Any:
        return line if frame.f_code.co_filename.startswith(_PACKAGES) else None

    before = sys.gettrace()
    sys.settrace(called)
    try:
        yield
    finally:
        sys.settrace(before)
