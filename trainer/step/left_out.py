"""What training leaves out, in lines: the same for every method, before a step and in a plan of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from arttrace.records.sequence import NotTrained
from arttrace.records.values.units import quantity

Reasons = Mapping[str, int] | Mapping[NotTrained, int]
"""The number left out, by reason."""


def left_out_lines(
    trajectories: Reasons,
    *,
    conversations: Reasons | None = None,
    calls: Reasons | None = None,
) -> Iterator[str]:
    """A line for each reason, by what it counts: trajectories and conversations that are left out, and calls whose
    tokens are not trained."""
    for count, reason in _counted(trajectories):
        yield f"left out: {quantity(count, 'trajectory')} ({reason})"
    for count, reason in _counted(conversations or {}):
        yield f"left out: {quantity(count, 'conversation')} ({reason})"
    for count, reason in _counted(calls or {}):
        yield f"quarantined: {quantity(count, 'call')} ({reason})"


def _counted(reasons: Reasons) -> Iterator[tuple[int, str]]:
    for reason, count in sorted(reasons.items()):
        yield count, str(reason)
